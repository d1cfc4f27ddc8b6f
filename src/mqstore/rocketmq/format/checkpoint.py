"""Checkpoint: how far a broker's files were safely on disk when it was last written.

`checkpoint` is a file of 4096 bytes; after these fields it is all zeros:

    offset  width  field
         0      8  physicMsgTimestamp   store time of the last message flushed with the log, ms
         8      8  logicsMsgTimestamp   store time of the last message with a consume queue entry, ms
        16      8  indexMsgTimestamp    last store time of the newest full and flushed index file, ms
        24      8  masterFlushedOffset  5.x only
        32      8  confirmPhyOffset     5.x only: where the last valid record starts, as the last recovery found it
        40      8  logicsPhysicalOffset 5.5.0 and later: physical offset up to which the consume queues are flushed

Recovery after a crash starts at a log file at least three seconds older than both of the first two (5.5.0: `broker_recovery`):

    >>> decode(bytes.fromhex("0000017e12ef9c7b0000017e12ef9c7b")).min_timestamp
    1640995197123

Format: docs/formats/rocketmq.md, section 7.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind

SIZE = 4096
SAFETY_MS = 3000

_FIELDS = struct.Struct(">qqqqqq")
_NAMES = (
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "masterFlushedOffset",
    "confirmPhyOffset",
    "logicsPhysicalOffset",
)
LATEST = 253_402_300_799_999  # the last millisecond of the year 9999


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The six fields, zero if the file is missing or too short for them. physic, logics, index: store times in ms.

    rest: the bytes after them, from the first to the last that is not zero: fields of a later version, which are written again as they are.
    """

    physic: int = 0
    logics: int = 0
    index: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    exists: bool = False
    logics_physical_offset: int = 0
    rest: bytes = b""
    findings: tuple[Damage, ...] = ()

    @property
    def min_timestamp(self) -> int:
        """Store time up to which log and queues are certainly complete."""
        return max(0, min(self.physic, self.logics) - SAFETY_MS)

    @property
    def min_timestamp_index(self) -> int:
        """The same, including the index files."""
        return min(self.min_timestamp, self.index)


def decode(raw: bytes, relative: str = "checkpoint") -> Checkpoint:
    """Parse a checkpoint file; missing bytes at its end count as zeros, as they do for a broker."""
    fields = _FIELDS.unpack(raw[: _FIELDS.size].ljust(_FIELDS.size, b"\0"))
    findings = []
    if len(raw) != SIZE:
        findings.append(Damage(relative, 0, len(raw), Kind.BAD_CHECKPOINT, f"the file has {len(raw)} bytes, but a checkpoint has {SIZE}"))
    for number, (name, value) in enumerate(zip(_NAMES, fields, strict=True)):
        if value < 0 or (number < 3 and value > LATEST):
            what = "a time" if number < 3 else "an offset"
            findings.append(Damage(relative, 8 * number, 8, Kind.BAD_CHECKPOINT, f"{name} is {value}, which is not {what}"))
    if any(raw[_FIELDS.size :]):
        rest = max(0, len(raw) - _FIELDS.size)
        findings.append(Damage(relative, _FIELDS.size, rest, Kind.BAD_CHECKPOINT, "there are bytes other than zero after the six fields"))
    physic, logics, index, master, confirm, listed = fields
    return Checkpoint(physic, logics, index, master, confirm, True, listed, raw[_FIELDS.size : SIZE].rstrip(b"\0"), tuple(findings))


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the 4096 bytes of a checkpoint file."""
    times = (checkpoint.physic, checkpoint.logics, checkpoint.index)
    offsets = (checkpoint.master_flushed_offset, checkpoint.confirm_physical_offset, checkpoint.logics_physical_offset)
    return (_FIELDS.pack(*times, *offsets) + checkpoint.rest).ljust(SIZE, b"\0")


def load(directory: ReadOnlyDirectory, relative: str = "checkpoint") -> Checkpoint:
    """Read the checkpoint of a store. A missing file reads as all zeros and is not damage: a broker creates a new one."""
    if directory.is_directory(relative):
        return Checkpoint(findings=(Damage(relative, 0, 0, Kind.BAD_CHECKPOINT, "the checkpoint is a directory, not a file"),))
    try:
        raw = directory.read(relative, 16 * SIZE)
    except CannotOpenError as error:
        return Checkpoint(findings=(Damage(relative, 0, 0, Kind.UNREADABLE, str(error)),))
    return Checkpoint() if raw is None else decode(raw, relative)
