"""Disk usage: live records, garbage and unreadable bytes of message files, and the bytes of each queue.

A broker keeps a record until nothing references it, and its file until enough of it is garbage. A record is live if an unacknowledged
index entry references it; of several copies of a message only the one that is read is live. All other bytes of a `.rdq` file are
garbage, runs of zeros included, except for those that damage has made unreadable.

    bytes of a file = live + garbage + unreadable

A body shared by several queues is one record: it counts once by file, and once for each queue.

Quorum queues have their messages in logs: `member` and `log` are the groups of `quorum.log_usage`.

A stream keeps what it holds until its limits, x-max-length-bytes and x-max-age, delete a whole segment from its beginning; a node never
deletes the last one. Its messages are counted by its indexes and the names of its segments.

Format: docs/formats/rabbitmq.md, sections 6.1 and 6.5; docs/formats/rabbitmq-streams.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.rabbitmq.format.index_v1 import ACKED, IN_STORE
from mqstore.rabbitmq.format.message_file import OVERHEAD
from mqstore.rabbitmq.quorum.log_usage import LogUsage, MemberUsage, QuorumUsage, quorum_usage
from mqstore.rabbitmq.streams.rows import MessagesBefore
from mqstore.table.formatting import count, size

if TYPE_CHECKING:
    from mqstore.findings import Damage
    from mqstore.rabbitmq.store.message_store import MessageStore
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost


@dataclass(frozen=True, slots=True)
class FileUsage:
    """One message file. records, bytes: all; live: still referenced; unreadable: bytes outside any record."""

    file: str
    vhost: str | None
    records: int
    live_records: int
    bytes: int
    live_bytes: int
    unreadable_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "vhost": self.vhost,
            "records": self.records,
            "live_records": self.live_records,
            "garbage_records": self.records - self.live_records,
            "bytes": self.bytes,
            "live_bytes": self.live_bytes,
            "garbage_bytes": max(0, self.bytes - self.live_bytes - self.unreadable_bytes),
            "unreadable_bytes": self.unreadable_bytes,
        }


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """One queue, with its priority levels combined.

    messages, bytes: unacknowledged messages, and the size of their bodies; embedded, shared: the same bodies by location;
    index_bytes: the files of the queue.
    """

    vhost: str | None
    queue: str
    messages: int
    bytes: int
    embedded_bytes: int
    shared_bytes: int
    index_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """One stream. bytes, index_bytes: of its segments and their indexes; first_timestamp, last_timestamp: of its chunks, in ms.

    max_length_bytes, max_age: its limits as it was declared, or as its policy has them; None: it has none, or nothing defines it.
    """

    vhost: str | None
    stream: str
    messages: int
    bytes: int
    index_bytes: int
    segments: int
    first_timestamp: int | None
    last_timestamp: int | None
    max_length_bytes: int | None
    max_age: str | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class QueuesUsageReport:
    """Usage by file, by queue and by stream, the largest first. shown_by: the groups that are shown unasked.

    least_names: of the columns, if there are no rows. quorum: what the logs of quorum queues take. Nothing is read in tasks, so that there
    are no runs_on and notes.
    """

    family: ClassVar[str] = "rabbitmq"
    shown_by: ClassVar[tuple[str, ...]] = ("file", "queue", "stream", "member", "log")
    least_names: ClassVar[tuple[str, ...]] = ("file", "bytes")
    elsewhere: ClassVar[tuple[tuple[str, int], ...]] = ()
    notes: ClassVar[tuple[str, ...]] = ()
    runs_on: ClassVar[str] = ""
    why: ClassVar[str] = ""

    store: str
    files: tuple[FileUsage, ...]
    queues: tuple[QueueUsage, ...]
    streams: tuple[StreamUsage, ...]
    quorum: QuorumUsage

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Findings about the logs of quorum queues."""
        return self.quorum.damage

    @property
    def file_bytes(self) -> int:
        """Bytes of message files."""
        return sum(file.bytes for file in self.files)

    @property
    def total_bytes(self) -> int:
        """Bytes of message files and of logs."""
        return self.file_bytes + self.quorum.total_bytes

    @property
    def live_bytes(self) -> int:
        return sum(file.live_bytes for file in self.files)

    @property
    def live_records(self) -> int:
        return sum(file.live_records for file in self.files)

    @property
    def unreadable_bytes(self) -> int:
        return sum(file.unreadable_bytes for file in self.files)

    @property
    def garbage_bytes(self) -> int:
        return sum(row["garbage_bytes"] for row in self.rows("file"))

    @property
    def ok(self) -> bool:
        """Whether all bytes of the message files are records, and nothing is wrong with the logs."""
        return not self.unreadable_bytes and not self.damage

    @property
    def headline(self) -> str:
        """What there is, in one sentence."""
        files = f"{count(self.live_records, 'live record')} in {size(self.file_bytes)} of message files"
        logs = f"{count(self.quorum.messages, 'message')} in {size(self.quorum.total_bytes)} of logs of quorum queues"
        held = f"{size(sum(each.bytes + each.index_bytes for each in self.streams))} in {count(len(self.streams), 'stream')}"
        others = [logs] * bool(self.quorum.logs) + [held] * bool(self.streams)
        return f"{'; '.join([files] * bool(self.file_bytes or not others) + others)}."

    @property
    def read_bytes(self) -> int:
        """Bytes that were read."""
        return self.total_bytes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """What the message files and the logs consist of, in bytes, by name."""
        files = (("live", self.live_bytes), ("garbage", self.garbage_bytes), ("unreadable", self.unreadable_bytes))
        if not self.quorum.logs:
            return files
        live = self.quorum.live_bytes
        logs = (("messages in quorum queues", live), ("all else in their logs", self.quorum.total_bytes - live))
        return (*files, *logs) if self.file_bytes else logs

    def rows(self, by: str) -> list[dict[str, Any]]:
        """Return rows by `file`, `queue`, `stream`, `member` or `log`."""
        groups: dict[str, Sequence[FileUsage | QueueUsage | StreamUsage | MemberUsage | LogUsage]] = {
            "file": self.files,
            "queue": self.queues,
            "stream": self.streams,
            "member": self.quorum.members,
            "log": self.quorum.logs,
        }
        return [item.as_dict() for item in groups[by]]

    def as_dict(self, by: Sequence[str] = ("file", "queue", "stream", "member", "log")) -> dict[str, Any]:
        """Return the document that `usage -o json` prints."""
        sums = {
            "bytes": self.file_bytes,
            "live_bytes": self.live_bytes,
            "garbage_bytes": self.garbage_bytes,
            "unreadable_bytes": self.unreadable_bytes,
            "live_records": self.live_records,
        }
        return {"store": self.store, "family": "rabbitmq", "message_files": sums} | {f"{each}s": self.rows(each) for each in by}


def check_group(by: str | None) -> None:
    """Raise UsageError for a group that the usage of a RabbitMQ store does not have."""
    if by not in (None, *QueuesUsageReport.shown_by):
        raise UsageError(f"--by {by!r} does not apply to a RabbitMQ store; use file, queue, stream, member or log")


def usage(store: RabbitMQStore, progress: Callable[[int, int], None] | None = None) -> QueuesUsageReport:
    """Count a store. Reads every index and scans every message file. progress: called with (queue directories counted, total)."""
    counted, total = 0, len(store.queues)

    def advance() -> None:
        nonlocal counted
        counted += 1
        if progress is not None:
            progress(counted, total)

    files: list[FileUsage] = []
    queues: list[QueueUsage] = []
    for vhost in store.vhosts:
        stores = (vhost.persistent, vhost.transient)
        live = [np.zeros(len(each), np.bool_) for each in stores]
        queues += _queue_usage(store, vhost, stores, live, advance)
        for each, needed in zip(stores, live, strict=True):
            files += _files(vhost, each, needed)
    return QueuesUsageReport(
        str(store.path),
        tuple(sorted(files, key=lambda file: (-file.bytes, file.file))),
        tuple(sorted(queues, key=lambda queue: (-queue.bytes, queue.vhost or "", queue.queue))),
        tuple(sorted(_streams(store), key=lambda stream: (-stream.bytes, stream.vhost or "", stream.stream))),
        quorum_usage(store.directory),
    )


def _streams(store: RabbitMQStore) -> Iterator[StreamUsage]:
    for named in store.streams:
        stream, queue = named.stream, store.stream_definitions.get(named.stream.name)
        times = stream.times()
        length, age = (None, None) if queue is None else (queue.limit(name) for name in ("max-length-bytes", "max-age"))
        yield StreamUsage(
            named.vhost,
            named.queue,
            MessagesBefore(stream).segment(len(stream)),
            int(stream.size.sum()),
            int(np.maximum(stream.index_size, 0).sum()),
            len(stream),
            times[0] if times else None,
            times[1] if times else None,
            length if type(length) is int else None,
            age if type(age) is str else None,
        )


def _queue_usage(
    store: RabbitMQStore,
    vhost: Vhost,
    stores: tuple[MessageStore, MessageStore],
    live: list[NDArray[np.bool_]],
    advance: Callable[[], None],
) -> list[QueueUsage]:
    """Return the queues of a vhost. live: receives the marks of the rows that they need."""
    sums: dict[str, list[int]] = {}
    for queue in vhost.queues:
        counted = sums.setdefault(queue.name, [0, 0, 0, 0])
        counted[3] += sum(entry.size for _, entry in store.directory.walk(queue.place.place))
        for table in queue.entry_tables():
            entries = table.entries[(table.entries["state"] & ACKED) == 0]
            shared = entries["place"] == IN_STORE
            counted[0] += len(entries)
            counted[1] += int(entries["size"][~shared].sum())
            counted[2] += int(entries["size"][shared].sum())
            left = entries[shared]
            for each, needed in zip(stores, live, strict=True):
                rows = each.find(left["hi"], left["lo"])
                needed[rows[rows >= 0]] = True
                left = left[rows < 0]
        advance()
    return [
        QueueUsage(vhost.name, name, messages, embedded + shared, embedded, shared, index)
        for name, (messages, embedded, shared, index) in sums.items()
    ]


def _files(vhost: Vhost, store: MessageStore, live: NDArray[np.bool_]) -> list[FileUsage]:
    rows = np.arange(len(store))
    number, _, length = store.locations(rows)
    total = length + OVERHEAD
    files = []
    for k, file in enumerate(store.files):
        mine = number == k
        needed = mine & live
        lost = sum(item.length for item in store.findings if item.file == file.name and item.kind.unread)
        files.append(
            FileUsage(
                file.name,
                vhost.name,
                int(mine.sum()),
                int(needed.sum()),
                file.size,
                min(int(total[needed].sum()), file.size),
                min(lost, file.size),
            )
        )
    return files
