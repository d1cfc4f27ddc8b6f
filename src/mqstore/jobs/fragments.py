"""Rows of one file written as fragments by tasks, then put together in order.

    rows-000000   rows-000001   …        in the stage: some 64 MiB of records each
    rows-000000.json                     the counts of a fragment; created when it is on disk

The file has the same bytes whatever ran the tasks, and whichever fragments an earlier run had left. With a stage that is kept, fragments
stay until the file is complete; otherwise each is removed when it has been copied.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from mqstore.files.durable import DurableDirectory, NewFile
from mqstore.files.state_file import fields_of, parse, read_state, rows, seal, whole
from mqstore.findings import Verdict
from mqstore.jobs.runner import Runner
from mqstore.table.row_files import Complete, RowCounts, filter_by_verdict
from mqstore.table.text import json_rows

if TYPE_CHECKING:
    import pyarrow as pa

COPIED = 8 << 20

Groups = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Where the rows of a task go, and which of them. kind: first part of its name; keep: it stays for another run."""

    kind: str
    number: int
    stage: str
    format: str
    verdicts: frozenset[str]
    keep: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number:06d}"


@dataclass(frozen=True, slots=True)
class FragmentCounts:
    """What was written into a fragment. verdicts, groups: of all rows, those left out included; groups in the order of the rows."""

    rows: int
    verdicts: dict[str, int]
    groups: Groups = field(default_factory=Counter)


class FragmentTask(Protocol):
    """A task whose rows go into a fragment. records: how many it has."""

    @property
    def fragment(self) -> Fragment: ...

    @property
    def records(self) -> int: ...


Task = TypeVar("Task", bound=FragmentTask)


def write_fragments(
    tasks: Sequence[Task],
    write: Callable[[Task], FragmentCounts],
    to: Path,
    schema: pa.Schema,
    runner: Runner,
    *,
    take: Callable[[FragmentCounts], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    complete: Complete | None = None,
) -> RowCounts:
    """Write the rows of tasks to a new file, in their order. write: runs a task and calls `write_fragment`.

    take: called with the counts of each fragment in order. progress: called with (records written, records). complete: called before the
    file is published. Raises TargetError, CannotOpenError.
    """
    counts = RowCounts()
    finished_records = [0]
    for task in tasks:
        finished_records.append(finished_records[-1] + task.records)

    def done(finished: int) -> None:
        if progress is not None:
            progress(finished_records[finished], finished_records[-1])

    def written() -> Iterator[Path]:
        """Yield the fragments in order; each is removed after its turn unless they are kept."""
        for task, found in zip(tasks, runner.each(tasks, write, done), strict=True):
            fragment = task.fragment
            counts.rows += found.rows
            for word, number in found.verdicts.items():
                counts.verdicts[word] = counts.verdicts.get(word, 0) + number
            if take is not None:
                take(found)
            yield Path(fragment.stage) / fragment.name
            if not fragment.keep:
                with DurableDirectory(fragment.stage) as directory:
                    directory.discard(fragment.name)

    with NewFile(to) as new:
        if not tasks or tasks[0].fragment.format == "parquet":
            _join_parquet(written(), schema, new)
        else:
            for path in written():
                with _open_fragment(path) as source:
                    while piece := source.read(COPIED):
                        new.file.write(piece)
        counts.bytes = new.file.size
        if complete is not None:
            complete(new, counts)
        new.publish()
    return counts


def _open_fragment(path: Path) -> IO[bytes]:
    from mqstore.files.regular_file import open_regular_file

    return open_regular_file(path)


def _join_parquet(fragments: Iterator[Path], schema: pa.Schema, new: NewFile) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(new.file, schema, compression="zstd") as writer:
        for path in fragments:
            with _open_fragment(path) as source:
                stored = pq.ParquetFile(source)
                for group in range(stored.num_row_groups):
                    writer.write_table(stored.read_row_group(group))


def write_fragment(
    fragment: Fragment, batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, groups: Groups | None = None, as_one: bool = False
) -> FragmentCounts:
    """Write batches with the verdicts of a fragment, unless an earlier run did; return their counts.

    groups: filled by `batches` as they are read. as_one: in Parquet the rows are one row group, not one for each batch.
    """
    with DurableDirectory(fragment.stage) as stage:
        before = _kept(fragment)
        if before is not None:
            return before
        stage.discard(fragment.name)
        counts = RowCounts()
        with stage.open_new(fragment.name) as sink:
            chosen = filter_by_verdict(batches, fragment.verdicts, counts)
            if fragment.format == "jsonl":
                for batch in chosen:
                    sink.write("".join(f"{row}\n" for row in json_rows(batch, "base64")).encode("utf-8", "backslashreplace"))
            else:
                _write_parquet(chosen, schema, sink, as_one)
            size = sink.size
        found = FragmentCounts(counts.rows, counts.verdicts, Counter() if groups is None else groups)
        if fragment.keep:
            stage.sync(fragment.name)
            table = [[*group, number] for group, number in found.groups.items()]
            record = {"rows": found.rows, "verdicts": found.verdicts, "groups": table, "bytes": size}
            stage.write_small(f"{fragment.name}.json", seal(record))
    return found


def _kept(fragment: Fragment) -> FragmentCounts | None:
    """Return the counts of a fragment that an earlier run finished; None if it is to be written."""
    place = Path(fragment.stage)
    raw = read_state(place / f"{fragment.name}.json") if fragment.keep else None
    if raw is not None:
        with contextlib.suppress(ValueError, TypeError, OSError):
            record = parse(raw, fields=("rows", "verdicts", "groups", "bytes"))
            verdicts = fields_of(record.get("verdicts"), map(str, Verdict))
            groups = Counter({(exchange, key): whole({"number": number}, "number") for exchange, key, number in rows(record, "groups")})
            if (place / fragment.name).lstat().st_size == whole(record, "bytes") and not (place / fragment.name).is_symlink():
                return FragmentCounts(whole(record, "rows"), {name: whole(verdicts, name) for name in verdicts}, groups)
    return None


def _write_parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, sink: Any, as_one: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        if as_one:
            table = pa.Table.from_batches(batches, schema)
            if table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
        else:
            for batch in batches:
                writer.write_batch(batch)
