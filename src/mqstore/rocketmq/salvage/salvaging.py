"""Salvage: every whole record of a wreck as rows of the message table, or as a fresh store that a broker starts on.

    verdict     meaning
    intact      all checks within the record pass: lengths, checksum, compression, text
    damaged     its frame is whole, some of its bytes are not valid
    duplicate   a further copy, byte for byte, of a record at the same position of the same log

Rows come log by log, in the order of the log. `store_file` is the file that a record was found in. A fresh store has the intact messages;
topics, queues, keys, properties and times of birth are kept, offsets and store times are those of the new log.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.errors import CannotOpenError, NotAStoreError, TargetError
from mqstore.files import MappedFile
from mqstore.files.durable import NewDirectory
from mqstore.findings import Verdict
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.salvage.assembly import PlacedStretch, assemble
from mqstore.rocketmq.salvage.carving import Gap, Piece, Stretch, carve
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Wreck", "carve_wreck", "salvage_into_store"]

MAX_GAPS = 1000
RECORDS_AT_ONCE = 4096
MAX_BATCH_BYTES = 16 << 20
PERMISSIONS = 6
DERIVED = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "timerwheel", "timerlog")


@dataclass(slots=True)
class Wreck:
    """What was carved. gaps: ranges that belonged to nothing, the first MAX_GAPS of them; gap_count, gap_bytes: all of them."""

    pieces: int = 0
    bytes: int = 0
    stretches: int = 0
    records: int = 0
    placed: list[PlacedStretch] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0
    gap_bytes: int = 0
    seconds: float = 0.0

    @property
    def logs(self) -> int:
        """Number of logs that the records are of."""
        return len({each.log for each in self.placed})

    def batches(self, names: Sequence[str], *, milliseconds: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the message table, with verdicts, log by log in the order of the log."""
        import pyarrow as pa

        words = pa.array([str(Verdict.INTACT), str(Verdict.DAMAGED), str(Verdict.DUPLICATE)])
        for each in self.placed:
            positions = each.stretch.positions
            for start in range(0, len(positions), RECORDS_AT_ONCE):
                chosen = np.ascontiguousarray(positions[start : start + RECORDS_AT_ONCE])
                columns = RecordColumns(each.stretch.records(chosen))
                copies = each.duplicate[start : start + RECORDS_AT_ONCE]
                at = 0
                for piece in columns.pieces(MAX_BATCH_BYTES):
                    codes = np.where(piece.valid, 0, 1)
                    codes[copies[at : at + len(piece)]] = 2
                    at += len(piece)
                    yield piece.batch(names, words.take(pa.array(codes)), milliseconds=milliseconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the part of the report that describes the source."""
        return {
            "pieces": self.pieces,
            "bytes_searched": self.bytes,
            "stretches": self.stretches,
            "logs": self.logs,
            "records": self.records,
            "unclaimed": [{"file": gap.piece, "offset": gap.offset, "length": gap.length} for gap in self.gaps],
            "unclaimed_ranges": self.gap_count,
            "unclaimed_bytes": self.gap_bytes,
            "carving_seconds": round(self.seconds, 3),
        }


def carve_wreck(source: Path, progress: Callable[[int, int], None] | None = None) -> Wreck:
    """Find every whole record in a file, or in all files below a directory. Raises CannotOpenError, NotAStoreError if there is none.

    progress: called with (bytes searched, bytes to search).
    """
    started = time.monotonic()
    files = list(_files(source))
    total = sum(size for _, _, size in files)
    wreck = Wreck()
    stretches: list[Stretch] = []
    for path, name, size in files:
        piece = Piece(name, MappedFile(path))
        for found in carve(piece):
            if isinstance(found, Stretch):
                stretches.append(found)
                wreck.records += len(found.positions)
                if progress is not None:
                    progress(wreck.bytes + found.end, total)
                continue
            wreck.gap_count += 1
            wreck.gap_bytes += found.length
            if len(wreck.gaps) < MAX_GAPS:
                wreck.gaps.append(found)
        wreck.pieces += 1
        wreck.bytes += size
    if not stretches:
        raise NotAStoreError(f"{source} holds no whole record of a RocketMQ log ({len(files)} files, {total} bytes were searched)")
    wreck.stretches = len(stretches)
    wreck.placed = list(assemble(stretches))
    wreck.seconds = time.monotonic() - started
    return wreck


def _files(source: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the files to carve: path, name, size. Of a store, those of its derived directories are left out."""
    if not source.is_dir():
        try:
            yield source, source.name, source.stat().st_size
        except OSError as error:
            raise CannotOpenError(f"{source} cannot be read: {error.strerror}") from None
        return
    is_store = (source / "commitlog").is_dir()
    for parent, below, names in os.walk(source):
        place = Path(parent)
        below[:] = sorted(each for each in below if not (is_store and place == source and each in DERIVED))
        for name in sorted(names):
            path = place / name
            if path.is_symlink() or not path.is_file():
                continue
            yield path, path.relative_to(source).as_posix(), path.stat().st_size


def salvage_into_store(wreck: Wreck, to: Path, version: str | None, progress: Callable[[int, int], None] | None = None) -> Counter[str]:
    """Write the intact messages into a new store; return the verdicts of all. version: of the broker that is to start on it.

    The store appears under its name when it is complete. Raises TargetError.
    """
    verdicts: Counter[str] = Counter()
    queues: dict[str, int] = {}
    done = 0
    with NewDirectory(to) as new:
        place = new.directory.path("")
        config = StoreConfig(services=False) if version is None else StoreConfig(services=False, version=version)
        with MessageStore.open(place, config) as store:
            for batch in wreck.batches(ROCKETMQ_COLUMNS):
                words = batch.column("verdict").to_pylist()
                verdicts.update(words)
                kept = batch.filter(_mask(words))
                if not kept.num_rows:
                    continue
                for topic, queue_id in zip(kept.column("topic").to_pylist(), kept.column("queue_id").to_pylist(), strict=True):
                    queues[topic] = max(queues.get(topic, 1), queue_id + 1)
                result = store.put_batch(kept, stored=True)
                if result.count < kept.num_rows:
                    raise TargetError(f"{to}: a message cannot be stored: {result.detail}")
                done += result.count
                if progress is not None:
                    progress(done, wreck.records)
                store.dispatch_now()
            for topic, number in queues.items():
                if store.topics.get(topic) is None:
                    store.topics.put(TopicConfig(topic, perm=PERMISSIONS, read_queues=number, write_queues=number))
        new.publish()
    return verdicts


def _mask(words: list[str]) -> Any:
    import pyarrow as pa

    return pa.array([word == Verdict.INTACT for word in words])
