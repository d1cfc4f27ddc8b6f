"""Index entries against the keys of the log: over several files, of older and newer brokers, after retention and recovery."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.stores import Put, Store, index_file, message

import mqstore
from mqstore.findings import Kind, Report
from mqstore.rocketmq.dispatch.dispatcher import tags_hash
from mqstore.rocketmq.verify.verification import verify


def kinds(report: Report) -> list[str]:
    return [str(item.kind) for item in report.damage]


def filled(root: Path, positions: int, count: int = 60, keys: str = "k{0} all k{0}", **options: int) -> Store:
    store = Store(root, slots=7, positions=positions, **options)
    for number in range(count):
        store.put(message("orders", b"body %d" % number, keys=keys.format(number), tags=f"tag{number % 3}"), at=1700 * number)
    return store


@pytest.mark.parametrize("keys", ["k{0} all", "k{0} all k{0}", "same same same same", "k{0} all k{0} k{0} all"])
@pytest.mark.parametrize("positions", range(6, 16))
def test_keys_over_the_end_of_a_file_are_found(tmp_path: Path, positions: int, keys: str) -> None:
    filled(tmp_path, positions, keys=keys).write()
    report = verify(mqstore.open(tmp_path))
    assert (report.damage, report.notes) == ((), ())


@pytest.mark.parametrize("positions", range(4, 16))
def test_after_retention_the_first_file_counts_its_first_time_from_one_that_is_gone(tmp_path: Path, positions: int) -> None:
    store = filled(tmp_path, positions, file_size=2048)
    store.write()
    bases = sorted(store.files)
    (tmp_path / "commitlog" / f"{bases[0]:020d}").unlink()
    for path in sorted((tmp_path / "index").iterdir())[:-1]:
        if struct.unpack(">q", path.read_bytes()[24:32])[0] >= bases[1]:
            break
        path.unlink()
    report = verify(mqstore.open(tmp_path))
    assert report.damage == ()


@pytest.mark.parametrize("positions", [5, 6, 7])
def test_an_entry_that_is_missing_from_both_files_is_told(tmp_path: Path, positions: int) -> None:
    store = filled(tmp_path, positions, keys="k{0} all")
    store.write()
    paths = sorted((tmp_path / "index").iterdir())
    raw = bytearray(paths[3].read_bytes())
    at = 40 + 4 * 7 + 20 * 2
    raw[at : at + 4] = struct.pack(">i", struct.unpack(">i", raw[at : at + 4])[0] + 7)  # the same slot, another hash
    paths[3].write_bytes(raw)
    assert kinds(verify(mqstore.open(tmp_path))) == [Kind.MISSING_INDEX_ENTRY, Kind.BAD_INDEX_ENTRY]


# tags, which brokers index since 5.4.0


@dataclass
class Tagged(Store):
    """A store whose index has the tags of records first_tagged..last_tagged-1, except one."""

    first_tagged: int = 0
    last_tagged: int = 1000
    without: int = -1

    def keys(self) -> Iterator[tuple[int, Put]]:
        rows = list(super().keys())
        for number, put in enumerate(self.puts):
            yield from (row for row in rows if row[1] is put)
            tags = tags_hash(put.record)
            if tags is not None and self.first_tagged <= number < self.last_tagged and number != self.without:
                yield tags, put


def tagged(root: Path, **options: int) -> Report:
    store = Tagged(root, slots=7, positions=40, **options)
    for number in range(60):
        store.put(message("orders", b"x", keys=f"k{number} all", tags=f"tag{number % 3}" if number % 5 else None))
    store.write()
    return verify(mqstore.open(root))


@pytest.mark.parametrize(("first", "last"), [(0, 1000), (31, 1000), (59, 1000), (0, 31), (13, 47)])
def test_an_upgraded_broker_indexes_tags_from_some_record_on(tmp_path: Path, first: int, last: int) -> None:
    report = tagged(tmp_path, first_tagged=first, last_tagged=last)
    assert (report.damage, report.notes) == ((), ())


def test_tags_without_an_entry_between_others_are_missing(tmp_path: Path) -> None:
    report = tagged(tmp_path, without=32)
    assert kinds(report) == [Kind.MISSING_INDEX_ENTRY]
    assert report.damage[0].messages == 1


def test_what_the_newest_records_show_is_what_a_rebuild_does(tmp_path: Path) -> None:
    tagged(tmp_path / "new", first_tagged=31)
    tagged(tmp_path / "old", last_tagged=31)
    for name in ("new", "old"):
        (tmp_path / name / "abort.bak").touch()  # which 5.x leaves
    stores = [mqstore.open(tmp_path / name) for name in ("new", "old")]
    assert [store.rules().index_tags for store in stores] == [True, False]
    assert [store.rules("5.3.3").index_tags for store in stores] == [False, False]  # a version that is asked for decides
    assert [store.rules("5.4.0").index_tags for store in stores] == [True, True]


# what a recovery of the broker leaves


def test_a_range_without_index_before_a_log_file_is_what_a_recovery_leaves(tmp_path: Path) -> None:
    store = filled(tmp_path, 400, file_size=2048)
    store.write()
    begin = sorted(store.files)[2]
    rows = list(store.keys())
    keep = [row for row in rows if row[1].offset >= begin]
    (path,) = (tmp_path / "index").iterdir()
    path.write_bytes(index_file(keep, 7, 400))
    report = verify(mqstore.open(tmp_path))
    assert report.damage == ()
    lost = len({row[1].offset for row in rows} - {row[1].offset for row in keep})
    assert report.notes[0].startswith(f"keys of {lost} messages are in no index file: as brokers do, a recovery deleted the newest")


def test_a_file_that_is_lost_from_the_middle_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, 31).write()
    sorted((tmp_path / "index").iterdir())[2].unlink()
    assert kinds(verify(mqstore.open(tmp_path))) == [Kind.MISSING_INDEX_ENTRY]


# what a killed broker leaves in the middle of a put


@pytest.mark.parametrize("step", ["entry", "slot", "slot count", "entry count"])
@pytest.mark.parametrize("count", [4, 58, 60])
def test_an_entry_that_a_killed_broker_was_adding_is_a_note(tmp_path: Path, step: str, count: int) -> None:
    """The bytes of each step of a put: entry, slot, count of slots, count of entries; then end offset and time follow."""
    before, after = (
        filled(tmp_path / name, 400, number, keys="k{0}", abort=True) for name, number in (("before", count - 1), ("after", count))
    )
    before.write()
    after.write()
    (old,) = (tmp_path / "before" / "index").iterdir()
    (new,) = (tmp_path / "after" / "index").iterdir()
    raw, wanted = bytearray(old.read_bytes()), new.read_bytes()
    for name, low, high in (("entry", 40 + 4 * 7, len(raw)), ("slot", 40, 40 + 4 * 7), ("slot count", 32, 36), ("entry count", 36, 40)):
        raw[low:high] = wanted[low:high]
        if name == step:
            break
    new.write_bytes(raw)
    report = verify(mqstore.open(tmp_path / "after"))
    assert report.damage == ()
    told = [note for note in report.notes if "the broker was killed while it added an entry" in note]
    assert len(told) == (step != "entry")
    # a broker that has stopped cleanly leaves no such state
    (tmp_path / "after" / "abort").unlink()
    assert (Kind.BAD_INDEX_CHAIN in (found := kinds(verify(mqstore.open(tmp_path / "after")))) or Kind.BAD_INDEX_HEADER in found) is (
        step != "entry"
    )


# the count of slots


@pytest.mark.parametrize(("counted", "damaged"), [("slots", False), ("keys", False), ("more", True), ("fewer", True)])
def test_a_header_counts_slots_in_use_or_as_in_4_3_0_keys(tmp_path: Path, counted: str, damaged: bool) -> None:
    filled(tmp_path, 31).write()
    for path in (tmp_path / "index").iterdir():
        raw = bytearray(path.read_bytes())
        slots, entries = struct.unpack(">ii", raw[32:40])
        raw[32:36] = struct.pack(">i", {"slots": slots, "keys": entries - 1, "more": entries, "fewer": slots - 1}[counted])
        path.write_bytes(raw)
    assert (Kind.BAD_INDEX_HEADER in kinds(verify(mqstore.open(tmp_path)))) is damaged


def test_only_the_file_in_which_a_broker_was_upgraded_has_a_count_between(tmp_path: Path) -> None:
    filled(tmp_path, 31).write()
    paths = sorted((tmp_path / "index").iterdir())
    raw = bytearray(paths[0].read_bytes())
    raw[32:36] = struct.pack(">i", 12)
    paths[0].write_bytes(raw)
    assert verify(mqstore.open(tmp_path)).ok
    raw = bytearray(paths[2].read_bytes())
    raw[32:36] = struct.pack(">i", 12)
    paths[2].write_bytes(raw)
    assert kinds(verify(mqstore.open(tmp_path))) == [Kind.BAD_INDEX_HEADER]
