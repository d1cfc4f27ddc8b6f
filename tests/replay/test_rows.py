"""Edited files of rows as a source, and resume files that are not what they should be."""

from __future__ import annotations

import base64
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.golden import RABBITMQ, GoldenCase, case_id, case_named, opened, run_cli

from mqstore.errors import CannotOpenError
from mqstore.places import open_rocketmq
from mqstore.rabbitmq.message.properties import PropertiesError, json_properties, properties_from_json
from mqstore.replay.queue_rows import parquet_rows, queue_rows
from mqstore.replay.running import Journal
from mqstore.table.text import columns_for, python_rows
from mqstore.testing import RunningBroker

QUEUES = case_named("3.10.8/f-mixed-features")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "replay.md"


def rows_of(store: Path) -> list[dict[str, Any]]:
    batches = open_rocketmq(store).to_batches(columns_for("base64"), milliseconds=True)
    return [row for batch in batches for row in python_rows(batch, "base64")]


def written(place: Path, *rows: object) -> Path:
    file = place / "edited.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_the_rows_of_the_guide_are_messages(tmp_path: Path) -> None:
    blocks = re.findall(r"^```json rows\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(block)
        assert run_cli("replay", file, "--create", "--to", tmp_path / f"store{number}").status == 0
    (logged,) = rows_of(tmp_path / "store0")
    assert (logged["topic"], logged["keys"], base64.b64decode(logged["body"])) == ("orders", "o-17", b"paid")
    queued, routed = rows_of(tmp_path / "store1")
    assert (queued["topic"], queued["keys"], queued["properties"]["header.shop"]) == ("orders", "o-17", "eu")
    assert routed["topic"] == "orders_eu"
    to_queue, by_exchange = queue_rows(tmp_path / "1.jsonl")
    assert to_queue.amqp_address == ("", "orders")
    assert by_exchange.amqp_address == ("shop", "orders.eu")


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_printed_rows_of_rabbitmq_are_the_messages_of_the_store(case: GoldenCase, tmp_path: Path) -> None:
    """Both ways of a replay, from the store and from the rows that it prints, give the same records."""
    printed = [row for row in run_cli("messages", opened(case), "--body", "base64", "-o", "jsonl").rows if row["verdict"] == "intact"]
    first = run_cli("replay", opened(case), "--create", "--to", tmp_path / "first", "-o", "json")
    assert first.document["sent"] == len(printed)
    second = run_cli("replay", written(tmp_path, *printed), "--create", "--to", tmp_path / "second", "-o", "json")
    assert second.document["sent"] == len(printed)
    stores = [[], []]  # type: list[list[dict[str, Any]]]
    for found, name in zip(stores, ("first", "second"), strict=True):
        for row in rows_of(tmp_path / name):
            del row["properties"]["MQSTORE_FROM"]
            timed = row["born_timestamp"] if "timestamp" in row["properties"] else None
            found.append({"topic": row["topic"], "body": row["body"], "properties": row["properties"], "born": timed})
    assert stores[0] == stores[1]
    assert [row["body"] for row in stores[0]] == [row["payload_b64"] for row in printed]


def test_properties_come_back_from_json() -> None:
    count = 0
    for row in run_cli("messages", opened(QUEUES), "-o", "jsonl").rows:
        if row["properties"]:
            count += 1
            assert json_properties(properties_from_json(row["properties"])) == row["properties"]
    assert count


@pytest.mark.parametrize(
    "properties",
    [
        [],
        {"colour": "red"},
        {"message_id": 5},
        {"message_id": {"b64": "?"}},
        {"message_id": "x" * 256},
        {"delivery_mode": "2"},
        {"priority": 256},
        {"headers": [["a", "b"]]},
        {"headers": [["a", "nonsense", 1]]},
        {"headers": [["a", "decimal", 1]]},
        {"headers": [["a", "signedint", "x"]]},
        {"headers": [["a", "longstr", 1]]},
        {"headers": "x"},
        {"headers": {"x" * 300: 1}},
        {"headers": {"n": 1 << 70}},
    ],
)
def test_properties_that_cannot_be_are_refused(properties: Any) -> None:
    with pytest.raises(PropertiesError):
        properties_from_json(properties)


def test_deep_headers_are_refused() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    with pytest.raises(PropertiesError):
        properties_from_json({"headers": deep})


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        (['{"topic": "a", "body": "1"}', "not a row", '{"topic": 5}', '{"topic": "b"}'], ("line 2", "line 3")),
        (
            ['{"queue": "a", "payload": "1"}', '{"queue": "b", "payload_b64": "?"}', '{"payload": "x"}'],
            ("line 2", "line 3", "neither a queue"),
        ),
        (['{"queue": "a", "payload": "1"}', '{"topic": "b"}'], ("line 2", "no column 'topic'")),
        (['{"queue": "a", "payload": "1", "properties": {"headers": 5}}'], ("line 1", "headers must be")),
        (['{"queue": "a", "payload_sha256": "00", "payload_len": 3}'], ("line 1", "--body base64")),
        (["[1, 2]"], ("line 1", "JSON lines")),
        (["\udcff"], ("line 1", "UTF-8")),
        (['{"queue": "a", "payload": "\\ud800"}'], ("line 1", "half a character")),
        (['{"queue": "a"}', *["bad"] * 9], ("line 6", "and more lines")),
    ],
)
def test_bad_lines_are_named_and_nothing_is_sent(rows: list[str], reported: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "edited.jsonl"
    file.write_bytes("".join(row + "\n" for row in rows).encode("utf-8", "surrogateescape"))
    done = run_cli("replay", file, "--create", "--to", tmp_path / "store")
    assert done.status == 2
    for each in (*reported, "nothing was sent"):
        assert each in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_a_resume_file_belongs_to_one_run(tmp_path: Path) -> None:
    file = written(tmp_path, *({"topic": "orders", "body": f"{number}"} for number in range(5)))
    asked = ("replay", file, "--create", "--to", tmp_path / "store", "--resume", tmp_path / "sent.journal")
    assert run_cli(*asked).status == 0
    assert "5 messages skipped" in run_cli(*asked).stdout
    written(tmp_path, *({"topic": "orders", "body": f"{number}"} for number in range(1, 5)))
    changed = run_cli(*asked)
    assert changed.status == 2
    assert "is the resume file of another run" in changed.stderr
    assert len(rows_of(tmp_path / "store")) == 5


def test_a_resume_file_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "sent.journal", "run") as journal:
        journal.note("a/0", 1, "x")
        program = "import sys; from pathlib import Path; from mqstore.replay.running import Journal; Journal(Path(sys.argv[1]), 'run')"
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "sent.journal")], capture_output=True, text=True, check=False)
    assert "is in use by another run" in done.stderr
    with Journal(tmp_path / "sent.journal", "run") as journal:
        assert journal.resumed == {"a/0"}


@pytest.mark.parametrize(
    "content", [b"", b"x", b'{"replay"', b"[]\n", b'{"replay": 5}\n', b'{"replay": "run"}\n[]\n', bytes(3 << 20), b"\xff\n"]
)
def test_a_file_that_is_not_a_resume_file_is_kept_and_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "sent.journal"
    file.write_bytes(content)
    done = run_cli("replay", written(tmp_path, {"topic": "a"}), "--create", "--to", tmp_path / "store", "--resume", file)
    if b'{"replay"'.startswith(content):  # as a kill may leave it
        assert done.status == 0
    else:
        assert done.status == 2
        assert "resume file" in done.stderr
        assert file.read_bytes() == content


def test_a_device_or_a_directory_is_not_a_resume_file(tmp_path: Path) -> None:
    for name in ("/dev/zero", "/dev/full", tmp_path, tmp_path / "no" / "directory"):
        done = run_cli("replay", written(tmp_path, {"topic": "a"}), "--create", "--to", tmp_path / "store", "--resume", name)
        assert done.status == 2
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "store").exists()


def test_without_room_for_the_resume_file_the_run_ends_and_goes_on_later(tmp_path: Path) -> None:
    file = written(tmp_path, *({"topic": "orders", "body": f"{number}"} for number in range(100)))
    limit = (2500, 2500)
    with RunningBroker(tmp_path / "broker") as broker:
        argv = ["replay", str(file), "--to", f"rocketmq://{broker.address}", "--resume", str(tmp_path / "sent.journal")]
        done = subprocess.run(
            # without -B it would leave bytecode that ends at the limit, on which later processes fail
            [sys.executable, "-B", "-m", "mqstore", *argv],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr
        assert "sent.journal cannot be written: the file size limit is reached" in done.stderr
        later = run_cli(*argv)
        assert later.status == 0, later.stderr
    bodies = [base64.b64decode(row["body"]) for row in rows_of(tmp_path / "broker") if row["topic"] == "orders"]
    assert bodies == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("columns", ["struct", "json"])
def test_rows_of_rabbitmq_in_parquet_are_the_messages_of_the_store(columns: str, tmp_path: Path) -> None:
    """As columns, as `export` writes them, and with JSON in `properties`, as `salvage` does: both give what the store itself gives."""
    import pyarrow as pa

    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.stores import open_store
    from mqstore.table.columns import RABBITMQ_COLUMNS
    from mqstore.table.text import rename_properties_json

    store = open_store(opened(QUEUES))
    assert isinstance(store, RabbitMQStore)
    names = (
        RABBITMQ_COLUMNS if columns == "struct" else tuple("properties_json" if name == "properties" else name for name in RABBITMQ_COLUMNS)
    )
    table = pa.Table.from_batches(store.to_batches(names))
    if columns == "json":
        table = pa.Table.from_batches([rename_properties_json(batch) for batch in table.to_batches()])
    intact = table.filter(pa.compute.equal(table["verdict"], "intact"))
    pq.write_table(intact, tmp_path / "rows.parquet", row_group_size=50)
    first = run_cli("replay", opened(QUEUES), "--create", "--to", tmp_path / "first", "-o", "json")
    second = run_cli("replay", tmp_path / "rows.parquet", "--create", "--to", tmp_path / "second", "-o", "json")
    assert second.document["sent"] == first.document["sent"] == intact.num_rows
    sent: list[list[Any]] = [[], []]
    for found, name in zip(sent, ("first", "second"), strict=True):
        for row in rows_of(tmp_path / name):
            del row["properties"]["MQSTORE_FROM"]
            found.append((row["topic"], row["body"], row["properties"]))
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"queue": "a", "payload": b"\xff", "properties": {"message_id": "\ufffd"}}, "message_id has lost bytes"),
        ({"queue": "a", "payload": None, "verdict": "unreachable"}, "its verdict is 'unreachable'"),
        ({"payload": b"1"}, "neither a queue nor routing_keys"),
        ({"queue": "a", "payload": b"1", "properties": "{"}, "column properties is not JSON"),
        ({"queue": "a", "payload": b"1", "properties": {"headers": [{"name": "x", "type": "long", "value": "?"}]}}, "'x' is not JSON"),
        ({"queue": "a", "payload": 5}, "column payload must be text, not 5"),
    ],
)
def test_bad_rows_of_rabbitmq_in_parquet_are_named_and_nothing_is_sent(row: dict[str, Any], reported: str, tmp_path: Path) -> None:
    import pyarrow as pa

    good = {"queue": "a", "payload": 6 if row.get("payload") == 5 else b"0", "properties": row.get("properties") and None}
    pq.write_table(pa.Table.from_pylist([row, {**good}]), tmp_path / "rows.parquet")
    done = run_cli("replay", tmp_path / "rows.parquet", "--create", "--to", tmp_path / "store")
    assert done.status == 2
    assert reported in done.stderr
    assert "row 1: " in done.stderr
    assert "nothing was sent" in done.stderr
    assert not (tmp_path / "store").exists()


def test_damage_in_parquet_is_reported_with_the_row_before_it(tmp_path: Path) -> None:
    import pyarrow as pa

    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"queue": "a", "payload": b"%d" % number} for number in range(9)]), file)
    raw = file.read_bytes()
    file.write_bytes(raw[:4] + b"\xff" * 40 + raw[44:])
    with pytest.raises(CannotOpenError, match="cannot be read after row 0: "):
        list(parquet_rows(file, 0))


def test_parquet_without_payloads_or_with_other_columns_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    for row, reported in (
        ({"queue": "a", "verdict": "intact"}, "without their payloads"),
        ({"queue": "a", "payload": b"1", "colour": "red"}, "no column 'colour'"),
    ):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
        done = run_cli("replay", tmp_path / "rows.parquet", "--create", "--to", tmp_path / "store")
        assert (done.status, reported in done.stderr) == (2, True)


def test_what_was_refused_in_an_earlier_run_is_counted_as_refused(tmp_path: Path) -> None:
    """Properties that no record can hold are refused in each run, and the message is never counted as skipped."""
    properties = [{"note": "x" * 40_000} if number in (1, 4) else {} for number in range(6)]
    file = written(
        tmp_path,
        *({"topic": "orders", "queue_id": number % 2, "body": "paid", "properties": each} for number, each in enumerate(properties)),
    )
    asked = ("replay", file, "--create", "--to", tmp_path / "store", "--resume", tmp_path / "sent.journal")
    first, second, told = run_cli(*asked, "-o", "json"), run_cli(*asked, "-o", "json"), run_cli(*asked)
    assert (first.status, first.document["sent"], first.document["skipped"], first.document["refused"]) == (1, 4, 0, 2)
    assert (second.status, second.document["sent"], second.document["skipped"], second.document["refused"]) == (1, 0, 4, 2)
    assert sorted(map(str, second.document["refusals"])) == sorted(map(str, first.document["refusals"]))
    assert "4 messages skipped" in told.stdout
    assert told.stdout.count("Refused: ") == 2
