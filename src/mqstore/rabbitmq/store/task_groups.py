"""A store divided into tasks: groups of queues, and groups of message files. Planning reads names and sizes only.

A queue that is larger than a task is divided by its segments, as a stream is. Each of its tasks reads the index of the whole queue, since
the position of a message depends on those before it, and the messages of some segments only. Groups are in the order of the message
table, so the concatenated tables of all groups are the table of the store, whatever the number of groups.

    >>> [list(part) for part in cut([5, 5, 5, 30, 5], 3)]
    [[0, 1, 2], [3], [4]]

Messages in no queue (`everything`) are a separate group after the queues of their vhost.

A `JoinedStore` is a message store whose records were found elsewhere: the input of a task that reads a group of queues after a join by
message id. For its ids it returns what a scan of all message files would return, without scanning. Each id is in it once, with the copy
that counts; `seen` is whether the broker finds any copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.kernels.rabbitmq import message_store
from mqstore.rabbitmq.format.index_v1 import ACKED, DELIVERED, IN_QUEUE_STORE, IN_STORE, PERSISTENT
from mqstore.rabbitmq.format.message_file import halves
from mqstore.rabbitmq.store.message_store import MessageStore, RecordTable
from mqstore.rabbitmq.store.message_table import hex_ids
from mqstore.rabbitmq.store.queue import WHOLE, SequenceRange
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import CLASSIC, QUORUM, STREAM, QueueSelection
from mqstore.table.rows import first_rows
from mqstore.threads import least_tasks

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.store.message_store import StoreFile
    from mqstore.rabbitmq.store.queue import Queue
    from mqstore.rabbitmq.store.store import TableRows
    from mqstore.rabbitmq.store.vhost import Vhost

GROUP_BYTES = 64 << 20
LEAST_BYTES = 16 << 20
ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Queues by vhost directory, or member of a quorum queue, and queue name, in table order.

    rest: vhosts whose messages in no queue come last. segments: of streams, by directory and number. parts: of queues that are divided,
    by vhost directory and queue directory; these are among the queues.
    """

    number: int
    queues: tuple[tuple[str, str], ...]
    rest: tuple[str, ...]
    bytes: int
    segments: tuple[tuple[str, int], ...] = ()
    parts: tuple[tuple[str, str, SequenceRange], ...] = ()

    def parts_of(self, vhost: str) -> dict[str, SequenceRange]:
        """Return the parts of the divided queues of a vhost directory, by queue directory."""
        return {directory: part for of, directory, part in self.parts if of == vhost}


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Message files by name."""

    number: int
    files: tuple[str, ...]
    bytes: int


def cut(sizes: Sequence[int], count: int | None) -> Iterator[range]:
    """Yield at most `count` runs of indexes of about equal size; else `least_tasks` of LEAST_BYTES to GROUP_BYTES, or more."""
    target = _target(sum(sizes), count)
    start = held = made = 0
    for k, size in enumerate(sizes):
        last = count is not None and made == count - 1
        if k > start and held + size > target and not last:
            yield range(start, k)
            start, held = k, 0
            made += 1
        held += size
    if sizes:
        yield range(start, len(sizes))


def _target(total: int, count: int | None) -> int:
    """Return the bytes of a group. count: of the groups."""
    return min(GROUP_BYTES, max(LEAST_BYTES, total // least_tasks())) if count is None else max(1, -(-total // max(1, count)))


class _Unit(NamedTuple):
    """What is in one group: a queue or a part of it, a segment of a stream (number), or the messages in no queue (None)."""

    directory: str
    name: str | int | None
    part: tuple[str, SequenceRange] | None = None


def plan_queues(
    store: RabbitMQStore, count: int | None = None, selection: QueueSelection = QueueSelection(), *, whole: bool = False
) -> list[QueueGroup]:
    """Return the groups of the selected queues. count: maximum number of groups. whole: no queue is divided.

    Which messages of the message files are whose is not known before they are read: they are counted by the sizes of the indexes.
    """
    units: list[_Unit] = []
    sizes: list[int] = []
    for vhost in _selected_vhosts(store, selection):
        seen: dict[str, int] = {}
        every = 0
        for queue in vhost.queues:
            size = sum(entry.size for _, entry in store.directory.walk(queue.place.place))
            every += size
            if selection.queues is None or queue.name in selection.queues:
                seen[queue.name] = seen.get(queue.name, 0) + size
        files = sum(file.size for each in (vhost.persistent, vhost.transient) for file in each.files)
        units += [_Unit(vhost.directory, name) for name in seen]
        if selection.everything and selection.queues is None and selection.recovered is not True:
            units.append(_Unit(vhost.directory, None))
            sizes += [*seen.values(), files]
        else:
            sizes += [size + files * size // max(1, every) for size in seen.values()]
    for member in store.selected_quorum_queues(selection):
        units.append(_Unit(member.log.place, member.name[1]))
        sizes.append(member.log.size)
    for named in store.selected_streams(selection):
        chosen = named.stream.segments_between(selection.from_offset, selection.to_offset)
        units += [_Unit(named.stream.place, number) for number in chosen]
        sizes += named.stream.size[chosen.start : chosen.stop].tolist()
    if not whole:
        units, sizes = _divided(store, units, sizes, _target(sum(sizes), count))
    groups = []
    for number, part in enumerate(cut(sizes, count)):
        mine = [units[k] for k in part]
        groups.append(
            QueueGroup(
                number,
                tuple(dict.fromkeys((unit.directory, unit.name) for unit in mine if isinstance(unit.name, str))),
                tuple(unit.directory for unit in mine if unit.name is None),
                sum(sizes[k] for k in part),
                tuple((unit.directory, unit.name) for unit in mine if isinstance(unit.name, int)),
                tuple(_joined_parts(mine)),
            )
        )
    return groups


def _divided(store: RabbitMQStore, units: list[_Unit], sizes: list[int], target: int) -> tuple[list[_Unit], list[int]]:
    """Return the units and their sizes with every queue above the target divided into its segments."""
    queues: dict[tuple[str, str], list[Queue]] = {}
    for vhost in store.vhosts if any(size > target for size in sizes) else ():
        for queue in vhost.queues:
            queues.setdefault((vhost.directory, queue.name), []).append(queue)
    smaller: list[_Unit] = []
    weights: list[int] = []
    for unit, size in zip(units, sizes, strict=True):
        own = queues.get((unit.directory, unit.name), ()) if size > target and isinstance(unit.name, str) else ()
        segments = [(queue.directory, queue.segment_sizes() or {0: 1}) for queue in own]
        parts = [
            (_Unit(unit.directory, unit.name, (directory, SequenceRange(start, stop))), held[first])
            for directory, held in segments
            for first, start, stop in zip(held, (0, *list(held)[1:]), (*list(held)[1:], None), strict=True)
        ]
        held_bytes = max(1, sum(held for _, held in parts))
        smaller += [part for part, _ in parts] or [unit]
        weights += [size * held // held_bytes for _, held in parts] or [size]
    return smaller, weights


def _joined_parts(units: Iterable[_Unit]) -> Iterator[tuple[str, str, SequenceRange]]:
    """Yield the parts of queues; those of a directory that follow each other are one."""
    parts = ((unit.directory, *unit.part) for unit in units if unit.part is not None)
    for (vhost, directory), run in groupby(parts, key=itemgetter(0, 1)):
        ranges = [part for _, _, part in run]
        yield vhost, directory, SequenceRange(ranges[0].start, ranges[-1].stop)


def stored_bytes(store: RabbitMQStore) -> int:
    """Return the bytes of all queue directories and message files."""
    return sum(group.bytes for group in plan_queues(store, 1, QueueSelection(everything=True)))


def plan_files(store: RabbitMQStore, count: int | None = None, selection: QueueSelection = QueueSelection()) -> list[FileGroup]:
    """Return the groups of the message files of the selected vhosts."""
    files = [file for vhost in _selected_vhosts(store, selection) for each in (vhost.persistent, vhost.transient) for file in each.files]
    sizes = [file.size for file in files]
    return [
        FileGroup(number, tuple(files[k].name for k in part), sum(sizes[k] for k in part)) for number, part in enumerate(cut(sizes, count))
    ]


def _selected_vhosts(store: RabbitMQStore, selection: QueueSelection) -> list[Vhost]:
    if not selection.has_type(CLASSIC):
        return []
    return [vhost for vhost in store.vhosts if selection.vhosts is None or vhost.name in selection.vhosts]


def files_token(store: RabbitMQStore) -> str:
    """Return a digest that changes when any file of the store changes."""
    digest = hashlib.sha256()
    for place in (*(vhost.place.place for vhost in store.vhosts), QUORUM, STREAM):
        for path, entry in store.directory.walk(place) if store.directory.is_directory(place) else ():
            digest.update(f"{path}\0{entry.size}\0{entry.mtime_ms}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=2)
def open_cached(
    path: str, token: str, now: int | None = None, names: tuple[tuple[str, str], ...] = (), *, careful: bool = False
) -> RabbitMQStore:
    """Return the store at a path, cached in this process so that its tasks share one scan. token: from `files_token`."""
    return RabbitMQStore(Path(path), now=now, names=names, careful=careful)


def read_group(
    store: RabbitMQStore,
    group: QueueGroup,
    columns: Sequence[str],
    selection: QueueSelection = QueueSelection(),
    vhosts: dict[str, Vhost] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a group, as `RabbitMQStore.messages` gives them. A limit of the selection applies to the group.

    vhosts: by directory, if not those of the store: their message stores have the records that the group needs.
    """
    rows = group_rows(store, group, replace(selection, limit=None), vhosts)
    batches = (store.batch(part, tuple(columns), selection) for part in rows)
    return first_rows((batch for batch in batches if batch is not None), selection.limit)


def group_rows(
    store: RabbitMQStore, group: QueueGroup, selection: QueueSelection = QueueSelection(), vhosts: dict[str, Vhost] | None = None
) -> Iterator[TableRows]:
    """Yield the rows of a group before their messages are read. vhosts: by directory; those of the store by default."""
    known = {vhost.directory: vhost for vhost in store.vhosts} if vhosts is None else vhosts
    for directory in dict.fromkeys((*(directory for directory, _ in group.queues), *group.rest)):
        vhost = known.get(directory)
        if "/" in directory:  # of a quorum queue
            yield from store.quorum_rows(selection, {directory})
        if vhost is None:
            continue
        names = frozenset(name for of, name in group.queues if of == directory)
        if names:
            yield from store.rows_of(vhost, replace(selection, queues=names), group.parts_of(directory))
        if directory in group.rest:
            yield from store.orphan_rows(vhost)
    streams = {named.stream.place: named for named in store.streams} if group.segments else {}
    numbers: dict[str, list[int]] = {}
    for place, segment in group.segments:
        numbers.setdefault(place, []).append(segment)
    for place, own in numbers.items():  # they follow each other
        if place in streams:
            yield from store.stream_rows(streams[place], selection, range(own[0], own[-1] + 1))


def filter_by_time(batches: Iterator[pa.RecordBatch], since: int | None, until: int | None, limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose AMQP timestamp is in since <= t < until (milliseconds), at most limit; drops the column `properties`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def within(batch: pa.RecordBatch) -> pa.RecordBatch:
        seconds = pc.struct_field(batch.column("properties"), "timestamp").to_pylist()
        keep = [
            value is not None and (since is None or value * 1000 >= since) and (until is None or value * 1000 < until) for value in seconds
        ]
        return batch.filter(pa.array(keep, pa.bool_())).drop_columns(["properties"])

    return first_rows(map(within, batches), limit)


INDEX_COLUMNS = (
    "vhost",
    "queue",
    "priority_level",
    "queue_version",
    "seq_id",
    "msg_id",
    "size",
    "persistent",
    "expiry_us",
    "state",
    "location",
    "index_file",
    "index_position",
)
STORE_COLUMNS = ("vhost", "location", "msg_id", "store_file", "position", "length", "seen_by_broker", "whole", "ended")
REFUSAL_COLUMNS = ("vhost", "queue", "priority_level", "directory", "why", "whole_vhost")


_KINDS = {
    "int32": ("priority_level", "queue_version"),
    "int64": ("seq_id", "size", "expiry_us", "index_position", "position", "length"),
    "bool": ("persistent", "seen_by_broker", "whole", "ended", "whole_vhost"),
}


def _schema(columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    kinds = {name: kind for kind, names in _KINDS.items() for name in names}
    return pa.schema([(name, pa.type_for_alias(kinds.get(name, "string"))) for name in columns])


def index_schema() -> pa.Schema:
    """Return the schema of index entries: state: published, delivered or acknowledged; location: index, message_store or queue_store."""
    return _schema(INDEX_COLUMNS)


def store_schema() -> pa.Schema:
    """Return the schema of message file records. whole: the record contains its id twice, which proves it; ended: it has its end mark."""
    return _schema(STORE_COLUMNS)


def index_batches(store: RabbitMQStore, group: QueueGroup) -> Iterator[pa.RecordBatch]:
    """Yield the index entries of a group, without reading message files."""
    selected = set(group.queues)
    for vhost in store.vhosts:
        parts = group.parts_of(vhost.directory)
        divided = {queue.name for queue in vhost.queues if queue.directory in parts}
        for queue in vhost.queues:
            if (vhost.directory, queue.name) in selected:
                part = parts.get(queue.directory, SequenceRange(0, 0)) if queue.name in divided else WHOLE
                for version, number in queue.segments(part):
                    segment = queue.index_of(version).segment(number, dirty=not queue.start.clean)
                    for start in range(0, len(segment.entries), ROWS):
                        yield _index_batch(queue, version, segment.entries[start : start + ROWS], segment.files)


def _index_batch(queue: Queue, version: int, entries: NDArray[np.void], files: tuple[str, ...]) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(entries)
    state = np.where(entries["state"] & ACKED, "acknowledged", np.where(entries["state"] & DELIVERED, "delivered", "published"))
    location = entries["place"]
    where = np.where(location == IN_STORE, "message_store", np.where(location == IN_QUEUE_STORE, "queue_store", "index"))
    own = entries["expiry"] != 0
    columns = {
        "vhost": [queue.vhost] * count,
        "queue": [queue.name] * count,
        "priority_level": [queue.priority_level] * count,
        "queue_version": [version] * count,
        "seq_id": entries["seq"],
        "msg_id": hex_ids(entries["hi"], entries["lo"]),
        "size": entries["size"],
        "persistent": (entries["flags"] & PERSISTENT) != 0,
        "expiry_us": pa.array(entries["expiry"], mask=~own),
        "state": state.tolist(),
        "location": where.tolist(),
        "index_file": [files[1] if journal else files[0] for journal in entries["from_journal"].tolist()],
        "index_position": entries["record"],
    }
    return pa.RecordBatch.from_pydict(columns, index_schema())


def refusal_schema() -> pa.Schema:
    """Return the schema of reasons why a broker would crash on a queue. directory: relative to the store. whole_vhost: no queue starts."""
    return _schema(REFUSAL_COLUMNS)


def refusal_batches(store: RabbitMQStore, group: QueueGroup) -> Iterator[pa.RecordBatch]:
    """Yield the reasons why the broker would not start queues of a group, without reading message files."""
    import pyarrow as pa

    selected = set(group.queues)
    for vhost in store.vhosts:
        bare = store.vhost_with_stores(vhost.place.place, joined_stores(store, vhost.place.place, ()), ())
        for queue in bare.queues:
            if (vhost.directory, queue.name) in selected and queue.crashes:
                whole = bare.stopped_by(queue)
                rows = [(queue.vhost, queue.name, queue.priority_level, queue.place.place, crash, whole) for crash in queue.crashes]
                yield pa.RecordBatch.from_pylist([dict(zip(REFUSAL_COLUMNS, row, strict=True)) for row in rows], refusal_schema())


def joined_stores(store: RabbitMQStore, place: str, records: Sequence[pa.Table]) -> tuple[MessageStore, MessageStore]:
    """Return message stores for the vhost at a place that hold only these records: tables as for `JoinedStore`."""
    given = [*records, None, None][:2]
    names = ("msg_store_persistent", "msg_store_transient")
    stores = [JoinedStore(store.directory, f"{place}/{name}" if place else name, table) for name, table in zip(names, given, strict=True)]
    return stores[0], stores[1]


def record_batches(store: RabbitMQStore, group: FileGroup) -> Iterator[pa.RecordBatch]:
    """Yield the records of a group of message files."""
    selected = set(group.files)
    for vhost in store.vhosts:
        for each in (vhost.persistent, vhost.transient):
            for file in each.files:
                if file.name in selected:
                    yield from _record_batches(vhost, each, file)


def _record_batches(vhost: Vhost, store: MessageStore, file: StoreFile) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    records = store.records(file)
    schema = store_schema()
    for start in range(0, len(records.at), ROWS):
        part = slice(start, start + ROWS)
        count = len(records.at[part])
        columns = {
            "vhost": [vhost.name] * count,
            "location": [store.place.rpartition("/")[2]] * count,
            "msg_id": hex_ids(records.hi[part], records.lo[part]),
            "store_file": [file.name] * count,
            "position": records.at[part],
            "length": records.total[part],
            "seen_by_broker": records.seen[part],
            "whole": (records.quality[part] & message_store.PROVED) != 0,
            "ended": (records.quality[part] & message_store.MARKED) != 0,
        }
        yield pa.RecordBatch.from_pydict(columns, schema)


class JoinedStore(MessageStore):
    """A message store made of these records.

    records: msg_id (hexadecimal), store_file, position, length (of the whole record), seen; None: no record.
    """

    def __init__(self, directory: ReadOnlyDirectory, place: str, records: pa.Table | None) -> None:
        super().__init__(directory, place)
        self._records = records

    @cached_property
    def _table(self) -> RecordTable:
        records = self._records
        if records is None or not records.num_rows:
            empty = np.empty(0, np.int64)
            return RecordTable(empty, empty, empty, empty, np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.bool_), ())
        ids = halves(bytes.fromhex("".join(records.column("msg_id").to_pylist())))
        numbers = {file.name: number for number, file in enumerate(self.files)}
        file = np.array([numbers.get(name, -1) for name in records.column("store_file").to_pylist()], np.int32)
        at, total, seen = (records.column(name).to_numpy() for name in ("position", "length", "seen"))
        # a file deleted since the scan has no records
        there = np.flatnonzero(file >= 0)
        order = there[np.lexsort((ids[there, 1], ids[there, 0]))]
        quality = np.full(len(order), message_store.MARKED | message_store.PROVED, np.uint8)
        return RecordTable(ids[order, 0], ids[order, 1], at[order], total[order], file[order], quality, seen[order], ())
