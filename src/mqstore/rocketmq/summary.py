"""The summary of a RocketMQ store that `inspect` shows: from names, sizes, headers and the end of the log.

A log of any size is summarised at once: only the records after the last one in a consume queue are walked, up to `TAIL` bytes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mqstore.rocketmq.diagnosis.diagnosis import advise
from mqstore.rocketmq.format.profile import VERSIONS
from mqstore.rocketmq.site import settings_not_used, site_of
from mqstore.store import StorePart

if TYPE_CHECKING:
    from mqstore.findings import Advice, Damage
    from mqstore.rocketmq.format.checkpoint import Checkpoint
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import QueueView, View
    from mqstore.site import Site

TAIL = 256 << 20

_PLACES = (
    ("commitlog", "all messages, in the order they were stored"),
    ("consumequeue", "positions of the messages of each queue"),
    ("consumequeue_ext", "tags codes and filter bits of extended queues"),
    ("batchconsumequeue", "queues of whole batches"),
    ("index", "index of messages by key"),
    ("config", "topics, groups, consumer offsets"),
    ("timerwheel", "timer messages: the wheel"),
    ("timerlog", "timer messages: the log"),
    ("compaction", "compacted topics, if there are any"),
    ("tiered_index_file", "index of messages in tiered storage, before it is moved there"),
    ("consumequeue_rocksdb", "positions of the messages of each queue, in RocksDB"),
    ("rocksdbstore", "index, timer messages and transactions in RocksDB, where the broker is set to keep them there"),
)


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """A broker setting as it must have been, and how it was inferred."""

    name: str
    value: int
    how: str


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the log ends. unqueued: messages after the last one in a queue; walked: False if there was too much to walk."""

    offset: int
    last_store_timestamp: int | None
    unqueued: int
    torn: bool
    walked: bool


@dataclass(frozen=True, slots=True)
class RocketMQSummary:
    """What `inspect` reports of a RocketMQ store."""

    family: ClassVar[Literal["rocketmq"]] = "rocketmq"

    store: str
    version: str
    suggested: str
    version_known_from: str
    fits: tuple[str, str]  # the brokers that open such a store, and what else to know before one does
    unclean: bool
    bare_log: bool
    locked: bool
    parts: tuple[StorePart, ...]
    site: Site
    settings: tuple[BrokerSetting, ...]
    configuration: str | None
    settings_not_used: tuple[str, ...]
    log_start: int
    log_files: int
    dledger: str | None
    end: LogEnd
    topics: int
    queues: int
    listed: int | None
    first_store_timestamp: int | None
    index_files: int
    index_entries: int
    index_end: int | None
    checkpoint: dict[str, int] | None
    groups: int
    committed: int
    unsupported: tuple[str, ...]
    queues_unread: bool
    log_only: bool
    queues_in: str
    refusals: dict[str, str]
    findings: tuple[Damage, ...]
    advice: Advice

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and each broker of these files would start."""
        return not self.findings and not self.refusals

    @property
    def shutdown(self) -> Literal["clean", "unclean", "unknown"]:
        """How its broker ended, as far as known."""
        return "unknown" if self.log_only or self.bare_log else "unclean" if self.unclean else "clean"

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `inspect -o json` prints."""
        return {
            "store": self.store,
            "family": self.family,
            "version": self.version,
            "fits": self.fits[0],
            "suggested_version": self.suggested,
            "version_known_from": self.version_known_from,
            "log_only": self.log_only,
            "shutdown": self.shutdown,
            "abort_file": None if self.log_only else self.unclean,
            "lock_file": None if self.log_only else self.locked,
            "parts": [part.as_dict() for part in self.parts],
            "site": self.site.as_dicts(),
            "settings": {setting.name: setting.value for setting in self.settings},
            "settings_known_from": {setting.name: setting.how for setting in self.settings},
            "settings_not_used": list(self.settings_not_used),
            "log": {
                "min_offset": self.log_start,
                "max_offset": self.end.offset,
                "files": self.log_files,
                "end_walked": self.end.walked,
                "torn_end": self.end.torn,
                "dledger": self.dledger,
            },
            "topics": self.topics,
            "queues": self.queues,
            "queues_in": self.queues_in,
            "messages": self.listed,
            "messages_not_listed": self.end.unqueued if self.end.walked else None,
            "first_store_timestamp": self.first_store_timestamp,
            "last_store_timestamp": self.end.last_store_timestamp,
            "index": {"files": self.index_files, "entries": self.index_entries, "end_phyoffset": self.index_end},
            "checkpoint": self.checkpoint,
            "consumer_groups": self.groups,
            "committed_offsets": self.committed,
            "unsupported": list(self.unsupported),
            "broker_would_refuse": dict(self.refusals),
            "findings": [item.as_dict() for item in self.findings],
            **self.advice.as_dict(),
        }


def summarize(store: RocketMQStore) -> RocketMQSummary:
    """Summarize an open store."""
    from mqstore.rocketmq.store.view import messages_of

    view = store.view("disk")
    queues = view.queues()
    index = store.index_files()
    unread = store.unread_index
    headers = [file.header for file in index] + [file.header for file in unread]
    offsets = store.offset_table.offsets
    version = store.version_hint
    listed = [queue.max_physical_offset for queue in queues]
    used = [file for file in index if file.index_count > 1]
    return RocketMQSummary(
        store=str(store.path),
        version=version,
        suggested=store.evidence.profile.version,
        version_known_from="files of a log do not show it" if store.log_only else store.evidence.why,
        fits=store.evidence.fits,
        unclean=store.unclean,
        bare_log=store.bare_log,
        locked=store.directory.exists("lock"),
        parts=() if store.log_only else tuple(_parts(store)),
        site=site_of(store),
        settings=() if store.log_only else tuple(_settings(store)),
        configuration=None if store.paths_config.source is None else str(store.paths_config.source),
        settings_not_used=settings_not_used(store),
        log_start=store.log.start,
        log_files=len(store.log.files),
        dledger=store.dledger,
        end=_find_end(store, max(listed, default=-1)),
        topics=len({queue.topic for queue in queues}),
        queues=len(queues),
        listed=messages_of(view, queues) if _are_counted(store, queues) else None,
        first_store_timestamp=_first_store_timestamp(store),
        index_files=len(index) + len(unread),
        index_entries=sum(max(0, header.index_count - 1) for header in headers),
        index_end=used[-1].end_physical_offset if used else None,
        checkpoint=_checkpoint_fields(store.checkpoint),
        groups=len({group for group, _ in offsets}),
        committed=sum(len(by_queue) for by_queue in offsets.values()),
        unsupported=store.unsupported,
        queues_unread=store.unread_queues is not None,
        log_only=store.log_only,
        queues_in=_queues_in(store),
        refusals=dict(_refusals(store)),
        findings=(*view.findings, *_queue_findings(store), *_absent_log(view)),
        advice=advise(store),
    )  # fmt: skip


def _are_counted(store: RocketMQStore, queues: Sequence[QueueView]) -> bool:
    """Return whether the messages of the queues are known: they are in the log."""
    return store.unread_queues is None and (bool(store.log.files) or all(queue.min_offset == queue.max_offset for queue in queues))


def _queues_in(store: RocketMQStore) -> str:
    """Return where the consume queues are: `files`, `RocksDB`, or `files and RocksDB`."""
    in_database = store.queue_database is not None
    in_files = any(queue.files for queue in (*store.consume_queues(), *store.stored_queues.second))
    return "files and RocksDB" if in_database and in_files else "RocksDB" if in_database else "files"


def _queue_findings(store: RocketMQStore) -> Iterator[Damage]:
    for queue in store.consume_queues():
        yield from queue.findings
    for batch in store.batch_queues():
        yield from batch.findings


def _absent_log(view: View) -> Iterator[Damage]:
    if view.log_elsewhere is not None and view.log_elsewhere.damage is not None:
        yield view.log_elsewhere.damage


def _checkpoint_fields(point: Checkpoint) -> dict[str, int] | None:
    """Return the checkpoint's fields under the broker's names."""
    if not point.exists:
        return None
    return {
        "physicMsgTimestamp": point.physic,
        "logicsMsgTimestamp": point.logics,
        "indexMsgTimestamp": point.index,
        "masterFlushedOffset": point.master_flushed_offset,
        "confirmPhyOffset": point.confirm_physical_offset,
    }


def _parts(store: RocketMQStore) -> Iterator[StorePart]:
    known = dict(_PLACES)
    if store.dledger is not None:
        known[store.dledger.partition("/")[0]] = "all messages, in the log of a DLedger group"
    for entry in store.directory.entries():
        if not entry.is_directory:
            if entry.name in known:
                yield StorePart(entry.name, known[entry.name], 1, entry.size, entry.blocks * 512)
            continue
        files = [below for _, below in store.directory.walk(entry.name)]
        yield StorePart(
            entry.name + "/",
            known.get(entry.name, "not known to mqstore"),
            len(files),
            sum(below.size for below in files),
            sum(below.blocks for below in files) * 512,
        )


def _settings(store: RocketMQStore) -> Iterator[BrokerSetting]:
    def how(configured: object, inferred: str) -> str:
        return "given by --config" if configured is not None else inferred

    config = store.config
    if store.log.file_size:
        yield BrokerSetting(
            "mappedFileSizeCommitLog", store.log.file_size, how(config.commit_log_file_size, "names and lengths of the log files")
        )
    sizes = {queue.file_size for queue in store.consume_queues() if queue.files}
    if sizes:
        yield BrokerSetting(
            "mappedFileSizeConsumeQueue", max(sizes), how(config.consume_queue_file_size, "names and lengths of the queue files")
        )
    batch = {queue.file_size for queue in store.batch_queues() if queue.files}
    if batch:
        yield BrokerSetting(
            "mapperFileSizeBatchConsumeQueue", max(batch), how(config.batch_queue_file_size, "names and lengths of the queue files")
        )
    for file in store.index_files()[-1:]:
        yield BrokerSetting("maxHashSlotNum", file.slot_count, file.inferred)
        yield BrokerSetting("maxIndexNum", file.positions, file.inferred)


def _find_end(store: RocketMQStore, listed: int) -> LogEnd:
    """Find the end of the log by walking from the last record in a queue, or from the start of the last file if there is none."""
    import numpy as np

    from mqstore.findings import Damage
    from mqstore.rocketmq.format.commit_log import EndOfFile, Records

    log = store.log
    number = log.last_written()
    if number < 0:
        return LogEnd(log.start, None, 0, False, True)
    last_file = log.files[number]
    known = listed >= log.start and log.file_at(listed) is not None
    start = listed if known else last_file.start
    walked = known or number == 0
    if last_file.start + last_file.size - start > last_file.size + TAIL:
        start, walked = last_file.start, False
    end, unqueued, torn = start, 0, False
    newest: int | None = None
    for event in log.scan(start):
        if isinstance(event, Records):
            last = int(event.positions[-1])
            newest = event.file.start + last
            end = newest + int(np.frombuffer(event.data[last : last + 4].tobytes(), ">i4")[0])
            unqueued += len(event)
        elif isinstance(event, EndOfFile):
            end = event.file.start + event.position + event.length
        elif isinstance(event, Damage):
            torn = torn or event.kind == "torn-record"
    return LogEnd(end, _store_timestamp(store, newest) if newest is not None else _newest_listed(store), unqueued, torn, walked)


def _newest_listed(store: RocketMQStore) -> int | None:
    """Return the store time of the newest record in a queue."""
    newest = -1
    for queue in store.view("disk").queues():
        entries = queue.entries(queue.max_offset - 1, queue.max_offset)
        if len(entries):
            newest = max(newest, int(entries["physical_offset"][-1]))
    return _store_timestamp(store, newest) if newest >= 0 else None


def _store_timestamp(store: RocketMQStore, physical_offset: int) -> int | None:
    message = store.log.record(physical_offset)
    return None if message is None else message.store_timestamp


def _first_store_timestamp(store: RocketMQStore) -> int | None:
    """Return the store time of the first valid record of the first file."""
    if store.log.last_written() < 0:
        return None
    file = store.log.files[0]
    position = store.log.first_record(file, 0, min(file.size, TAIL))
    return None if position is None else _store_timestamp(store, file.start + position + store.log.header_size)


def _refusals(store: RocketMQStore) -> Iterator[tuple[str, str]]:
    """Yield (version, reason) for each version whose broker would not start on the directory."""
    from mqstore.errors import RefusedError
    from mqstore.rocketmq.recovery.broker_recovery import Recovery

    for version in VERSIONS if store.dledger is None and not store.log_only else ():
        try:
            Recovery(
                store.directory, store.log, store.index_files(), store.checkpoint, store.config, store.rules(version), version,
                unclean=store.unclean,
            )  # fmt: skip
        except RefusedError as error:
            yield version, str(error)
