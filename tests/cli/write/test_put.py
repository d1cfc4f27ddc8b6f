"""`put`: what it stores and prints, and which requests it refuses without changing anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.golden import Outcome, case_named, opened, run_cli, tree_checksum, unchanged, unpack
from support.privilege import needs_permissions, without_privilege
from support.stores import Store, message

import mqstore
from mqstore.rocketmq import MessageStore, StoreConfig

SMALL = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"


def sentence(outcome: Outcome, status: int = 2) -> str:
    """Return the one-sentence error of a command that failed."""
    assert outcome.status == status, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.count("\n") == 1, outcome
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.removeprefix("mqstore: ").strip()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Write broker settings that give small files."""
    path = tmp_path / "broker.conf"
    path.write_text(SMALL)
    return path


@pytest.fixture
def store(tmp_path: Path, small: Path) -> Path:
    """Create a store with one message, whose key shows the geometry of the index file."""
    root = tmp_path / "store"
    assert run_cli("put", root, "-t", "orders", "--body", "first", "-k", "o-1", "--create", "--config", small).status == 0
    return root


@pytest.fixture
def held(store: Path) -> Iterator[Path]:
    """Yield a store that another process has open."""
    hold = """
import sys
from mqstore.rocketmq import MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], StoreConfig(services=False))
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", hold, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    yield store
    holder.kill()
    holder.communicate()


def rows(root: Path) -> list[dict[str, object]]:
    return run_cli("messages", root, "-o", "jsonl", "--body", "text").rows


# stored messages


def test_a_message_has_what_the_options_say_and_is_found_by_its_keys(tmp_path: Path, small: Path) -> None:
    root = tmp_path / "store"
    options = ["--queue", 3, "-k", "o-1 o-2", "--tags", "eu", "--property", "a=1", "--property", "b=x=y", "--body", "paid"]
    told = run_cli("put", root, "-t", "orders", *options, "--create", "--config", small, "-o", "json").document
    found = run_cli("query", root, "-t", "orders", "-k", "o-2", "-o", "json").document["messages"]
    assert [row["physical_offset"] for row in found] == [told["physical_offset"]] == [0]
    assert found[0]["queue_id"] == told["queue_id"] == 3
    assert found[0]["msg_id"] == told["msg_id"]
    assert found[0]["properties"] == {"KEYS": "o-1 o-2", "TAGS": "eu", "a": "1", "b": "x=y"}
    assert told["status"] == "PUT_OK"
    assert told["created"] is True
    assert rows(root)[0]["body"] == "paid"


def test_the_store_is_left_intact_closed_and_unlocked(store: Path) -> None:
    assert not (store / "abort").exists()
    assert run_cli("verify", store).status == 0
    with MessageStore.open(store) as taken:
        assert taken.notes == ()


def test_the_queue_offsets_of_a_queue_continue(store: Path) -> None:
    told = run_cli("put", store, "-t", "orders", "--body", "second", "-o", "json").document
    assert (told["queue_offset"], told["created"]) == (1, False)
    assert [row["body"] for row in rows(store)] == ["first", "second"]


def test_text_output_shows_where_the_message_is(store: Path) -> None:
    told = run_cli("put", store, "-t", "orders", "--body", "second").stdout
    assert "PUT_OK" in told
    assert re.search(r"^queue +topic orders, queue 0, queue offset 1$", told, re.MULTILINE)
    assert str(store) in "".join(told.split())  # a long path is wrapped


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_machine_formats_contain_only_the_row(store: Path, form: str) -> None:
    told = run_cli("put", store, "-t", "orders", "--body", "x", "-o", form)
    assert told.stderr == ""
    if form == "csv":
        names, values = told.stdout.splitlines()
        assert dict(zip(names.split(","), values.split(","), strict=True))["queue_offset"] == "1"
    else:
        assert told.document["queue_offset"] == 1


def test_the_body_comes_from_standard_input_byte_by_byte(store: Path) -> None:
    body = bytes(range(256))
    done = subprocess.run([sys.executable, "-m", "mqstore", "put", str(store), "-t", "raw"], input=body, capture_output=True, check=False)
    assert done.returncode == 0, done
    assert (
        next(iter(mqstore.open(store).view().batches(["body"], mqstore.table.columns.Selection(topics=frozenset({"raw"})))))
        .column(0)[0]
        .as_py()
        == body
    )


def test_the_body_comes_from_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"from a file\n")
    assert run_cli("put", store, "-t", "orders", "--body-file", tmp_path / "body").status == 0
    assert rows(store)[-1]["body"] == "from a file\n"


def test_a_delayed_message_waits_and_the_command_shows_where(store: Path) -> None:
    told = run_cli("put", store, "-t", "orders", "--body", "later", "--delay", 3)
    assert "topic SCHEDULE_TOPIC_XXXX, queue 2" in told.stdout
    assert "it is delivered to topic orders" in " ".join(told.stdout.split())
    assert rows(store)[-1]["properties"] == {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "0"}


def test_a_delayed_message_is_not_delivered_by_the_command(store: Path) -> None:
    run_cli("put", store, "-t", "orders", "--body", "later", "--delay", 1)
    with MessageStore.open(store, StoreConfig(services=False, clock=lambda: 1 << 42)):
        pass
    run_cli("put", store, "-t", "orders", "--body", "now")
    assert [row["topic"] for row in rows(store)] == ["orders", "SCHEDULE_TOPIC_XXXX", "orders"]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_new_store_follows_the_rules_asked_for(tmp_path: Path, small: Path, version: str) -> None:
    root = tmp_path / "store"
    assert run_cli("put", root, "-t", "orders", "--tags", "t", "--body", "x", "--create", "--as", version, "--config", small).status == 0
    trailing = (root / "commitlog" / f"{0:020d}").read_bytes().find(b"TAGS\x01t\x02") > 0
    assert trailing is (version == "5.3.3")


def test_with_sync_the_log_reaches_the_disk_before_the_answer(store: Path) -> None:
    assert run_cli("put", store, "-t", "orders", "--body", "x", "--sync", "-o", "json").document["status"] == "PUT_OK"


def test_the_store_of_a_killed_broker_is_recovered_first_and_that_is_reported(tmp_path: Path) -> None:
    case = case_named("4.9.3/b-kill9")
    root = unpack(case, tmp_path / "killed")
    before = len(run_cli("messages", root, "-o", "jsonl").rows)
    told = run_cli("put", root, "-t", "orders", "--body", "x", "--config", case.config)
    assert told.status == 0, told
    assert not (root / "abort").exists()
    assert "index files deleted" in told.stderr
    assert len(run_cli("messages", root, "-o", "jsonl").rows) == before + 1
    # like a broker, drop the index of a killed store and fill the new one from where recovery starts
    report = run_cli("verify", root, "-o", "json").document
    assert report["damage"] == []
    assert "a recovery deleted the newest index file" in report["notes"][0]


def test_mqadmins_name_means_the_same(store: Path) -> None:
    told = run_cli("sendMessage", store, "-t", "orders", "-p", "x", "-k", "k", "-c", "tag", "-i", 1, "-o", "json").document
    assert (told["topic"], told["queue_id"], told["queue_offset"]) == ("orders", 1, 0)
    assert rows(store)[-1]["properties"] == {"KEYS": "k", "TAGS": "tag"}


# refused requests


def test_a_missing_store_is_created_only_on_request(tmp_path: Path) -> None:
    assert "--create creates a store there" in sentence(run_cli("put", tmp_path / "none", "-t", "a", "--body", "x"))
    (tmp_path / "empty").mkdir()
    assert "--create creates a store in it" in sentence(run_cli("put", tmp_path / "empty", "-t", "a", "--body", "x"))
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "none").exists()


def test_a_directory_of_other_things_never_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    assert "is not a message store" in sentence(run_cli("put", tmp_path, "-t", "a", "--body", "x", "--create"))
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_an_archive_is_not_written_to(tmp_path: Path) -> None:
    archive = case_named("4.9.3/a-clean-small").path / "store.tar.xz"
    copy = shutil.copy(archive, tmp_path / "store.tar.xz")
    assert "is an archive" in sentence(run_cli("put", copy, "-t", "a", "--body", "x"))
    assert Path(copy).read_bytes() == archive.read_bytes()


def test_a_store_that_another_process_has_open_is_left_alone(held: Path) -> None:
    before = tree_checksum(held / "commitlog")
    assert "is in use by another process" in sentence(run_cli("put", held, "-t", "orders", "--body", "x"))
    assert tree_checksum(held / "commitlog") == before


@needs_permissions
def test_a_directory_without_write_permission_is_left_alone() -> None:
    root = opened(case_named("4.9.3/a-clean-small"))
    with unchanged(root), without_privilege():
        assert "permission denied" in sentence(run_cli("put", root, "-t", "orders", "--body", "x")).lower()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-t", "a/b", "--body", "x"], "'a/b' cannot be a topic"),
        (["-t", "", "--body", "x"], "cannot be a topic"),
        (["-t", "t" * 128, "--body", "x"], "is too long"),
        (["-t", "a", "--body", "x", "--property", "k"], "'k' is not NAME=VALUE"),
        (["-t", "a", "--body", "x", "--property", "a=1", "--property", "a=2"], "property a is given twice"),
        (["-t", "a", "--body", "x", "-k", "k", "--property", "KEYS=2"], "property KEYS is given twice"),
        (["-t", "a", "--body", "x", "--property", "a=\x02"], "separate properties"),
        (["-t", "a", "--body", "x", "--property", "a=" + "v" * 32768], "at most 32767 fit"),
        (["-t", "a", "--body", "x", "--queue", str(1 << 31)], "queue ids have 31 bits"),
        (["-t", "a", "--body", "x", "--delay", "0"], "it takes a number greater than or equal to 1"),
        (["-t", "a", "--body", "x", "--body-file", "y"], "leave one out"),
        (["-t", "a", "--body-file", "/nowhere/body"], "cannot be read"),
        (["--body", "x"], "missing option '--topic'"),
    ],
)
def test_a_message_that_no_store_accepts_is_refused_and_nothing_is_stored(store: Path, options: list[str], told: str) -> None:
    assert told in sentence(run_cli("put", store, *options))
    assert len(rows(store)) == 1


def test_a_body_above_the_limit_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes((4 << 20) + 1))
    assert "more than 4194304 bytes" in sentence(run_cli("put", store, "-t", "a", "--body-file", tmp_path / "body"))
    (tmp_path / "body").write_bytes(bytes(65536))
    assert "at most 65528 fit" in sentence(run_cli("put", store, "-t", "a", "--body-file", tmp_path / "body"))


def test_a_setting_that_is_not_a_number_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.conf").write_text("mappedFileSizeCommitLog=many\n")
    assert "is not a number" in sentence(run_cli("put", store, "-t", "a", "--body", "x", "--config", tmp_path / "bad.conf"))


def test_a_store_made_by_hand_can_be_appended_to(tmp_path: Path) -> None:
    made = Store(tmp_path / "store")
    made.put(message("orders", keys="k1"))
    root = made.write()
    assert run_cli("put", root, "-t", "orders", "--body", "x").status == 0
    assert [row["queue_offset"] for row in rows(root)] == [0, 1]
