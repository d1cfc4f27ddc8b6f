"""The rows of a lookup's answer, and the files that hold them: Parquet, or JSON lines as the commands print messages.

topic, key, found    what was asked, and whether this row is a message that has it
message columns      of the message table, as chosen, without topic; null where nothing was found
reason               why nothing was found; null where something was
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.files.durable import DurableFile
from mqstore.table.columns import TIME_COLUMNS, rocketmq_schema
from mqstore.table.text import json_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AnswerFile", "answer_schema"]

GROUP_BYTES = 64 << 20  # of Arrow data that becomes one row group
COPY = 16 << 20  # bytes


def answer_schema(columns: Sequence[str], lines: bool) -> pa.Schema:
    """The columns of an answer; `columns`: the message's. lines: in the JSON form, times as milliseconds and keys as stored text."""
    import pyarrow as pa

    fields = list(rocketmq_schema(columns))
    if lines:
        plain = {name: pa.int64() for name in TIME_COLUMNS} | {"keys": pa.string()}
        fields = [pa.field(field.name, plain.get(field.name, field.type)) for field in fields]
    asked = [pa.field("topic", pa.string()), pa.field("key", pa.string()), pa.field("found", pa.bool_())]
    return pa.schema([*asked, *fields, pa.field("reason", pa.string())])


class AnswerFile:
    """An answer, or a part of one, under way: Parquet in row groups of 64 MiB, or JSON lines. `finish` leaves the sink open."""

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
        self.rows += batch.num_rows
        if self.lines:
            self._sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "replace"))
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def copy_lines(self, part: Path, mask: NDArray[np.bool_] | None) -> None:
        """The lines of a finished part, those of the mask."""
        with part.open("rb") as lines:
            if mask is None:
                while block := lines.read(COPY):
                    self._sink.write(block)
                return
            for line, kept in zip(lines, mask.tolist(), strict=True):
                if kept:
                    self._sink.write(line)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> None:
        if not self.lines:
            self._flush()
            self._writer.close()
