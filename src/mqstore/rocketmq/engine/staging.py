"""Staged messages: what the tasks of a job checked and put on disk before a store is opened for them.

    .STORE-1c29ab07.mqstore-sink-RUN@5f0c2d81/    beside the store, or in the option `staging`: the stage of one run of one job
        owner                                     the process that will commit it
        000003.17.5f0c2d.arrow                    part of partition 3, by attempt 17: an Arrow file of message columns

A part holds only rows that the store accepts: each is checked by `append.record_encoder.BatchColumns`, as puts are. Its name belongs to
one attempt, so a repeated or speculative task never touches what another one wrote, and it is synced before the task ends. A task never
creates the stage: a late one, after its run is over, finds nowhere to write. A job that is run again has another stage: the remains of
its dead predecessor, whose Java process may still be aborting, cannot remove it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mqstore.errors import TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.state_file import parse, read_state, require_own_directory, seal, text, whole
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.append.batch_appender import message_of_row, special_rows
from mqstore.rocketmq.append.delay import asks_for_timer, delay_level
from mqstore.rocketmq.append.record_encoder import BatchColumns
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.message import property_text
from mqstore.table.arrow_spans import bad_row

if TYPE_CHECKING:
    import pyarrow as pa

MARK = ".mqstore-sink-"
OF_JOB = "@"  # cannot be part of the name of a run
OWNER = "owner"
FORGOTTEN = 7 * 86_400  # seconds after which a stage on a shared disk is abandoned, if its owner ran on another host

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINEAGE = "store"  # the store that a row was read from; the other lineage columns belong to the table itself


@dataclass(frozen=True, slots=True)
class RowRules:
    """What a row must fit. max_record_size: bytes of the longest record that a log file holds. stored: the rows were read from a store."""

    version: str
    store_host: str
    max_message_size: int
    max_record_size: int
    property_crc: bool
    stored: bool


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task wrote; name is empty if it had no rows. topics: all distinct ones."""

    partition: int
    name: str
    rows: int
    bytes: int
    topics: tuple[str, ...]


def check_run(run: str) -> str:
    """Check the name of a run, which is a part of file names, and return it. Raises UsageError."""
    if not _RUN.fullmatch(run):
        raise UsageError(f"option runId is {run!r}: give up to 100 letters, digits, dots, dashes and underscores, a letter or digit first")
    return run


def columns_of(batch: pa.RecordBatch, rules: RowRules, first_row: int = 0) -> BatchColumns:
    """Return the columns of a batch as the store will write them. Raises UsageError that names column and row."""
    if _LINEAGE in batch.schema.names:
        batch = batch.drop_columns([_LINEAGE])
    return BatchColumns.from_arrow(
        batch,
        version=rules.version,
        store_host=rules.store_host,
        max_message_size=rules.max_message_size,
        property_crc=rules.property_crc,
        stored=rules.stored,
        first_row=first_row,
    )


def write_part(batches: Iterable[pa.RecordBatch], stage: str, partition: int, attempt: int, rules: RowRules) -> StagedPart:
    """Check the rows of one task, and write and sync them. Raises UsageError that names column and row, TargetError."""
    import pyarrow as pa

    name = f"{partition:06d}.{attempt}.{secrets.token_hex(3)}.arrow"
    rows = 0
    topics: dict[str, None] = {}
    born = now_ms()
    with DurableDirectory(stage) as directory, contextlib.ExitStack() as closing:
        sink = writer = None
        for batch in batches:
            if not batch.num_rows:
                continue
            batch = _complete(batch, rules, born, rows)
            columns = columns_of(batch, rules, rows)
            _check_columns(columns, rules, rows)
            topics.update(dict.fromkeys(topic for topic, _ in columns.groups))
            if writer is None:
                sink = closing.enter_context(directory.open_new(name))
                writer = pa.ipc.new_file(sink, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None or sink is None:
            return StagedPart(partition, "", 0, 0, ())
        writer.close()
        sink.sync()
        return StagedPart(partition, name, rows, sink.size, tuple(topics))


def _complete(batch: pa.RecordBatch, rules: RowRules, born: int, first_row: int) -> pa.RecordBatch:
    """Return the batch with a born time for every row, so that it always produces the same bytes. Raises UsageError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _LINEAGE in batch.schema.names:
        batch = batch.drop_columns([_LINEAGE])
    if rules.stored:
        lost = batch.column("body").is_null()
        if lost.true_count:
            raise bad_row("body", pc.index(lost, True).as_py(), first_row, "it is null: the store it comes from could not read the body")
    if "born_timestamp" not in batch.schema.names:
        return batch.append_column("born_timestamp", pa.repeat(pa.scalar(born, pa.int64()), batch.num_rows))
    column = batch.schema.get_field_index("born_timestamp")
    times = batch.column(column)
    if not times.null_count:
        return batch
    now = pa.scalar(born, pa.timestamp("ms", getattr(times.type, "tz", None)) if pa.types.is_timestamp(times.type) else pa.int64())
    return batch.set_column(column, "born_timestamp", times.fill_null(now.cast(times.type)))


def _check_columns(columns: BatchColumns, rules: RowRules, first_row: int) -> None:
    """Refuse what a put would refuse beyond the rules of the columns. Raises UsageError."""
    if len(columns) and columns.sizes.max() > rules.max_record_size:
        row = int(np.argmax(columns.sizes > rules.max_record_size))
        raise bad_row(
            "body",
            row,
            first_row,
            f"a record of {columns.sizes[row]} bytes, at most {rules.max_record_size} fit into a log file of this store",
        )
    for row in np.flatnonzero(special_rows(columns, rules.stored)).tolist() if not rules.stored else ():
        message = message_of_row(columns, row)
        try:
            delay_level(property_text(message, rules.version))
        except ValueError as error:
            raise bad_row("properties", row, first_row, str(error)) from None
        if asks_for_timer(message, rules.version):
            why = "it asks for the timer wheel of 5.x (TIMER_ properties), which is not supported; use a delay level"
            raise bad_row("properties", row, first_row, why)
    if (columns.fields[frames.BORN_TIMESTAMP] < 0).any():
        row = int(np.argmax(columns.fields[frames.BORN_TIMESTAMP] < 0))
        raise bad_row("born_timestamp", row, first_row, "it is before 1970")


def batches_of(stage: str, part: StagedPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, mapped and not copied. Raises TargetError if the file is not what its task wrote."""
    import pyarrow as pa

    path = Path(stage, part.name)
    try:
        with pa.memory_map(str(path)) as source:
            if source.size() != part.bytes:
                raise TargetError(f"{path} has {source.size()} bytes, but its task wrote {part.bytes}: the file was changed")
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
    except (OSError, pa.ArrowException) as error:
        raise TargetError(f"the staged rows in {path} cannot be read: {error}") from None


# stages


def stage_of(store: Path, run: str, staging: str | None = None) -> Path:
    """Return the stage of a run: the same for all processes of a job (`job_owner`), another one for another job of the same run."""
    path = Path(os.path.abspath(store))
    parent = path.parent if staging is None else Path(os.path.abspath(staging))
    job = hashlib.sha256(json.dumps(job_owner()).encode()).hexdigest()[:8]
    return parent / f"{_prefix(path)}{check_run(run)}{OF_JOB}{job}"


def _prefix(store: Path) -> str:
    # two stores with the same name may share a staging directory
    return f".{os.fsdecode(os.fsencode(store.name)[:80])}-{hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()[:8]}{MARK}"


def is_stage(stage: Path, run: str) -> bool:
    """Return whether a path is that of a stage of a run: its name says so, and it is not a link. The store may have been moved since."""
    named = re.fullmatch(rf"\..*-[0-9a-f]{{8}}{re.escape(MARK + run + OF_JOB)}[0-9a-f]{{8}}", stage.name)
    return named is not None and stage.is_absolute() and ".." not in stage.parts and not stage.is_symlink()


def open_stage(stage: Path) -> None:
    """Create the stage of a run unless it exists, owned by this job. Raises TargetError."""
    if not stage.parent.is_dir():
        raise TargetError(f"{stage.parent} is not a directory: create it first, or choose another with the option staging")
    with DurableDirectory(stage.parent) as parent:
        parent.make_directory(stage.name)
    with DurableDirectory(stage) as directory:
        directory.write_small(OWNER, seal(job_owner()))


def remove_stage(stage: Path) -> None:
    """Remove a stage with everything in it. Never raises: what cannot be removed now is removed by a later run."""
    with contextlib.suppress(TargetError), DurableDirectory(stage.parent) as parent:
        parent.discard(stage.name)


def remove_left_behind(store: Path, staging: str | None, run: str, keep: Iterable[Path]) -> None:
    """Remove the stages of the same store whose jobs are dead, and all stages of the run that is committed now."""
    store_path = Path(os.path.abspath(store))
    parent = store_path.parent if staging is None else Path(os.path.abspath(staging))
    names = {path.name for path in keep if path.parent == parent}
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if not entry.name.startswith(_prefix(store_path)) or entry.name in names or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name.startswith(f"{_prefix(store_path)}{run}{OF_JOB}") or _is_left_behind(Path(entry.path)):
                remove_stage(Path(entry.path))


def _is_left_behind(stage: Path) -> bool:
    try:
        require_own_directory(stage)
        age = time.time() - stage.stat().st_mtime
        raw = read_state(stage / OWNER, 1 << 16)
    except (OSError, TargetError):
        return False  # it may belong to another user
    mine = job_owner()
    try:
        owner = parse(raw or b"", fields=("host", "boot", "pid", "started"))
        if (text(owner, "host"), text(owner, "boot")) == (mine["host"], mine["boot"]):
            return started(whole(owner, "pid", 1)) != text(owner, "started")
    except ValueError:
        pass  # its owner is not known: it is left behind when it is old
    return age > FORGOTTEN


def job_owner() -> dict[str, object]:
    """Return the process whose end is the end of the job: the Java process of Spark above this one, or this one."""
    pid = at = os.getpid()
    while at > 1:
        fields = _stat(at)
        if not fields:
            break
        if fields[0] == "java":
            pid = at
            break
        at = int(fields[2])
    with contextlib.suppress(OSError):
        return {
            "host": socket.gethostname(),
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "pid": pid,
            "started": started(pid),
        }
    return {"host": socket.gethostname(), "boot": "", "pid": pid, "started": ""}


def _stat(pid: int) -> list[str]:
    """Return (command, state, parent, …) of a process; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    before, _, after = text.rpartition(")")
    return [before.partition("(")[2], *after.split()]


def started(pid: int) -> str:
    """Return when a process started; empty if it does not run. With its id, this identifies a process until the next boot."""
    fields = _stat(pid)
    return fields[20] if len(fields) > 20 and fields[1] != "Z" else ""
