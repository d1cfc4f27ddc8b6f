"""`load`: many messages from a file or a pipe into a store that no broker is using.

Messages are put in the order of their lines, batch by batch. However the command ends, the messages it reports as stored are in the
log, the queues and the index, and on disk; `--skip` continues after the last of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqstore.cli.common.arguments import Config, option
from mqstore.cli.common.command import verb
from mqstore.cli.common.output import Output
from mqstore.cli.write.target import AsWriter, Create, Interrupts, StoppedError, StoreTarget, Sync, WritableStore, open_target, refusal
from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.jobs.load_rows import BadLineError, BodyForm, Source, SourceRows, open_source
from mqstore.table.formatting import count, pace, size

if TYPE_CHECKING:
    from mqstore.rocketmq.append.batch_appender import BatchResult
    from mqstore.rocketmq.engine.message_store import MessageStore

LOAD_NAMES = ("store", "created", "from", "skipped", "messages", "bytes", "first_physical_offset", "last_physical_offset", "seconds")

FLUSH_EVERY = 64 << 20  # bytes of log, which are then released from this process's memory


class _LoadProgress:
    """What is stored so far. number: of the line or row up to which everything is stored."""

    def __init__(self, skip: int) -> None:
        self.number = skip
        self.messages = 0
        self.bytes = 0
        self.first = -1
        self.last = -1
        self.doubtful = 0
        self.slow = ""
        self._flushed = 0

    def put(self, store: MessageStore, rows: SourceRows) -> None:
        """Put the rows up to the first one that cannot be stored. Raises BadLineError, TargetError."""
        from mqstore.table.arrow_spans import BadRowError

        try:
            result = store.put_batch(rows.batch, stored=rows.stored)
        except BadRowError as error:
            if error.row:
                self.put(store, SourceRows(rows.batch.slice(0, error.row), rows.numbers[: error.row], rows.stored, 0, rows.done))
            raise BadLineError(rows.numbers[error.row], f"column {error.column}: {error.why}") from None
        self._count(result, rows)
        store.dispatch_now()
        if self.bytes - self._flushed >= FLUSH_EVERY:
            store.flush()
            self._flushed = self.bytes
        if result.count < len(rows.numbers):
            refused = refusal(result.status, result.detail.removeprefix(f"row {result.count}: "), store.version)
            if isinstance(refused, TargetError):
                raise refused
            raise BadLineError(rows.numbers[result.count], str(refused))

    def _count(self, result: BatchResult, rows: SourceRows) -> None:
        if not result.count:
            return
        self.number = rows.numbers[result.count - 1]
        self.messages += result.count
        self.bytes += int(result.sizes.sum())
        self.doubtful += rows.doubtful
        self.first = int(result.physical_offsets[0]) if self.first < 0 else self.first
        self.last = int(result.physical_offsets[-1])
        if result.count == len(rows.numbers):
            self.slow = result.detail or self.slow

    @property
    def as_sentence(self) -> str:
        """The number of messages stored, as part of a sentence."""
        return f"{count(self.messages, 'message')} {'is' if self.messages == 1 else 'are'} stored"


def load(
    out: Output,
    store: WritableStore,
    source: Annotated[
        str,
        option("--from", metavar="FILE", help="JSON lines, Parquet, a directory of Parquet files, or - for JSON lines on standard input."),
    ],
    create: Create = False,
    skip: Annotated[int, typer.Option("--skip", metavar="N", min=0, help="Skip the first N lines (Parquet: rows).")] = 0,
    body: Annotated[
        BodyForm,
        typer.Option("--body", help="The encoding of `body` in JSON lines; auto: decided by body_sha256 if present, otherwise text."),
    ] = BodyForm.AUTO,
    sync: Sync = False,
    as_version: AsWriter = None,
    config: Config = None,
) -> int:
    """Put many messages into a store, as a broker does: from JSON lines or Parquet.

    Accepts what `messages -o jsonl --body base64` prints and `export` writes; {"topic": "orders", "body": "paid"} is enough for a line.
    Offsets and store times are reassigned, everything else is kept. The store must not be in use. If a line cannot be stored, the command
    stops there, and reports how many messages are stored and which --skip continues.
    """
    target = StoreTarget(store, create, as_version, sync, config)
    opened_source = open_source(source, skip, body)
    begun = time.perf_counter()
    stored = _LoadProgress(skip)
    with Interrupts() as interrupts:
        with interrupts.held(until_asked=True):
            opened, new = open_target(out, target)
        try:
            _load_rows(out, opened, opened_source, stored, interrupts)
        except BadLineError as error:
            where = f"{opened_source.noun} {error.number}"
            failure = f"{opened_source.name}, {where}: {error}"
            _close_after_failure(opened, opened_source, stored, interrupts, failure)
            raise UsageError(f"{failure}; {stored.as_sentence}: correct {where} and continue with --skip {error.number - 1}") from None
        except MqstoreError as error:
            _close_after_failure(opened, opened_source, stored, interrupts, str(error))
            raise TargetError(
                f"{error}; {_progress_sentence(opened_source, stored)}: when that is fixed, continue with --skip {stored.number}"
            ) from None
        except KeyboardInterrupt:
            _close_after_failure(opened, opened_source, stored, interrupts, "interrupted")
            raise StoppedError(f"interrupted; {_progress_sentence(opened_source, stored)}: continue with --skip {stored.number}") from None
        except BaseException:
            opened.close()
            raise
        with interrupts.held():
            opened.close()
    _print_result(out, opened.reading.root, new, opened_source, skip, stored, time.perf_counter() - begun)
    if stored.doubtful:
        out.note(f"{count(stored.doubtful, 'row')} had the verdict damaged or duplicate; they are ordinary messages now")
    if stored.slow:
        out.note(f"the messages are stored, but {stored.slow}")
    return 1 if stored.slow else 0


def _progress_sentence(source: Source, stored: _LoadProgress) -> str:
    return f"{stored.as_sentence}, all up to {source.noun} {stored.number} of {source.name}"


def _load_rows(out: Output, store: MessageStore, source: Source, stored: _LoadProgress, interrupts: Interrupts) -> None:
    interrupts.ask()
    with out.progress("loading") as progress:
        for rows in source.rows:
            with interrupts.held():
                stored.put(store, rows)
            if progress is not None:
                progress(rows.done, source.size)


def _close_after_failure(store: MessageStore, source: Source, stored: _LoadProgress, interrupts: Interrupts, why: str) -> None:
    """Close a store whose loading ended early. Raises TargetError if that fails too."""
    try:
        with interrupts.held(until_asked=True):
            store.close()
    except MqstoreError as error:
        after = "" if str(error) == why else f" ({error})"
        raise TargetError(
            f"{why}; {_progress_sentence(source, stored)}, but the store could not be closed cleanly{after}: when that is fixed, "
            f"continue with --skip {stored.number}, which recovers the store first"
        ) from None


def _print_result(out: Output, root: Path, new: bool, source: Source, skip: int, stored: _LoadProgress, seconds: float) -> None:
    row = {
        "store": str(root),
        "created": new,
        "from": source.name,
        "skipped": skip,
        "messages": stored.messages,
        "bytes": stored.bytes,
        "first_physical_offset": None if stored.first < 0 else stored.first,
        "last_physical_offset": None if stored.last < 0 else stored.last,
        "seconds": round(seconds, 3),
    }
    if out.format == "csv":
        out.records(LOAD_NAMES, [row])
    elif not out.is_text:
        out.document(row)
    elif not stored.messages:
        out.line(f"No messages in {source.name}: nothing was loaded into {root}.")
    else:
        out.line(f"Loaded {count(stored.messages, 'message')} into {root}{', a new store' if new else ''}.", style="bold")
        out.line(f"{size(stored.bytes)} of log: the first message is at physical offset {stored.first}, the last at {stored.last}.")
        out.line(f"{pace(stored.bytes, seconds)}.")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="load /data/store --from messages.jsonl --create")(load)
