"""Simulates a broker's load and start on a directory, in memory by default, without touching the directory.

    load    1  log, queue and index files are mapped; after an unclean exit (`abort` exists) index files that end later
               than the checkpoint's index time are deleted
            2  each consume queue is recovered (`dispatch.consume_queue_image`)
            3  the log is parsed from a start file on, up to the first record the broker cannot accept: the truncation point
                   clean    4.9.3 the third-last file; 5.3.3 the newest file that starts at or before the last dispatched record
                   unclean  the newest file whose first record was stored before the checkpoint; 5.5.0: whose first record is at
                            or before the place up to which the queues are flushed, if the checkpoint has one; none: the oldest
                   since 5.4.0 the first record must be one that the broker accepts, and ten files are looked at
               dispatched again: 4.9.3 unclean all parsed records, clean none; 5.3.3 unclean all, clean those after the last
               dispatched one (except the first of them: its offset is where the queues end, and only greater ones count)
            4  log and queues are cut at the truncation point, later log files are removed
            5  the minimum of each queue is corrected
    start   6  4.9.3 dispatches the records without queue entries, up to the end of the log; at a record it cannot parse it
               skips the rest of that file

Some of this is odd but reproduced: after an unclean exit 4.9.3 does not know the delay levels yet, so delayed messages get
the tags code of an ordinary message; keys of records before the start file are lost with a deleted index file; after a
clean exit 5.3.3 shifts a queue that lags behind. The broker is assumed to be a master without duplication, controller or
DLedger.

With extended consume queues, entries dispatched again would hold addresses of new units; here they hold the plain tags
code.

Format: docs/formats/rocketmq.md, sections 4, 5, 6 and 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import RefusedError
from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.config.broker_config import BrokerConfig
from mqstore.rocketmq.dispatch.consume_queue_image import BatchQueueImage, QueueImage
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_positions
from mqstore.rocketmq.dispatch.index_image import IndexService
from mqstore.rocketmq.dispatch.rocksdb_queue_image import RocksQueueImage
from mqstore.rocketmq.dispatch.targets import AnyQueueImage, DispatchTarget, InMemoryTarget
from mqstore.rocketmq.format import consume_queue, mapped_file_queue
from mqstore.rocketmq.format.checkpoint import LATEST, Checkpoint
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.mapped_file_queue import FileQueue, QueueFile
from mqstore.rocketmq.format.profile import Profile, profile, version_rules
from mqstore.rocketmq.format.record import (
    BORN_HOST_IPV6,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    STORE_TIMESTAMP_AT_IPV6,
    SYS_FLAG_AT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.recovery.broker_parser import ParseStop, RecordParser

Longs = NDArray[np.int64]

_WORTH_A_THREAD = 4 << 20  # size of a log file from which parsing and dispatch run in parallel
_DROP = 64 << 20  # bytes of log after which the pages already read are released


def _read_long(data: Bytes, at: int, width: int = 8) -> int:
    return int.from_bytes(data[at : at + width].tobytes(), "big", signed=True)


def _physical(data: Bytes, positions: Longs) -> tuple[Longs, bool]:
    """Return the physical offset fields of records, and whether they ascend."""
    offsets = np.empty(len(positions), np.int64)
    return offsets, frames.physical_offsets(data, positions, offsets)


@dataclass(slots=True)
class LogFile:
    """A log file as the broker holds it. written: bytes that count."""

    file: QueueFile
    written: int

    @property
    def start(self) -> int:
        return self.file.start

    @property
    def end(self) -> int:
        return self.file.start + self.written


class Recovery:
    """The load and start of a broker on a directory. notes: each action that loses something, in one sentence."""

    def __init__(
        self,
        directory: ReadOnlyDirectory,
        log: CommitLog,
        index_files: Sequence[IndexFile],
        checkpoint: Checkpoint,
        config: BrokerConfig,
        rules: DispatchRules,
        version: str,
        *,
        unclean: bool,
        target: DispatchTarget | None = None,
        strict: bool = False,
        of: Profile | None = None,
    ) -> None:
        """rules: for dispatch, of that version.

        strict: an unclean recovery also stops at a record whose end never reached the disk, although a broker accepts the zeros
        in its topic or properties. target: where queues and index files are; in memory by default. of: the release, of which some begin
        elsewhere in the log than others of the same rules; None: as the version of the rules.
        """
        self.version = version
        self.follows = version_rules(version)
        self.notes: list[str] = []
        self.recovered_from = 0  # physical offset from which the log was parsed
        self.last_record = -1  # physical offset of the last record parsed; after an unclean exit, if there is none, where parsing began
        self.queues: dict[tuple[str, int, bool], AnyQueueImage] = {}
        self.touched_queues: set[tuple[str, int]] | None = None  # queues dispatch added to; None: not collected
        self._directory = directory
        self._log = log
        self._checkpoint = checkpoint
        self._config = config
        self.rules = rules if self.follows.has_batch_queues else replace(rules, batch_topics=frozenset())
        self.unclean = unclean
        self._of = profile(version) if of is None else of
        self._parser = RecordParser(
            version,
            check_crc=config.check_crc_on_recover is not False,
            property_crc=self.follows.has_property_crc and bool(config.force_verify_prop_crc),
            strict=strict and unclean,
        )
        self._target: DispatchTarget = InMemoryTarget(directory) if target is None else target
        self._queue_sizes: dict[bool, int] = {}
        self._refusals: list[str] = list(log.queue.refusals(version))
        self.log_files = [LogFile(file, file.size) for file in log.files if file.size == log.file_size]
        self._load_queues()
        if self._refusals:
            more = f"; and {len(self._refusals) - 3} more" if len(self._refusals) > 3 else ""
            raise RefusedError(f"a {version} broker refuses to start on this store: {'; '.join(self._refusals[:3])}{more}", self._refusals)
        self.index = None if config.message_index_enable is False else self._load_index(index_files)

    # load

    def _load_queues(self) -> None:
        places: list[tuple[str, type[AnyQueueImage], int | None]] = [("consumequeue", QueueImage, self._config.consume_queue_file_size)]
        if self.follows.has_batch_queues:
            places.append(("batchconsumequeue", BatchQueueImage, self._config.batch_queue_file_size))
        for place, kind, configured in places:
            queues = {
                (name, queue_id): mapped_file_queue.load(self._directory, f"{place}/{name}/{queue_id}", size=configured)
                for name, queue_id in consume_queue.queues(self._directory, place)
            }
            size = configured or _common_size(queues.values(), kind.row.itemsize) or 300_000 * kind.row.itemsize
            self._queue_sizes[kind.batch] = size
            for (name, queue_id), queue in queues.items():
                if queue.file_size != size and queue.files:
                    queue = mapped_file_queue.load(self._directory, queue.relative, size=size)
                self._refusals += queue.refusals(self.version)
                topic = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                self.queues[topic, queue_id, kind.batch] = self._target.open_queue(kind, topic, queue_id, size, queue)

    def _load_index(self, files: Sequence[IndexFile]) -> IndexService:
        valid = list(files)
        gone: list[IndexFile] = []
        if self.unclean:
            valid = [file for file in files if file.end_timestamp <= self._checkpoint.index]
            gone = [file for file in files if file not in valid]
            if gone:
                names = ", ".join(file.name for file in gone)
                self.notes.append(f"index files deleted, because they end later than the checkpoint's index time: {names}")
        like = next((file for file in reversed(files) if file.proved), files[-1] if files else None)
        slots = self._config.max_hash_slot_num or (like.slot_count if like else 5_000_000)
        positions = self._config.max_index_num or (like.positions if like else 20_000_000)
        return self._target.open_index(valid, gone, slots=slots, positions=positions)

    @property
    def log_min(self) -> int:
        """Physical offset of the first byte of the log; -1 without files."""
        return self.log_files[0].start if self.log_files else -1

    @property
    def log_max(self) -> int:
        """Physical offset after the last byte of the log that counts; 0 without files."""
        return self.log_files[-1].end if self.log_files else 0

    def load(self) -> None:
        """Recover queues and log, cut both, and correct the minimums."""
        for queue in self.queues.values():
            queue.recover()
        self._target.on_queues_recovered(list(self.queues.values()))
        listed = self._listed()
        if not self.log_files:
            if self.queues:
                self.notes.append("there is no commit log, so all consume queues are deleted")
            for queue in self.queues.values():
                queue.destroy()
        else:
            end, clear = self._recover_log(listed)
            if (self._listed() if self._of.cuts_queues_after_dispatch else listed) >= end:
                for queue in self.queues.values():
                    queue.truncate(end)
            clear &= self._cut_log(end)
            if not clear:
                self.notes.append(f"the log is cut at {end}: the broker cannot accept the bytes there and discards everything after them")
        self.correct_minimums()

    def _listed(self) -> int:
        """Return the physical offset up to which the queues list the log; -1 without entries."""
        return max((queue.max_physical_offset for queue in self.queues.values()), default=-1)

    def correct_minimums(self) -> None:
        """Move the minimum of each queue to the first entry whose record is still in the log.

        Raises RefusedError where the last file of a queue has no entry: 5.0 to 5.4 read before its begin then, and do not start.
        """
        for (topic, queue_id, _), queue in self.queues.items():
            last = queue.files[-1] if isinstance(queue, QueueImage) and queue.files else None
            if self._of.reads_before_empty_file and last is not None and not last.written and queue.min_offset < queue.max_offset:
                raise RefusedError(
                    f"a {self.version} broker does not start on this store: the last file of queue {queue_id} of topic {topic!r} has no "
                    f"entry (consumequeue/{topic}/{queue_id}/{last.start:020d}), and it fails as it reads the one before its first; "
                    "move that file away"
                )
            queue.correct_min(self.log_min, self.version)

    def _recover_log(self, listed: int) -> tuple[int, bool]:
        """Parse the log and dispatch again what the version does. Returns (truncation point, whether nothing is written there)."""
        rules = self.rules if self.follows.keeps_delays_in_recovery else replace(self.rules, delays=())
        number = self._first_unclean() if self.unclean else self._first_clean(listed)
        self.recovered_from = self.log_files[number].start
        if self.unclean:
            self.last_record = self.recovered_from
        while True:
            file = self.log_files[number].file
            data = self._log.mapped(file).data
            stop = ParseStop(0)
            runs = self._runs(self._parser, file, 0, file.size)
            for run in runs if file.size < _WORTH_A_THREAD else _prefetch(runs):
                if isinstance(run, ParseStop):
                    stop = run
                    continue
                self.last_record = file.start + int(run[-1])
                if self.unclean:
                    self.dispatch(data, run, rules)
                elif self.follows.lists_after_clean_exit:
                    self.dispatch(data, run[_physical(data, run)[0] > listed], rules)
            if not stop.blank or number + 1 == len(self.log_files):
                return file.start + stop.position, stop.blank or not data[stop.position : stop.position + 8].any()
            number += 1

    def _runs(self, parser: RecordParser, file: QueueFile, start: int, limit: int) -> Iterator[Longs | ParseStop]:
        """Yield the runs of records of one file. The pages of a run are released two runs later, when the caller has finished with it."""
        mapped = self._log.mapped(file)
        dropped = done = last = start
        for run in parser.runs(mapped.data[:limit], start):
            yield run
            done, last = last, last if isinstance(run, ParseStop) else int(run[-1])
            if done - dropped > _DROP:
                mapped.drop(dropped, done - dropped)
                dropped = done
        mapped.drop(dropped, limit - dropped)

    def _first_clean(self, listed: int) -> int:
        """Return the number of the file from which the log is parsed after a clean exit."""
        if not self.follows.lists_after_clean_exit:
            return max(0, len(self.log_files) - 3)
        if self._of.checks_first_record:
            return self._newest(lambda physical, _: physical <= listed)
        return max(self._oldest, bisect_right([file.start for file in self.log_files], listed) - 1)

    @property
    def _oldest(self) -> int:
        """The number of the oldest file that is looked at."""
        return 0 if self._of.recovered_files is None else max(0, len(self.log_files) - self._of.recovered_files)

    def _newest(self, fits: Callable[[int, int], bool]) -> int:
        """Return the number of the newest file whose first record the broker accepts and `fits`, or that of the oldest.

        fits: of the physical offset and the store time that the record has.
        """
        for number in range(len(self.log_files) - 1, self._oldest, -1):
            data = self._log.mapped(self.log_files[number].file).data
            run = next(self._parser.runs(data[: max(8, _read_long(data, 0, 4))], 0))
            if isinstance(run, ParseStop):
                continue
            wide = _read_long(data, SYS_FLAG_AT, 4) & BORN_HOST_IPV6
            stored = _read_long(data, STORE_TIMESTAMP_AT_IPV6 if wide else STORE_TIMESTAMP_AT)
            if stored != 0 and fits(_read_long(data, PHYSICAL_OFFSET_AT), stored):
                return number
        return self._oldest

    def _first_unclean(self) -> int:
        """Return the number of the newest file up to whose first record the checkpoint says that all is flushed, or that of the oldest."""
        point = self._checkpoint
        safe = self._config.message_index_enable is not False and self._config.message_index_safe
        if self._of.checks_first_record:
            flushed = point.logics_physical_offset if self._of.begins_at_flushed else 0
            limit = point.logics if self._of.begins_at_flushed else point.min_timestamp
            indexed = point.index if safe else LATEST
            return self._newest(lambda physical, stored: stored <= indexed and (physical <= flushed if flushed > 0 else stored <= limit))
        limit = point.min_timestamp_index if safe else point.min_timestamp
        magics = (MAGIC_V1, MAGIC_V2) if self.follows.has_version_2 else (MAGIC_V1,)
        for number in range(len(self.log_files) - 1, self._oldest, -1):
            data = self._log.mapped(self.log_files[number].file).data
            if _read_long(data, MAGIC_AT, 4) in magics:
                wide = _read_long(data, SYS_FLAG_AT, 4) & BORN_HOST_IPV6
                stored = _read_long(data, STORE_TIMESTAMP_AT_IPV6 if wide else STORE_TIMESTAMP_AT)
                if stored != 0 and stored <= limit:
                    return number
        return self._oldest

    def _cut_log(self, end: int) -> bool:
        """Cut the log. Returns whether the files after the cut hold nothing that looks like a record."""
        remaining = []
        clear = True
        for file in self.log_files:
            if file.start + file.file.size > end:
                if file.start > end:
                    clear &= not self._log.mapped(file.file).data[:8].any()
                    self._target.remove_log_file(file.file)
                    continue
                file.written = end - file.start
            remaining.append(file)
        self.log_files = remaining
        return clear

    # dispatch

    def dispatch(self, data: Bytes, positions: Longs, rules: DispatchRules) -> int:
        """Add records to their queues and to the index, in log order. Returns the store time of the last one, 0 for none.

        positions: of parsed records in the bytes of one log file.
        """
        last = 0
        if not len(positions):
            return last
        if rules.multi_dispatch and self.follows.needs_properties:
            self._refuse_without_properties(data, positions)
        physical, ascending = _physical(data, positions)
        # records with wrong physical offset fields are dispatched in parts within which the fields ascend
        cuts = np.empty(0, np.int64) if ascending else np.flatnonzero(physical[1:] <= physical[:-1]) + 1
        for part, offsets in zip(np.split(positions, cuts), np.split(physical, cuts), strict=True):
            dispatched = dispatch_positions(data, np.ascontiguousarray(part), rules)
            try:
                for run in dispatched.runs:
                    queue = self.queue_of(run.topic, run.queue_id, batch=run.batch)
                    self._target.append(queue, self._target.before_append(queue, run, data, part, offsets))
                    if self.touched_queues is not None:
                        self.touched_queues.add((run.topic, run.queue_id))
            finally:
                self._target.flush()
            last = dispatched.last_store_timestamp
            if self.index is not None:
                self.index.add(offsets, dispatched.keys)
        return last

    def queue_of(self, topic: str, queue_id: int, *, batch: bool = False) -> AnyQueueImage:
        """Return the image of a queue, created if there is none."""
        key = (topic, queue_id, batch)
        image = self.queues.get(key)
        if image is None:
            kind: type[AnyQueueImage] = BatchQueueImage if batch else QueueImage
            image = self.queues[key] = self._new_queue(kind, topic, queue_id)
        return image

    def _new_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int) -> AnyQueueImage:
        return self._target.open_queue(kind, topic, queue_id, self._queue_sizes[kind.batch], None)

    def _refuse_without_properties(self, data: Bytes, positions: Longs) -> None:
        fields = np.empty((frames.FIELD_COUNT, len(positions)), np.int64)
        frames.fields(data, positions, fields)
        kind = fields[frames.SYS_FLAG] & TRANSACTION_MASK
        bare = (fields[frames.PROPERTIES_LENGTH] <= 0) & ((kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT))
        if bare.any():
            offset = int(fields[frames.PHYSICAL_OFFSET, int(np.argmax(bare))])
            raise RefusedError(
                f"a 4.9.3 broker with enableMultiDispatch does not start on this store: the record at {offset} has no properties, "
                "and dispatching it always fails; inspect it with --view disk, or switch enableMultiDispatch off"
            )

    # start

    def start(self) -> None:
        """Dispatch what load has not dispatched, if the version does that, and correct the minimums again."""
        if self.follows.waits_for_dispatch or self._config.recheck_reput_offset_from_cq:
            self._catch_up()
        if self.follows.waits_for_dispatch:
            self.correct_minimums()

    def _catch_up(self) -> None:
        parser = RecordParser(self.version, check_crc=False)
        at = max([0, self.log_min, *(queue.max_physical_offset for queue in self.queues.values())])
        while at < self.log_max:
            at = max(at, self.log_min)
            file = self._readable(at)
            if file is None:
                if self.follows.waits_for_dispatch:
                    raise RefusedError(
                        f"a 4.9.3 broker does not start on this store: it waits until everything up to {self.log_max} "
                        f"is dispatched, but no log file holds {at}; inspect the store with --view disk"
                    )
                return
            at = self._catch_up_file(parser, file, at)

    def _readable(self, physical: int) -> LogFile | None:
        """Return the file that holds a physical offset; None if there is none, or if nothing is written there."""
        return next((file for file in self.log_files if file.start <= physical < file.end), None)

    def _catch_up_file(self, parser: RecordParser, log_file: LogFile, start: int) -> int:
        """Dispatch the records of one file from a physical offset on. Returns the offset at which the broker goes on.

        After a record whose lengths do not add up, the broker counts the size that the record claims but goes on reading from
        where it has read to; from then on its count and its read position differ.
        """
        file = log_file.file
        data = self._log.mapped(file).data
        position = start - file.start
        left = log_file.written - position
        counted = start
        while True:
            stop = ParseStop(position)
            for run in self._runs(parser, file, position, log_file.written):
                if isinstance(run, ParseStop):
                    stop = run
                else:
                    self.dispatch(data, run, self.rules)
            counted += stop.position - position
            left -= stop.position - position
            if left <= 0:
                return counted
            if stop.blank:
                return counted - counted % file.size + file.size
            if not stop.size:
                where = file.start + stop.position
                self.notes.append(f"dispatch skips {left} bytes from {where} on: the broker cannot accept the bytes there")
                return counted + left
            counted += stop.size
            position = stop.read_to


def _prefetch(runs: Iterator[Longs | ParseStop]) -> Iterator[Longs | ParseStop]:
    """Yield the same runs; each is parsed, and its bodies checked, while the previous one is dispatched."""
    with ThreadPoolExecutor(1, thread_name_prefix="mqstore-parse") as pool:
        coming = pool.submit(next, runs, None)
        while (run := coming.result()) is not None:
            coming = pool.submit(next, runs, None)
            yield run


def _common_size(queues: Iterable[FileQueue], entry: int) -> int:
    """Return the file size of most queues among those that hold whole entries of this many bytes; 0 without such files."""
    counts = Counter(queue.file_size for queue in queues if queue.files and queue.file_size and queue.file_size % entry == 0)
    return counts.most_common(1)[0][0] if counts else 0


# Simulates the load and start of a 5.5 broker whose consume queues are in RocksDB, in memory.
#
# As `broker_recovery`, but for the queues:
#
#     * the database says up to where the log is listed in it; an empty one says 0, and the broker makes a new one where there is none
#     * the log is parsed from the file that holds this place on, after an unclean exit, too: the checkpoint does not decide
#     * entries are written where their records say, so that nothing is shifted
#     * after an unclean exit all parsed records are dispatched; after a clean one those from there on, except the first of them: with an
#       empty database, the first of the log


class RocksRecovery(Recovery):
    """The load and start of a broker on a directory. readers: the queues of its database. listed: physical offset that it states."""

    def __init__(self, readers: Sequence[RocksQueueReader], listed: int, *arguments: Any, **options: Any) -> None:
        """arguments, options: those of `Recovery`."""
        self._readers = readers
        self._stated = listed
        super().__init__(*arguments, **options)

    def _load_queues(self) -> None:
        for reader in self._readers:
            self.queues[reader.topic, reader.queue_id, False] = RocksQueueImage(reader.topic, reader.queue_id, reader)

    def _listed(self) -> int:
        return self._stated

    def _first_unclean(self) -> int:
        return self._first_clean(self._stated)

    def _new_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int) -> AnyQueueImage:
        return RocksQueueImage(topic, queue_id) if kind is QueueImage else super()._new_queue(kind, topic, queue_id)
