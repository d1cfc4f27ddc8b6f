"""Walking a commit log: files, ends, damage, and resuming after it."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, case_named, expected, opened, unpack
from support.privilege import needs_permissions, without_privilege
from support.s3 import endpoint
from support.stores import Store, message

import mqstore
from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format import commit_log, timer_wheel
from mqstore.rocketmq.format.checkpoint import load as load_checkpoint
from mqstore.rocketmq.format.commit_log import AT_ONCE, CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.consume_queue_ext import ConsumeQueueExt, address_of
from mqstore.rocketmq.format.index_file import load as load_index
from mqstore.rocketmq.format.record import blank, decode, encode
from mqstore.rocketmq.verify.verification import verify


def made(root: Path, count: int = 60, size: int = 4096, **settings: object) -> Store:
    store = Store(root, file_size=size, **settings)  # type: ignore[arg-type]
    for number in range(count):
        store.put(message("orders", bytes(number * 7 % 200), keys=f"k{number}"))
    store.write()
    return store


def log_of(root: Path) -> CommitLog:
    return CommitLog(ReadOnlyDirectory(root))


def offsets(log: CommitLog, start: int | None = None, stop: int | None = None, chunk: int = 4096) -> list[int]:
    found: list[int] = []
    for event in log.scan(start, stop, chunk=chunk):
        if isinstance(event, Records):
            found += (event.file.start + event.positions).tolist()
    return found


def damages(log: CommitLog) -> list[Damage]:
    return [event for event in log.scan() if isinstance(event, Damage)]


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_records_of_a_real_log_are_those_its_broker_reads(case: GoldenCase) -> None:
    log = mqstore.open(opened(case), config=case.config).log
    rows = {row["physical_offset"]: row["size"] for row in expected(case)}
    found = offsets(log)
    assert set(rows) <= set(found)
    for offset, size in rows.items():
        raw = log.raw(offset)
        assert raw is not None
        assert len(raw) == size
        assert log.record(offset) == decode(raw)


def test_a_log_over_several_files_is_one_run(tmp_path: Path) -> None:
    store = made(tmp_path)
    log = log_of(tmp_path)
    assert offsets(log) == [put.offset for put in store.puts]
    assert offsets(log, chunk=3) == offsets(log)
    ends = [event for event in log.scan() if isinstance(event, EndOfFile)]
    assert len(ends) == len(log.files) - 1
    assert all(end.position + end.length == 4096 for end in ends)
    assert (log.start, log.end(), log.file_size, log.size_on_paper) == (
        0,
        store.puts[-1].offset + len(store.puts[-1].raw),
        4096,
        4096 * len(log.files),
    )
    assert damages(log) == []


def test_a_part_of_the_log_is_what_starts_in_it(tmp_path: Path) -> None:
    store = made(tmp_path)
    log = log_of(tmp_path)
    every = [put.offset for put in store.puts]
    for first in (0, 5, 30, 59):
        for stop in (every[first], every[first] + 1, every[first] + 200, 5000, 10**6):
            assert offsets(log, every[first], stop) == [at for at in every[first:] if at < stop]


def test_the_first_record_of_a_split_is_found(tmp_path: Path) -> None:
    store = made(tmp_path)
    log = log_of(tmp_path)
    for file in log.files:
        own = [put.offset - file.start for put in store.puts if file.start <= put.offset < file.start + file.size]
        for start in range(0, 4096, 101):
            expected_at = next((at for at in own if at >= start), None)
            assert log.first_record(file, start, 4096) == expected_at
            if expected_at is not None:
                assert log.first_record(file, start, expected_at) is None


@pytest.mark.parametrize("name", ["no such place", "empty"])
def test_a_log_without_files_is_empty(tmp_path: Path, name: str) -> None:
    if name == "empty":
        (tmp_path / "commitlog").mkdir()
    log = log_of(tmp_path)
    assert (log.files, log.start, log.end(), log.last_written(), offsets(log)) == ((), 0, 0, -1, [])
    assert (log.record(0), log.raw(0), log.file_at(0)) == (None, None, None)


def test_a_preallocated_file_behind_the_last_record_is_no_damage(tmp_path: Path) -> None:
    store = made(tmp_path)
    for ahead in (1, 2):
        base = max(store.files) + 4096 * ahead
        store.write_file(f"commitlog/{base:020d}", bytes(4096))
    log = log_of(tmp_path)
    assert damages(log) == []
    assert log.end() == store.puts[-1].offset + len(store.puts[-1].raw)
    empty = store.write_file(f"commitlog/{max(store.files) + 3 * 4096:020d}", b"")
    assert empty.stat().st_size == 0
    assert damages(log_of(tmp_path)) == []


def test_what_lies_outside_the_log_is_no_record(tmp_path: Path) -> None:
    store = made(tmp_path)
    log = log_of(tmp_path)
    for offset in (-1, -(2**63), store.puts[3].offset + 1, 4095, 10**9, 2**63 - 1):
        assert log.record(offset) is None
    assert log.raw(10**9) is None
    assert log.raw(store.puts[3].offset, 10**9) is None
    assert log.raw(store.puts[3].offset, 8) == store.puts[3].raw[:8]


def test_a_record_copied_into_a_body_does_not_take_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("orders"))
    at = sum(len(put.raw) for put in store.puts) + 88
    inner = encode(message("forged", b"never stored", physical_offset=at))
    outer = store.put(message("orders", inner + bytes(50)))
    behind = store.put(message("orders"))
    store.write()
    store.patch_log(outer.offset + 28, struct.pack(">q", 1))
    log = log_of(tmp_path)
    assert offsets(log) == [0, behind.offset]
    (item,) = damages(log)
    assert (item.offset, item.length, item.kind, item.messages) == (outer.offset, len(outer.raw), Kind.BAD_OFFSET, 1)


def test_behind_an_unusable_size_the_next_record_is_searched(tmp_path: Path) -> None:
    store = made(tmp_path, count=30, size=65536)
    store.patch_log(store.puts[10].offset, b"\x7f\xff\xff\xff")
    (item,) = damages(log_of(tmp_path))
    assert (item.offset, item.length, item.kind) == (store.puts[10].offset, len(store.puts[10].raw), Kind.BAD_FRAME)


def test_damage_up_to_the_end_of_a_file_does_not_hide_the_next_file(tmp_path: Path) -> None:
    store = made(tmp_path)
    second = [put for put in store.puts if put.offset // 4096 == 1]
    store.patch_log(second[2].offset, b"\xff" * (8192 - second[2].offset))
    log = log_of(tmp_path)
    assert offsets(log) == [put.offset for put in store.puts if put.offset < second[2].offset or put.offset >= 8192]
    (item,) = damages(log)
    assert (item.offset, item.length) == (second[2].offset - 4096, 8192 - second[2].offset)


def test_an_end_of_file_record_must_lead_to_the_end(tmp_path: Path) -> None:
    store = made(tmp_path)
    (end,) = [event for event in log_of(tmp_path).scan(0, 4096) if isinstance(event, EndOfFile)]
    store.patch_log(end.position, blank(end.length - 1))
    (item,) = damages(log_of(tmp_path))
    assert (item.offset, item.kind) == (end.position, Kind.BAD_FRAME)
    assert offsets(log_of(tmp_path)) == [put.offset for put in store.puts]


def test_the_queue_offset_of_a_record_is_read_at_its_place(tmp_path: Path) -> None:
    store = made(tmp_path)
    assert [log_of(tmp_path).queue_offset_at(put.offset) for put in store.puts] == list(range(len(store.puts)))


def test_a_log_may_end_with_an_end_of_file_record(tmp_path: Path) -> None:
    store = made(tmp_path)
    last = store.puts[-1]
    end = last.offset + len(last.raw)
    store.patch_log(end, blank(-end % 4096))
    assert log_of(tmp_path).end() == -(-end // 4096) * 4096


@pytest.mark.parametrize("cut", [9, 50, 120])
def test_a_torn_last_record_is_told(tmp_path: Path, cut: int) -> None:
    store = made(tmp_path, count=20, size=65536)
    last = store.puts[-1]
    store.patch_log(last.offset + len(last.raw) - cut, bytes(cut))
    log = log_of(tmp_path)
    (item,) = damages(log)
    assert (item.offset, item.kind, item.messages) == (last.offset, Kind.TORN_RECORD, 1)
    assert offsets(log) == [put.offset for put in store.puts[:-1]]


def test_holes_are_not_read(tmp_path: Path) -> None:
    """A log of 64 files of 1 GiB, of which one holds records: it is walked at once."""
    store = made(tmp_path, count=20, size=1 << 20)
    os.truncate(tmp_path / "commitlog" / f"{0:020d}", 1 << 30)
    for number in range(1, 64):
        path = store.write_file(f"commitlog/{number << 30:020d}", b"")
        os.truncate(path, 1 << 30)
    log = log_of(tmp_path)
    assert offsets(log) == [put.offset for put in store.puts]
    assert log.size_on_paper == 64 << 30
    assert verify(mqstore.open(tmp_path)).checked.messages == 20


# any bytes


@st.composite
def files(draw: st.DrawFn) -> list[bytes]:
    """Log files of 2048 bytes out of records, ends, zeros and noise."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        base, data = 2048 * number, bytearray()
        while len(data) < 2000 and draw(st.integers(0, 12)):
            kind = draw(st.sampled_from(["record", "record", "record", "astray", "noise", "zeros", "blank"]))
            if kind in ("record", "astray"):
                at = base + len(data) + (kind == "astray")
                data += encode(message("T", draw(st.binary(max_size=60)), physical_offset=at, properties=draw(st.binary(max_size=30))))
            elif kind == "noise":
                data += draw(st.binary(min_size=1, max_size=60))
            elif kind == "zeros":
                data += bytes(draw(st.integers(1, 200)))
            else:
                data += blank(draw(st.sampled_from([2048 - len(data), 0, -1, 2**31 - 1])))
        for _ in range(draw(st.integers(0, 2)) if data else 0):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        found.append(bytes(data[:2048]).ljust(2048, b"\0") if draw(st.integers(0, 4)) else bytes(data[:2048]))
    return found


@given(files() | st.lists(st.binary(max_size=600), min_size=1, max_size=3))
@settings(deadline=None, max_examples=120)
def test_any_bytes_are_walked_once_from_end_to_end(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    root = tmp_path_factory.mktemp("log")
    (root / "commitlog").mkdir()
    for number, raw in enumerate(parts):
        (root / "commitlog" / f"{2048 * number:020d}").write_bytes(raw)
    log = log_of(root)
    at = {file.relative: 0 for file in log.files}
    seen: list[int] = []
    for event in log.scan():
        if isinstance(event, Records):
            for position in event.positions.tolist():
                assert position == at[event.file.relative]
                message_here = decode(event.data[position:].tobytes())
                assert message_here.physical_offset == event.file.start + position
                seen.append(message_here.physical_offset)
                at[event.file.relative] = position + int.from_bytes(event.data[position : position + 4].tobytes(), "big")
        elif isinstance(event, EndOfFile):
            assert event.position == at[event.file.relative]
            at[event.file.relative] = event.position + event.length
        else:
            assert event.offset == at[event.file]
            assert event.length > 0 or event.kind == Kind.TORN_RECORD
            at[event.file] = event.offset + event.length
    for number, file in enumerate(log.files):
        assert number > log.last_written() or not np.any(log.mapped(file).data[at[file.relative] :]) or at[file.relative] == file.size
    assert len(set(seen)) == len(seen)
    report = verify(mqstore.open(root), threads=1)
    assert report.checked.messages == len(seen)
    rows = [row for batch in mqstore.open(root).to_batches(milliseconds=True) for row in batch.to_pylist()]
    assert [row["physical_offset"] for row in rows] == seen


# a file under a wrong name

ROLLED = [case for case in PLAIN if case.name in ("d-rolled", "k-rolled")]


@pytest.mark.parametrize("case", ROLLED, ids=case_id)
def test_a_log_file_under_a_wrong_name_hides_no_other_one(case: GoldenCase, tmp_path: Path) -> None:
    """Each file of a log is renamed to every position that overlaps another one: all messages of the other files are still there."""
    root = unpack(case, tmp_path / "store")
    log = mqstore.open(root, config=case.config).log
    names = [file.name for file in log.files]
    size = log.file_size
    written = log.last_written()
    assert written >= 1
    before = set(offsets(log))
    for number in range(written + 1):
        own = {offset for offset in before if offset // size == int(names[number]) // size}
        for other in range(written + 1):
            for shift in (-size + 1, -100, -1, 1, 100, size - 1):
                wrong = int(names[other]) + shift
                # right after the file itself or right before it there is no other file to hide
                if other == number or wrong < 0:
                    continue
                path = root / "commitlog" / names[number]
                renamed = path.rename(root / "commitlog" / f"{wrong:020d}")
                changed = mqstore.open(root, config=case.config).log
                assert set(offsets(changed)) == before - own, (names[number], wrong)
                (found,) = [item for item in changed.findings if item.kind is Kind.STRAY_FILE]
                assert (found.file, f"its records are those of {names[number]}" in found.detail) == (f"commitlog/{wrong:020d}", True)
                renamed.rename(path)


def test_a_copy_of_a_log_file_under_a_wrong_name_changes_no_answer(tmp_path: Path) -> None:
    made(tmp_path, size=4096)
    before = offsets(log_of(tmp_path))
    first, second = sorted((tmp_path / "commitlog").iterdir())[:2]
    for origin in (first, second):
        for wrong in (1, 4095, 4097):
            copy = tmp_path / "commitlog" / f"{wrong:020d}"
            copy.write_bytes(origin.read_bytes())
            assert offsets(log_of(tmp_path)) == before
            assert any(item.file.endswith(copy.name) for item in log_of(tmp_path).findings)
            copy.unlink()


def test_without_a_record_that_says_otherwise_the_first_of_two_overlapping_files_is_read(tmp_path: Path) -> None:
    made(tmp_path, size=4096)
    before = offsets(log_of(tmp_path))
    (tmp_path / "commitlog" / f"{4095:020d}").write_bytes(bytes(4096))
    assert offsets(log_of(tmp_path)) == before


def test_a_walk_that_reads_ahead_yields_before_it_leaves_its_window(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=64 << 20)
    for number in range(400):
        store.put(message("orders", bytes([number % 251]) * (100 << 10)))
    log = mqstore.open(store.write()).log
    events = [event for event in log.scan() if isinstance(event, Records)]
    spans = [int(event.positions[-1] - event.positions[0]) for event in events]
    assert len(events) > 2
    assert max(spans) <= AT_ONCE
    found = [event.file.start + at for event in events for at in event.positions.tolist()]
    assert len(found) == len(set(found)) == 400
    assert found == [event.file.start + at for event in log.scan(chunk=7) if isinstance(event, Records) for at in event.positions.tolist()]


# what the files of a log may be, and what may be asked of it


def test_a_file_that_was_removed_after_the_log_was_listed_is_said_to_be_gone(tmp_path: Path) -> None:
    made(tmp_path)
    log = log_of(tmp_path)
    other = replace(log.files[0], name="00000000000000999999")
    with pytest.raises(CannotOpenError, match="was removed after the log was listed"):
        next(iter(log.scan_file(other)))


def test_a_file_that_becomes_shorter_while_it_is_read_is_a_finding(tmp_path: Path) -> None:
    made(tmp_path)
    log = log_of(tmp_path)
    log.drop_after = 0
    events = log.scan_file(log.files[0], chunk=4)
    assert isinstance(next(events), Records)
    os.truncate(tmp_path / log.files[0].relative, 1000)
    assert [event.kind for event in events if isinstance(event, Damage)] == [Kind.UNREADABLE]


def test_as_many_maps_are_kept_as_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    whole = offsets(log_of(tmp_path))
    monkeypatch.setattr(commit_log, "MOST_MAPS", 1)
    log = log_of(tmp_path)
    assert offsets(log) == whole
    assert all(log.record(offset) is not None for offset in whole)
    assert len(log._maps) == 1


def test_no_files_are_between_an_offset_and_one_that_is_not_after_it(tmp_path: Path) -> None:
    made(tmp_path)
    log = log_of(tmp_path)
    assert log.files_between(5000, 5000) == ()
    assert log.files_between(4096, 4097) == (log.files[1],)
    assert log.shown_path("commitlog") == str(tmp_path / "commitlog")


def test_a_name_that_no_log_reaches_makes_no_record_of_its_bytes(tmp_path: Path) -> None:
    made(tmp_path)
    mapped = ReadOnlyDirectory(tmp_path).map(f"commitlog/{0:020d}")
    assert commit_log.status_at(mapped, 0, 0) == frames.STOP
    assert commit_log.status_at(mapped, 0, 1 << 63) == frames.BAD_OFFSET


def test_where_a_file_starts_is_what_some_of_many_places_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    mapped = ReadOnlyDirectory(tmp_path).map(f"commitlog/{4096:020d}")
    assert commit_log.start_in(mapped) == 4096
    monkeypatch.setattr(commit_log, "_MOST_TRIED", 2)
    assert commit_log.start_in(mapped) == 4096
    monkeypatch.setattr(commit_log, "_MOST_TRIED", 0)
    assert commit_log.start_in(mapped) is None


def test_bytes_that_are_not_there_are_not_a_record(tmp_path: Path) -> None:
    made(tmp_path)
    log = log_of(tmp_path)
    assert log.raw(4096 * 1000) is None
    assert log.raw(4096 - 4) is None
    assert log.raw(4096 - 100, 200) is None


def test_zeros_with_a_wrong_size_before_the_next_record_are_zeros(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    first, second, third = offsets(log_of(tmp_path))[:3]
    raw[second:third] = bytes(third - second)
    path.write_bytes(raw)
    (damage,) = damages(log_of(tmp_path))
    assert (damage.offset, damage.length, damage.kind) == (second, third - second, Kind.ZEROED)
    assert first == 0


@needs_permissions
def test_files_that_may_not_be_read_are_findings(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    (tmp_path / "timerlog").mkdir(exist_ok=True)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "timercheck").write_bytes(bytes(64))
    (tmp_path / "index").mkdir(exist_ok=True)
    (tmp_path / "index" / "20220101083015123").write_bytes(bytes(440))
    place = tmp_path / "consumequeue_ext" / "t" / "0"
    place.mkdir(parents=True)
    (place / f"{0:020d}").write_bytes(bytes(1000))
    assert timer_wheel.read_check(ReadOnlyDirectory(tmp_path)) is not None
    assert list(timer_wheel.slots(ReadOnlyDirectory(tmp_path))) == []
    unread = [tmp_path / "checkpoint", tmp_path / "index" / "20220101083015123", place / f"{0:020d}", tmp_path / "config" / "timercheck"]
    for path in unread:
        path.chmod(0)
    directory = ReadOnlyDirectory(tmp_path)
    with without_privilege():
        assert [item.kind for item in load_checkpoint(directory).findings] == [Kind.UNREADABLE]
        assert [item.kind for item in load_index(directory).findings] == [Kind.UNREADABLE]
        assert timer_wheel.read_check(directory) is None
        reader = ConsumeQueueExt(directory, "t", 0)
        assert [item.kind for item in reader.scan() if isinstance(item, Damage)] == [Kind.UNREADABLE]
        assert reader.unit(address_of(0)) is None


def test_records_that_are_fetched_together_are_whole_from_a_url_as_from_a_path() -> None:
    case = case_named("4.9.3/m-damaged/0-clean")
    here = mqstore.open(opened(case), config=case.config).log
    there = mqstore.open(endpoint().uploaded(opened(case), window=4096), config=case.config).log
    every = np.array([offset for offset in offsets(here) if offset < here.file_size], np.int64)
    for positions in (every, every[[0, -1]], every[:0]):
        for log in (here, there):
            groups = list(commit_log.group_ranges(log.mapped(log.files[0]), 0, positions))
            assert [at for _, group in groups for at in group.tolist()] == positions.tolist()
            assert all(frames.status_at(data, at, 0, True) == frames.STOP for data, group in groups for at in group.tolist())
    records = next(event for event in there.scan() if isinstance(event, Records))
    there.drop_records(records)  # of pages, which a remote file does not have


def test_a_gap_of_zeros_that_is_smaller_than_a_size_and_a_magic_is_zeroed(tmp_path: Path) -> None:
    made(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    second, third = offsets(log_of(tmp_path))[5:7]
    old = decode(bytes(raw[second:third]))
    raw[second:third] = encode(replace(old, body=old.body[:-4], body_crc=None)) + bytes(4)
    path.write_bytes(raw)
    (damage,) = damages(log_of(tmp_path))
    assert (damage.offset, damage.length, damage.kind) == (third - 4, 4, Kind.ZEROED)


def test_a_file_that_has_vanished_does_not_say_where_it_starts(tmp_path: Path) -> None:
    made(tmp_path)
    log = log_of(tmp_path)
    (tmp_path / log.files[1].relative).unlink()
    assert log._start_in(log.files[1]) is None
    assert log._start_in(log.files[0]) == 0


def test_records_that_are_longer_than_what_is_fetched_at_once_are_read_from_a_url(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=1 << 17)
    for number in range(20):
        store.put(message("orders", bytes(number * 1000)))
    store.write()
    there = mqstore.open(endpoint().uploaded(tmp_path, window=4096)).log
    assert offsets(there) == offsets(log_of(tmp_path))
    assert len(offsets(there, chunk=1)) == 20
    path = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    low, high = offsets(log_of(tmp_path))[8:10]
    raw[low:high] = b"\x01" * (high - low)
    path.write_bytes(raw)
    there = mqstore.open(endpoint().uploaded(tmp_path, window=4096)).log
    assert len(offsets(there)) == 19
    assert damages(there) == damages(log_of(tmp_path))
