"""`groups --reset`: where a group is moved, which requests are refused, and what a broker would load afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import Outcome, bytime, case_named, groups, opened, queues, run_cli, tree_checksum, unpack
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.config.consumer_offsets import load_offset_table
from mqstore.rocketmq.live.store_lock import StoreLock

FOUR = case_named("4.9.3/f-broker-offsets")
FIVE = case_named("5.3.3/j-broker-offsets")
OFFSETS = "config/consumerOffset.json"
BILLING = '{\n\t"offsetTable":{\n\t\t"orders@billing":{0:2,1:1\n\t\t},\n\t\t"orders@audit":{0:5\n\t\t}\n\t}\n}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create ten messages of topic orders, a second apart, alternating between queues 0 and 1; group billing at 2 and 1, audit at 5."""
    made = Store(tmp_path / "store")
    for number in range(10):
        made.put(message("orders", queue_id=number % 2), at=1000 * number)
    made.write_file(OFFSETS, BILLING.encode())
    return made.write()


def offsets(root: Path, group: str, topic: str) -> dict[int, int]:
    return load_offset_table(ReadOnlyDirectory(root)).offsets.get((group, topic), {})


def sentence(outcome: Outcome, status: int = 2) -> str:
    assert outcome.status == status, outcome
    assert outcome.stderr.count("\n") == 1, outcome
    return outcome.stderr


def reset(root: Path, to: object, *more: object, group: str = "billing", status: int = 0) -> Outcome:
    outcome = run_cli("groups", root, "--reset", group, "-t", "orders", "--to", to, *more)
    assert outcome.status == status, outcome
    return outcome


# destinations


def test_earliest_is_the_minimum_and_the_predecessor_is_kept(store: Path) -> None:
    told = reset(store, "earliest").stdout
    assert "group billing, topic orders: 2 queues moved to earliest" in told
    assert f"{OFFSETS} is written" in told
    assert (store / OFFSETS).read_text() == BILLING.replace("{0:2,1:1", "{0:0,1:0")
    assert (store / f"{OFFSETS}.bak").read_text() == BILLING


def test_the_change_is_shown_before_and_after(store: Path) -> None:
    rows = reset(store, "earliest", "-o", "json").document
    assert rows[1] == {
        "group": "billing",
        "topic": "orders",
        "queue_id": 1,
        "before": 1,
        "after": 0,
        "min_offset": 0,
        "max_offset": 5,
        "lag": 5,
        "state": "moved",
    }


def test_latest_skips_messages_and_therefore_needs_force(store: Path) -> None:
    refused = reset(store, "latest", status=1)
    assert "nothing is written" in refused.stdout
    assert "2 queues not moved" in refused.stderr
    assert (store / OFFSETS).read_text() == BILLING
    reset(store, "latest", "--force")
    assert offsets(store, "billing", "orders") == {0: 5, 1: 5}


def test_only_the_named_queue_is_moved(store: Path) -> None:
    reset(store, "earliest", "--queue", 1)
    assert offsets(store, "billing", "orders") == {0: 2, 1: 0}
    assert offsets(store, "audit", "orders") == {0: 5}


@pytest.mark.parametrize("spell", ["ms", "iso"])
def test_a_time_selects_the_message_stored_then(store: Path, spell: str) -> None:
    at = str(BEGIN + 2000) if spell == "ms" else "2022-01-01T00:00:02Z"
    rows = reset(store, at, "--force", "-o", "jsonl").rows
    assert [(row["queue_id"], row["before"], row["after"], row["state"]) for row in rows] == [(0, 2, 1, "moved"), (1, 1, 0, "moved")]


def test_a_time_after_the_last_message_follows_the_rule_of_each_version(store: Path) -> None:
    """4.9.3 returns the nearest message, 5.3.3 the end of the queue."""
    reset(store, BEGIN + 10**9, "--force", "--as", "4.9.3")
    assert offsets(store, "billing", "orders") == {0: 4, 1: 4}
    reset(store, BEGIN + 10**9, "--force", "--as", "5.3.3")
    assert offsets(store, "billing", "orders") == {0: 5, 1: 5}


def test_a_number_is_a_queue_offset(store: Path) -> None:
    reset(store, 1, "--queue", 0)
    assert offsets(store, "billing", "orders") == {0: 1, 1: 1}
    assert "has offsets 0 to 5; --force sets 6 anyway" in sentence(reset(store, 6, status=2))
    reset(store, 6, "--queue", 0, "--force")
    assert offsets(store, "billing", "orders") == {0: 6, 1: 1}


def test_a_group_that_is_already_there_is_not_changed(store: Path) -> None:
    reset(store, "earliest")
    before = tree_checksum(store)
    rows = reset(store, "earliest", "-o", "jsonl").rows
    assert [row["state"] for row in rows] == ["same", "same"]
    assert tree_checksum(store) == before


def test_a_group_without_an_offset_gets_one_only_with_force(store: Path) -> None:
    assert "--force sets one" in sentence(reset(store, "earliest", group="new", status=1), 1)
    rows = reset(store, "earliest", "-o", "jsonl", group="audit", status=1).rows
    assert [(row["before"], row["after"], row["state"]) for row in rows] == [(5, 0, "moved"), (None, None, "kept")]
    reset(store, "earliest", "--force", group="new")
    assert offsets(store, "new", "orders") == {0: 0, 1: 0}


def test_after_a_kill_the_queues_are_those_a_broker_would_have(tmp_path: Path) -> None:
    made = Store(tmp_path / "store", listed=4, abort=True)
    for _ in range(10):
        made.put(message("orders"))
    made.write_file(OFFSETS, BILLING.encode())
    root = made.write()
    reset(root, "latest", "--force")
    assert offsets(root, "billing", "orders") == {0: 10, 1: 1}


# real brokers' stores


@pytest.mark.parametrize("case", [FOUR, FIVE], ids=["4.9.3", "5.3.3"])
def test_only_the_named_group_of_a_brokers_file_changes(case: object, tmp_path: Path) -> None:
    chosen = FOUR if case is FOUR else FIVE
    prefix = "s62" if chosen is FOUR else "s63"
    root = unpack(chosen, tmp_path / "store")
    before = (root / OFFSETS).read_text()
    outcome = run_cli("groups", root, "--reset", f"{prefix}_tags", "-t", f"{prefix}_orders", "--to", "earliest", "-o", "jsonl")
    assert outcome.status == 0, outcome
    wanted = {row["queue_id"]: row["min_offset"] for row in queues(chosen) if row["topic"] == f"{prefix}_orders"}
    assert {row["queue_id"]: row["after"] for row in outcome.rows} == wanted
    table = dict(groups(chosen)["offset_table"])  # the golden table is shared by the tests of this process
    table[f"{prefix}_orders@{prefix}_tags"] = {str(queue): low for queue, low in wanted.items()}
    found = load_offset_table(ReadOnlyDirectory(root))
    assert {f"{topic}@{group}": {str(queue): at for queue, at in part.items()} for (group, topic), part in found.offsets.items()} == table
    lines = [line for line in before.splitlines() if f"{prefix}_orders@{prefix}_tags" not in line]
    assert [line for line in (root / OFFSETS).read_text().splitlines() if f"{prefix}_orders@{prefix}_tags" not in line] == lines
    assert (root / f"{OFFSETS}.bak").read_text() == before


@pytest.mark.parametrize("identity", ["4.9.3/a-clean-small", "5.3.3/g-clean-small"])
def test_a_time_selects_the_offset_that_the_brokers_own_lookup_returns(identity: str, tmp_path: Path) -> None:
    case = case_named(identity)
    root = unpack(case, tmp_path / "store")
    asked = [row for row in bytime(case) if row["timestamp"] >= 10**12][::37]
    assert len(asked) > 3
    for row in asked:
        outcome = run_cli(
            "groups", root, "--reset", "g", "-t", row["topic"], "--queue", row["queue_id"],
            "--to", row["timestamp"], "--force", "-o", "jsonl",
            "--as", case.version, "--config", case.config,
        )  # fmt: skip
        assert [found["after"] for found in outcome.rows] == [row["offset" if case.version == "4.9.3" else "lower"]], (row, outcome)


# refused requests


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reset", "g"], "--reset needs --topic, and --to"),
        (["--reset", "g", "-t", "orders"], "--reset needs --topic, and --to"),
        (["--reset", "g", "--to", "latest"], "--reset needs --topic, and --to"),
        (["--to", "latest"], "need --reset"),
        (["--queue", "0"], "need --reset"),
        (["--force"], "need --reset"),
        (["--reset", "g", "-g", "h", "-t", "orders", "--to", "latest"], "leave --group out"),
        (["--reset", "g", "-t", "orders", "--to", "soon"], "is not a time"),
        (["--reset", "g", "-t", "orders", "--to=-1"], "neither a time nor a queue offset"),
        (["--reset", "g", "-t", "orders", "--to", "1999-01-01"], "use earliest for the first message"),
    ],
)
def test_an_invalid_request_changes_nothing(store: Path, options: list[str], told: str) -> None:
    before = tree_checksum(store)
    assert told in sentence(run_cli("groups", store, *options))
    assert tree_checksum(store) == before


def test_a_missing_topic_or_queue_is_reported(store: Path) -> None:
    outcome = run_cli("groups", store, "--reset", "billing", "-t", "nowhere", "--to", "earliest")
    assert "no consume queue of topic 'nowhere'" in sentence(outcome, 1)
    assert "has no queue 7; it has 0, 1" in sentence(reset(store, "earliest", "--queue", 7, status=1), 1)
    assert (store / OFFSETS).read_text() == BILLING


def test_a_store_that_is_in_use_is_left_alone(store: Path) -> None:
    with DurableDirectory(store) as directory, StoreLock(directory):
        outcome = run_cli("groups", store, "--reset", "billing", "-t", "orders", "--to", "earliest", subprocess_=True)
        assert "is in use by another process" in sentence(outcome)
    assert (store / OFFSETS).read_text() == BILLING
    reset(store, "earliest")


def test_an_archive_is_not_changed(store: Path) -> None:
    import tarfile

    packed = store.parent / "store.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(store, "store")
    assert "unpack it first" in sentence(reset(packed, "earliest", status=2))


def test_offsets_that_cannot_be_read_are_not_overwritten(store: Path) -> None:
    (store / OFFSETS).write_text("{garbage")
    outcome = reset(store, "earliest", status=2)
    assert "cannot be read, nor can its .bak" in outcome.stderr
    assert (store / OFFSETS).read_text() == "{garbage"
    (store / f"{OFFSETS}.bak").write_text(BILLING)
    reset(store, "earliest")
    assert offsets(store, "billing", "orders") == {0: 0, 1: 0}
    assert (store / f"{OFFSETS}.bak").read_text() == BILLING


def test_a_store_that_a_broker_would_refuse_is_reported_and_not_changed(store: Path) -> None:
    log = next((store / "commitlog").iterdir())
    (store / "commitlog" / f"{10**6:020d}").write_bytes(log.read_bytes()[:100])
    outcome = reset(store, "earliest", status=2)
    assert "refuses to start" in outcome.stderr
    assert (store / OFFSETS).read_text() == BILLING


def test_lmq_offsets_are_changed_in_their_own_file(store: Path) -> None:
    table = {"lmqOffsetTable": {"%LMQ%x@%LMQ%g": 9}, "offsetTable": {"orders@billing": {"0": 4, "1": 4}}}
    (store / "config/lmqConsumerOffset.json").write_text(json.dumps(table))
    assert "config/lmqConsumerOffset.json is written" in reset(store, "earliest").stdout
    assert (store / OFFSETS).read_text() == BILLING
    assert offsets(store, "billing", "orders") == {0: 0, 1: 0}
    assert offsets(store, "%LMQ%g", "%LMQ%x") == {0: 9}


def test_without_reset_the_command_only_reads() -> None:
    root = opened(FOUR)
    before = tree_checksum(root)
    assert run_cli("groups", root, "-o", "jsonl").status == 0
    assert tree_checksum(root) == before


# from the library


def test_a_library_user_gets_the_rows_of_the_command(store: Path) -> None:
    moved = mqstore.open(store).reset_group("billing", "orders", "earliest")
    assert (moved.moved, moved.kept, moved.file) == (2, 0, OFFSETS)
    assert offsets(store, "billing", "orders") == {0: 0, 1: 0}
    (store / OFFSETS).write_text(BILLING)
    assert list(moved.as_dict()["queues"]) == reset(store, "earliest", "-o", "json").document
