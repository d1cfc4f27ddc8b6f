"""Golden streams with random damage: no exception, and every chunk that no damage touches is read as it was written."""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path

import pytest
from support import streams
from support.streams import CASES

from mqstore.files import ReadOnlyDirectory
from mqstore.kernels.rabbitmq.stream_chunks import BAD_DATA
from mqstore.rabbitmq.message.properties import PropertiesError
from mqstore.rabbitmq.streams.delivered_entry import RULES, NotAMessageError, read_entry
from mqstore.rabbitmq.streams.entries import walk_records
from mqstore.rabbitmq.streams.examination import Examination
from mqstore.rabbitmq.streams.segment import walk_segment
from mqstore.rabbitmq.streams.stream import Stream
from mqstore.testing import scratch_directory

NAMES = tuple((case, queue) for case in CASES for queue in streams.directories(case) if queue not in ("s.empty", "s.plain"))
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

Content = tuple[int, int, bytes]  # offset, timestamp, record


@cache
def golden(case: str, queue: str) -> dict[str, list[tuple[int, int, list[Content]]]]:
    """Return for each segment where its chunks begin and end, and their records."""
    found = {}
    for first, path in streams.segments(streams.directories(case)[queue]):
        data, chunks_of_file = streams.read(path), []
        for chunks, _ in walk_segment(data, first):
            contents: dict[int, list[Content]] = {row: [] for row in range(len(chunks))}
            for records, _ in walk_records(data, chunks):
                for row in range(len(records)):
                    content, chunk = records.content(row), int(records.chunk[row])
                    assert content is not None
                    contents[chunk].append((int(records.offset[row]), int(chunks.timestamp[chunk]), content))
            chunks_of_file += [(int(chunks.at[row]), int(chunks.end[row]), contents[row]) for row in contents]
        found[path.name] = chunks_of_file
    return found


@cache  # most records of an image are those of the golden stream, which need to be read once
def delivered(content: bytes, offset: int) -> None:
    try:
        read_entry(content).delivered(RULES["4.3"], offset)
    except (NotAMessageError, PropertiesError):
        pass


def damage(raw: bytearray, chance: random.Random) -> tuple[int, int]:
    """Change bytes of a file. Return the range outside of which every byte is where it was: (from, to); to is its end if it was cut."""
    at = chance.randrange(len(raw))
    kind = chance.choice(("bit", "number", "range", "sector", "cut", "grown"))
    if kind == "bit":
        raw[at] ^= 1 << chance.randrange(8)
        return at, at + 1
    if kind == "number":
        width = chance.choice((1, 2, 4, 8))
        part = (chance.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, "big")[: len(raw) - at]
        raw[at : at + width] = part
        return at, at + width
    if kind == "range":
        length = min(chance.randrange(1, 200), len(raw) - at)
        raw[at : at + length] = chance.choice((bytes(length), chance.randbytes(length)))
        return at, at + length
    if kind == "sector":
        at -= at % 512
        length = min(512, len(raw) - at)
        raw[at : at + length] = bytes(length)
        return at, at + length
    if kind == "cut":
        end = len(raw)
        del raw[at:]
        return at, end
    raw += chance.randbytes(chance.randrange(1, 300))
    return len(raw), len(raw)


def check(number: int, target: Path) -> None:
    chance = random.Random(number)
    case, queue = chance.choice(NAMES)
    known = golden(case, queue)
    shutil.copytree(streams.directories(case)[queue], target)
    touched: dict[str, list[tuple[int, int]]] = {}
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        path = chance.choice(sorted(target.iterdir()))
        if chance.random() < 0.05:
            path.unlink()
            touched.setdefault(path.name, []).append((0, 1 << 60))
            if not any(target.iterdir()):
                break
            continue
        raw = bytearray(path.read_bytes())
        if raw:
            touched.setdefault(path.name, []).append(damage(raw, chance))
            path.write_bytes(bytes(raw))
    directory = ReadOnlyDirectory(target)
    stream = Stream(directory, "")
    found: dict[str, set[Content]] = {name: set() for name in known}
    for segment in range(len(stream)):
        data, _ = stream.open(segment)
        name = stream.segment_file(segment)
        for chunks, _ in stream.walk(segment, data):
            for records, _ in walk_records(data, chunks, file=name):
                for row in range(len(records)):
                    content, chunk = records.content(row), int(records.chunk[row])
                    if content is not None and chunks.state[chunk] != BAD_DATA:
                        found[name].add((int(records.offset[row]), int(chunks.timestamp[chunk]), content))
                        delivered(content, int(records.offset[row]))
    for name, chunks_of_file in known.items():
        for start, end, contents in chunks_of_file:
            if not any(low < end and start < high for low, high in touched.get(name, ())):
                missing = set(contents) - found[name]
                assert not missing, (number, case, queue, name, start, touched)
    examined = Examination(stream)
    start_of_node = examined.node_start()
    assert start_of_node.kept + start_of_node.lost == examined.counts.messages
    assert 0 <= start_of_node.delivered <= start_of_node.kept
    changed_data = [
        name
        for name, chunks_of_file in known.items()
        for start, end, _ in chunks_of_file
        if any(low < end and start < high for low, high in touched.get(name, ()))
    ]
    if not touched:
        assert not examined.damage
    for name in changed_data:
        lost = {content for _, _, contents in known[name] for content in contents} - found[name]
        # nothing is lost without a finding, except segments at either end that are gone with their indexes: as if they had never been
        ends = name in (min(known), max(known)) and len(known) > 1
        gone = not (target / name).exists() and not (target / name).with_suffix(".index").exists()
        if lost and not (ends and gone):
            assert examined.damage, (number, case, queue, name, touched)


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_untouched_chunks_of_damaged_streams_are_reported_unchanged(start: int, tmp_path: Path) -> None:
    for number in range(start, start + 50):
        check(number, tmp_path / str(number))


@pytest.mark.long
@pytest.mark.parametrize("start", range(400, 20_000, 980))
def test_untouched_chunks_of_twenty_thousand_damaged_streams_are_reported_unchanged(start: int) -> None:
    with scratch_directory() as place:
        for number in range(start, start + 980):
            check(number, Path(place) / "s")
            shutil.rmtree(Path(place) / "s")


def test_a_directory_in_the_place_of_a_segment_does_not_hide_the_others(tmp_path: Path) -> None:
    target = tmp_path / "s"
    shutil.copytree(streams.directories("4.3.6-killed")["s.small"], target)
    path = sorted(target.glob("*.segment"))[1]
    path.unlink()
    path.mkdir()
    examined = Examination(Stream(ReadOnlyDirectory(target), ""))
    assert examined.counts.messages == 232
