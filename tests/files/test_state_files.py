"""Every file that this package writes and reads back, as hostile input: garbage, a flipped bit, foreign owners, links."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqstore.errors import MqstoreError
from mqstore.files.durable import DurableDirectory, NewFile
from mqstore.files.state_file import parse, plain_name, seal
from mqstore.findings import Damage, Kind
from mqstore.jobs.resume import ExportWork, export_and_record, record_written, work_at, written_before
from mqstore.pipeline.tail import append, sinks
from mqstore.rabbitmq import amqp_sender
from mqstore.replay.running import Journal
from mqstore.rocketmq.engine import staging
from mqstore.rocketmq.engine.staged_commit import MANIFEST, CommittedBatch, Intent, Manifest, SinkSettings, load_manifest
from mqstore.rocketmq.engine.staging import StagedPart
from mqstore.table.row_files import PartFile, TaskOutput
from mqstore.wreck import rows as fragments
from mqstore.wreck import search as carve
from mqstore.wreck.carving import Content, Gap, Run

FORGED = 54321  # a user that is neither root nor the one of the tests


@dataclass(frozen=True)
class StateFile:
    """make: writes the file with our own code, returns its path. read: our own reader; what it may return besides the original."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    also: Callable[[Any], list[Any]] = lambda _: [None]


def _journal(place: Path) -> Path:
    with Journal(place / "sent.journal", "run") as journal:
        journal.note("orders/0", -1, "a/0/5")
        journal.note("orders/1", 7, "a/1/6", "too large")
    return place / "sent.journal"


def _read_journal(path: Path) -> Any:
    with Journal(path, "run") as journal:
        return journal.states, journal.refused


def _without_last_line(found: Any) -> list[Any]:
    states, _ = found
    return [({"orders/0": states["orders/0"]}, {}), ({}, {})]  # the last line is torn, and its message in doubt; nothing was noted yet


def _amqp(place: Path) -> Path:
    (place / "sent.json").write_bytes(seal({"about": "run", "confirmed": 9, "again": [[1, 2], [5, 5]]}))
    return place / "sent.json"


WANTED = {"store": "/store", "columns": ["topic"], "log": "0:1"}


def _plan(place: Path) -> Path:
    with work_at(place / "work", resume=True, identity=WANTED) as work:
        work.write_plan({**WANTED, "run_id": "0123456789abcdef", "asked_splits": None, "splits": [[0, 0, 10], [1, 10, 20]]})
        work.keep = True
    return place / "work/plan.json"


def _read_plan(path: Path) -> Any:
    with work_at(path.parent, resume=True, identity=WANTED) as work:
        work.keep = True
        return work.resumed_plan


@dataclass(frozen=True)
class _Task:
    number: int
    stage: str


def _done(place: Path) -> Path:
    (place / "000003.aa.0").write_bytes(b"12345")
    outcome = TaskOutput((PartFile("000003.aa.0", "topic=a/part.parquet", 2, 5),), 2, (Damage("f", 0, 1, Kind.BAD_CHECKSUM, "x"),), 0)
    export_and_record(lambda _: outcome, _Task(3, str(place)))
    return place / "done-000003.json"


def _fragment(place: Path) -> fragments.Fragment:
    return fragments.Fragment("rocketmq", 0, str(place), "jsonl", frozenset({"intact"}), True)


def _kept(place: Path) -> Path:
    (place / "rocketmq-000000").write_bytes(b"12345")
    record = {"rows": 2, "verdicts": {"intact": 2}, "groups": [["", "orders", 2]], "bytes": 5}
    (place / "rocketmq-000000.json").write_bytes(seal(record))
    return place / "rocketmq-000000.json"


def _written(place: Path) -> Path:
    (place / "work").mkdir()
    with NewFile(place / "out.jsonl") as new:
        new.file.write(b"rows")
        record_written(place / "work", new, {"messages": 1}, {"intact": 1})
        new.publish()
    return place / "work/written-out.jsonl.json"


def _found(place: Path) -> Path:
    found = Content(0, 100, [Run(0, np.array([1, 5], np.int64), 90, 3)], gaps=[Gap(1, 2, 3, 4)], unreadable=[(7, 8)]).to_bytes()
    (place / "found-000000").write_bytes(len(found).to_bytes(8, "big") + found)
    return place / "found-000000"


def _read_found(path: Path) -> Any:
    try:
        raw = carve.read_state(path)
        return None if not raw else [Content.from_bytes(each).to_bytes() for each in carve._unpack(raw)]
    except ValueError:
        return None  # the split is searched again


def _sink(place: Path) -> Path:
    part = StagedPart(0, "000000.0.abcdef.arrow", 2, 500, ("orders",))
    stage = str(place / f".store-01234567{staging.MARK}night{staging.OF_JOB}89abcdef")
    intent = Intent("night", 3, True, stage, (part,), 1000, False, SinkSettings("5.3.3", "127.0.0.1:10911", {"maxIndexNum": "400"}))
    with DurableDirectory(place) as directory:
        directory.write_small(MANIFEST, Manifest({"day": CommittedBatch(1, 2, 0, 100, True, 5)}, intent).encode())
    return place / MANIFEST


def _owner(place: Path) -> Path:
    stage = place / f".store-01234567{staging.MARK}night{staging.OF_JOB}89abcdef"
    staging.open_stage(stage)
    return stage / staging.OWNER


def _pending(place: Path) -> Path:
    name = f"append-{0:020d}-{77:020d}-ab12"
    (place / name).mkdir()
    (place / "pending.json").write_bytes(seal({"directory": name, "stop": 77}))
    return place / "pending.json"


def _follow(place: Path) -> Path:
    (place / "follow.json").write_bytes(seal({"as": "parquet", "columns": ["topic", "body"]}, indent=2))
    return place / "follow.json"


def _read_follow(path: Path) -> Any:
    output = object.__new__(sinks.FollowOutput)
    output.path, output.state = path.parent.parent, path.parent
    return output._recorded()


def _batch(place: Path) -> Path:
    files = [{"name": "part-0.parquet", "rows": 2, "bytes": 5}]
    (place / "manifest.json").write_bytes(seal({"batch": 0, "start": 0, "stop": 9, "messages": 2, "files": files}, indent=2))
    return place / "manifest.json"


FILES = {
    "resume file of replay": StateFile(_journal, _read_journal, _without_last_line),
    "resume file of salvage --to amqp://": StateFile(_amqp, lambda path: amqp_sender._read_resume(path, "run"), lambda _: [(0, set())]),
    "plan of export and salvage": StateFile(_plan, _read_plan),
    "finished split of export": StateFile(_done, lambda path: ExportWork(path.parent, None).done(3)),
    "finished fragment of salvage": StateFile(_kept, lambda path: fragments._kept(_fragment(path.parent))),
    "written file of salvage": StateFile(_written, lambda path: written_before(path.parent, path.parent.parent / "out.jsonl")),
    "findings of salvage": StateFile(_found, _read_found),
    "manifest of the sink": StateFile(_sink, lambda path: load_manifest(path.parent.parent), lambda _: [Manifest({})]),
    "owner of a stage": StateFile(_owner, lambda path: staging._is_left_behind(path.parent)),
    "pending append": StateFile(_pending, append._pending),
    "state of follow": StateFile(_follow, _read_follow),
    "batch of follow": StateFile(_batch, sinks.read_batch),
}
KINDS = pytest.mark.parametrize("kind", FILES)


def others(path: Path, place: Path) -> dict[str, bytes]:
    """Return all other files, which no reader may change."""
    return {str(each.relative_to(place)): each.read_bytes() for each in place.rglob("*") if each.is_file() and each != path}


def read_or_refused(state: StateFile, path: Path) -> Any:
    """Return what the reader returns, or a sentence if it refuses. Any other exception fails the test."""
    try:
        return state.read(path)
    except MqstoreError as error:
        sentence = str(error)
    assert sentence
    assert "\n" not in sentence
    return sentence


@KINDS
def test_a_flipped_bit_is_refused_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    raw = path.read_bytes()
    original, rest = state.read(path), others(path, tmp_path)
    outcomes = Counter[str]()
    for bit in range(8 * len(raw)) if len(raw) < 800 else range(0, 8 * len(raw), 5):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = read_or_refused(state, path)
        allowed = found == original or isinstance(found, str) or found in state.also(original)
        assert allowed, (bit, bytes(flipped[max(0, bit // 8 - 30) : bit // 8 + 30]), found)
        outcomes["refused" if found != original else "read"] += 1
    assert others(path, tmp_path) == rest
    assert outcomes["refused"] or kind == "owner of a stage"  # which is never taken for one that is left behind


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(4096),
    "text": b"garbage\n",
    "not UTF-8": b"\xff\xfe\x00{}\n",
    "a list": b"[]\n",
    "null": b"null\n",
    "an empty object": b"{}\n",
    "not a number": b'{"stop": NaN, "confirmed": Infinity}\n',
    "a deep nest": b"[" * 200_000 + b"\n",
    "a deep object": b'{"a":' * 100_000 + b"\n",
    "a long number": b'{"stop": ' + b"9" * 10_000 + b"}\n",
    "a name that leads out": b'{"directory": "../../..", "stop": 77}\n',
}


@KINDS
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_or_means_that_nothing_was_done(kind: str, garbage: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    original, rest = state.read(path), others(path, tmp_path)
    path.write_bytes(GARBAGE[garbage])
    found = read_or_refused(state, path)
    assert isinstance(found, str) or found in (*state.also(original), False), found
    assert others(path, tmp_path) == rest


@KINDS
def test_a_link_is_not_followed(kind: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    found = read_or_refused(state, path)
    assert found is False or "symbolic link, which is not followed" in found
    assert elsewhere.read_bytes() == before


@KINDS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_file_of_somebody_else_is_not_used(kind: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    os.chown(path, FORGED, FORGED)
    found = read_or_refused(state, path)
    assert found is False or f"belongs to user {FORGED}" in found


@KINDS
@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_everybody_may_write_to_is_not_used(kind: str, what: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    (path if what == "file" else path.parent).chmod(0o777)
    found = read_or_refused(state, path)
    assert found is False or "can be written to by everybody" in found


@KINDS
def test_what_is_not_a_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    state = FILES[kind]
    path = state.make(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert read_or_refused(state, path) is False or "FIFO" in read_or_refused(state, path)


def test_a_directory_with_the_sticky_bit_may_be_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = _batch(tmp_path)
    assert sinks.read_batch(path)["stop"] == 9


def test_a_manifest_of_the_sink_may_belong_to_the_owner_of_the_store(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    path = _sink(tmp_path)
    os.chown(path, FORGED, FORGED)
    os.chown(tmp_path, FORGED, FORGED)
    assert load_manifest(tmp_path).intent is not None


def test_a_directory_that_is_not_the_work_of_a_salvage_is_kept(tmp_path: Path) -> None:
    """`--resume DIR` removed a directory with a plan.json that is not JSON."""
    work = tmp_path / "project"
    work.mkdir()
    (work / "plan.json").write_text("our plan: ship it")
    (work / "precious").write_text("x")
    with (
        pytest.raises(MqstoreError, match=r"is not the plan of an earlier salvage"),
        work_at(work, resume=True, identity={}, what="salvage"),
    ):
        pass
    assert sorted(os.listdir(work)) == ["plan.json", "precious"]


def test_files_of_earlier_versions_have_no_checksum() -> None:
    assert parse(b'{"stop": 7}', fields=("stop",)) == {"stop": 7}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", 5, None, "x" * 256])
def test_a_name_is_plain(name: object) -> None:
    with pytest.raises(ValueError, match="not the name of a file"):
        plain_name({"stage": name}, "stage")
