"""Salvage: every valid message is written, and no acknowledged message counts as intact."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support.golden import GoldenCase, case_id
from support.rabbitmq_index import message_id
from support.rabbitmq_wrecks import PLACE, STORE, Q, body, in_journal, in_segment, in_store, noted, queue_store, vhost

from mqstore.errors import CannotOpenError, NotAStoreError, TargetError, UsageError
from mqstore.rabbitmq.format import index_v2, journal
from mqstore.rabbitmq.salvage import open_wreck, salvage, salvage_store
from mqstore.rabbitmq.store.store import RabbitMQStore

Row = dict[str, Any]


def salvaged(path: Path, place: Path) -> list[Row]:
    target = place / "salvaged.jsonl"
    target.unlink(missing_ok=True)
    report = salvage(open_wreck(path), target)
    rows = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert len(rows) == report.messages
    return rows


def numbered(rows: list[Row], verdict: str = "intact") -> list[int]:
    """Return numbers of the messages of `wrecks` with a verdict."""
    return [int(base64.b64decode(row["payload_b64"]).split()[1]) for row in rows if row["verdict"] == verdict]


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_messages_that_a_broker_recovers_are_intact_and_acknowledged_ones_are_not(case: GoldenCase, tmp_path: Path) -> None:
    rows = salvaged(goldenkit.opened(case), tmp_path)
    want = [row for row in goldenkit.expected(case) if row["recovered"]]
    intact = [row for row in rows if row["verdict"] == "intact"]
    found = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in intact}
    for row in want:
        got = found.pop((row["vhost"], row["queue"], row["priority_level"], row["seq_id"]))
        assert (got["msg_id"], got["properties"], got["payload_sha256"]) == (row["msg_id"], row["properties"], row["payload_sha256"])
    # the rest are messages that a broker discards or loses, according to the golden store
    rest = [row for row in goldenkit.expected(case) if not row["recovered"]]
    assert set(found) <= {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]) for row in rest}
    assert {row["verdict"] for row in rows} <= {"intact", "consumed", "unindexed", "duplicate"}


def test_message_files_alone_yield_every_message_as_unindexed(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/d-large-fanout")
    (store,) = goldenkit.opened(case).rglob("msg_store_persistent")
    rows = salvaged(store, tmp_path)
    assert len(rows) == 96
    assert {row["verdict"] for row in rows} == {"unindexed"}
    ids = {row["msg_id"] for row in goldenkit.expected(case) if row["location"] == "msg_store_persistent"}
    assert {row["msg_id"] for row in rows} == ids
    one = salvaged(store / "4.rdq", tmp_path)
    assert {row["store_file"] for row in one} == {"4.rdq"}
    assert {row["msg_id"] for row in one} == {row["msg_id"] for row in rows if row["store_file"] == "4.rdq"}


def test_a_queue_directory_alone_is_named_by_its_messages(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/a-small-clean")
    (place,) = goldenkit.opened(case).glob("msg_stores/vhosts/*/queues/*")
    alone = tmp_path / place.name
    alone.mkdir()
    shutil.copy(place / "journal.jif", alone)
    rows = salvaged(alone, tmp_path)
    assert {(row["vhost"], row["queue"]) for row in rows} == {("/", "small.embedded")}
    assert [row["verdict"] for row in rows].count("intact") == 71
    # the routing keys of a file in another directory prove nothing
    shutil.copytree(alone, tmp_path / "elsewhere")
    assert {row["queue"] for row in salvaged(tmp_path / "elsewhere", tmp_path)} == {"elsewhere"}


@pytest.mark.parametrize(
    ("name", "content", "verdicts"),
    [
        ("journal.jif", in_journal(1) + in_journal(2) + journal.acknowledge(1), {"intact": [2], "consumed": [1]}),
        ("7.idx", in_segment(3) + in_segment(5), {"intact": [3, 5]}),
        ("saved by hand.idx", in_segment(3), {"intact": [3]}),
        ("copy.jif", in_journal(4), {"intact": [4]}),
        ("0.rdq", b"garbage" + in_store(6) + bytes(99) + in_store(7), {"unindexed": [6, 7]}),
        ("9.rdt", in_store(8), {"unindexed": [8]}),
        ("0.qs", queue_store([0, 1])[1], {"unindexed": [0, 1]}),
    ],
)
def test_any_single_file_is_read(name: str, content: bytes, verdicts: dict[str, list[int]], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    rows = salvaged(file, tmp_path)
    assert {row["store_file"] for row in rows} == {name}
    for verdict in ("intact", "consumed", "unindexed"):
        assert numbered(rows, verdict) == verdicts.get(verdict, [])


def test_an_index_of_version_2_alone_counts_unreachable_messages(tmp_path: Path) -> None:
    (tmp_path / "0.qi").write_bytes(queue_store([0, 1])[0] + index_v2.shared_entry(message_id(9), size=3))
    report = salvage(open_wreck(tmp_path / "0.qi"), tmp_path / "out.jsonl")
    assert (report.messages, report.verdicts, report.ok) == (0, {"unreachable": 3}, False)


def test_scattered_parts_are_one_store(tmp_path: Path) -> None:
    wreck = tmp_path / "lost+found"
    for name, content in {
        "#17/12.idx": in_segment(3, embedded=False) + in_segment(4),
        "#17/journal.jif": b"",
        "#18/0.rdq": in_store(3),
        "#19/0.rdq": in_store(5),
        "#19/0.rdt": in_store(6),
        "#20/readme.txt": b"nothing",
    }.items():
        (wreck / name).parent.mkdir(parents=True, exist_ok=True)
        (wreck / name).write_bytes(content)
    rows = salvaged(wreck, tmp_path)
    assert numbered(rows) == [3, 4]
    assert numbered(rows, "unindexed") == [5, 6]
    assert {row["store_file"] for row in rows} == {"#17/12.idx", "#18/0.rdq", "#19/0.rdq", "#19/0.rdt"}
    report = salvage_store(open_wreck(wreck), tmp_path / "fresh", 2, into="saved")
    assert report.messages == 4
    found = RabbitMQStore(tmp_path / "fresh").to_arrow().to_pylist()
    assert [(row["vhost"], row["queue"], row["seq_id"], row["payload"]) for row in found if row["recovered"]] == [
        ("/", "saved", k, body(number)) for k, number in enumerate((3, 4, 5, 6))
    ]


def test_a_fresh_store_has_no_acknowledged_messages(tmp_path: Path) -> None:
    files = {f"{Q}/journal.jif": b"".join(map(in_journal, range(6))) + b"".join(map(journal.acknowledge, (0, 2, 4)))}
    files[f"{STORE}/0.rdq"] = in_store(50)
    for version in (1, 2):
        store = open_wreck(vhost(tmp_path / f"old{version}", files))
        assert salvage_store(store, tmp_path / f"new{version}", version).messages == 3
        rows = RabbitMQStore(tmp_path / f"new{version}").to_arrow().to_pylist()
        assert [row["payload"] for row in rows if row["recovered"]] == [body(n) for n in (1, 3, 5)]
    with pytest.raises(UsageError, match="already has a queue 'q'"):
        salvage_store(open_wreck(tmp_path / "old1"), tmp_path / "third", 2, into="q")
    assert not (tmp_path / "third").exists()


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/f-mixed-features")
    rows = salvaged(goldenkit.opened(case), tmp_path)
    salvage(open_wreck(case.archive), tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(row["msg_id"], row["verdict"], row["seq_id"]) for row in table] == [
        (row["msg_id"], row["verdict"], row["seq_id"]) for row in rows
    ]
    assert [row["payload"] for row in table] == [base64.b64decode(row["payload_b64"]) for row in rows]


def test_verdicts_select_what_is_written_and_all_are_counted(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/a-small-clean")
    report = salvage(open_wreck(goldenkit.opened(case)), tmp_path / "x.jsonl", verdicts=["consumed"])
    assert (report.messages, report.verdicts) == (29, {"intact": 71, "consumed": 29})


def test_sources_that_cannot_be_salvaged_are_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(NotAStoreError, match="no part of a RabbitMQ message store"):
        open_wreck(tmp_path)
    with pytest.raises(CannotOpenError, match="does not exist"):
        open_wreck(tmp_path / "nothing")
    (tmp_path / "0.rdq").write_bytes(in_store(1))
    store = open_wreck(tmp_path / "0.rdq")
    with pytest.raises(UsageError, match="is not known from its name"):
        salvage(store, tmp_path / "out")
    (tmp_path / "there.jsonl").write_text("")
    with pytest.raises(TargetError, match="exists already"):
        salvage(store, tmp_path / "there.jsonl")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_untouched_messages_are_salvaged_from_any_damage(data: st.DataObject) -> None:
    index, queue = queue_store([0, 3, 4])
    files = {
        f"{Q}/journal.jif": b"".join(map(in_journal, range(2048, 2054))) + journal.acknowledge(2048),
        f"{Q}/0.idx": b"".join(in_segment(n, embedded=n % 2 == 0) for n in range(5, 12)),
        f"{STORE}/0.rdq": b"".join(map(in_store, range(5, 12, 2))),
        f"{Q}/0.qi": index,
        f"{Q}/0.qs": queue,
        f"{PLACE}/recovery.dets": noted(2054, 3, count=15),
    }
    name = data.draw(st.sampled_from(sorted(files)))
    raw = bytearray(files[name])
    at = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["cut", "change", "zero", "gone"])):
        case "cut":
            del raw[at:]
        case "change":
            raw[at] ^= data.draw(st.integers(1, 255))
        case "zero":
            raw[at : at + 64] = bytes(len(raw[at : at + 64]))
        case _:
            raw.clear()
    # messages whose bytes and index entries are in untouched files
    parts = {"journal.jif": range(2049, 2054), "0.idx": range(6, 12, 2), "0.qi": (0, 3, 4)}
    needed = {"journal.jif": {"journal.jif"}, "0.idx": {"0.idx", ".config"}, "0.qi": {"0.qi", "0.qs"}}
    own = name.rpartition("/")[2]
    untouched = [number for part, numbers in parts.items() if own not in needed[part] for number in numbers]
    files[name] = bytes(raw)
    with tempfile.TemporaryDirectory() as place:
        store = vhost(Path(place) / "old", files)
        rows = [row for row in salvaged(store, Path(place)) if row["payload_b64"]]
        waiting = {base64.b64decode(row["payload_b64"]) for row in rows if row["verdict"] == "intact"}
        assert {body(number) for number in untouched} <= waiting
