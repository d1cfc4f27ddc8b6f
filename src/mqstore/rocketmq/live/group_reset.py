"""Moving a consumer group within the queues of a topic, in a store that no broker is using.

The queues are those that a broker would have after loading the store (the recovered view), because such a broker reads the offsets
next. The broker's own lock on the store is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mqstore.errors import NotFoundError, TargetError, UnsupportedError, UsageError
from mqstore.store import NOBODY, Observer
from mqstore.table.formatting import moment, parse_time

if TYPE_CHECKING:
    from mqstore.rocketmq.config.consumer_offsets import OffsetChange
    from mqstore.rocketmq.format.queue_page import PagedQueue
    from mqstore.rocketmq.store.recovered_view import RecoveredView
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import QueueView

RESET_NAMES = ("group", "topic", "queue_id", "before", "after", "min_offset", "max_offset", "lag", "state")

FIRST_TIME = 1_000_000_000_000  # ms, the year 2001: smaller numbers are queue offsets


@dataclass(frozen=True, slots=True)
class GroupReset:
    """A group that was moved. rows: one a queue, with RESET_NAMES; its state is moved, same, or kept. file: that was written, or None."""

    group: str
    topic: str
    rows: tuple[dict[str, Any], ...]
    file: str | None

    @property
    def moved(self) -> int:
        """The number of queues in which the group was moved."""
        return sum(row["state"] == "moved" for row in self.rows)

    @property
    def kept(self) -> int:
        """The number of queues in which only force would move it."""
        return sum(row["state"] == "kept" for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the group, the queues and the file."""
        return {"group": self.group, "topic": self.topic, "queues": list(self.rows), "file": self.file}


def reset_group(
    opened: RocketMQStore,
    reopen: Callable[[], RocketMQStore],
    group: str,
    topic: str,
    to: str,
    *,
    queue_id: int | None = None,
    force: bool = False,
    as_version: str | None = None,
    observer: Observer = NOBODY,
) -> GroupReset:
    """Move the group and write the offsets.

    reopen: opens the store again, because a broker may have been writing before the lock was taken. to: earliest, latest, a time or a queue
    offset. force: also forward, past unread messages, and where the group has no offset. Raises UsageError, NotFoundError, TargetError.
    """
    from mqstore.files.durable import DurableDirectory
    from mqstore.rocketmq.live.store_lock import StoreLock

    _parse_target(to)
    opened.require_directory_for("moving a group")
    if opened.path != opened.directory.root:
        raise TargetError(f"{opened.path} is an archive, which cannot be changed; unpack it first")
    with DurableDirectory(opened.directory.root) as directory, StoreLock(directory):
        store = reopen()
        _refuse_database(store)
        view = cast("RecoveredView", store.view("recovered", as_=as_version))
        version = view.version
        for note in view.notes:
            observer.note(f"recovery as {view.profile.version}: {note}")
        queues = _queues_to_move(view, topic, queue_id)
        targets = _target_offsets(view, queues, to, version, force)
        changes, file = _write_offsets(observer, store, directory, group, topic, targets, version, force)
    return GroupReset(group, topic, tuple(_row(group, topic, queues[change.queue_id], change) for change in changes), file)


def _refuse_database(store: RocketMQStore) -> None:
    path = store.offset_database
    if path is not None:
        raise UnsupportedError(
            f"the consumer offsets of {store.path} are in a RocksDB database ({path}), which mqstore reads and does not write; "
            "move the group with the broker's own tools"
        )


def _parse_target(to: str) -> str | int:
    """Parse --to: `earliest`, `latest`, a queue offset, or a time in ms not before FIRST_TIME. Raises UsageError."""
    if to in ("earliest", "latest"):
        return to
    number = parse_time(to, "--to")
    if number < 0:
        raise UsageError(f"--to {to} is neither a time nor a queue offset; give earliest, latest, milliseconds, an ISO time or an offset")
    if number < FIRST_TIME and not to.strip().isdecimal():
        raise UsageError(f"--to {to} is before {moment(FIRST_TIME)}; use earliest for the first message")
    return number


def _queues_to_move(view: RecoveredView, topic: str, queue_id: int | None) -> dict[int, QueueView]:
    from mqstore.rocketmq.store.disk_view import no_queue

    if queue_id is not None:
        return {queue_id: view.queue(topic, queue_id)}
    queues = {queue.queue_id: queue for queue in view.queues() if queue.topic == topic}
    if not queues:
        raise NotFoundError(no_queue(topic, 0, view.queues()))
    return queues


def _target_offsets(view: RecoveredView, queues: Mapping[int, QueueView], to: str, version: str, force: bool) -> dict[int, int]:
    """Return the target offset of each queue. Raises UsageError."""
    target = _parse_target(to)
    if target == "earliest":
        return {queue_id: queue.min_offset for queue_id, queue in queues.items()}
    if target == "latest":
        return {queue_id: queue.max_offset for queue_id, queue in queues.items()}
    assert isinstance(target, int)
    if target >= FIRST_TIME:
        return _offsets_at(view, queues, target, version)
    for queue_id, queue in queues.items():
        if not queue.min_offset <= target <= queue.max_offset and not force:
            raise UsageError(f"queue {queue_id} has offsets {queue.min_offset} to {queue.max_offset}; --force sets {target} anyway")
    return dict.fromkeys(queues, target)


def _offsets_at(view: RecoveredView, queues: Mapping[int, QueueView], timestamp: int, version: str) -> dict[int, int]:
    from mqstore.rocketmq.format.log_slices import LogFiles
    from mqstore.rocketmq.query.time_lookup import offset_by_time

    end = view.log_range()[1]
    left = set(view.log_files())
    files = [file for file in view.log.files if file.name in left]
    log = LogFiles([(file.start, view.log.mapped(file).data[: max(0, end - file.start)].data) for file in files], view.log.file_size)
    return {
        queue_id: max(0, offset_by_time(cast("PagedQueue", queue), log, timestamp, version))  # a recovered queue is an image
        for queue_id, queue in queues.items()
    }


def _write_offsets(
    observer: Observer,
    store: RocketMQStore,
    directory: Any,
    group: str,
    topic: str,
    targets: Mapping[int, int],
    version: str,
    force: bool,
) -> tuple[tuple[OffsetChange, ...], str | None]:
    """Write the offsets; return the change of each queue, and the file written."""
    from mqstore.rocketmq.config import fastjson
    from mqstore.rocketmq.config.consumer_offsets import LMQ_OFFSETS, ConsumerOffsets

    relative = store.offset_table.file
    if store.offset_table.doubt:
        observer.note(store.offset_table.doubt)
    offsets = ConsumerOffsets.load(store.directory, version, relative == LMQ_OFFSETS)
    for finding in offsets.findings:
        observer.note(f"{finding.file}: {finding.detail}")
    if offsets.findings and fastjson.load(store.directory, relative).used is None and not force:
        raise TargetError(f"{relative} cannot be read, nor can its .bak; --force writes a new one, without offsets of other groups")
    if not force and not any(queue_id in offsets.by_queue(group, topic) for queue_id in targets):
        raise NotFoundError(f"group {group!r} has no offset in these queues of topic {topic!r}; --force sets one")
    changes = offsets.reset(group, topic, targets, force=force)
    if all(change.after == change.before for change in changes):
        return changes, None
    offsets.persist(directory)
    return changes, relative


def _state(change: OffsetChange) -> str:
    return "moved" if change.after != change.before else "same" if change.after == change.target else "kept"


def _row(group: str, topic: str, queue: QueueView, change: OffsetChange) -> dict[str, Any]:
    return {
        "group": group,
        "topic": topic,
        "queue_id": change.queue_id,
        "before": None if change.before < 0 else change.before,
        "after": None if change.after < 0 else change.after,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "lag": None if change.after < 0 else queue.max_offset - change.after,
        "state": _state(change),
    }
