"""The answer of a lookup: its rows, the files that hold them, and the report.

    topic, key, found    the pair that was looked up, and whether this row is a message that has it
    message columns      of the message table, as chosen, without topic; null if nothing was found
    reason               why nothing was found; null if something was

    OUT/part-00000.parquet …       hits in log order, then the keys without a message
    OUT/_mqstore_lookup.json       the report
    OUT.parquet, OUT.jsonl         the same rows in one file

A staged part is moved into place if all of its rows count; it is rewritten if `max_per_key` cuts hits or one file is wanted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files.durable import DurableDirectory, NewDirectory, NewFile
from mqstore.files.durable_file import DurableFile
from mqstore.findings import Coverage, Damage
from mqstore.rocketmq.lookup.explain import Reason
from mqstore.rocketmq.lookup.key_set import KeySet
from mqstore.table.columns import TIME_COLUMNS, rocketmq_schema
from mqstore.table.row_files import PartFile
from mqstore.table.text import json_rows

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "_mqstore_lookup.json"
GROUP_BYTES = 64 << 20  # of Arrow data that becomes one row group
COPY_BYTES = 16 << 20
ROWS_AT_ONCE = 1 << 13  # rows of a part that are read again at once
MISSES_AT_ONCE = 100_000  # rows for keys without a message that are made at once

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


def answer_schema(columns: Sequence[str], lines: bool) -> pa.Schema:
    """Return the columns of an answer. columns: of the message. lines: the JSON form, times as ms and keys as stored text."""
    import pyarrow as pa

    fields = list(rocketmq_schema(columns))
    if lines:
        plain = {name: pa.int64() for name in TIME_COLUMNS} | {"keys": pa.string()}
        fields = [pa.field(field.name, plain.get(field.name, field.type)) for field in fields]
    pair = [pa.field("topic", pa.string()), pa.field("key", pa.string()), pa.field("found", pa.bool_())]
    return pa.schema([*pair, *fields, pa.field("reason", pa.string())])


class AnswerFile:
    """An answer, or a part of one, that is being written: Parquet in row groups of 64 MiB, or JSON lines. rows: written so far."""

    def __init__(self, sink: DurableFile, schema: pa.Schema, lines: bool) -> None:
        self.rows = 0
        self.lines = lines
        self._sink = sink
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        if not lines:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch."""
        self.rows += batch.num_rows
        if self.lines:
            self._sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "replace"))
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def copy_lines(self, part: Path, mask: NDArray[np.bool_] | None) -> None:
        """Append lines of a finished part: those of the mask, or all for None."""
        with part.open("rb") as lines:
            if mask is None:
                while block := lines.read(COPY_BYTES):
                    self._sink.write(block)
                return
            for line, selected in zip(lines, mask.tolist(), strict=True):
                if selected:
                    self._sink.write(line)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> None:
        """Write what is still in memory. The sink stays open."""
        if not self.lines:
            self._flush()
            self._writer.close()


@dataclass(frozen=True, slots=True)
class LookupReport:
    """The outcome of a lookup. keys: distinct keys; repeated: repetitions; found: keys with a message; hits: rows with a message.

    cut: hits that max_per_key left out. misses: keys without a message, by reason. why: why the plan was chosen;
    because: why it runs there. log_bytes, index_bytes:
    bytes read. seconds: from reading the keys to the finished files, without the start of a Spark session.
    """

    store: str
    to: str
    plan: str
    why: str
    runs_on: str
    keys: int
    repeated: int
    found: int
    hits: int
    cut: int
    misses: dict[str, int]
    log_bytes: int
    index_bytes: int
    files: tuple[str, ...]
    seconds: float
    damage: tuple[Damage, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[str, ...] = ()
    because: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that was read is valid."""
        return not self.damage and self.coverage.complete

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `lookup -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "ok": self.ok,
            "plan": self.plan,
            "why": self.why,
            "runs_on": self.runs_on,
            "because": self.because,
            "keys": self.keys,
            "repeated_keys": self.repeated,
            "found_keys": self.found,
            "hits": self.hits,
            "hits_cut_by_max_per_key": self.cut,
            "misses": dict(self.misses),
            "log_bytes": self.log_bytes,
            "index_bytes": self.index_bytes,
            "files": list(self.files),
            "seconds": round(self.seconds, 3),
            "coverage": self.coverage.as_dict(),
            "damage": [item.as_dict() for item in self.damage],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything to be written. parts: with the rows that count, None for all. misses: places of the pairs without a message, by reason."""

    keys: KeySet
    columns: tuple[str, ...]
    lines: bool
    parts: Sequence[tuple[PartFile, Mask | None]]
    misses: Sequence[tuple[Reason, Longs]]

    def write(self, target: NewDirectory | NewFile, stage: DurableDirectory, report: LookupReport) -> tuple[str, ...]:
        """Write all files and publish the target. Returns the names of the files."""
        if isinstance(target, NewFile):
            self._write_file(target, stage)
            target.publish()
            return (target.target.name,)
        names = self._write_directory(target, stage)
        document = replace(report, files=names).as_dict()
        target.directory.write_small(MANIFEST, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
        target.publish()
        return names

    @property
    def _schema(self) -> pa.Schema:
        return answer_schema(self.columns, self.lines)

    def _write_directory(self, target: NewDirectory, stage: DurableDirectory) -> tuple[str, ...]:
        new = target.directory
        names = []
        with DurableDirectory(target.target.parent) as parent:
            for number, (part, mask) in enumerate(self.parts):
                staged = part.staged if mask is None else self._rewrite_part(stage, part, mask)
                names.append(f"part-{number:05d}.parquet")
                parent.rename(f"{stage.root.name}/{staged}", f"{new.root.name}/{names[-1]}")
        if self.misses or not names:
            names.append(f"part-{len(names):05d}.parquet")
            with new.open_new(names[-1]) as sink:
                file = AnswerFile(sink, self._schema, self.lines)
                for batch in self._missed():
                    file.write(batch)
                file.finish()
        return tuple(names)

    def _rewrite_part(self, stage: DurableDirectory, part: PartFile, mask: Mask) -> str:
        """Rewrite a staged part without the hits that `max_per_key` cuts; returns its name."""
        staged = f"{secrets.token_hex(6)}.cut"
        with stage.open_new(staged) as sink:
            file = AnswerFile(sink, self._schema, self.lines)
            for batch in self._kept(stage, part, mask):
                file.write(batch)
            file.finish()
        return staged

    def _kept(self, stage: DurableDirectory, part: PartFile, mask: Mask | None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        at = 0
        with pq.ParquetFile(stage.path(part.staged)) as written:
            for batch in written.iter_batches(ROWS_AT_ONCE):
                yield batch if mask is None else batch.filter(pa.array(mask[at : at + batch.num_rows]))
                at += batch.num_rows

    def _write_file(self, target: NewFile, stage: DurableDirectory) -> None:
        file = AnswerFile(target.file, self._schema, self.lines)
        for part, mask in self.parts:
            if self.lines:
                file.copy_lines(stage.path(part.staged), mask)
            else:
                for batch in self._kept(stage, part, mask):
                    file.write(batch)
        for batch in self._missed():
            file.write(batch)
        file.finish()

    def _missed(self) -> Iterator[pa.RecordBatch]:
        """Yield a row per key without a message, in the order of the keys file."""
        import pyarrow as pa

        if not self.misses:
            return
        schema = self._schema
        places = np.concatenate([rows for _, rows in self.misses])
        why = np.repeat([str(reason) for reason, _ in self.misses], [len(rows) for _, rows in self.misses])
        order = np.argsort(self.keys.number[places])
        for low in range(0, len(order), MISSES_AT_ONCE):
            part = order[low : low + MISSES_AT_ONCE]
            rows = pa.array(places[part])
            pair = [self.keys.topic.take(rows).dictionary_decode(), self.keys.key.take(rows).cast(pa.string())]
            empty = [pa.nulls(len(part), schema.field(name).type) for name in self.columns]
            absent = pa.array(np.zeros(len(part), np.bool_))
            yield pa.RecordBatch.from_arrays([*pair, absent, *empty, pa.array(why[part].tolist(), pa.string())], schema=schema)
