"""Verify: a store for every kind of damage, and the same answer however the log is split."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.golden import CASES, DAMAGED, GoldenCase, case_id, case_named, damage, opened, unpack
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.findings import Damage, Kind, Report
from mqstore.rocketmq.format.index_geometry import HEADER_SIZE
from mqstore.rocketmq.format.record import Record, encode, with_property_crc
from mqstore.rocketmq.verify import log_proof
from mqstore.rocketmq.verify.verification import verify

SLOTS, POSITIONS = 7, 400
ENTRIES = HEADER_SIZE + 4 * SLOTS


def full(root: Path, **settings: object) -> Store:
    """A valid store: three topics, keys and tags."""
    store = Store(root, slots=SLOTS, positions=POSITIONS, **settings)  # type: ignore[arg-type]
    for number in range(60):
        store.put(
            message(
                ("orders", "bills", "T")[number % 3],
                b"body %d" % number,
                keys=f"k{number} all",
                tags=f"tag{number % 4}",
                queue_id=number % 2,
            )
        )
    return store


def log_only(root: Path, **settings: object) -> Store:
    """A store with only a log, so that findings of queues and index do not interfere."""
    return full(root, listed=0, with_index=False, abort=True, **settings)


def index_of(store: Store) -> str:
    (name,) = (path.name for path in (store.root / "index").iterdir())
    return f"index/{name}"


Change = Callable[[Path], None]
KINDS: dict[Kind, Change] = {}
OF_RABBITMQ = {  # tests/rabbitmq and tests/cli have stores of these
    Kind.BAD_JOURNAL,
    Kind.BAD_SEGMENT,
    Kind.BAD_QUEUE_FILE,
    Kind.BAD_QUEUE_NAME,
    Kind.REPEATED_ENTRY,
    Kind.BROKER_CRASH,
    Kind.BROKER_LOSES,
    Kind.BAD_TERM,
    Kind.BAD_STORE_RECORD,
    Kind.MISSING_BODY,
    Kind.MISSING_PART,
    Kind.BAD_SIDE_FILE,
    Kind.BAD_CHUNK,
    Kind.BAD_BATCH,
    Kind.BAD_STREAM_INDEX,
    Kind.MISSING_SEGMENT,
    Kind.BAD_WAL,
    Kind.BAD_RAFT_SEGMENT,
    Kind.BAD_SNAPSHOT,
    Kind.MISSING_ENTRIES,
    Kind.UNKNOWN_MEMBER,
}


def makes(kind: Kind) -> Callable[[Change], Change]:
    def keep(change: Change) -> Change:
        KINDS[kind] = change
        return change

    return keep


@makes(Kind.BAD_FRAME)
def bad_frame(root: Path) -> None:
    store = log_only(root)
    store.write()
    store.patch_log(store.puts[20].offset + 4, b"\x13")


@makes(Kind.BAD_LENGTHS)
def bad_lengths(root: Path) -> None:
    store = log_only(root)
    store.write()
    store.patch_log(store.puts[20].offset + 84, struct.pack(">i", 2**31 - 1))


@makes(Kind.BAD_OFFSET)
def bad_offset(root: Path) -> None:
    store = log_only(root)
    store.write()
    store.patch_log(store.puts[20].offset + 28, struct.pack(">q", 5))


@makes(Kind.BAD_CHECKSUM)
def bad_checksum(root: Path) -> None:
    store = full(root)
    store.write()
    store.patch_log(store.puts[20].offset + 88, b"B")


@makes(Kind.BAD_PROPERTY_CHECKSUM)
def bad_property_checksum(root: Path) -> None:
    store = log_only(root)
    base = sum(len(put.raw) for put in store.puts)
    store.put(Record("T", b"x", physical_offset=base))
    made = with_property_crc(replace(store.puts[-1].record, flag=3))
    store.files[0][base:] = encode(made)
    store.write()
    assert verify(mqstore.open(root)).ok
    store.patch_log(base + 16, struct.pack(">i", 4))


@makes(Kind.BAD_COMPRESSION)
def bad_compression(root: Path) -> None:
    store = full(root)
    store.put(message("orders", b"not compressed", sys_flag=1))
    store.write()


@makes(Kind.BAD_PROPERTIES)
def bad_properties(root: Path) -> None:
    store = full(root)
    store.put(message("orders", properties=b"property text without separators"))
    store.write()


@makes(Kind.BAD_TEXT)
def bad_text(root: Path) -> None:
    store = full(root)
    store.put(message("orders", properties=b"name\x01\xff\xfe\x02"))
    store.write()


@makes(Kind.TORN_RECORD)
def torn_record(root: Path) -> None:
    store = log_only(root)
    store.write()
    last = store.puts[-1]
    half = len(last.raw) // 2
    store.patch_log(last.offset + half, bytes(len(last.raw) - half))


@makes(Kind.ZEROED)
def zeroed(root: Path) -> None:
    store = log_only(root)
    store.write()
    first, last = store.puts[20], store.puts[23]
    store.patch_log(first.offset, bytes(last.offset - first.offset))


@makes(Kind.MISSING_FILE)
def missing_file(root: Path) -> None:
    log_only(root, file_size=2048).write()
    (root / "commitlog" / f"{2048:020d}").unlink()


@makes(Kind.WRONG_SIZE)
def wrong_size(root: Path) -> None:
    full(root).write()
    (name,) = (root / "index").iterdir()
    name.rename(name.with_name("20220101000000000"))
    (root / "index" / "20220101000000001").write_bytes(bytes(100))


@makes(Kind.STRAY_FILE)
def stray_file(root: Path) -> None:
    store = full(root)
    store.write()
    store.write_file("commitlog/notes.txt", b"do not touch")


@makes(Kind.BAD_QUEUE_ENTRY)
def bad_queue_entry(root: Path) -> None:
    """Another entry that points after the end of the log; every record has its entry."""
    store = full(root)
    store.write()
    file, at = store.entry(store.puts[-1])
    store.patch(file, at + 20, struct.pack(">qiq", 10**9, 100, 0))


@makes(Kind.QUEUE_ENTRY_MISMATCH)
def queue_entry_mismatch(root: Path) -> None:
    store = full(root)
    store.write()
    file, at = store.entry(store.puts[30])
    store.patch(file, at + 8, struct.pack(">i", 7))


@makes(Kind.QUEUE_GAP)
def queue_gap(root: Path) -> None:
    """Two queue offsets that no record has."""
    store = full(root)
    store.next_queue_offset["orders", 0] += 2
    store.put(message("orders"))
    store.write()


@makes(Kind.QUEUE_ORDER)
def queue_order(root: Path) -> None:
    """Two entries in each other's place."""
    store = full(root)
    store.write()
    (file, one), (_, other) = store.entry(store.puts[30]), store.entry(store.puts[36])
    raw = (root / file).read_bytes()
    store.patch(file, one, raw[other : other + 20])
    store.patch(file, other, raw[one : one + 20])


# kinds that never occur alone, and those that they imply
WITH = {Kind.QUEUE_ORDER: {Kind.QUEUE_ENTRY_MISMATCH, Kind.MISSING_QUEUE_ENTRY}}


@makes(Kind.MISSING_QUEUE_ENTRY)
def missing_queue_entry(root: Path) -> None:
    full(root, listed=50).write()


@makes(Kind.BAD_INDEX_HEADER)
def bad_index_header(root: Path) -> None:
    store = full(root)
    store.write()
    store.patch(index_of(store), 32, struct.pack(">i", 2))


@makes(Kind.BAD_INDEX_ENTRY)
def bad_index_entry(root: Path) -> None:
    """Another entry, in its chain and in the header, for a key that its record does not have."""
    store = full(root)
    store.write()
    file = index_of(store)
    number = len(list(store.keys())) + 1
    raw = (root / file).read_bytes()
    (newest,) = struct.unpack_from(">i", raw, HEADER_SIZE)
    store.patch(file, ENTRIES + 20 * number, struct.pack(">iqii", 7 * SLOTS, store.puts[-1].offset, 0, newest))
    store.patch(file, HEADER_SIZE, struct.pack(">i", number))
    store.patch(file, 36, struct.pack(">i", number + 1))


@makes(Kind.BAD_INDEX_CHAIN)
def bad_index_chain(root: Path) -> None:
    store = full(root)
    store.write()
    store.patch(index_of(store), ENTRIES + 20 * 9 + 16, struct.pack(">i", 30))


@makes(Kind.MISSING_INDEX_ENTRY)
def missing_index_entry(root: Path) -> None:
    full(root, indexed=40).write()


@makes(Kind.BAD_CONFIG)
def bad_config(root: Path) -> None:
    store = full(root)
    store.write()
    store.write_file("config/consumerOffset.json", b'{"offsetTable":{"orders@gro')


@makes(Kind.BAD_CHECKPOINT)
def bad_checkpoint(root: Path) -> None:
    full(root).write()
    (root / "checkpoint").write_bytes(bytes(100))


def kinds(report: Report) -> set[Kind]:
    return {item.kind for item in report.damage}


def test_a_valid_store_has_no_findings(tmp_path: Path) -> None:
    full(tmp_path, file_size=4096).write()
    report = verify(mqstore.open(tmp_path))
    assert (report.ok, report.damage, report.notes) == (True, (), ())
    assert report.coverage.complete
    assert (report.checked.messages, report.checked.queue_entries, report.checked.index_entries) == (60, 60, 120)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_damage_is_called_by_its_name_alone(kind: Kind, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    report = verify(mqstore.open(tmp_path))
    assert kinds(report) == {kind} | WITH.get(kind, set()), [item.as_dict() for item in report.damage]
    assert not report.ok
    assert all(item.detail for item in report.damage)


def test_every_kind_has_a_store() -> None:
    elsewhere = {
        Kind.ABSENT_PART,  # in tests/rocketmq/test_site.py
        Kind.UNREADABLE,  # in test_opening.py: it needs a user without permission
        Kind.BAD_DATABASE,  # in tests/cli/read/test_rocksdb_stores.py: it needs an extra
        Kind.BAD_COMPACTION,  # in tests/rocketmq/store/test_compacted.py
        Kind.BAD_TIMER,  # in tests/cli/read/test_timers.py
        Kind.BAD_TRANSACTION,  # in tests/rocketmq/verify/test_timeline_proof.py
    }
    assert set(Kind) - set(KINDS) - OF_RABBITMQ == elsewhere


@pytest.mark.parametrize("kind", KINDS)
def test_findings_do_not_depend_on_threads(kind: Kind, tmp_path: Path) -> None:
    KINDS[kind](tmp_path)
    assert verify(mqstore.open(tmp_path), threads=1) == verify(mqstore.open(tmp_path), threads=4)


# however the log is split


def split(root: Path, size: int, monkeypatch: pytest.MonkeyPatch, config: Path | None = None) -> Report:
    with monkeypatch.context() as patch:
        patch.setattr(log_proof, "SPLIT", size)
        return comparable(verify(mqstore.open(root, config=config), threads=2))


def comparable(report: Report) -> Report:
    """Return the report without the count of bytes: holes at the end of a file are counted by whole splits."""
    return replace(report, checked=replace(report.checked, bytes=0))


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in ("l-default-sizes", "b2-kill9-live")], ids=case_id)
def test_findings_do_not_depend_on_the_size_of_splits(case: GoldenCase, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = comparable(verify(mqstore.open(opened(case), config=case.config)))
    for size in (5000, 17_001):
        assert split(opened(case), size, monkeypatch, case.config) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_damage_is_found_across_splits(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KINDS[kind](tmp_path)
    whole = comparable(verify(mqstore.open(tmp_path)))
    for size in (91, 150, 1000):
        assert split(tmp_path, size, monkeypatch) == whole


def test_a_record_forged_inside_a_body_is_ignored_where_a_split_begins_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, file_size=1 << 20)
    for number in range(30):
        at = sum(len(put.raw) for put in store.puts) + 88
        body = b""
        while len(body) < 9000:
            body += encode(Record("forged", b"never stored", queue_id=9, physical_offset=at + len(body), properties=b"KEYS\x01forged"))
        store.put(message("orders", body, keys=f"k{number}"))
    store.write()
    whole = comparable(verify(mqstore.open(tmp_path)))
    assert (whole.ok, whole.checked.messages) == (True, 30)
    for size in (100, 500, 4096, 10_007):
        assert split(tmp_path, size, monkeypatch) == whole


# real damage


def covered(report: Report, file: str, low: int, high: int) -> bool:
    """Return whether a finding overlaps a range of a file."""

    def meets(item: Damage) -> bool:
        return item.file == file and item.offset < high and item.offset + max(1, item.length) > low

    return any(meets(item) for item in report.damage)


@pytest.mark.parametrize(
    "case", [case for case in DAMAGED if case.name.endswith(("flip", "field", "4k", "fields", "index", "entries"))], ids=case_id
)
def test_the_damaged_ranges_are_in_findings(case: GoldenCase) -> None:
    report = verify(mqstore.open(opened(case), config=case.config))
    for item in damage(case):
        assert covered(report, item["file"], item["offset"], item["offset"] + item["length"]), item


def test_nothing_is_found_in_the_copy_that_was_not_damaged() -> None:
    case = case_named("4.9.3/m-damaged/0-clean")
    assert verify(mqstore.open(opened(case), config=case.config)).ok


@pytest.mark.parametrize(
    ("topic", "later", "found"),
    [("SCHEDULE_TOPIC_XXXX", 86_400_000, set()), ("SCHEDULE_TOPIC_XXXX", -(10**9), {Kind.QUEUE_ENTRY_MISMATCH}),
     ("s62_orders", 86_400_000, {Kind.QUEUE_ENTRY_MISMATCH})],
)  # fmt: skip
def test_only_a_delayed_message_may_have_a_time_after_it_was_stored_in_place_of_its_tags(
    topic: str, later: int, found: set[Kind], tmp_path: Path
) -> None:
    """When it is delivered follows from the settings of the broker, which may have been others."""
    case = case_named("4.9.3/f-broker-offsets")
    queue = unpack(case, tmp_path) / "consumequeue" / topic / "0" / f"{0:020d}"
    raw = bytearray(queue.read_bytes())
    physical, _, tags_code = struct.unpack_from(">qiq", raw)
    (stored,) = struct.unpack_from(
        ">q", (tmp_path / "commitlog" / f"{physical // 131072 * 131072:020d}").read_bytes(), physical % 131072 + 56
    )
    struct.pack_into(">q", raw, 12, stored + later)
    assert tags_code != stored + later
    queue.write_bytes(raw)
    assert kinds(verify(mqstore.open(tmp_path, config=case.config))) == found


# findings and notes


def test_queues_and_index_that_end_before_the_log_are_a_note_after_an_unclean_exit(tmp_path: Path) -> None:
    full(tmp_path, listed=40, indexed=30, abort=True).write()
    report = verify(mqstore.open(tmp_path))
    assert report.ok
    assert [note.split()[0] for note in report.notes if note[0].isdigit()] == ["20"]
    assert any("keys of 30 messages" in note for note in report.notes)
    (tmp_path / "abort").unlink()
    report = verify(mqstore.open(tmp_path))
    assert kinds(report) == {Kind.MISSING_QUEUE_ENTRY, Kind.MISSING_INDEX_ENTRY}
    assert sum(item.messages for item in report.damage if item.kind == Kind.MISSING_QUEUE_ENTRY) == 20


def test_a_hole_in_the_queues_is_damage_even_after_an_unclean_exit(tmp_path: Path) -> None:
    store = full(tmp_path, abort=True)
    store.write()
    file, at = store.entry(store.puts[12])
    store.patch(file, at, bytes(20))
    assert Kind.MISSING_QUEUE_ENTRY in kinds(verify(mqstore.open(tmp_path)))


def test_a_lost_stretch_counts_the_messages_that_queues_knew_of_it(tmp_path: Path) -> None:
    store = full(tmp_path)
    store.write()
    first, behind = store.puts[20], store.puts[27]
    store.patch_log(first.offset, bytes(behind.offset - first.offset))
    report = verify(mqstore.open(tmp_path))
    (lost,) = (item for item in report.damage if item.kind == Kind.ZEROED)
    assert (lost.offset, lost.length, lost.messages) == (first.offset, behind.offset - first.offset, 7)
    assert not report.coverage.complete
    assert report.coverage.skipped[0].length == lost.length
    assert sum(item.kind == Kind.BAD_QUEUE_ENTRY for item in report.damage) == 7


def test_an_offset_outside_its_queue_is_a_note(tmp_path: Path) -> None:
    store = full(tmp_path)
    store.write()
    store.write_file("config/consumerOffset.json", b'{"offsetTable":{"orders@group":{0:5000,1:3}}}')
    report = verify(mqstore.open(tmp_path))
    assert report.ok
    assert [note for note in report.notes if "5000" in note]


def test_a_checkpoint_later_than_the_log_is_a_note(tmp_path: Path) -> None:
    store = full(tmp_path)
    store.write()
    store.write_file("checkpoint", struct.pack(">qqq", BEGIN + 10**6, BEGIN, BEGIN).ljust(4096, b"\0"))
    report = verify(mqstore.open(tmp_path))
    assert report.ok
    assert [note for note in report.notes if "physicMsgTimestamp" in note]


def test_progress_ends_with_the_whole_log(tmp_path: Path) -> None:
    full(tmp_path, file_size=2048).write()
    seen: list[tuple[int, int]] = []
    verify(mqstore.open(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
