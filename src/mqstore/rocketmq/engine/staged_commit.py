"""Committing staged messages to a store, each exactly once, whichever process dies.

The manifest of the store records which runs are in the log, and holds the intent of the commit in progress.
Everything happens while the store's lock is held, so no other process appends:

    1  is the batch recorded? then there is nothing to do
    2  the log is brought to disk; the intent is written: from here on the batch is decided
    3  the parts are appended in the order of partitions, dispatched to the queues, brought to disk
    4  the run is recorded and the intent cleared, by one rename
    5  the stage is removed

A process that finds an intent completes it first. The rows that are already in the log are found by comparison: they begin where the
log ended, and the bytes of a staged row are known except for its store time and queue offset, which are taken from the record it is
compared with. The rest is appended. So a death between 2 and 4 neither loses nor repeats a row, and a replayed batch, whose rows may
come in another order than before, is found recorded. A broker may have had the store in between and appended its own messages: they
differ from the staged rows, so the comparison ends there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mqstore.errors import MqstoreError, TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.state_file import fields_of, flag, one_of, parse, plain_name, read_state, rows, seal, text, whole
from mqstore.kernels.rocketmq import frames
from mqstore.kernels.rocketmq.encode import LogFileWriter
from mqstore.rocketmq.append.batch_appender import message_of_row, special_rows
from mqstore.rocketmq.append.record_encoder import BatchColumns
from mqstore.rocketmq.config.store_config import StoreConfig, now_ms
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.engine.staging import (
    RowRules,
    StagedPart,
    batches_of,
    check_run,
    columns_of,
    is_stage,
    remove_left_behind,
    remove_stage,
)
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.profile import VERSIONS, version_rules
from mqstore.rocketmq.live.store_lock import StoreInUseError

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.files.recorder import Recorder

FLUSH_EVERY = 64 << 20  # bytes of log; once flushed, their pages leave the memory of this process
POLL = 0.2
MANIFEST = "config/mqstore-sink.json"
UNNAMED_KEPT = 100  # runs that the user did not name and that are kept


# The record of the jobs that write into a store: which runs are in its log, and the commit that is decided.
#
#     STORE/config/mqstore-sink.json
#         format    1
#         runs      for each run: the last batch that is in the log, its messages, first and last physical offset
#         intent    a commit in progress or interrupted: run, batch, stage, parts, and where the log ended before it; else null
#
# The file is replaced as a whole, by one rename, while the store's lock is held. A broker ignores it.


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How the store is opened: version of the rules, host of messages without one, and broker settings by name."""

    version: str | None = None
    store_host: str | None = None
    broker: dict[str, str] = field(default_factory=dict)

    def config(self, recorder: Recorder | None = None) -> StoreConfig:
        """Return the settings of the store: no services, one wait for the disk. Raises UsageError."""
        config = StoreConfig(version=self.version, services=False, recorder=recorder).with_broker(self.broker)
        host = self.store_host or config.store_host
        return replace(config, store_host=host, flush_disk_type="ASYNC_FLUSH")


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that is decided. start: physical offset at which the log ended before it. named: whether the user named the run."""

    run: str
    batch: int
    named: bool
    stage: str
    parts: tuple[StagedPart, ...]
    start: int
    stored: bool
    settings: SinkSettings

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a run that is in the log. Offsets are -1 if it had no rows. stopped: why the rows after `messages` are missing."""

    batch: int
    messages: int
    first_physical_offset: int
    last_physical_offset: int
    named: bool
    at: int
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the file."""

    runs: dict[str, CommittedBatch]
    intent: Intent | None = None

    def done(self, run: str, outcome: CommittedBatch) -> Manifest:
        """Return the manifest with a run recorded and no intent; the oldest of many unnamed runs are dropped."""
        runs = {name: each for name, each in self.runs.items() if name != run} | {run: outcome}
        unnamed = [name for name, each in runs.items() if not each.named]
        for name in unnamed[: max(0, len(unnamed) - UNNAMED_KEPT)]:
            del runs[name]
        return Manifest(runs)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        intent = None if self.intent is None else asdict(self.intent)
        document = {"format": 1, "intent": intent, "runs": {name: asdict(each) for name, each in self.runs.items()}}
        return seal(document, indent=1) + b"\n"


def load_manifest(root: Path) -> Manifest:
    """Read the manifest of a store; empty if there is none. Raises TargetError if it cannot be read."""
    # it may belong to the owner of the store: each of its writers may finish the commit of another
    raw = read_state(root / MANIFEST, owners=(root.stat().st_uid,)) if root.is_dir() else None
    if raw is None:
        return Manifest({})
    try:
        document = parse(raw, fields=("format", "intent", "runs"))
        whole(document, "format", 1, 1)
        intent = None if document["intent"] is None else _intent(fields_of(document["intent"], _names(Intent)))
        runs = fields_of(document.get("runs"))
        return Manifest({check_run(name): _batch(fields_of(each, _names(CommittedBatch))) for name, each in runs.items()}, intent)
    except (ValueError, KeyError, UsageError) as error:
        raise TargetError(
            f"{root / MANIFEST} cannot be read ({error}): it records which runs are in the log; restore it, or remove it and check by hand"
        ) from None


def _names(kind: type[Intent | CommittedBatch | StagedPart | SinkSettings]) -> list[str]:
    return [each.name for each in fields(kind)]


def _batch(stored: dict[str, Any]) -> CommittedBatch:
    return CommittedBatch(
        whole(stored, "batch"),
        whole(stored, "messages"),
        whole(stored, "first_physical_offset", -1),
        whole(stored, "last_physical_offset", -1),
        flag(stored, "named"),
        whole(stored, "at"),
        text(stored, "stopped") if "stopped" in stored else "",
    )


def _intent(stored: dict[str, Any]) -> Intent:
    run, stage = check_run(text(stored, "run")), Path(text(stored, "stage"))
    if not is_stage(stage, run):
        raise ValueError(f"its stage {stage} is not one of this run")
    parts = tuple(_part(fields_of(each, _names(StagedPart))) for each in rows(stored, "parts"))
    settings = fields_of(stored.get("settings"), _names(SinkSettings))
    broker = fields_of(settings.get("broker"))
    given = SinkSettings(
        None if settings.get("version") is None else one_of(settings, "version", VERSIONS),
        None if settings.get("store_host") is None else text(settings, "store_host", 100),
        {name: text(broker, name) for name in broker},
    )
    return Intent(
        run, whole(stored, "batch"), flag(stored, "named"), str(stage), parts, whole(stored, "start"), flag(stored, "stored"), given
    )


def _part(stored: dict[str, Any]) -> StagedPart:
    topics = rows(stored, "topics")
    if not all(isinstance(topic, str) for topic in topics):
        raise ValueError("its topics are not texts")
    return StagedPart(whole(stored, "partition"), plain_name(stored, "name"), whole(stored, "rows"), whole(stored, "bytes"), tuple(topics))


def intent_stage(root: Path) -> Path | None:
    """Return the stage of a commit that is decided but not done: it must not be removed."""
    intent = load_manifest(root).intent
    return None if intent is None else Path(intent.stage)


class Sink:
    """The driver's side of the commits to one store. patience: seconds to wait for another process to end its commit."""

    def __init__(
        self,
        root: Path,
        settings: SinkSettings,
        *,
        staging: str | None = None,
        patience: float = 60.0,
        recorder: Recorder | None = None,
    ) -> None:
        self.root = root
        self.settings = settings
        self.staging = staging
        self.patience = patience
        self.recorder = recorder

    def commit(self, run: str, batch: int, stage: Path, parts: Sequence[StagedPart], *, stored: bool, named: bool) -> CommittedBatch:
        """Append the parts as one batch of a run, unless that is done. Raises MqstoreError; see `finish` for the state after an error."""
        ordered = tuple(sorted((part for part in parts if part.rows), key=lambda part: part.partition))
        while True:
            self.finish()
            with self._open_store(self.settings) as store:
                manifest = load_manifest(self.root)
                if manifest.intent is not None:
                    continue  # another process died in its commit just now
                done = manifest.runs.get(run)
                if done is None or done.batch < batch:
                    if not stored:
                        for topic in dict.fromkeys(topic for part in ordered for topic in part.topics):
                            refused = store.refusal_of(topic)
                            if refused:
                                raise UsageError(f"column topic: {refused}")
                    _sync_names(stage)
                    store.flush()
                    intent = Intent(run, batch, named, str(stage), ordered, store.log_max, stored, self._pinned(store))
                    self._write(replace(manifest, intent=intent))
                    done = self._append(store, manifest, intent, _StoredRows())
            break
        remove_stage(stage)
        remove_left_behind(self.root, self.staging, run, [path for path in (intent_stage(self.root),) if path is not None])
        if done.stopped and done.batch == batch:
            raise UsageError(done.stopped)
        return done

    def finish(self) -> CommittedBatch | None:
        """Complete a commit that died, if there is one. After an error it stays decided, and the next call continues."""
        intent = load_manifest(self.root).intent
        if intent is None:
            return None
        with self._open_store(intent.settings) as store:
            manifest = load_manifest(self.root)
            if manifest.intent is None:
                return None
            intent = manifest.intent
            gone = next((part.name for part in intent.parts if not Path(intent.stage, part.name).is_file()), None)
            if gone is not None:
                raise TargetError(
                    f"the commit of run {intent.run} was interrupted, and the staged rows in {intent.stage}/{gone} are missing: bring them "
                    f"back, or check by hand what is stored from physical offset {intent.start} on, and remove the intent from "
                    f"{self.root / MANIFEST}"
                )
            done = self._append(store, manifest, intent, _rows_there(store, intent))
        with contextlib.suppress(TargetError), DurableDirectory(intent.stage) as stage:
            for part in intent.parts:
                with contextlib.suppress(TargetError):
                    stage.remove(part.name)
        return done

    # steps

    @contextlib.contextmanager
    def _open_store(self, settings: SinkSettings) -> Iterator[MessageStore]:
        end = time.monotonic() + self.patience
        while True:
            try:
                store = MessageStore.open(self.root, settings.config(self.recorder))
                break
            except StoreInUseError:
                if time.monotonic() >= end:
                    raise
            time.sleep(POLL)
        try:
            yield store
        except BaseException:
            # keep what was put, if possible; the first error says more than one raised by closing
            with contextlib.suppress(MqstoreError):
                store.close()
            raise
        store.close()

    def _pinned(self, store: MessageStore) -> SinkSettings:
        """Return the settings with everything that decides the bytes of a record filled in."""
        return replace(self.settings, version=store.version, store_host=store.config.store_host)

    def _write(self, manifest: Manifest) -> None:
        with DurableDirectory(self.root, recorder=self.recorder) as directory:
            directory.write_small(MANIFEST, manifest.encode())

    def _append(self, store: MessageStore, manifest: Manifest, intent: Intent, stored: _StoredRows) -> CommittedBatch:
        """Do steps 3 and 4. stored: the rows that are already in the log."""
        skipped, unflushed, stopped = stored.rows, 0, ""
        for batch in _batches(intent):
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            rows = batch.slice(skipped)
            skipped = 0
            result = store.put_batch(rows, stored=intent.stored)
            for offset in result.physical_offsets[:1].tolist() + result.physical_offsets[-1:].tolist():
                stored.add(offset)
            stored.rows += result.count
            unflushed += int(result.sizes.sum())
            if result.count < rows.num_rows:
                progress = f"{stored.rows} of {intent.rows} messages of run {intent.run} are stored"
                if not result.status.is_refusal:
                    raise TargetError(
                        f"{result.detail}; {progress}: once that is repaired, the next write to this store adds the others; "
                        "do not run the job again"
                    )
                stopped = f"{progress}, the next one is refused: {result.detail}"
                break
            if unflushed >= FLUSH_EVERY:
                store.dispatch_now()
                store.flush()
                unflushed = 0
        store.dispatch_now()
        store.flush()
        outcome = CommittedBatch(intent.batch, stored.rows, stored.first, stored.last, intent.named, now_ms(), stopped)
        self._write(manifest.done(intent.run, outcome))
        return outcome


def _batches(intent: Intent) -> Iterator[pa.RecordBatch]:
    return (batch for part in intent.parts for batch in batches_of(intent.stage, part))


def _sync_names(stage: Path) -> None:
    """Sync the names of the parts: tasks sync only their contents."""
    for path in (stage, stage.parent):
        with DurableDirectory(path) as directory:
            directory.sync_directory()


# rows in the log


@dataclass(slots=True)
class _StoredRows:
    """Rows that are in the log: their number, and the physical offsets of the first and the last."""

    rows: int = 0
    first: int = -1
    last: int = -1

    def add(self, offset: int) -> None:
        self.first = offset if self.first < 0 else self.first
        self.last = offset


def _rows_there(store: MessageStore, intent: Intent) -> _StoredRows:
    """Return the rows of an intent that are in the log."""
    if store.log_max and store.log_min > intent.start:
        raise TargetError(
            f"the log before {store.log_min} was deleted, and with it the evidence of how many messages of run {intent.run} were stored; "
            f"check by hand, then remove the intent from {store.directory.root / MANIFEST}"
        )
    stored = _StoredRows()
    for offset in _matched(store, intent):
        stored.rows += 1
        stored.add(offset)
    return stored


def _matched(store: MessageStore, intent: Intent) -> Iterator[int]:
    """Yield the physical offsets of the staged rows in the log from the intent's start on, up to the first that is missing."""
    config = store.config
    crc = version_rules(store.version).has_property_crc and config.enabled_append_prop_crc
    rules = RowRules(store.version, config.store_host, config.max_message_size, 0, crc, intent.stored)
    at = intent.start
    for batch in _batches(intent):
        columns = columns_of(batch, rules)
        special = special_rows(columns, intent.stored)
        row = 0
        while row < len(columns):
            at, data, positions = _records_from(store, at, len(columns) - row)
            if not len(positions):
                return
            count = len(positions)
            fits = _fitting(columns, special, row, data, positions)
            for position in positions[:fits].tolist():
                yield at + position
            if fits < count:
                return
            row += count
            size = int.from_bytes(data[positions[-1] : positions[-1] + 4].tobytes(), "big")
            at += int(positions[-1]) + size


def _records_from(store: MessageStore, at: int, most: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Return (offset, bytes from there on, positions in them) of up to `most` records from a physical offset on."""
    nothing = np.empty(0, np.int64)
    while (file := store.log.file_at(at)) is not None and at < store.log_max:
        data = np.frombuffer(store.log.view(file), np.uint8)
        positions = np.empty(most, np.int64)
        taken, _, status = frames.walk(data, at - file.start, file.written, file.start, True, positions)
        if taken:
            return at, data[at - file.start :], positions[:taken] - (at - file.start)
        if status != frames.BLANK:
            break
        at = file.start + file.size
    return at, np.empty(0, np.uint8), nothing


def _fitting(columns: BatchColumns, special: np.ndarray, row: int, data: np.ndarray, positions: np.ndarray) -> int:
    """Return how many of the records equal the rows from `row` on."""
    fields = np.empty((frames.FIELD_COUNT, len(positions)), np.int64)
    frames.fields(data, positions, fields)
    ends = positions + fields[frames.SIZE]
    count = 0
    while count < len(positions):
        if special[row + count]:
            if not _same_message(columns, row + count, data[positions[count] : ends[count]].tobytes()):
                return count
            count += 1
            continue
        following = np.flatnonzero(special[row + count : row + len(positions)])
        stop = count + int(following[0]) if len(following) else len(positions)
        rows = slice(row + count, row + stop)
        columns.fields[frames.STORE_TIMESTAMP, rows] = fields[frames.STORE_TIMESTAMP, count:stop]
        columns.fields[frames.QUEUE_OFFSET, rows] = fields[frames.QUEUE_OFFSET, count:stop]
        sizes = columns.sizes[rows]
        page = np.zeros(int(sizes.sum()) + 64, np.uint8)
        columns.write(LogFileWriter(page), 0, len(page), int(fields[frames.PHYSICAL_OFFSET, count]), row + count)
        begin = int(positions[count])
        length = min(int(sizes.sum()), len(data) - begin)
        different = np.flatnonzero(page[:length] != data[begin : begin + length])
        whole = int(different[0]) if len(different) else length
        same = int(np.searchsorted(np.cumsum(sizes), whole, side="right"))
        count += same
        if same < len(sizes):
            return count
    return count


def _same_message(columns: BatchColumns, row: int, raw: bytes) -> bool:
    """Return whether a record is a row that is stored in another form: delayed, or with more properties."""
    message, own = message_of_row(columns, row), record.decode(raw)
    return (own.body, own.flag, own.born_timestamp) == (message.body, message.flag, message.born_timestamp)
