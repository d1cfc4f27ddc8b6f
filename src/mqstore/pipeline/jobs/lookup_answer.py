"""The outcome of a lookup: its report, and the parts of the answer put together under the target's name.

    OUT/part-00000.parquet …       hits in log order, then the keys without a message
    OUT/_mqstore_lookup.json       the report
    OUT.parquet, OUT.jsonl         the same rows in one file

A part is moved where all of its rows count, and written again where hits were cut by `max_per_key` or one file is wanted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.files.durable import DurableDirectory, NewDirectory, NewFile
from mqstore.findings import Coverage, Damage
from mqstore.rocketmq.lookup.answer_file import AnswerFile, answer_schema
from mqstore.rocketmq.lookup.key_set import Asked
from mqstore.rocketmq.lookup.reason import Reason
from mqstore.table.parts import Part

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MANIFEST", "Answer", "LookupReport"]

MANIFEST = "_mqstore_lookup.json"
BATCH = 1 << 13  # rows read again at once
MISSES = 100_000  # rows of misses made at once

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LookupReport:
    """Outcome of `lookup`. keys: asked, each counted once; repeated: asked again; hits: rows with a message, of `found` keys.

    misses: keys without a message by reason. log_bytes, index_bytes: read. why: the figures that the plan was chosen by.
    seconds: from the keys to the files, the start of a Spark session apart.
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

    @property
    def ok(self) -> bool:
        """Whether all that was read was believable."""
        return not self.damage and self.coverage.complete

    def as_dict(self) -> dict[str, Any]:
        """The document that `lookup -o json` prints."""
        return {
            "store": self.store,
            "to": self.to,
            "ok": self.ok,
            "plan": self.plan,
            "why": self.why,
            "runs_on": self.runs_on,
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
    """Everything that is to be written. parts: with the rows that count, None for all. misses: places of the asked keys, by reason."""

    asked: Asked
    columns: tuple[str, ...]
    lines: bool
    parts: Sequence[tuple[Part, Mask | None]]
    misses: Sequence[tuple[Reason, Longs]]

    def write(self, target: NewDirectory | NewFile, stage: DurableDirectory, report: LookupReport) -> tuple[str, ...]:
        """Put everything in place and let the target appear. Returns the names of the files."""
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
                staged = part.staged if mask is None else self._cut(stage, part, mask)
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

    def _cut(self, stage: DurableDirectory, part: Part, mask: Mask) -> str:
        """A staged part anew, without the hits that are too many."""
        staged = f"{secrets.token_hex(6)}.cut"
        with stage.open_new(staged) as sink:
            file = AnswerFile(sink, self._schema, self.lines)
            for batch in self._kept(stage, part, mask):
                file.write(batch)
            file.finish()
        return staged

    def _kept(self, stage: DurableDirectory, part: Part, mask: Mask | None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        at = 0
        with pq.ParquetFile(stage.path(part.staged)) as written:
            for batch in written.iter_batches(BATCH):
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
        """A row per key without a message, in the order of the keys file."""
        import pyarrow as pa

        if not self.misses:
            return
        schema = self._schema
        places = np.concatenate([rows for _, rows in self.misses])
        why = np.repeat([str(reason) for reason, _ in self.misses], [len(rows) for _, rows in self.misses])
        order = np.argsort(self.asked.number[places])
        for low in range(0, len(order), MISSES):
            some = order[low : low + MISSES]
            rows = pa.array(places[some])
            asked = [column.take(rows).cast(pa.string()) for column in (self.asked.topic, self.asked.key)]
            empty = [pa.nulls(len(some), schema.field(name).type) for name in self.columns]
            absent = pa.array(np.zeros(len(some), np.bool_))
            yield pa.RecordBatch.from_arrays([*asked, absent, *empty, pa.array(why[some].tolist(), pa.string())], schema=schema)
