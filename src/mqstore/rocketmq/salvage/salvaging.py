"""Salvage: every whole record of a wreck as rows of the message table, or as a fresh store that a broker starts on.

    verdict     meaning
    intact      all checks within the record pass: lengths, checksum, compression, text
    damaged     its frame is whole, some of its bytes are not valid
    duplicate   a further copy, byte for byte, of a record at the same position of the same log

Rows come log by log, in the order of the log. `store_file` is the file that a record was found in. A fresh store has the intact messages;
topics, queues, keys, properties and times of birth are kept, offsets and store times are those of the new log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.errors import TargetError
from mqstore.files.durable import NewDirectory
from mqstore.findings import Verdict
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.salvage.assembly import Mask, PlacedStretch
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_AT_ONCE = 4096
MAX_BATCH_BYTES = 16 << 20
PERMISSIONS = 6


def rows_of(placed: Iterable[PlacedStretch], names: Sequence[str], *, milliseconds: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the message table, with verdicts, stretch by stretch; short stretches share a batch."""
    together: list[tuple[Records, Mask]] = []
    count = size = 0
    for each in placed:
        for first, last in _groups(each):
            records = each.stretch.records(first, last)
            if together and (count + len(records) > RECORDS_AT_ONCE or size + len(records.data) > MAX_BATCH_BYTES):
                yield from _batches(together, names, milliseconds)
                together, count, size = [], 0, 0
            together.append((records, each.duplicate[first:last]))
            count, size = count + len(records), size + len(records.data)
        each.stretch.piece.image.close()
    if together:
        yield from _batches(together, names, milliseconds)


def _batches(together: list[tuple[Records, Mask]], names: Sequence[str], milliseconds: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    words = pa.array([str(Verdict.INTACT), str(Verdict.DAMAGED), str(Verdict.DUPLICATE)])
    records, copies = together[0]
    files = [each.file.relative for each, _ in together]
    if len(together) > 1:
        starts = np.cumsum([0] + [len(each.data) for each, _ in together])
        positions = np.concatenate([each.positions + start for (each, _), start in zip(together, starts[:-1], strict=True)])
        records = Records(records.file, np.concatenate([each.data for each, _ in together]), positions)
        copies = np.concatenate([duplicate for _, duplicate in together])
    found_in = np.repeat(np.arange(len(together)), [len(each) for each, _ in together])
    at = 0
    for piece in RecordColumns(records).pieces(MAX_BATCH_BYTES):
        codes = np.where(piece.valid, 0, 1)
        codes[copies[at : at + len(piece)]] = 2
        batch = piece.batch(names, words.take(pa.array(codes)), milliseconds=milliseconds)
        if "store_file" in names and len(set(files)) > 1:
            place = batch.schema.get_field_index("store_file")
            shown = pa.array([files[number] for number in found_in[at : at + len(piece)].tolist()], batch.schema.field(place).type)
            batch = batch.set_column(place, batch.schema.field(place), shown)
        at += len(piece)
        yield batch


def _groups(placed: PlacedStretch) -> Iterator[tuple[int, int]]:
    """Yield ranges of records that are read at once: few enough, and at most MAX_BATCH_BYTES, or one record."""
    positions = placed.stretch.positions
    first = 0
    while first < len(positions):
        last = int(np.searchsorted(positions, positions[first] + MAX_BATCH_BYTES, side="right")) - 1
        last = max(first + 1, min(last, first + RECORDS_AT_ONCE))
        if last == len(positions) - 1 and placed.stretch.end - int(positions[first]) <= MAX_BATCH_BYTES:
            last += 1
        yield first, last
        first = last


def salvage_into_store(
    placed: Sequence[PlacedStretch], to: Path, version: str | None, progress: Callable[[int, int], None] | None = None
) -> Counter[str]:
    """Write the intact messages into a new store; return the verdicts of all. version: of the broker that is to start on it.

    progress: called with (messages written, records). The store appears under its name when it is complete. Raises TargetError.
    """
    verdicts: Counter[str] = Counter()
    queues: dict[str, int] = {}
    done = 0
    total = sum(len(each.stretch.positions) for each in placed)
    with NewDirectory(to) as new:
        place = new.directory.path("")
        config = StoreConfig(services=False) if version is None else StoreConfig(services=False, version=version)
        with MessageStore.open(place, config) as store:
            for batch in rows_of(placed, ROCKETMQ_COLUMNS):
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
                    progress(done, total)
                store.dispatch_now()
            for topic, number in queues.items():
                if store.topics.get(topic) is None:
                    store.topics.put(TopicConfig(topic, perm=PERMISSIONS, read_queues=number, write_queues=number))
        new.publish()
    return verdicts


def _mask(words: list[str]) -> Any:
    import pyarrow as pa

    return pa.array([word == Verdict.INTACT for word in words])
