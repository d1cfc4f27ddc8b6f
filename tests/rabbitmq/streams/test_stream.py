"""Whole streams, intact and damaged: what is found, and what a node makes of them, as a real node of 4.3.6 did."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from support import streams
from support.streams import CASES

from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.repair.index_steps import _of_stream
from mqstore.rabbitmq.streams.examination import Change, Examination, KeptEnds
from mqstore.rabbitmq.streams.index import HEADER as INDEX_HEADER
from mqstore.rabbitmq.streams.index import record
from mqstore.rabbitmq.streams.rows import JOINED, build_batch, walk_rows
from mqstore.rabbitmq.streams.segment import HEADER, chunk, entry
from mqstore.rabbitmq.streams.start import _Files
from mqstore.rabbitmq.streams.stream import NamedStream, Stream, find_streams
from mqstore.rabbitmq.streams.tracking import Tracking
from mqstore.table.columns import QueueSelection

CASE, QUEUE = "4.3.6-killed", "s.small"


def examine(directory: Path) -> Examination:
    return Examination(Stream(ReadOnlyDirectory(directory), ""))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    target = tmp_path / "s"
    shutil.copytree(streams.directories(CASE)[QUEUE], target)
    return target


def of(directory: Path, number: int, ending: str = "segment") -> Path:
    return sorted(directory.glob(f"*.{ending}"))[number]


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(bytes(raw))


# the rows of the table in docs/formats/rabbitmq-streams.md, section 9


def nothing(directory: Path) -> None:
    pass


def cut_trailer(directory: Path) -> None:
    cut(of(directory, -1), 5)


def damaged_last_chunk(directory: Path) -> None:
    flip(of(directory, -1), of(directory, -1).stat().st_size - 100)


def cut_last_chunk(directory: Path) -> None:
    cut(of(directory, -1), 200)


def damaged_first_chunk(directory: Path) -> None:
    flip(of(directory, 0), 60)


def last_index_gone(directory: Path) -> None:
    of(directory, -1, "index").unlink()


def first_index_gone(directory: Path) -> None:
    of(directory, 0, "index").unlink()


def last_index_short(directory: Path) -> None:
    cut(of(directory, -1, "index"), 2 * 29 + 7)


def last_index_empty(directory: Path) -> None:
    of(directory, -1, "index").write_bytes(b"OSII\0\0\0\1")


def middle_segment_gone(directory: Path) -> None:
    of(directory, 1).unlink()


def bytes_after(directory: Path) -> None:
    with of(directory, -1).open("ab") as file:
        file.write(b"what a disk left here" * 3)


# delivered by the node; intact for this reader; kinds of findings
SEEN: dict[Callable[[Path], None], tuple[int, int, set[Kind]]] = {
    nothing: (300, 300, set()),
    cut_trailer: (300, 300, {Kind.TORN_RECORD}),
    damaged_last_chunk: (269, 269, {Kind.BAD_CHUNK}),
    cut_last_chunk: (269, 269, {Kind.TORN_RECORD, Kind.BAD_STREAM_INDEX}),
    damaged_first_chunk: (0, 297, {Kind.BAD_CHUNK}),
    last_index_gone: (255, 300, {Kind.BAD_STREAM_INDEX}),
    first_index_gone: (230, 300, {Kind.BAD_STREAM_INDEX}),
    last_index_short: (267, 300, {Kind.BAD_STREAM_INDEX, Kind.TORN_RECORD}),
    last_index_empty: (255, 300, {Kind.BAD_STREAM_INDEX}),
    middle_segment_gone: (70, 232, {Kind.MISSING_SEGMENT, Kind.BAD_STREAM_INDEX}),
    bytes_after: (300, 300, {Kind.BAD_CHUNK}),
}


@pytest.mark.parametrize("damage", SEEN, ids=lambda damage: damage.__name__)
def test_a_node_delivers_what_was_seen_and_this_reader_reads_all_that_is_intact(damage: Callable[[Path], None], small: Path) -> None:
    damage(small)
    delivered, intact, kinds = SEEN[damage]
    examined = examine(small)
    start = examined.node_start()
    assert {item.kind for item in examined.damage} == kinds
    assert (start.delivered, examined.counts.messages) == (delivered, intact)
    assert start.kept + start.lost == intact


@pytest.mark.parametrize("case", CASES)
def test_a_golden_stream_has_no_findings_and_a_node_keeps_it_whole(case: str) -> None:
    for queue, directory in streams.directories(case).items():
        examined = examine(directory)
        start = examined.node_start()
        assert (examined.damage, start.changes, start.stops_at, start.lost) == ([], (), None, 0)
        assert start.delivered == start.kept == len(streams.delivered(case, "stream").get(queue, []))


@pytest.mark.parametrize("case", CASES)
def test_the_offsets_give_the_count_that_list_queues_gave(case: str) -> None:
    counts = {name: int(total) for name, kind, *_, total in streams.counts(case)["queues"] if kind == "stream"}
    for queue, directory in streams.directories(case).items():
        stream = Stream(ReadOnlyDirectory(directory), "")
        assert stream.end() - stream.first_offset == counts[queue]


def test_the_streams_of_a_node_are_found_by_their_directories() -> None:
    found = find_streams(ReadOnlyDirectory(streams.node(CASE)))
    assert [stream.name.rpartition("_")[0] for stream in found] == [
        f"__{queue.replace('.', '_')}" for queue in sorted(streams.directories(CASE))
    ]
    assert {stream.place for stream in found} == {f"stream/{stream.name}" for stream in found}
    [alone] = find_streams(ReadOnlyDirectory(streams.directories(CASE)[QUEUE]))
    assert (alone.place, len(alone), alone.first_offset) == ("", 5, 0)
    assert [alone.segment_of(offset) for offset in (0, 69, 70, 299, 10**9)] == [0, 0, 1, 4, 4]


def test_what_a_node_changes_is_said_file_by_file(small: Path) -> None:
    first_index_gone(small)
    last_index_short(small)
    deleted, shortened = examine(small).node_start().changes
    assert (deleted.change, deleted.file, deleted.kept, deleted.messages, deleted.first) == (
        Change.DELETES_SEGMENT,
        of(small, 0).name,
        0,
        70,
        0,
    )
    assert (shortened.change, shortened.file, shortened.messages) == (Change.CUTS_SEGMENT, of(small, -1).name, 33)
    assert 0 < shortened.kept < of(small, -1).stat().st_size


def test_a_last_segment_without_a_chunk_goes_with_its_index_and_the_one_before_is_the_last(small: Path) -> None:
    (small / "00000000000000000304.segment").write_bytes(HEADER)
    (small / "00000000000000000304.index").write_bytes(b"OSII\0\0\0\1")
    cut(of(small, 4, "index"), 29)
    start = examine(small).node_start()
    assert [(change.change, change.file) for change in start.changes] == [
        (Change.DELETES_SEGMENT, "00000000000000000304.segment"),
        (Change.CUTS_SEGMENT, of(small, 4).name),
    ]
    assert start.delivered == 269


OLD, NEW = False, True  # whether a node mends the end of a stream before it asks for its offsets: 3.10 does not, 4.0 and 4.3 do
DOWN = {  # seen on 3.10.8, 4.0.5 and 4.3.6: the number of the file, its ending, its size, and the nodes that do not start the stream
    **{(0, "segment", size): (OLD, NEW) for size in (0, 7, 8, 48, 49, 56, 60)},
    **{(0, "index", size): (OLD, NEW) for size in (0, 1, 7, 8, 9, 36)},
    **{(-1, "segment", size): (OLD,) for size in (0, 1, 4, 7, 8, 9, 48, 49, 55, 56, 57)},
    **{(-1, "index", size): (OLD,) for size in (9, 36)},
    **{(-1, "index", size): () for size in (0, 1, 7, 8, 37)},
    **{(2, "segment", size): (OLD,) for size in (0, 7, 8, 48, 56, 60)},
    **{(2, "index", size): (OLD,) for size in (0, 8, 36)},
    (2, "index", 37): (),
    (0, "index", 37): (),
}


@pytest.mark.parametrize("mends_first", [OLD, NEW], ids=["3.10", "4.x"])
@pytest.mark.parametrize(("number", "ending", "size"), DOWN)
def test_a_node_does_not_start_a_stream_whose_ends_it_cannot_read(
    number: int, ending: str, size: int, mends_first: bool, small: Path
) -> None:
    path = of(small, number, ending)
    path.write_bytes(path.read_bytes()[:size])
    examined = examine(small)
    start = examined.node_start(mends_first=mends_first)
    stream = Stream(ReadOnlyDirectory(small), "", mends_first=mends_first)
    kept = any(KeptEnds(stream).of(number) for number in range(len(stream)))
    if mends_first in DOWN[number, ending, size]:
        assert [change.change for change in start.refused] == [Change.DOES_NOT_START]
        assert (start.kept, start.delivered, start.lost, kept) == (0, 0, examined.counts.messages, False)
    else:
        assert start.refused == ()
        assert start.kept > 200
        assert kept


@pytest.mark.parametrize("mends_first", [OLD, NEW], ids=["3.10", "4.x"])
@pytest.mark.parametrize(("size", "down"), [(0, ()), (7, ()), (8, ()), (9, (OLD,)), (48, (OLD,)), (56, (OLD,)), (57, (OLD,))])
def test_of_a_single_segment_a_node_writes_the_headers_anew(size: int, down: tuple[bool, ...], mends_first: bool, small: Path) -> None:
    for _ in range(1, 5):
        for ending in ("segment", "index"):
            of(small, 1, ending).unlink()
    of(small, 0).write_bytes(of(small, 0).read_bytes()[:size])
    assert bool(examine(small).node_start(mends_first=mends_first).refused) == (mends_first in down)


@pytest.mark.parametrize("mends_first", [OLD, NEW], ids=["3.10", "4.x"])
def test_a_segment_without_a_mark_or_an_index_without_a_segment_keeps_a_stream_down(mends_first: bool, small: Path) -> None:
    last = of(small, -1).read_bytes()
    of(small, -1).write_bytes(last[:8] + b"\0" + last[9:])
    [refused] = examine(small).node_start(mends_first=mends_first).refused
    assert refused.file == of(small, -1).name
    of(small, -1).write_bytes(last)
    of(small, 0).unlink()
    [refused] = examine(small).node_start(mends_first=mends_first).refused
    assert refused.file == f"{0:020}.index"


def test_3_10_reads_a_segment_without_an_index_between_others(small: Path) -> None:
    of(small, 2, "index").unlink()
    examined = examine(small)
    assert (examined.node_start(mends_first=OLD).delivered, examined.node_start(mends_first=OLD).changes) == (300, ())
    assert examined.node_start(mends_first=NEW).lost > 0


def test_offsets_that_only_the_index_of_the_last_segment_lists_are_counted_as_lost(small: Path) -> None:
    of(small, -1).write_bytes(b"")
    examined = examine(small)
    assert examined.counts.messages == 255
    assert examined.unread == 16  # the last chunk that it lists begins at 273: what else that held is not known
    assert any("lists offsets 258 to 273, at least" in item.detail for item in examined.damage)


@pytest.mark.parametrize(("gone", "lost"), [((258,), 16), ((203, 258), 71), ((0, 70, 139, 203, 258), 274), ((139,), 64)])
def test_what_indexes_without_a_segment_list_is_lost(gone: tuple[int, ...], lost: int, small: Path) -> None:
    """Offsets follow each other, so that only what the last chunk of the last index had cannot be told."""
    for first in gone:
        (small / f"{first:020}.segment").unlink()
    examined = examine(small)
    assert examined.unread == lost
    assert [sentence.split(":")[0] for sentence in examined.uncertain] == ["how many messages are lost from offset 273 on"] * (258 in gone)


def test_what_was_in_a_stream_without_files_cannot_be_told(small: Path) -> None:
    for path in small.iterdir():
        path.unlink()
    examined = examine(small)
    assert (examined.unread, examined.uncertain) == (0, ["what was in it: no segment is here"])


def test_an_index_without_a_segment_is_no_stream_by_itself(small: Path) -> None:
    for path in small.glob("*.segment"):
        path.unlink()
    examined = examine(small)
    assert {item.kind for item in examined.damage} == {Kind.BAD_STREAM_INDEX, Kind.MISSING_SEGMENT}
    assert {change.change for change in examined.node_start().changes} == {Change.DELETES_INDEX}
    assert examined.node_start().delivered == 0


def test_what_is_not_a_file_of_a_stream_is_named(small: Path) -> None:
    (small / "notes.txt").write_text("x")
    (small / "00000000000000000001.segment").mkdir()
    (small / f"{'9' * 20}.segment").write_bytes(HEADER)
    examined = examine(small)
    assert [item.file for item in examined.damage] == ["00000000000000000001.segment", f"{'9' * 20}.segment", "notes.txt"]
    assert {item.kind for item in examined.damage} == {Kind.STRAY_FILE}
    assert examined.counts.messages == 300


def test_an_epoch_that_goes_back_is_a_finding(tmp_path: Path) -> None:
    chunks = [chunk(k, [entry(b"x")], epoch=epoch) for k, epoch in enumerate([1, 7, 2, 2])]
    name = f"{0:020}.segment"
    (tmp_path / name).write_bytes(HEADER + b"".join(chunks))
    places = [(item.kind, item.file, item.offset, item.detail[:35]) for item in examine(tmp_path).damage]
    offset = len(HEADER + chunks[0] + chunks[1])
    assert (Kind.BAD_CHUNK, name, offset, "the epoch goes back from 7 to 2: a ") in places


def test_a_listing_of_many_segments_opens_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3000):
        (tmp_path / f"{number * 10:020}.segment").touch()
        (tmp_path / f"{number * 10:020}.index").touch()
    directory = ReadOnlyDirectory(tmp_path)
    opened: list[str] = []
    mapped, read = directory.map, directory.read
    monkeypatch.setattr(directory, "map", lambda name: opened.append(name) or mapped(name))
    monkeypatch.setattr(directory, "read", lambda name, limit: opened.append(name) or read(name, limit))
    stream = Stream(directory, "")
    assert (len(stream), stream.first_offset, stream.segment_of(25_005)) == (3000, 0, 2500)
    assert opened == []
    assert stream.tracking() == Tracking()
    assert opened == ["00000000000000029990.segment"]


def test_the_end_of_a_stream_is_after_its_last_valid_chunk(small: Path) -> None:
    stream = Stream(ReadOnlyDirectory(small), "")
    assert stream.end() == 304
    last, index = of(small, -1), of(small, -1, "index")
    flip(index, index.stat().st_size - 29 + 26)  # position of the last chunk
    assert Stream(ReadOnlyDirectory(small), "").end() == 304
    last.write_bytes(last.read_bytes()[: len(HEADER)])
    first = int(last.stem)
    assert Stream(ReadOnlyDirectory(small), "").end() == first
    last.write_bytes(HEADER + b"x" * 100)
    assert Stream(ReadOnlyDirectory(small), "").end() == first


def test_a_stream_without_segments_ends_where_it_begins(tmp_path: Path) -> None:
    stream = Stream(ReadOnlyDirectory(tmp_path), "")
    assert stream.end() == stream.first_offset
    assert stream.tracking() == Tracking()


def test_a_stream_that_no_definition_names_is_called_by_its_directory(small: Path) -> None:
    stream = Stream(ReadOnlyDirectory(small), "")
    assert str(NamedStream(None, "__s_1", stream)) == "the stream in directory '__s_1'"
    assert str(NamedStream("/", "s", stream)) == "stream 's' of vhost '/'"


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return a stream of 400 segments with two messages each."""
    for first in range(0, 800, 2):
        (tmp_path / f"{first:020}.segment").write_bytes(HEADER + chunk(first, [entry(b"one"), entry(b"two")]))
        (tmp_path / f"{first:020}.index").write_bytes(INDEX_HEADER + record(first, timestamp=0, position=len(HEADER)))
    return tmp_path


def test_a_stream_of_many_small_segments_is_read_with_few_open_files(many: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, before[1]))
    try:
        found = examine(many)
        rows = sum(len(rows) for rows, _ in walk_rows(NamedStream("/", "many", Stream(ReadOnlyDirectory(many), ""))))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.damage, found.counts.messages, rows) == ([], 800, 800)
    assert found.node_start().delivered == 800


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was read or mapped."""
    count: Counter[str] = Counter()
    read, mapped = ReadOnlyDirectory.read, ReadOnlyDirectory.map

    def counted_read(self: ReadOnlyDirectory, name: str, limit: int = 64 << 20) -> bytes | None:
        count[name] += 1
        return read(self, name, limit)

    def counted_map(self: ReadOnlyDirectory, name: str) -> MappedFile:
        count[name] += 1
        return mapped(self, name)

    monkeypatch.setattr(ReadOnlyDirectory, "read", counted_read)
    monkeypatch.setattr(ReadOnlyDirectory, "map", counted_map)
    return count


def test_files_of_small_segments_are_opened_once_and_their_messages_come_together(many: Path, opened: Counter[str]) -> None:
    assert examine(many).counts.messages == 800
    assert (len(opened), set(opened.values())) == (800, {1})
    opened.clear()
    named = NamedStream("/", "many", Stream(ReadOnlyDirectory(many), ""))
    parts = [part for part, _ in walk_rows(named)]
    assert [offset for part in parts for offset in part.records.offset.tolist()] == list(range(800))
    assert len(parts) <= max(1, 1600 // JOINED)
    # the ends of the stream are looked at, too, for what a node makes of them
    assert max(count for name, count in opened.items() if name not in _ends(many)) == 1
    table = pa.Table.from_batches([build_batch(part, ("stream_offset", "pos", "store_file", "payload")) for part in parts])
    assert table.to_pylist()[::399] == [
        {"stream_offset": k, "pos": k, "store_file": f"{k - k % 2:020}.segment", "payload": b"onetwo"[3 * (k % 2) :][:3]}
        for k in (0, 399, 798)
    ]


def _ends(directory: Path) -> set[str]:
    files = sorted(directory.iterdir())
    return {file.name for file in (*files[:2], *files[-2:])}


def test_no_segment_is_read_for_messages_after_the_limit(many: Path, opened: Counter[str]) -> None:
    named = NamedStream("/", "many", Stream(ReadOnlyDirectory(many), ""))
    [(part, _)] = islice(walk_rows(named, QueueSelection(limit=4)), 1)
    assert part.records.offset.tolist() == [0, 1, 2, 3]
    assert opened.keys() - _ends(many) == {f"{2:020}.segment"}


def lines_run(directory: Path) -> int:
    """Return how many lines the examination of a stream runs, and the steps that repair it; each turn of a loop counts."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    previous = sys.gettrace()
    sys.settrace(count)
    try:
        examined = examine(directory)
        examined.node_start(mends_first=True)
        list(_of_stream(examined))
    finally:
        sys.settrace(previous)
    return lines


@pytest.mark.parametrize("kind", ["without indexes", "without chunks"])
def test_the_work_on_segments_that_a_node_deletes_grows_with_their_number_alone(kind: str, tmp_path: Path) -> None:
    for count in (100, 1000):
        directory = tmp_path / str(count)
        directory.mkdir()
        for number in range(count):
            chunks = b"" if kind == "without chunks" and number else chunk(number, [entry(b"x")])
            (directory / f"{number:020}.segment").write_bytes(HEADER + chunks)
            if kind == "without chunks":
                (directory / f"{number:020}.index").write_bytes(INDEX_HEADER + (b"" if number else record(0, timestamp=0, position=8)))
    assert lines_run(tmp_path / "1000") < 11 * lines_run(tmp_path / "100")


class Copied(list[tuple[int, int]]):
    """A list that counts how many of its items, and of those of its slices, are copied."""

    items = 0

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        taken = Copied(super().__getitem__(key))
        Copied.items += len(taken)
        return taken


def test_indexes_at_the_end_that_a_node_deletes_are_left_out_at_once(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.segment").write_bytes(HEADER + chunk(0, [entry(b"x")]))
    for number in range(1000):
        (tmp_path / f"{number:020}.index").write_bytes(INDEX_HEADER + record(number, timestamp=0, position=8))
    files = _Files(Stream(ReadOnlyDirectory(tmp_path), ""))
    files._all = Copied(files._all)
    assert files.unopened(mends_first=True) is None
    assert 0 < Copied.items <= len(files._all)
