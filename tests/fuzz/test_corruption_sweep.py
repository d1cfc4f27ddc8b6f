"""Corruption sweep: one change to a golden store at a time, and exactly the messages whose own bytes are untouched are believed.

The changes: a byte of each place, each block of 512 bytes zeroed, a cut at each length; of each file. What can be expected of a
record depends on what its bytes are protected by:

* with a `__CRC32#` property at its end (5.3, `enabledAppendPropCRC`) every byte counts: a record that was touched is
  reported as damaged, or not at all;
* without, the format protects magic, size, lengths, its own physical offset and the body. A change to another field makes another
  sound record. Those fields are listed in `UNPROTECTED`, and where queue or index contradict them, `verify` finds it.

`--all` tries an even sample, a run without it some of that; `--all --whole` tries every place.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from support.golden import case_named, unpack

import mqstore
from mqstore.findings import Report
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.verify.verification import verify

CHECKED = "5.3.3/i-v2-codecs-crc"  # every record has a __CRC32# property
PLAIN = "4.9.3/f-broker-offsets"  # no record has one; with configuration files
STORES = (CHECKED, PLAIN)
PARTS = 8  # each operation on a store is so many tests, for pytest-xdist
SAMPLE = {"flip": 60, "zero": 24, "cut": 20}  # images of each test with --all
SMALL = {"flip": 8, "zero": 4, "cut": 4}  # without
HANGS = 300  # seconds after which a test counts as hanging
BLOCK = 512


@dataclass(frozen=True)
class Message:
    """A message of the sound store. fields: name -> (position in the record, length)."""

    offset: int
    size: int
    verdict: str
    fields: dict[str, tuple[int, int]]


# fields whose value nothing in a record without __CRC32# bears out
UNPROTECTED = frozenset(
    {
        "queue_id",
        "flag",
        "queue_offset",
        "sys_flag",
        "born_timestamp",
        "born_host",
        "store_timestamp",
        "store_host",
        "reconsume_times",
        "prepared_transaction_offset",
        "topic",
        "properties",
    }
)
# of these, the fields that queue and index repeat: a change to them alone is always found
REPEATED = frozenset({"queue_id", "queue_offset", "topic"})


@dataclass(frozen=True)
class Image:
    """One change: file relative to the store, and the half-open range of its bytes that are touched."""

    file: str
    operation: str
    position: int

    def __str__(self) -> str:
        return f"{self.operation} {self.file} at {self.position}"


@dataclass(frozen=True)
class Sound:
    """The store before any change."""

    name: str
    files: dict[str, bytes]
    messages: tuple[Message, ...]
    log_end: int


def rows(root: Path) -> dict[int, tuple[int, str]]:
    """The messages walk: physical offset -> (size, verdict)."""
    found: dict[int, tuple[int, str]] = {}
    for batch in mqstore.open(root).to_batches(("physical_offset", "size", "verdict")):
        for offset, size, verdict in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert offset not in found, f"{offset} is told twice"
            found[offset] = (size, verdict)
    return found


def record_fields(columns: RecordColumns, k: int) -> dict[str, tuple[int, int]]:
    start = int(columns.records.positions[k])
    column = columns.fields[:, k].tolist()
    born, store = (20 if column[frames.SYS_FLAG] & bit else 8 for bit in (16, 32))
    fixed = {
        "queue_id": (12, 4),
        "flag": (16, 4),
        "queue_offset": (20, 8),
        "sys_flag": (36, 4),
        "born_timestamp": (40, 8),
        "born_host": (48, born),
        "store_timestamp": (48 + born, 8),
        "store_host": (56 + born, store),
        "reconsume_times": (56 + born + store, 4),
        "prepared_transaction_offset": (60 + born + store, 8),
        "topic": (column[frames.TOPIC_START] - start, column[frames.TOPIC_LENGTH]),
        "properties": (column[frames.PROPERTIES_START] - start, column[frames.PROPERTIES_LENGTH]),
    }
    if not column[frames.BODY_LENGTH]:
        fixed["body_crc"] = (8, 4)  # a broker does not check the CRC of nothing
    return fixed


@cache
def sound(name: str, root: Path) -> Sound:
    """What the untouched store in root holds."""
    store = mqstore.open(root)
    report = verify(store, threads=1)
    assert report.ok
    verdicts = rows(root)
    messages = []
    for event in store.log.scan():
        if isinstance(event, Records):
            columns = RecordColumns(event)
            for k in range(len(columns)):
                offset, size = int(columns.row(frames.PHYSICAL_OFFSET)[k]), int(columns.row(frames.SIZE)[k])
                messages.append(Message(offset, size, verdicts[offset][1], record_fields(columns, k)))
    assert {message.verdict for message in messages} == {"intact"}
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return Sound(name, files, tuple(messages), store.log.end())


def images(store: Sound, operation: str) -> list[Image]:
    """Every image of an operation. Lengths and blocks without any written byte change nothing, and are left out."""
    found = []
    for file, raw in store.files.items():
        if operation == "zero":
            places = [at for at in range(0, len(raw), BLOCK) if any(raw[at : at + BLOCK])]
        else:
            places = list(range(len(raw)))
        found += [Image(file, operation, at) for at in places]
    return found


def sample(everything: list[Image], part: int, wanted: int) -> Iterator[Image]:
    """An even share of all files, and in each of its places; files get more of it the longer they are, those of the log a sixth each."""
    by_file: dict[str, list[Image]] = {}
    for image in everything:
        by_file.setdefault(image.file, []).append(image)
    for number, (file, own) in enumerate(by_file.items()):
        count = wanted * PARTS // 6 if file.startswith("commitlog/") else max(1, round(wanted * PARTS * len(own) / len(everything)))
        step = max(1, len(own) // count)
        chosen = own[(7 * number) % step :: step]
        yield from chosen[part::PARTS]


def changed(raw: bytes, image: Image) -> tuple[bytes, range]:
    """The file after the change, and the places that differ."""
    at = image.position
    if image.operation == "cut":
        return raw[:at], range(at, len(raw))
    if image.operation == "zero":
        return raw[:at] + bytes(len(raw[at : at + BLOCK])) + raw[at + BLOCK :], range(at, min(len(raw), at + BLOCK))
    bits = (1, 2, 4, 8, 16, 32, 64, 128, 255)[(at * 2654435761 >> 7) % 9]
    return raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :], range(at, at + 1)


def touched_messages(store: Sound, image: Image, places: range, after: bytes) -> dict[int, set[int]]:
    """Physical offset -> positions in the record that differ."""
    if not image.file.startswith("commitlog/"):
        return {}
    base = int(image.file.rpartition("/")[2])
    raw = store.files[image.file]
    found = {}
    for message in store.messages:
        low = max(message.offset - base, places.start)
        high = min(message.offset - base + message.size, places.stop)
        if low < high and raw[low:high] != after[low:high]:
            differ = {at - (message.offset - base) for at in range(low, high) if at >= len(after) or raw[at] != after[at]}
            found[message.offset] = differ
    return found


def in_fields(message: Message, positions: set[int]) -> set[str] | None:
    """The unprotected fields that hold all the positions; None if one of them lies elsewhere."""
    names = set()
    for at in positions:
        name = next((name for name, (start, length) in message.fields.items() if start <= at < start + length), None)
        if name is None:
            return None
        names.add(name)
    return names


def judge(store: Sound, image: Image, places: range, after: bytes, found: dict[int, tuple[int, str]], report: Report) -> None:
    touched = touched_messages(store, image, places, after)
    in_log = image.file.startswith("commitlog/")
    for message in store.messages:
        told = found.get(message.offset)
        if message.offset not in touched:
            assert told is not None, f"message {message.offset} is untouched, and not told"
            assert told[0] == message.size
            believed = ("intact",) if in_log else ("intact", "unindexed")
            assert told[1] in believed, f"message {message.offset} is untouched, and {told[1]}"
            continue
        if told is None or told[1] == "damaged":
            assert not report.ok, f"message {message.offset} is lost, and verify finds nothing"
            continue
        fields = in_fields(message, touched[message.offset])
        assert store.name == PLAIN, f"message {message.offset} was touched at {sorted(touched[message.offset])[:5]}, and is {told[1]}"
        assert fields is not None, f"message {message.offset} was touched outside the unprotected fields, and is {told[1]}"
        assert fields <= UNPROTECTED
        if fields & REPEATED:
            assert not report.ok, f"queue and index contradict {fields} of message {message.offset}, and verify finds nothing"
    strange = set(found) - {message.offset for message in store.messages}
    assert not strange, f"messages that nobody wrote: {strange}"
    if not in_log and must_be_found(store, image, places, after):
        assert not report.ok, "verify finds nothing"


def must_be_found(store: Sound, image: Image, places: range, after: bytes) -> bool:
    """Whether the change hit a written entry of a queue, or a slot or entry of an index file."""
    raw = store.files[image.file]
    differ = [at for at in places if at >= len(after) or raw[at] != after[at]]
    if image.file.startswith("consumequeue/"):
        written = len(raw.rstrip(b"\0"))
        return any(at < written for at in differ)
    if image.file.startswith("index/"):
        slots = (len(raw) - 40) // 84
        entries = 40 + 4 * slots
        count = int.from_bytes(raw[36:40], "big")
        first_time = range(entries + 32, entries + 36)  # of a follow-up file: relative to the file before, which may be gone
        written = 40 + 4 * slots + 20 * count
        return any(40 <= at < written and not entries <= at < entries + 20 and at not in first_time for at in differ)
    return False


def run(store: Sound, root: Path, chosen: Iterator[Image]) -> int:
    """Try images one after the other; how many."""
    count = 0
    for image in chosen:
        raw = store.files[image.file]
        after, places = changed(raw, image)
        path = root / image.file
        path.write_bytes(after)
        try:
            found = rows(root)
            report = verify(mqstore.open(root), threads=1)
            judge(store, image, places, after, found, report)
        except BaseException as error:
            error.add_note(f"image: {store.name}, {image}")
            raise
        finally:
            path.write_bytes(raw)
        count += 1
    return count


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
@pytest.mark.parametrize("operation", ["flip", "zero", "cut"])
@pytest.mark.parametrize("name", STORES)
def test_exactly_the_untouched_messages_are_believed(
    name: str, operation: str, part: int, tmp_path: Path, whole: bool, small: bool, record_property: Callable[[str, object], None]
) -> None:
    root = unpack(case_named(name), tmp_path / "store")
    store = sound(name, root)
    everything = images(store, operation)
    chosen = iter(everything[part::PARTS]) if whole else sample(everything, part, (SMALL if small else SAMPLE)[operation])
    if not whole:
        faulthandler.dump_traceback_later(HANGS, exit=True, file=os.fdopen(os.dup(2), "w"))
    try:
        record_property("images", run(store, root, chosen))
    finally:
        faulthandler.cancel_dump_traceback_later()
