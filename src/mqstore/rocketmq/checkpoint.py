"""Checkpoint: how far log, queues and index had been written to disk, by store time.

    offset  size  field                                            versions
         0     8  physicMsgTimestamp: last flushed log record      both
         8     8  logicsMsgTimestamp: last dispatched record       both
        16     8  indexMsgTimestamp: end of the last full index    both
        24     8  masterFlushedOffset                              5.x
        32     8  confirmPhyOffset                                 5.x

The file has 4096 bytes, the rest is zero. After an unclean exit the broker starts its recovery from these times.

    >>> parse(bytes.fromhex("0000017e12ef9c7b0000017e12ef9c7b0000000000000000") + bytes(4072)).min_timestamp
    1640995197123

Format: docs/formats/rocketmq.md, section 7.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind

__all__ = ["SIZE", "Checkpoint", "encode", "load", "parse"]

SIZE = 4096
_FIELDS = struct.Struct(">qqqqq")
_PLAUSIBLE = 1 << 48  # milliseconds: some 8,900 years


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The five fields; zeros where there is no file. Times in milliseconds since the epoch."""

    physic: int = 0
    logics: int = 0
    index: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    present: bool = False
    findings: tuple[Damage, ...] = ()

    @property
    def min_timestamp(self) -> int:
        """Store time up to which log and queues are certainly on disk: three seconds before the earlier of the two."""
        return max(0, min(self.physic, self.logics) - 3000)

    @property
    def min_timestamp_index(self) -> int:
        """As min_timestamp, with the index as well."""
        return min(self.min_timestamp, self.index)


def parse(raw: bytes) -> Checkpoint:
    """The fields of a checkpoint file; what is missing at its end counts as 0. Odd lengths and times are findings."""
    findings = []
    if len(raw) != SIZE:
        findings.append(Damage("checkpoint", 0, len(raw), Kind.BAD_CHECKPOINT, f"the checkpoint has {len(raw)} bytes, not {SIZE}"))
    fields = _FIELDS.unpack(raw[: _FIELDS.size].ljust(_FIELDS.size, b"\0"))
    if any(not 0 <= stamp < _PLAUSIBLE for stamp in fields[:3]):
        findings.append(Damage("checkpoint", 0, 24, Kind.BAD_CHECKPOINT, f"the times {fields[:3]} are no times"))
    return Checkpoint(*fields, present=True, findings=tuple(findings))


def load(directory: ReadOnlyDirectory) -> Checkpoint:
    """The checkpoint of a store; zeros if it has none."""
    raw = directory.read("checkpoint", SIZE + 1)
    return Checkpoint() if raw is None else parse(raw)


def encode(checkpoint: Checkpoint) -> bytes:
    """The 4096 bytes of a checkpoint file."""
    fields = (checkpoint.physic, checkpoint.logics, checkpoint.index, checkpoint.master_flushed_offset, checkpoint.confirm_physical_offset)
    return _FIELDS.pack(*fields).ljust(SIZE, b"\0")
