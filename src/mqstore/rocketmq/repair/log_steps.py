"""Steps for the commit log: after them a broker parses every file to its last record, so that it cuts nothing that is intact.

    a torn end                    zeros: the broker appends there
    size or magic of a record     restored, if everything inside the record agrees with it and its body matches its CRC
    physical offset of a record   restored from its position, unless the record is a copy of one that is where the offset says
    a body that does not match    its CRC is computed again: the broker keeps the message, with the body as it is
    bytes that are not a record   become the body of a rolled-back message, which a broker parses and lists nowhere
    the rest of a file            a record of end of file
    a missing file                a file that holds nothing but that; the file itself, if it is there under another name

Format: docs/formats/rocketmq.md, sections 2 and 8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind, Subject
from mqstore.kernels.rocketmq import frames
from mqstore.repair.change import Change, Step
from mqstore.rocketmq.format.commit_log import CommitLog, size_at
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.rocketmq.format.record import (
    BODY_AT,
    BODY_CRC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    TRANSACTION_ROLLBACK,
    Record,
    body_crc,
    decode,
    encode,
)
from mqstore.rocketmq.store.log_site import RenamedLogFile

FILLER_TOPIC = "MQSTORE_UNREADABLE"
LARGEST_FILLER = 4 << 20
SMALLEST = len(encode(Record(FILLER_TOPIC, b"")))
MAGICS = (MAGIC_V1, MAGIC_V2)
LARGEST_RECORD = 64 << 20

_SIZE_AND_MAGIC = struct.Struct(">iI")
_CUT = "it cuts the log here and discards everything after it"


def rename_steps(files: Iterable[RenamedLogFile]) -> Iterator[Step]:
    """Yield the step for each file of the log that is there under another name."""
    for file in files:
        yield Step(
            "rename",
            file.relative,
            0,
            file.size,
            f"its records are those of {file.to}, which is missing: it takes that name",
            "it does not start, or reads other files in place of this one",
            "",
            (Change("rename", file.relative, to=file.to),),
        )


def swapped_steps(files: Iterable[tuple[str, str]]) -> Iterator[Step]:
    """Yield the step for each file of the log that has the name of another one, before which no change is made."""
    for relative, own in files:
        why = f"its records are those of {own}, whose name it must have before anything is changed; `mqstore diagnose` says how"
        yield Step("rename", relative, 0, 0, why, _CUT, "", ())


def log_steps(log: CommitLog, damage: list[Damage], timestamp: int, on_restored: Callable[[Bytes], None]) -> Iterator[Step]:
    """Yield the steps for damage of the log. timestamp: store time of the messages that fill a gap. on_restored: called with records."""
    files = {file.relative: file for file in log.files}
    for item in damage:
        file = files.get(item.file)
        if item.kind is Kind.MISSING_FILE and item.file.startswith(f"{log.queue.relative}/"):
            yield from _missing_files(log, item)
        elif file is not None and item.kind is Kind.BAD_CHECKSUM:
            yield _checksum(log, file, item)
        elif file is not None and item.kind.subject is Subject.BYTES:
            yield from _gap(log, file, item, timestamp, on_restored)


def _step(kind: str, item: Damage, why: str, loss: str, *changes: Change, otherwise: str = _CUT) -> Step:
    return Step(kind, item.file, item.offset, item.length, why, otherwise, loss, changes)


def _checksum(log: CommitLog, file: QueueFile, item: Damage) -> Step:
    record = log.record(file.start + item.offset)
    assert record is not None  # only of a record whose lengths add up is the CRC compared
    why = f"{item.detail}: the CRC is computed again, so that the broker keeps the message and what follows it"
    content = struct.pack(">i", body_crc(record.body))
    loss = "the message is delivered with the body as it is, and nothing in it shows the damage any more"
    return _step("checksum", item, why, loss, Change("write", item.file, item.offset + BODY_CRC_AT, content))


def _missing_files(log: CommitLog, item: Damage) -> Iterator[Step]:
    size = log.file_size
    start = int(item.file.rpartition("/")[2])
    for position in range(start, start + item.length, size):
        name = f"{log.queue.relative}/{position:020d}"
        damage = Damage(name, 0, size, item.kind, item.detail)
        content = _SIZE_AND_MAGIC.pack(size, MAGIC_BLANK & 0xFFFFFFFF)
        changes = (Change("put", name, content=content), Change("resize", name, length=size))
        yield _step(
            "blank-file",
            damage,
            "the file is missing: a file without messages takes its place, so that offsets lead to the right files",
            "what is in the file, if it is found later: look for it in a backup, a replica or on another disk first",
            *changes,
            otherwise="it reads other files in place of this one, or stops here",
        )


def _gap(log: CommitLog, file: QueueFile, item: Damage, timestamp: int, on_restored: Callable[[Bytes], None]) -> Iterator[Step]:
    end = item.offset + item.length
    mapped = log.mapped(file)
    offsets = tuple(_offsets(log, file, item, on_restored)) if item.kind is Kind.BAD_OFFSET else ()
    if offsets:
        why = "the record's own physical offset does not match its position, from which it is restored"
        yield _step("frame", item, why, "", *offsets, otherwise="it lists the message elsewhere if it dispatches the log again")
        return
    number = log.files.index(file)
    if number == log.last_written() and not _written_after(log, file, end):
        stop = min(max(end, item.offset), mapped.size)
        stop = max(item.offset, min(stop, mapped.data_end(item.offset)))
        if mapped.data[item.offset : stop].any():
            yield _step(
                "torn-end",
                item,
                f"{item.detail}; the bytes are set to zero",
                "nothing that was a whole record",
                *_zeros(item.file, item.offset, stop),
                otherwise="it cuts the log here, and the bytes stay after its end",
            )
        return
    restored = _restored(log, file, item, on_restored)
    if restored is not None:
        yield _step("frame", item, f"{item.detail}; size and magic are restored from what is inside", "", restored)
    elif end >= mapped.size:
        if item.length < _SIZE_AND_MAGIC.size:
            yield _step("end-of-file", item, f"{item.detail}; there is no room for a record of end of file", "")
            return
        content = _SIZE_AND_MAGIC.pack(mapped.size - item.offset, MAGIC_BLANK & 0xFFFFFFFF)
        yield _step(
            "end-of-file",
            item,
            f"{item.detail}; a record of end of file takes the rest of the file",
            "the bytes were not readable before",
            Change("write", item.file, item.offset, content),
        )
    elif item.length < SMALLEST:
        yield _step("filler", item, f"{item.detail}; {item.length} bytes are too few for a record that a broker can parse", "")
    else:
        changes = tuple(_fillers(log, file, item, timestamp))
        yield _step(
            "filler",
            item,
            f"{item.detail}; the bytes become the body of a rolled-back message, which is in no queue",
            "the bytes were not readable before",
            *changes,
        )


def _written_after(log: CommitLog, file: QueueFile, position: int) -> bool:
    """Return whether a valid record starts in the file at or after a position."""
    return position < file.size and log.first_record(file, position, file.size) is not None


def _zeros(name: str, start: int, stop: int) -> Iterator[Change]:
    piece = bytes(min(LARGEST_FILLER, stop - start))
    for at in range(start, stop, LARGEST_FILLER):
        yield Change("write", name, at, piece if stop - at >= len(piece) else bytes(stop - at))


def _restored(log: CommitLog, file: QueueFile, item: Damage, on_restored: Callable[[Bytes], None]) -> Change | None:
    """Return the size and magic that make the bytes one valid record, with a body that matches its CRC; None if there are none."""
    if not SMALLEST - len(FILLER_TOPIC) <= item.length <= LARGEST_RECORD:
        return None
    raw = log.mapped(file).data[item.offset : item.offset + item.length].copy()
    for magic in MAGICS:
        head = _SIZE_AND_MAGIC.pack(item.length, magic & 0xFFFFFFFF)
        raw[: len(head)] = np.frombuffer(head, np.uint8)
        if frames.status_at(raw, 0, file.start + item.offset, True) != frames.STOP:
            continue
        if _crc_fits(raw):
            on_restored(raw)
            return Change("write", item.file, item.offset, head)
    return None


def _offsets(log: CommitLog, file: QueueFile, item: Damage, on_restored: Callable[[Bytes], None]) -> Iterator[Change]:
    """Yield the changes that give the records of a range the offsets of their positions; none if a part of it is anything else."""
    raw = log.mapped(file).data[item.offset : item.offset + item.length].copy()
    base = file.start + item.offset
    records = []
    at = 0
    while at < len(raw):
        field = raw[at + PHYSICAL_OFFSET_AT : at + PHYSICAL_OFFSET_AT + 8]
        claimed = int.from_bytes(field.tobytes(), "big", signed=True)
        field[:] = np.frombuffer(struct.pack(">q", base + at), np.uint8)[: len(field)]
        if frames.status_at(raw, at, base, True) != frames.STOP:
            return
        one = raw[at : at + size_at(raw, at)]
        there, own = log.record(claimed), decode(one.tobytes())
        if not _crc_fits(one) or (there is not None and _place(there) == _place(own)):
            return
        records.append((at, one))
        at += len(one)
    for at, one in records:
        on_restored(one)
        yield Change("write", item.file, item.offset + at + PHYSICAL_OFFSET_AT, struct.pack(">q", base + at))


def _place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.queue_id, record.queue_offset


def _crc_fits(raw: Bytes) -> bool:
    fields = np.empty((frames.FIELD_COUNT, 1), np.int64)
    frames.fields(raw, np.zeros(1, np.int64), fields)
    body, length = int(fields[frames.BODY_START, 0]), int(fields[frames.BODY_LENGTH, 0])
    return body_crc(raw[body : body + length].tobytes()) == int(fields[frames.BODY_CRC, 0])


def _fillers(log: CommitLog, file: QueueFile, item: Damage, timestamp: int) -> Iterator[Change]:
    """Yield the heads and tails that turn a range of bytes into rolled-back messages whose bodies are the bytes between them."""
    mapped = log.mapped(file)
    at, left = item.offset, item.length
    while left:
        size = left if left <= LARGEST_FILLER else min(LARGEST_FILLER, left - SMALLEST)
        body = mapped.bytes(at + BODY_AT, at + BODY_AT + size - SMALLEST)
        content = encode(
            Record(
                FILLER_TOPIC,
                body,
                sys_flag=TRANSACTION_ROLLBACK,
                physical_offset=file.start + at,
                born_timestamp=timestamp,
                store_timestamp=timestamp,
            )
        )
        yield Change("write", item.file, at, content[:BODY_AT])
        yield Change("write", item.file, at + BODY_AT + len(body), content[BODY_AT + len(body) :])
        at, left = at + size, left - size
