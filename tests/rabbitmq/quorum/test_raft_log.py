"""Write-ahead logs, segments and snapshots: made ones with each oddity, and those of real nodes, whole and damaged."""

from __future__ import annotations

import doctest
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from support import quorum
from support.quorum import segment

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.kernels.rabbitmq import wal_records
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.quorum import wal as wal_module
from mqstore.rabbitmq.quorum.raft_log import MemberLog, RaftDirectory, combine, raft_systems
from mqstore.rabbitmq.quorum.segment import read_segment
from mqstore.rabbitmq.quorum.snapshot import Snapshot, members_of, read_snapshot
from mqstore.rabbitmq.quorum.wal import WalRecords, read_wal

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "rabbitmq-quorum.md"
HEAD = b"RAWA\x01"


def record(index: int, term: int = 1, entry: bytes = b"\x83j", *, uid: bytes = b"", number: int = 0, truncates: bool = False) -> bytes:
    """Return a record: with its UID, or of an id given before."""
    body = struct.pack(">QQ", index, term) + entry
    head = (truncates << 23 | (not uid) << 22 | number).to_bytes(3, "big")
    return head + (len(uid).to_bytes(2, "big") + uid if uid else b"") + struct.pack(">II", zlib.adler32(body), len(entry)) + body


def wal(*records: bytes) -> WalRecords:
    return read_wal(np.frombuffer(HEAD + b"".join(records), np.uint8), "1.wal")


def system(path: Path) -> RaftDirectory:
    """Return the system whose directory a test has filled."""
    return RaftDirectory(ReadOnlyDirectory(path), "")


def indexes(log: MemberLog) -> list[tuple[int, int]]:
    return list(zip(log.index.tolist(), log.term.tolist(), strict=True))


def test_the_examples_of_the_page_are_true() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted >= 15
    assert not outcome.failed


# write-ahead logs


def test_a_checksum_of_zero_was_not_computed() -> None:
    plain = bytearray(record(1, uid=b"U"))
    plain[6:10] = bytes(4)
    found = wal(bytes(plain), record(2))
    assert found.records["index"].tolist() == [1, 2]
    assert not found.damage


@pytest.mark.parametrize("case", quorum.CASES)
def test_the_kernel_reads_the_records_that_are_read_one_by_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    luck = random.Random(case)
    images = [np.fromfile(path, np.uint8) for path in quorum.node(case).glob("quorum/*/*.wal")]
    for image in images[:2]:
        for _ in range(3):
            octets = bytearray(image)
            for _ in range(luck.randrange(3) if octets else 0):
                octets[luck.randrange(min(len(octets), 30_000))] ^= 1 << luck.randrange(8)
            data = np.frombuffer(bytes(octets), np.uint8)
            fast = read_wal(data, "1.wal")
            with monkeypatch.context() as patch:
                patch.setattr(wal_records, "walk", lambda data, at, members, out: (0, at))
                slow = read_wal(data, "1.wal")
            assert fast.records.tolist() == slow.records.tolist()
            assert (fast.uids, fast.damage, fast.torn, fast.stops_at) == (slow.uids, slow.damage, slow.torn, slow.stops_at)
            for number, uid in enumerate(fast.uids):
                assert fast.of(uid.decode("latin-1")).tolist() == fast.records[fast.records["uid"] == number].tolist()
    assert images


def test_ids_are_those_of_the_file_and_records_of_several_members_are_told_apart() -> None:
    found = wal(record(1, uid=b"A"), record(1, uid=b"B", number=1), record(2), record(2, number=1), record(3, number=1))
    assert [found.uids[number] for number in found.records["uid"].tolist()] == [b"A", b"B", b"A", b"B", b"B"]


def test_the_id_that_a_damaged_record_gives_is_that_of_the_later_ones() -> None:
    """Seeds 8446 and 11625 of damaged-quorum: both records that give an id have a wrong checksum, the later ones of both members not."""
    first, second = bytearray(record(1, uid=b"A")), bytearray(record(1, uid=b"B", number=1))
    first[-1] ^= 1
    second[-1] ^= 1
    rest = record(2), record(2, number=1), record(3), record(3, number=1)
    data = np.frombuffer(HEAD + b"".join((first, second, *rest)), np.uint8)
    found = read_wal(data, "1.wal", [b"A", b"B"])
    for uid in "AB":
        valid = found.of(uid)[found.of(uid)["valid"] == 1]
        assert valid["index"].tolist() == [2, 3], uid


def test_zeros_at_the_end_and_an_empty_file_are_not_damaged() -> None:
    assert not wal(record(1, uid=b"U"), bytes(5000)).damage
    assert not wal().damage
    assert not read_wal(np.zeros(0, np.uint8), "1.wal").damage


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_a_last_record_that_is_cut_is_dropped_and_reported(cut: int) -> None:
    whole = record(1, uid=b"U") + record(2)
    found = wal(whole[:-cut])
    assert found.records["index"].tolist() == [1]
    assert [item.kind for item in found.damage] == [Kind.TORN_RECORD]
    assert found.stops_at == -1
    assert found.torn == found.damage[0].offset == len(HEAD + record(1, uid=b"U"))


def test_a_log_that_ends_within_the_length_of_a_name_is_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = wal(record(1, uid=b"U"), b"\0\0\x01\x01")
    assert torn.records["index"].tolist() == [1]
    assert [item.kind for item in torn.damage] == [Kind.TORN_RECORD]
    monkeypatch.setattr(wal_module, "MAX_FINDINGS", 0)
    assert wal(record(1, uid=b"U"), b"\0\0\x01\x01").damage == ()


def test_a_node_does_not_take_a_damaged_record_for_the_last_one_if_more_than_zeros_follow() -> None:
    """Seen on 4.3.6: two damaged records at the end, and one with 13 bytes after it, stop the node; with 12 bytes it starts."""

    def damaged(index: int) -> bytes:
        return record(index)[:-1] + b"k"

    for rest, stops in ((damaged(3), True), (b"\1" * 13, True), (b"\1" * 12, False), (bytes(20), False), (damaged(3)[:-1], True)):
        found = wal(record(1, uid=b"U"), damaged(2), rest)
        at = len(HEAD + record(1, uid=b"U"))
        assert (found.stops_at, found.torn) == ((at, -1) if stops else (-1, at)), rest
        assert found.records["index"].tolist() == [1]
        assert [(item.kind, item.offset) for item in found.damage] == [(Kind.BAD_WAL if stops else Kind.TORN_RECORD, at)]


@pytest.mark.parametrize("byte", [3 + 4, 2])
def test_a_last_record_longer_than_the_file_or_of_no_known_member_is_dropped(byte: int) -> None:
    changed = bytearray(record(2))
    changed[byte] ^= 0x40
    found = wal(record(1, uid=b"U"), bytes(changed))
    assert (found.stops_at, found.torn) == (-1, len(HEAD + record(1, uid=b"U")))


def test_a_record_that_seems_longer_than_the_file_ends_it_for_a_node_and_reading_goes_on() -> None:
    """Seen on 4.3.6: it starts, and the states are those before that record."""
    longer = bytearray(record(2))
    longer[3 + 4] ^= 0x40
    found = wal(record(1, uid=b"U"), bytes(longer), record(3), record(4))
    assert (found.stops_at, found.torn, found.ends_at) == (-1, -1, len(HEAD + record(1, uid=b"U")))
    assert found.records["index"].tolist() == [1, 3, 4]
    assert [item.kind for item in found.damage] == [Kind.BAD_WAL]
    assert "takes it for the end" in found.damage[0].detail


def test_after_a_damaged_record_in_the_middle_reading_goes_on_and_its_index_is_known() -> None:
    broken = bytearray(record(2, entry=encode(b"body")))
    broken[-1] ^= 1
    found = wal(record(1, uid=b"U"), bytes(broken), record(3), record(4))
    assert found.records["index"].tolist() == [1, 2, 3, 4]
    assert found.records["valid"].tolist() == [1, 0, 1, 1]
    assert [item.kind for item in found.damage] == [Kind.BAD_WAL]
    assert found.stops_at == found.damage[0].offset


def test_the_records_of_a_log_that_does_not_begin_as_one_are_read_and_another_file_has_none() -> None:
    data = b"RAVA\1" + record(5, uid=b"U") + record(6)
    found = read_wal(np.frombuffer(data, np.uint8), "1.wal")
    assert found.records["index"].tolist() == [5, 6]
    assert (found.stops_at, [(item.offset, item.length, item.kind) for item in found.damage]) == (0, [(0, 5, Kind.BAD_WAL)])
    other = read_wal(np.frombuffer(b"\x7fELF" * 100, np.uint8), "1.wal")
    assert (len(other.records), other.stops_at, len(other.damage)) == (0, 0, 1)


def test_what_looks_like_records_is_searched_in_bounded_time() -> None:
    fake = (b"\x40\x00\x00" + struct.pack(">II", 1, 60_000) + bytes(16) + b"\x83") * 20_000
    found = wal(record(1, uid=b"U"), b"\xff" * 40, fake)
    assert found.records["index"].tolist() == [1]
    assert len(found.damage) == 1


# segments


def test_the_first_unused_place_ends_a_segment_and_entry_0_does_not() -> None:
    data = segment((0, 0, encode(Atom("undefined"))), (1, 1, b"\x83j"))
    found = read_segment(np.frombuffer(data, np.uint8), "1.segment")
    assert found.entries["index"].tolist() == [0, 1]
    assert not found.damage


def test_a_place_with_an_index_that_is_not_higher_voids_what_is_above_it(tmp_path: Path) -> None:
    (tmp_path / "U").mkdir()
    (tmp_path / "U" / "00000001.segment").write_bytes(segment((4, 1, b"\x83j"), (5, 1, b"\x83j"), (6, 1, b"\x83j"), (5, 2, b"\x83a\x07")))
    assert indexes(system(tmp_path).member("U")) == [(4, 1), (5, 2)]


@pytest.mark.parametrize("stated", [0, 3, 9, 900])
@pytest.mark.parametrize("row", range(6))
def test_a_damaged_index_voids_no_entry_and_is_put_right_or_left_out(row: int, stated: int) -> None:
    """Places have no checksum: one changed bit of an index voided all entries above it, or between, without a finding."""
    raw = bytearray(segment(*((index, 4, b"\x83a%c" % index) for index in range(20, 26))))
    raw[8 + 32 * row : 16 + 32 * row] = stated.to_bytes(8, "big")
    found = read_segment(np.frombuffer(raw, np.uint8), "1.segment")
    states = dict(zip(found.entries["index"].tolist(), found.entries["position"].tolist(), strict=True))
    own = [8 + 32 * 16 + 3 * place for place in range(6)]
    assert {index: states.get(index) for index in range(20, 26) if index != 20 + row} == {
        index: own[index - 20] for index in range(20, 26) if index != 20 + row
    }
    if (row, stated) in ((0, 0), (0, 3), (0, 9), (5, 900)):  # as after a compaction of 4.3: entries before or after may be gone
        return
    assert [(item.kind, item.offset) for item in found.damage] == [(Kind.BAD_RAFT_SEGMENT, 8 + 32 * row)]
    assert states.get(20 + row) == (own[row] if row < 5 else None)


def test_entries_written_again_replace_what_is_above_them_without_a_finding() -> None:
    for again in ([22, 23, 24], [24], [20, 21]):
        rows = [(index, 4, b"\x83a%c" % index) for index in (20, 21, 22, 23, 24, *again)]
        assert not read_segment(np.frombuffer(segment(*rows), np.uint8), "1.segment").damage
    rows = [*((index, 4, b"\x83j") for index in (20, 21, 22)), (21, 5, b"\x83j")]
    assert not read_segment(np.frombuffer(segment(*rows), np.uint8), "1.segment").damage


def test_places_after_zeros_are_read_and_the_zeros_are_reported() -> None:
    raw = bytearray(segment(*((index, 4, b"\x83a%c" % index) for index in range(20, 26))))
    raw[8 + 64 : 8 + 128] = bytes(64)
    found = read_segment(np.frombuffer(raw, np.uint8), "1.segment")
    assert found.entries["index"].tolist() == [20, 21, 24, 25]
    assert [item.detail for item in found.damage] == ["2 places of the segment between others are zeros."]


def test_a_damaged_index_after_a_place_of_zeros_voids_no_entry() -> None:
    """Seed 3983 of damaged-quorum: zeros over a place and the index of the next one made that entry 0, written again."""
    raw = bytearray(segment(*((index, 4, b"\x83a%c" % index) for index in range(20, 26))))
    raw[8 + 64 : 8 + 104] = bytes(40)
    found = read_segment(np.frombuffer(raw, np.uint8), "1.segment")
    assert found.entries["index"].tolist() == [20, 21, 23, 24, 25]
    assert not found.entries["truncates"].any()
    assert [item.offset for item in found.damage] == [8 + 64, 8 + 96]


def test_an_unused_place_with_a_wrong_bit_voids_nothing(tmp_path: Path) -> None:
    """A term in a place that was never used made it entry 0, written again: the whole segment was void."""
    raw = bytearray(segment(*((index, 1, b"\x83j") for index in range(5))))
    raw[8 + 32 * 9 + 8] = 32
    (tmp_path / "U").mkdir()
    (tmp_path / "U" / "00000001.segment").write_bytes(raw)
    log = system(tmp_path).member("U")
    assert indexes(log) == [(index, 1) for index in range(5)]
    assert log.valid.all()
    assert log.damage


def test_an_unused_place_whose_offset_is_wrong_voids_nothing(tmp_path: Path) -> None:
    """Seed 9249 of damaged-quorum: it led into the file, to an entry 0 of no bytes and no checksum, and the whole segment was void."""
    raw = bytearray(segment(*((index, 1, b"\x83j") for index in range(5))))
    raw[8 + 32 * 9 + 22 : 8 + 32 * 9 + 24] = b"\2\x20"  # the offset: 544, where the entries are
    raw += bytes(100)
    (tmp_path / "U").mkdir()
    (tmp_path / "U" / "00000001.segment").write_bytes(raw)
    assert indexes(system(tmp_path).member("U")) == [(index, 1) for index in range(5)]


def test_a_record_with_the_number_of_another_member_is_left_out_and_reported() -> None:
    """Checksums do not cover the number: a changed bit of it made an entry of one queue that of another, in place of its own."""
    first = [record(1, uid=b"A"), record(1, uid=b"B", number=1), record(2), record(2, number=1), record(2, entry=b"\x83a\x07", number=1)]
    found = wal(*first, record(9, number=1), record(3, number=1), record(3))
    both = [(found.uids[uid], index) for uid, index in zip(found.records["uid"].tolist(), found.records["index"].tolist(), strict=True)]
    assert both == [(b"A", 1), (b"B", 1), (b"A", 2), (b"B", 2), (b"B", 2), (b"B", 3), (b"A", 3)]
    assert [item.kind for item in found.damage] == [Kind.BAD_WAL]


def test_an_entry_with_a_wrong_checksum_is_there_and_not_valid() -> None:
    data = bytearray(segment((4, 1, b"\x83j"), (5, 1, encode(b"text"))))
    data[-1] ^= 1
    found = read_segment(np.frombuffer(bytes(data), np.uint8), "1.segment")
    assert found.entries["valid"].tolist() == [1, 0]
    assert [item.kind for item in found.damage] == [Kind.BAD_RAFT_SEGMENT]
    unchecked = bytearray(segment((4, 1, encode(b"text")), computed=False))
    unchecked[-1] ^= 1
    assert not read_segment(np.frombuffer(bytes(unchecked), np.uint8), "1.segment").damage


# snapshots


def test_the_valid_snapshot_with_the_highest_index_counts_whatever_its_kind(tmp_path: Path) -> None:
    for kind, index in (("snapshots", 10), ("checkpoints", 30), ("recovery_checkpoint", 20), ("checkpoints", 40)):
        place = tmp_path / "U" / kind / f"{1:016X}_{index:016X}"
        place.mkdir(parents=True)
        data = quorum.snapshot(index, Atom("state"))
        (place / "snapshot.dat").write_bytes(data if index != 40 else data[:-3])
    log = system(tmp_path).member("U")
    assert log.base is not None
    assert log.base.snapshot.index == 30
    assert [(item.kind, f"{40:016X}" in item.file) for item in log.damage] == [(Kind.BAD_SNAPSHOT, True)]


def test_a_state_of_ten_million_elements_is_a_finding_and_not_ten_million_objects() -> None:
    huge = b"\x83l" + (10_000_000).to_bytes(4, "big") + b"j" * 10_000_001
    meta = encode({Atom("index"): 1})
    rest = len(meta).to_bytes(4, "big") + meta + huge
    found = read_snapshot(b"RASN\x01" + zlib.crc32(rest).to_bytes(4, "big") + rest, "snapshot.dat")
    assert not isinstance(found, Snapshot)
    assert "10000000 elements" in found.detail


# combining


def naive(rows: list[tuple[int, int, bool, bool]]) -> list[tuple[int, int]]:
    """Combine rows (index, term, truncates, by term) one by one, as the page says."""
    log: dict[int, tuple[int, int]] = {}
    for row, (index, term, truncates, by_term) in enumerate(rows):
        if truncates or (by_term and index in log and log[index][0] < term):
            log = {known: entry for known, entry in log.items() if known < index}
        log[index] = (term, row)
    return [(index, log[index][1]) for index in sorted(log)]


@pytest.mark.parametrize("seed", range(40))
def test_a_log_is_combined_as_a_member_writes_it(seed: int) -> None:
    luck = random.Random(seed)
    rows: list[tuple[int, int, bool, bool]] = []
    term = at = 1
    for _ in range(60):
        if luck.random() < 0.1:  # a new leader replaces the end of the log
            term += 1
            at = max(1, at - luck.randrange(6))
            rows.append((at, term, luck.random() < 0.5, True))
        else:
            rows.append((at, term, False, True))
        at += 1
    index, terms, truncates, by_term = (np.array(column) for column in zip(*rows, strict=True))
    found = combine(index, terms, truncates.astype(np.int64), by_term, np.ones(len(rows), np.bool_))
    assert [(int(index[row]), int(row)) for row in found] == naive(rows)


def test_the_write_ahead_log_wins_over_the_segments_and_a_damaged_copy_does_not(tmp_path: Path) -> None:
    (tmp_path / "U").mkdir()
    (tmp_path / "U" / "00000001.segment").write_bytes(segment((1, 1, b"\x83j"), (2, 1, b"\x83j"), (3, 1, b"\x83j")))
    broken = bytearray(record(2))
    broken[-1] ^= 1
    (tmp_path / "00000002.wal").write_bytes(HEAD + record(1, uid=b"U", entry=b"\x83a\x01") + bytes(broken) + record(3, 2))
    log = system(tmp_path).member("U")
    assert indexes(log) == [(1, 1), (2, 1), (3, 2)]
    assert [log.location(row) for row in range(3)] == ["wal", "segment", "wal"]
    assert log.entry(0).entry == b"\x83a\x01"


def test_entries_that_are_missing_are_gaps_and_those_after_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "U").mkdir()
    (tmp_path / "00000001.wal").write_bytes(HEAD + record(0, 0, uid=b"U") + record(1) + record(5) + record(6) + record(9))
    log = system(tmp_path).member("U")
    assert log.gaps == ((2, 4), (7, 8))
    assert [entry.index for entry in log.entries()] == [0, 1, 5, 6, 9]
    assert log.last == (1, 9)
    assert system(tmp_path).logged() == {"U"}


def test_links_that_a_compaction_leaves_are_not_read_twice(tmp_path: Path) -> None:
    member = tmp_path / "U"
    member.mkdir()
    (member / f"{1:016x}.compacting").write_bytes(segment((1, 1, b"\x83j"), (7, 1, b"\x83j")))
    (member / f"{1:016x}.compaction_group").write_bytes(encode([b"x"]))
    (member / f"{2:016x}.segment").symlink_to(f"{1:016x}.compacting")
    log = system(tmp_path).member("U")
    assert indexes(log) == [(1, 1), (7, 1)]
    assert len(log.files) == 1


# real nodes


@pytest.mark.parametrize("case", quorum.CASES)
def test_the_logs_of_real_nodes_are_whole_and_known_to_them(case: str) -> None:
    (found,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
    assert {uid for uid in found.uids if uid in found.names} == set(found.uids)
    for uid in found.uids:
        log = found.member(uid)
        assert not log.gaps
        assert not log.damage
        assert log.valid.all()
        meta = log.meta
        assert meta is not None
        assert 0 <= meta.last_applied <= log.last[1]
    assert not found.damage


@pytest.mark.parametrize("case", ["3.10.8/a-quorum-mix-kill9", "4.3.6/a-quorum-mix-kill9"])
def test_of_a_damaged_write_ahead_log_every_untouched_entry_is_read_unchanged(case: str) -> None:
    (path,) = quorum.node(case).glob("quorum/*/*.wal")
    data = path.read_bytes()
    before = read_wal(np.frombuffer(data, np.uint8), path.name)
    used = int(before.records["position"][-1] + before.records["length"][-1])
    given = {}  # the first record of each member names it; without it the others are nameless
    for row, number in enumerate(before.records["uid"].tolist()):
        given.setdefault(number, row)
    first = set(given.values())
    luck = random.Random(7)
    for _ in range(150):
        place, length = luck.randrange(5, used), luck.choice((1, 1, 1, 8, 200))
        changed = bytearray(data)
        changed[place : place + length] = luck.randbytes(len(changed[place : place + length]))
        after = read_wal(np.frombuffer(bytes(changed), np.uint8), path.name, before.uids)
        kept = {(int(r["index"]), int(r["term"]), int(r["position"])) for r in after.records if r["valid"]}
        for row, r in enumerate(before.records):
            touched = int(r["start"]) < place + length and place < int(r["position"] + r["length"])
            if touched and row in first:
                break  # what follows of this member cannot be told
            if not touched:
                assert (int(r["index"]), int(r["term"]), int(r["position"])) in kept
        if bytes(changed) != data:
            assert after.damage


@pytest.mark.parametrize("case", ["3.8.9/a-quorum-mix-kill9", "4.3.6/c-quorum-snapshots-kill9"])
def test_segments_and_snapshots_with_changed_bytes_are_read_without_an_error(case: str) -> None:
    luck = random.Random(11)
    paths = sorted(quorum.node(case).glob("quorum/*/*/*.segment")) + sorted(quorum.node(case).glob("quorum/*/*/*/*/snapshot.dat"))
    for path in luck.sample(paths, min(12, len(paths))):
        data = path.read_bytes()
        for _ in range(20):
            changed = bytearray(data[: luck.choice((len(data), luck.randrange(len(data))))])
            for _ in range(luck.randrange(1, 4) if changed else 0):
                changed[luck.randrange(len(changed))] = luck.randrange(256)
            if path.suffix == ".segment":
                found = read_segment(np.frombuffer(bytes(changed), np.uint8), path.name)
                intact = found.entries[found.entries["valid"] != 0]
                before = read_segment(np.frombuffer(data, np.uint8), path.name).entries
                known = {(int(e["index"]), data[int(e["position"]) :][: int(e["length"])]) for e in before}
                texts = {bytes(changed)[int(e["position"]) :][: int(e["length"])] for e in intact}
                assert texts <= {text for _, text in known} | {b""}
            else:
                found_state = read_snapshot(bytes(changed), path.name)
                assert not isinstance(found_state, Snapshot) or bytes(changed) == data


# files that are cut within their header, and terms that are not those of Ra


@pytest.mark.parametrize("length", range(9))
def test_a_segment_that_ends_within_its_header_is_torn_if_it_begins_as_one_and_a_log_stops_the_node(length: int) -> None:
    log = read_wal(np.frombuffer(HEAD[:length], np.uint8), "1.wal").damage
    torn = read_segment(np.frombuffer(segment()[:length], np.uint8), "1.segment").damage
    assert [(item.kind, item.offset, item.length) for item in log] == [(Kind.BAD_WAL, 0, length)] * (0 < length < len(HEAD))
    assert [(item.kind, item.offset, item.length) for item in torn] == [(Kind.TORN_RECORD, 0, length)] * (0 < length < 8)
    other = b"x" * length
    kinds = [each.kind for each in read_segment(np.frombuffer(other, np.uint8), "s").damage]
    assert kinds == [Kind.BAD_RAFT_SEGMENT] * (length > 0)
    assert [each.kind for each in read_wal(np.frombuffer(other, np.uint8), "w").damage] == [Kind.BAD_WAL] * (length > 0)


@pytest.mark.parametrize("meta", [[], {Atom("term"): 1}, {Atom("index"): Atom("none")}])
def test_a_snapshot_without_its_index_is_a_finding(meta: Term) -> None:
    part = encode(meta)
    rest = len(part).to_bytes(4, "big") + part + encode(1)
    damage = read_snapshot(b"RASN\x01" + zlib.crc32(rest).to_bytes(4, "big") + rest, "s")
    assert not isinstance(damage, Snapshot)
    assert (damage.kind, damage.offset, damage.length) == (Kind.BAD_SNAPSHOT, 13, len(part))
    assert damage.detail == "The snapshot does not state its index."


@pytest.mark.parametrize("length", range(13))
def test_a_snapshot_that_ends_within_its_header_is_a_finding(length: int) -> None:
    damage = read_snapshot(quorum.snapshot(7, 1)[:length], "s")
    assert not isinstance(damage, Snapshot)
    assert (damage.offset, damage.length) == (0, length)


def test_the_members_of_a_cluster_are_the_keys_of_a_map_or_a_list() -> None:
    one, two = (Atom("q"), Atom("rabbit@a")), (Atom("q"), Atom("rabbit@b"))
    expected = (("q", "rabbit@a"), ("q", "rabbit@b"))
    assert members_of([one, two]) == members_of({one: 1, two: 2}) == expected
    assert members_of([one, (Atom("q"),), Atom("q"), (b"q", Atom("rabbit@a")), two]) == expected
    assert members_of(Atom("none")) == members_of(None) == ()
