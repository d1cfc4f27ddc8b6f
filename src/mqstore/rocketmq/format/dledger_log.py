"""DLedger log: the commit log of a broker in a DLedger group, in which each record follows a header of the group's log.

    dledger-NAME/data/00000000000000000000   entries without a gap, cut into files of equal size

     0  i32  magic: 1; -1 if the rest of the file is not used
     4  i32  size of the entry; of the rest of the file
     8  i64  index: 0, 1, 2, … in the log of the group
    16  i64  term in which the leader appended it
    24  i64  position: physical offset of the entry
    32  i32  channel         } always 0: the broker
    36  i32  chain checksum  } does not set
    40  i32  body checksum   } them
    44  i32  size of the body
    48       body: one record of a commit log

The physical offset in a record, in queues and in the index is that of the record, 48 bytes after its entry.

Format: docs/formats/rocketmq.md, section 2.13.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UnsupportedError
from mqstore.files import Bytes, MappedFile, ReadOnlyDirectory
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import CommitLog, reach_record, status_at
from mqstore.rocketmq.format.mapped_file_queue import QueueFile

_HEADER = frames.ENTRY_HEADER_SIZE
_BLANK = b"\xff\xff\xff\xff"


def _dledger_directory(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory that holds the log if DLedger keeps it; None if there is a commit log."""
    return None if _has_commit_log(directory) else _ledger(directory)


def second_log(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory of a DLedger log beside a commit log: the broker of a commit log joined a group, and continues there."""
    return _ledger(directory) if _has_commit_log(directory) else None


def _has_commit_log(directory: ReadOnlyDirectory) -> bool:
    return any(entry.is_file for entry in directory.entries("commitlog"))


def _ledger(directory: ReadOnlyDirectory) -> str | None:
    places = (f"{entry.name}/data" for entry in directory.entries() if entry.is_directory and entry.name.startswith("dledger-"))
    return next((path for path in places if directory.is_directory(path)), None)


def open_log(directory: ReadOnlyDirectory, file_size: int | None = None) -> CommitLog:
    """Open the commit log of a store, or its DLedger log. Only names and sizes are read. file_size: of a file, if configured."""
    ledger = _dledger_directory(directory)
    return CommitLog(directory, file_size=file_size) if ledger is None else DLedgerLog(directory, ledger, file_size=file_size)


def refuse_dledger(directory: ReadOnlyDirectory, action: str) -> None:
    """Raise UnsupportedError if DLedger keeps the log of a store. action: what needs a commit log; it begins the sentence."""
    ledger = _dledger_directory(directory)
    if ledger is not None:
        raise UnsupportedError(
            f"{action} needs a commit log, but DLedger keeps the log of {directory.root} in {ledger}; "
            "its messages can be listed, queried, verified and exported"
        )


class DLedgerLog(CommitLog):
    """The log of a DLedger group, read like a commit log. A unit of a walk is an entry; positions of records are those of records."""

    header_size = _HEADER
    _size_field = 4

    def _walk(self, data: Bytes, start: int, stop: int, base: int, positions: NDArray[np.int64]) -> tuple[int, int, int]:
        return frames.walk_entries(data, start, stop, base, positions)

    def _extent(self, data: Bytes, at: int, end: int, base: int) -> int:
        return _HEADER + super()._extent(data, at + _HEADER, end, base)

    def _status_at(self, mapped: MappedFile, at: int, base: int) -> int:
        if not mapped.remote:
            return frames.entry_status_at(mapped.data, at, base)
        end = min(at + _HEADER + len(reach_record(mapped, at + _HEADER, base)), mapped.size)
        return frames.entry_status_at(mapped.load(at, end), at, base)

    def _search(self, mapped: MappedFile, file: QueueFile, start: int, stop: int) -> int | None:
        hit = super()._search(mapped, file, start + _HEADER, stop + _HEADER)
        return None if hit is None else hit - _HEADER

    def _headless(self, mapped: MappedFile, file: QueueFile, at: int) -> int | None:
        position = at + _HEADER
        return position if position < mapped.size and status_at(mapped, position, file.start) == frames.STOP else None

    def _find_blank(self, mapped: MappedFile, start: int, end: int) -> int | None:
        at = mapped.find(_BLANK, start, end)
        while at >= 0:
            if mapped.size - at >= 8 and int.from_bytes(mapped.bytes(at + 4, at + 8), "big", signed=True) == mapped.size - at:
                return at
            at = mapped.find(_BLANK, at + 1, end)
        return None
