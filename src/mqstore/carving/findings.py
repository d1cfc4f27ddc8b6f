"""What carving finds in a range of an image: runs of RocketMQ records, RabbitMQ messages, ranges of nothing, ranges that cannot be read.

A run is a series of records whose difference between position in the log and position in the file is the same, one right after the other.
A RabbitMQ message is found by its term; the frame around it, if there is one, is that of a record or of an entry of a queue's own store.

All positions are those in the image. Findings of a split are stored and sent as one array file (`to_bytes`, `from_bytes`).
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]

# rows of the array of RabbitMQ messages
FROM = 0  # first byte, with the frame
TO = 1  # after the last byte, with the frame
TERM = 2
TERM_END = 3
KIND = 4  # of the kernel: BARE, RECORD, ENTRY, DAMAGED_ENTRY
MESSAGE_ROWS = 5


@dataclass(slots=True)
class Run:
    """Records that follow each other. base: position in the log of the first byte of the image; end: after the last record.

    filled: the same, or after the head of the record that fills a log file.
    """

    base: int
    positions: Longs
    end: int
    filled: int

    @property
    def start(self) -> int:
        return int(self.positions[0])


@dataclass(slots=True)
class Gap:
    """Bytes that belong to no message. low, high: bounds of those that are not zeros; low = -1 if all of them are."""

    start: int
    low: int
    high: int
    stop: int


@dataclass(slots=True)
class Found:
    """Findings in [start, end). end: after the last message that begins in the range, so possibly after the range.

    untried: positions were passed over because attempts to read a message there took too long, as in a hostile image.
    """

    start: int
    end: int
    runs: list[Run] = field(default_factory=list)
    messages: Longs = field(default_factory=lambda: np.empty((MESSAGE_ROWS, 0), np.int64))
    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    untried: bool = False

    @property
    def records(self) -> int:
        """Number of RocketMQ records."""
        return sum(len(run.positions) for run in self.runs)

    def to_bytes(self) -> bytes:
        """Return the findings as one file."""
        sink = io.BytesIO()
        np.savez(
            sink,
            head=np.array([self.start, self.end, self.untried], np.int64),
            runs=np.array([[run.base, run.end, run.filled, len(run.positions)] for run in self.runs], np.int64).reshape(-1, 4),
            positions=np.concatenate([run.positions for run in self.runs]) if self.runs else np.empty(0, np.int64),
            messages=self.messages,
            gaps=np.array([[gap.start, gap.low, gap.high, gap.stop] for gap in self.gaps], np.int64).reshape(-1, 4),
            unreadable=np.array(self.unreadable, np.int64).reshape(-1, 2),
        )
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Found:
        """Return findings that `to_bytes` stored. Raises ValueError if they are incomplete, or not what it stores."""
        stored = _arrays(raw)
        start, end, untried = stored["head"].tolist()
        table = stored["runs"].tolist()
        counts = [row[3] for row in table]
        if min(counts, default=0) < 0 or sum(counts) != len(stored["positions"]) or not 0 <= start <= end or untried not in (0, 1):
            raise ValueError("its findings do not fit together")
        parts = np.split(stored["positions"], np.cumsum(counts)[:-1]) if table else []
        runs = [Run(row[0], part, row[1], row[2]) for row, part in zip(table, parts, strict=True)]
        gaps = [Gap(*row) for row in stored["gaps"].tolist()]
        unreadable = [(low, high) for low, high in stored["unreadable"].tolist()]
        return cls(start, end, runs, stored["messages"], gaps, unreadable, bool(untried))


_UNREADABLE = (KeyError, OSError, EOFError, NotImplementedError, RuntimeError, SyntaxError, OverflowError, MemoryError)
_SHAPES = {"head": (3,), "runs": (-1, 4), "positions": (-1,), "messages": (MESSAGE_ROWS, -1), "gaps": (-1, 4), "unreadable": (-1, 2)}


def _arrays(raw: bytes) -> dict[str, Longs]:
    """Return the arrays of a file by name, each checked. Raises ValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:
            members = packed.infolist()
        # they are stored as they are: one that claims more than the file has is not ours
        if any(each.compress_type != zipfile.ZIP_STORED or each.file_size > len(raw) for each in members):
            raise ValueError("it is compressed")
        if sorted(each.filename for each in members) != sorted(f"{name}.npy" for name in _SHAPES):
            raise ValueError("it has other arrays")
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            found = {name: stored[name] for name in _SHAPES}
    except (
        zipfile.BadZipFile,
        KeyError,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        OverflowError,
        MemoryError,
    ) as error:
        raise ValueError(str(error)) from None
    for name, shape in _SHAPES.items():
        made = found[name].shape
        fits = len(made) == len(shape) and all(want in (-1, have) for want, have in zip(shape, made, strict=True))
        if found[name].dtype != np.int64 or not fits:
            raise ValueError(f"its array {name} has another form")
    return found
