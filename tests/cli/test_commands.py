"""Text output of the commands, and the reasons that they give: found, not found, and why."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import Outcome, case_named, expected, opened, run_cli, unchanged
from support.stores import BEGIN, Store, message

from mqstore.cli import main, verbs

KILLED = case_named("4.9.3/b3-kill9-torn")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create a store of six messages in two topics, five of them in the queues and four in the index."""
    made = Store(tmp_path / "store", listed=5, indexed=4, abort=True)
    for number in range(5):
        made.put(message("orders", f"body {number}".encode(), keys=f"k{number} all", tags="AB"[number % 2], queue_id=number % 2))
    made.put(message("late", bytes(range(256)), keys="all"))
    return made.write()


def text(*argv: object, status: int = 0) -> str:
    outcome = run_cli(*argv)
    assert outcome.status == status, outcome
    assert "\x1b" not in outcome.stdout  # no terminal, no colours
    return outcome.stdout


# help


@pytest.mark.versions
def test_help_lists_the_verbs_and_none_of_mqadmins_names() -> None:
    told = text("--help")
    for verb in ("inspect", "verify", "messages", "get", "queue", "topics", "groups", "query", "rebuild", "export", "demo"):
        assert f" {verb} " in told
    assert "queryMsgByKey" not in told


VERBS = ("inspect", "verify", "messages", "get", "queue", "topics", "groups", "query", "rebuild", "export", "demo")
ALIASES = (
    "queryMsgByKey",
    "queryMsgById",
    "queryMsgByUniqueKey",
    "queryMsgByOffset",
    "printMsg",
    "topicList",
    "topicStatus",
    "consumerProgress",
    "queryCq",
)


@pytest.mark.versions
@pytest.mark.parametrize("verb", [*VERBS, *ALIASES])
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    told = text(verb, "--help")
    assert f"Usage: mqstore {verb}" in told
    assert f"Example: mqstore {verb}" in told
    assert "mqstore help output" in told
    assert told.count("Exit status") == 1
    assert not re.search(r"<(str|int|bool|list|path|text\|)|\[x>=", told, re.IGNORECASE), "types of Python instead of names of values"


def test_the_list_of_commands_says_what_the_commands_say_of_themselves() -> None:
    parser = main.parser()
    for verb in verbs.VERBS:
        command = parser.commands[verb.name]
        assert " ".join((command.help or "").split("\n\n")[0].split()) == verb.summary
        assert command.hidden == (verb.panel == "")


def test_the_options_of_every_command_are_shown_once() -> None:
    assert "--no-color" not in text("verify", "--help")
    assert "--no-color" in text("help", "output")
    assert "--threads" not in text("help", "output")


def test_help_needs_neither_numpy_nor_arrow_nor_spark_nor_an_event_loop() -> None:
    probe = (
        "import sys; from mqstore.cli.main import run; run(['--help']); "
        "print([name for name in ('numpy', 'pyarrow', 'pyspark', 'asyncio', 'rich.progress') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        (["--version"], ("typer", "numpy", "mqstore.cli.main")),
        (["--help"], ("numpy", "pyarrow", "ssl", "pydantic", "pygments", "markdown_it", "mqstore.cli.read.inspect")),
        (["inspect", "--help"], ("pyarrow", "pydantic", "pygments", "markdown_it")),
        (
            ["inspect", "STORE"],
            ("pyarrow", "numpy.ma", "pygments", "ssl", "asyncio", "pydantic", "mqstore.rabbitmq.summary", "mqstore.cli.read.messages"),
        ),
        (["messages", "STORE", "-q", "--limit", "3"], ("pandas", "pyspark", "pydantic")),
    ],
)
def test_a_command_loads_only_what_it_needs(line: list[str], absent: tuple[str, ...]) -> None:
    words = [str(opened(KILLED)) if word == "STORE" else word for word in line]
    probe = f"""import sys
sys.argv = ['mqstore', *{words!r}]
from mqstore.cli.entry import main
try:
    main()
finally:
    print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
    assert done.returncode in (0, 1)


@pytest.mark.versions
@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version_is_that_of_the_package(flag: str) -> None:
    import mqstore

    assert text(flag) == f"mqstore {mqstore.__version__}\n"


# inspect, verify


def test_inspect_shows_what_a_killed_broker_left() -> None:
    told = text("inspect", opened(KILLED))
    assert "Unclean shutdown" in told
    assert "the last record is torn" in told
    assert "572 messages in 8 queues of 3 topics" in told
    assert "80 further messages at the end of the log" in told
    assert "mappedFileSizeCommitLog" in told
    assert "131072" in told


def test_inspect_as_a_document_has_sizes_settings_counts_and_times() -> None:
    document = run_cli("inspect", opened(KILLED), "-o", "json").document
    assert document["shutdown"] == "unclean"
    assert document["settings"] == {
        "mappedFileSizeCommitLog": 131072,
        "mappedFileSizeConsumeQueue": 4000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
    }
    assert document["log"]["max_offset"] == 317009
    assert (document["messages"], document["messages_not_listed"]) == (572, 80)
    times = [row["store_timestamp"] for row in expected(KILLED)]
    assert (document["first_store_timestamp"], document["last_store_timestamp"]) == (min(times), max(times))
    assert {part["name"] for part in document["parts"]} == {"commitlog/", "consumequeue/", "index/"}


def test_inspect_says_when_a_broker_would_refuse_to_start(store: Path) -> None:
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.truncate(40_000)
    (store / "commitlog" / "00000000000000065536").write_bytes(bytes(65536))
    told = text("inspect", store, status=1)
    assert "A RocketMQ 4.9.3 broker would not start here" in told
    assert "40000 bytes" in told


def test_inspect_names_what_it_does_not_read(store: Path) -> None:
    (store / "kvStore").mkdir()
    (store / "kvStore" / "000009.sst").write_bytes(b"\x01")
    assert "messages that pop consumers have in hand, in RocksDB (kvStore)" in text("inspect", store, status=1)


def test_configured_sizes_are_shown_as_given(store: Path, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=100\nmaxIndexNum=400\n")
    document = run_cli("inspect", store, "-o", "json", "--config", tmp_path / "broker.conf").document
    assert document["settings_known_from"]["maxHashSlotNum"] in ("given by --config", "configured")


def test_verify_reports_an_intact_store_and_what_is_left_to_the_broker(store: Path) -> None:
    told = text("verify", store)
    assert told.startswith("Intact: nothing is damaged.")
    assert "1 message" in told


def test_verify_lists_damage_by_kind_and_place(store: Path) -> None:
    body = store / "commitlog" / "00000000000000000000"
    raw = bytearray(body.read_bytes())
    raw[raw.index(b"body 2")] ^= 1
    body.write_bytes(raw)
    told = text("verify", store, status=1)
    assert "Damaged: 1 of 6 messages affected; 1 finding." in told
    assert "bad-checksum" in told
    assert "commitlog/00000000000000000000 at " in told
    rows = run_cli("verify", store, "-o", "jsonl").rows
    assert [row["kind"] for row in rows] == ["bad-checksum"]


# messages


@pytest.mark.versions
def test_messages_are_a_table(store: Path) -> None:
    lines = text("messages", store).splitlines()
    assert lines[0].split()[:3] == ["physical", "offset", "topic"]
    assert len(lines) == 8
    assert lines[-1].rstrip().endswith("unindexed")


def test_filters_of_messages(store: Path) -> None:
    def offsets(*options: object) -> list[int]:
        return [row["queue_offset"] * 2 + row["queue_id"] for row in run_cli("messages", store, "-o", "jsonl", *options).rows]

    assert offsets("--topic", "orders") == [0, 1, 2, 3, 4]
    assert offsets("--topic", "orders", "--queue", "1") == [1, 3]
    assert offsets("--tags", "A") == [0, 2, 4]
    assert offsets("--tags", "A || B") == [0, 1, 2, 3, 4]
    assert offsets("--tags", "*", "--topic", "orders") == [0, 1, 2, 3, 4]
    assert offsets("--key", "k3", "--key", "k1") == [1, 3]
    assert offsets("--grep", r"^body [34]$") == [3, 4]
    assert offsets("--grep", r"\x00\x01") == [0]  # the message of topic `late`
    assert offsets("--since", BEGIN + 1, "--until", BEGIN + 3) == [1, 2]
    for between in (
        ("--between", BEGIN + 1, BEGIN + 3),
        ("--between", f"{BEGIN + 1}..{BEGIN + 3}"),
        (f"--between={BEGIN + 1},{BEGIN + 3}",),
        ("--between", "2022-01-01T00:00:00.001Z..2022-01-01T00:00:00.003Z"),
    ):
        assert offsets(*between) == [1, 2], between
    assert offsets("--since", "1h") == []
    assert offsets("--since", "2022-01-01T00:00:00.004Z", "--topic", "orders") == [4]


def test_the_absence_of_matching_messages_is_reported(store: Path) -> None:
    assert "no message matches" in text("messages", store, "--topic", "nope")


# get


@pytest.mark.parametrize("way", ["offset", "id", "unique", "queue"])
def test_one_message_by_each_of_its_addresses(way: str) -> None:
    golden = opened(KILLED)
    wanted = next(row for row in expected(KILLED) if row["uniq_key"] and row["topic"] == "orders")
    addresses = {
        "offset": ("--offset", wanted["physical_offset"]),
        "id": ("--id", wanted["msg_id"]),
        "unique": ("--unique", wanted["uniq_key"], "-t", wanted["topic"]),
        "queue": ("-t", wanted["topic"], "--queue", wanted["queue_id"], "--at", wanted["queue_offset"]),
    }
    with unchanged(golden):
        found = run_cli("get", golden, *addresses[way], "-o", "json").document
    assert found["physical_offset"] == wanted["physical_offset"]
    assert hashlib.sha256(base64.b64decode(found["body"])).hexdigest() == wanted["body_sha256"]


def test_a_unique_key_that_the_index_does_not_hold_is_found_in_the_log() -> None:
    golden = opened(KILLED)
    wanted = [row for row in expected(KILLED) if row["uniq_key"]][-1]
    outcome = run_cli("get", golden, "--unique", wanted["uniq_key"], "-t", wanted["topic"])
    assert outcome.status == 0
    assert f"physical offset {wanted['physical_offset']}" in outcome.stdout
    assert "not found through the index" in outcome.stderr


def test_a_binary_body_is_shown_in_hex_and_text_as_text(store: Path) -> None:
    assert "\nbody 0\n" in text("get", store, "--offset", "0")
    late = run_cli("messages", store, "-o", "jsonl", "--topic", "late").rows[0]
    told = text("get", store, "--offset", late["physical_offset"])
    assert "00000000  00 01 02 03" in told
    assert "0123456789" in told


def test_a_body_is_written_to_a_new_file_and_never_over_an_existing_one(store: Path, tmp_path: Path) -> None:
    target = tmp_path / "body.bin"
    assert run_cli("get", store, "--offset", "0", "--raw", target, "-o", "json").document["body_len"] == 6
    assert target.read_bytes() == b"body 0"
    again = run_cli("get", store, "--offset", "0", "--raw", target)
    assert again.status == 2
    assert "exists already" in again.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# query


def test_an_explained_empty_answer_begins_with_the_verdict_and_ends_with_what_to_do(store: Path) -> None:
    lines = text("query", store, "-t", "orders", "-k", "k4", "--explain", status=1).splitlines()
    assert lines[0] == "No message for key 'k4' in topic 'orders': after-index-end."
    assert lines[1].startswith("Why: ")
    assert any("slot" in line for line in lines)
    assert lines[-1].strip().startswith("mqstore rebuild ")


def test_a_complete_answer_says_so(store: Path) -> None:
    told = text("query", store, "-t", "orders", "-k", "k3", "--explain")
    assert told.startswith("1 message with key 'k3' in topic 'orders'. The answer is complete.")
    assert "taken" in told


def test_an_incomplete_answer_names_what_is_missing(store: Path) -> None:
    outcome = run_cli("query", store, "-t", "orders", "-k", "all", "--explain", "-o", "json")
    assert outcome.status == 1
    answer = outcome.document
    assert (len(answer["messages"]), len(answer["missing"]), answer["complete"]) == (4, 1, False)
    assert answer["reason"] == "after-index-end"
    assert {step["outcome"] for step in answer["steps"]} >= {"taken"}


def test_the_fields_of_an_answer(store: Path) -> None:
    answer = run_cli("query", store, "-t", "orders", "-k", "k1", "-o", "json").document
    assert set(answer) >= {
        "topic", "key", "view", "index_hits", "messages", "complete", "reason",
        "index_last_update_timestamp", "index_last_update_phyoffset",
    }  # fmt: skip
    assert "steps" not in answer
    assert [row["keys"] for row in answer["messages"]] == ["k1 all"]


# queue, topics, groups


def test_queue_entries_show_whether_they_point_at_their_record(store: Path) -> None:
    made = Store(store.parent / "bad", abort=False)
    made.put(*[message("t", bytes(50)) for _ in range(6)])
    root = made.write()
    queue = root / "consumequeue" / "t" / "0" / "00000000000000000000"
    raw = bytearray(queue.read_bytes())
    raw[20:40] = bytes(20)
    raw[40:48] = (10**9).to_bytes(8, "big")
    raw[60:68] = (7).to_bytes(8, "big")
    raw[80:88] = raw[0:8]
    queue.write_bytes(raw)
    outcome = run_cli("queue", root, "t", 0, "-o", "jsonl", "-v")
    assert [row["state"] for row in outcome.rows] == ["ok", "unwritten", "beyond-log", "no-record", "mismatch", "ok"]
    assert outcome.status == 1
    assert "1 mismatch" in outcome.stderr


def test_entries_of_a_removed_part_of_the_log_are_expired(tmp_path: Path) -> None:
    made = Store(tmp_path / "store", file_size=4096)
    made.put(*[message("t", bytes(900)) for _ in range(12)])
    root = made.write()
    (root / "commitlog" / f"{0:020d}").unlink()
    outcome = run_cli("queue", root, "t", 0, "-o", "jsonl")
    states = [row["state"] for row in outcome.rows]
    assert states[0] == "expired"
    assert set(states[states.index("ok") :]) == {"ok"}
    assert outcome.status == 0


def test_a_part_of_a_queue(store: Path) -> None:
    rows = run_cli("queue", store, "orders", 0, "--from", 1, "-n", 1, "-o", "jsonl").rows
    assert [row["queue_offset"] for row in rows] == [1]
    assert run_cli("queue", store, "orders", 0, "--to", 2, "-o", "jsonl").rows[-1]["queue_offset"] == 1


def test_entries_of_multi_dispatch_are_valid() -> None:
    case = case_named("4.9.3/n-ext-multidispatch")
    for row in run_cli("topics", opened(case), "-o", "jsonl").rows:
        outcome = run_cli("queue", opened(case), row["topic"], row["queue_id"], "-o", "jsonl")
        assert {entry["state"] for entry in outcome.rows} <= {"ok"}, row
        assert outcome.status == 0


def test_topics_count_messages_bytes_and_the_newest(store: Path) -> None:
    rows = run_cli("topics", store, "-o", "jsonl").rows
    assert [(row["topic"], row["queue_id"], row["messages"]) for row in rows] == [("orders", 0, 3), ("orders", 1, 2)]
    assert rows[0]["last_store_timestamp"] == BEGIN + 4
    sizes = [row["size"] for row in run_cli("messages", store, "-o", "jsonl", "--topic", "orders").rows]
    assert sum(row["bytes"] for row in rows) == sum(sizes)
    assert "1 topic, 2 queues, 5 messages" in text("topics", store)


def test_an_empty_list_of_groups_is_explained(store: Path) -> None:
    assert "no config/consumerOffset.json" in text("groups", store)


# the two views


def test_the_recovered_view_shows_what_the_broker_would_serve(store: Path) -> None:
    disk = run_cli("topics", store, "-o", "jsonl").rows
    recovered = run_cli("topics", store, "-o", "jsonl", "--view", "recovered").rows
    assert {row["topic"] for row in disk} == {"orders"}
    assert {row["topic"] for row in recovered} == {"orders", "late"}


def test_rules_of_a_version_are_chosen_by_as(store: Path) -> None:
    for version in ("4.3.0", "4.9.3", "5.3.3", "5.5.0"):
        assert run_cli("messages", store, "--view", "recovered", "--as", version, "-o", "jsonl").status == 0
    refused = run_cli("messages", store, "--view", "recovered", "--as", "3.2")
    assert (refused.status, "there are no rules of version '3.2'; known are 4.3.0 to 5.5.0" in refused.stderr) == (2, True)


# mqadmin's names


def same(alias: Outcome, ours: Outcome) -> None:
    assert (alias.status, alias.stdout) == (ours.status, ours.stdout)
    assert alias.stdout


def test_mqadmins_names_give_the_same_answers() -> None:
    golden = opened(KILLED)
    row = next(row for row in expected(KILLED) if row["uniq_key"] and row["topic"] == "orders" and row["keys"])
    key = row["keys"].split()[0]
    o = ("-o", "json")
    same(
        run_cli("queryMsgByKey", golden, "-t", "orders", "-k", key, "-m", 5, *o),
        run_cli("query", golden, "-t", "orders", "-k", key, "-n", 5, *o),
    )
    same(run_cli("queryMsgById", golden, "-i", row["msg_id"], *o), run_cli("get", golden, "--id", row["msg_id"], *o))
    same(
        run_cli("queryMsgByUniqueKey", golden, "-t", "orders", "-i", row["uniq_key"], *o),
        run_cli("get", golden, "--unique", row["uniq_key"], "-t", "orders", *o),
    )
    same(
        run_cli("queryMsgByOffset", golden, "-t", "orders", "-i", row["queue_id"], "-o", row["queue_offset"], "--output", "json"),
        run_cli("get", golden, "-t", "orders", "--queue", row["queue_id"], "--at", row["queue_offset"], *o),
    )
    same(
        run_cli("printMsg", golden, "-t", "orders", "-o", "jsonl"),
        run_cli("messages", golden, "--topic", "orders", "--body", "text", "-o", "jsonl"),
    )
    same(run_cli("topicStatus", golden, "-t", "orders"), run_cli("topics", golden, "-t", "orders"))
    same(run_cli("consumerProgress", golden), run_cli("groups", golden))
    same(
        run_cli("queryCq", golden, "-t", "orders", "-q", 0, "-i", 3, "-c", 4, *o),
        run_cli("queue", golden, "orders", 0, "--from", 3, "-n", 4, *o),
    )
    assert text("topicList", golden).split() == ["TopicTest", "late", "orders"]


def test_mqadmins_times_are_understood(store: Path) -> None:
    rows = run_cli("printMsg", store, "-t", "orders", "-b", "2022-01-01#00:00:00:003", "-o", "jsonl").rows
    assert [row["store_timestamp"] - BEGIN for row in rows] == [3, 4]


# terminals


def test_colours_are_written_to_terminals_only_and_never_with_no_color(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqstore.cli.common.output import CommonOptions, Output

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for colour in (True, False):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        out = Output(CommonOptions(colour=colour))
        out.line("bad \x1b[31m news", style="bold red")
        out.table((), [])
        written = terminal.getvalue()
        assert ("\x1b[" in written) is colour
        assert "\\x1b[31m" in written


def test_bytecode_that_was_cut_off_is_an_error_and_not_an_interrupt(tmp_path: Path) -> None:
    import mqstore.rocketmq.store.timers as needed

    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "mqstore", "timers", str(opened(case_named("4.9.3/a-clean-small")))]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    (bytecode,) = (path for path in tmp_path.rglob("timers.*.pyc") if path.parent.name == Path(needed.__file__).parent.name)
    bytecode.write_bytes(bytecode.read_bytes()[:2500])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "EOFError" in done.stderr
    assert "interrupted" not in done.stderr
