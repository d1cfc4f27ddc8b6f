"""No repair changes a byte of the log that belongs to a whole record, whatever a step wants: asked of every plan, and of the guard."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from support.golden import DAMAGED, PLAIN, GoldenCase, case_id, case_named, opened, unpack
from support.rocketmq_states import STATES, made

from mqstore.places import open_rocketmq
from mqstore.repair.change import Change, Step
from mqstore.repair.journal import apply
from mqstore.rocketmq.repair.plan import LOCKING, RecordGuard, plan

SMALL = case_named("4.9.3/m-damaged/0-clean")
MAGICS = (bytes.fromhex("daa320a7"), bytes.fromhex("daa320ab"))


def _end(raw: bytes, at: int, topic_bytes: int) -> int:
    """Return where a record ends according to the lengths of topic and properties. at: the end of its body."""
    at += topic_bytes + int.from_bytes(raw[at : at + topic_bytes], "big")
    return at + 2 + int.from_bytes(raw[at : at + 2], "big")


def whole_records(store: Path) -> dict[tuple[int, int], bytes]:
    """Find every record of the log by its magic, own physical offset and CRC; the bytes by (physical offset, size). Not by mqstore."""
    found = {}
    for path in sorted((store / "commitlog").glob("[0-9]" * 20)):
        raw, start = path.read_bytes() if path.is_file() else b"", int(path.name)
        for magic in MAGICS:
            at = raw.find(magic, 4)
            while at >= 0:
                begin, at = at - 4, raw.find(magic, at + 1)
                head = raw[begin : begin + 84]
                size = struct.unpack_from(">i", head)[0]
                if not 91 <= size <= len(raw) - begin or len(head) < 84 or struct.unpack_from(">q", head, 28)[0] != start + begin:
                    continue
                hosts = sum(12 if struct.unpack_from(">i", head, 36)[0] & bit else 0 for bit in (16, 32))
                body_at = begin + 84 + hosts
                length = struct.unpack_from(">i", raw, body_at)[0] if body_at + 4 <= len(raw) else -1
                body = raw[body_at + 4 : body_at + 4 + length] if 0 <= length < size else b""
                if _end(raw, body_at + 4 + length, 1 + (magic == MAGICS[1])) != begin + size:
                    continue
                if len(body) == length and zlib.crc32(body) & 0x7FFFFFFF == struct.unpack_from(">i", head, 8)[0]:
                    found[start + begin, size] = raw[begin : begin + size]
    return found


def _repaired(case: GoldenCase, store: Path) -> None:
    before = whole_records(store)
    steps = [step for step in plan(open_rocketmq(store, config=case.config)) if step.possible]
    apply(store, store.with_name("undo"), steps, LOCKING)
    after = whole_records(store)
    assert before.items() <= after.items()


@pytest.mark.parametrize("case", [*DAMAGED, SMALL], ids=case_id)
def test_every_whole_record_of_a_damaged_store_is_as_it_was(case: GoldenCase, tmp_path: Path) -> None:
    _repaired(case, unpack(case, tmp_path / "store"))


@pytest.mark.parametrize("state", sorted(STATES.keys() - {"no_log"}))
@pytest.mark.parametrize("name", ["4.9.3/f-broker-offsets", "5.3.3/j-broker-offsets", "4.9.3/m-damaged/0-clean"])
def test_every_whole_record_of_a_store_in_a_bad_state_is_as_it_was(name: str, state: str, tmp_path: Path) -> None:
    case = case_named(name)
    _repaired(case, made(state, case, tmp_path / "store"))


@pytest.mark.parametrize("case", [case for case in PLAIN if case.name in ("a-clean-small", "g-clean-small")], ids=case_id)
def test_the_guard_refuses_every_change_that_would_touch_a_whole_record(case: GoldenCase) -> None:
    store = opened(case)
    guard = RecordGuard(open_rocketmq(store, config=case.config).log)
    records = sorted(whole_records(store))
    size = next((store / "commitlog").iterdir()).stat().st_size
    for offset, length in records[:: max(1, len(records) // 40)]:
        name, at = f"commitlog/{offset // size * size:020d}", offset % size
        for change in (
            Change("write", name, at, b"\0"),
            Change("write", name, at + length - 1, b"\0"),
            Change("write", name, max(0, at - 4), bytes(8)),
            Change("resize", name, length=at + 1),
            Change("put", name, content=b""),
            Change("remove", name),
        ):
            step = Step("test", name, 0, 0, "why", "", "something", (change,))
            spared = guard.spared(step)
            assert (spared.possible, spared.loss) == (False, "")
            assert "a whole record is at" in spared.why
    last, length = records[-1]
    name = f"commitlog/{last // size * size:020d}"
    free = Step(
        "test", name, 0, 0, "", "", "", (Change("write", name, last % size + length, b"\0"), Change("remove", "config/topics.json"))
    )
    assert guard.spared(free) is free


def test_a_file_is_not_cut_where_whole_records_follow(tmp_path: Path) -> None:
    """One file is twice as long as its neighbours, as after a change of mappedFileSizeCommitLog: their length would cut its records off."""
    store = unpack(SMALL, tmp_path / "store")
    files = sorted((store / "commitlog").iterdir())
    files[-2].write_bytes(files[-2].read_bytes() + files[-1].read_bytes())
    files[-1].unlink()
    steps = [step for step in plan(open_rocketmq(store, config=SMALL.config)) if step.kind == "length"]
    assert [step.possible for step in steps] == [False]
    _repaired(SMALL, store)
