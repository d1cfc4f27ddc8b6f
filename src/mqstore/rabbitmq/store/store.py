"""A directory of RabbitMQ message stores opened for reading: vhosts, queues, the message table, findings.

Opening reads names and small files. Indexes are read queue by queue and segment by segment; a message store is scanned when its first
message is requested. The directory is never changed. Damaged contents do not raise errors; they are findings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import numpy as np

from mqstore.errors import CannotOpenError, NotFoundError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import ConfinedDirectory
from mqstore.findings import Damage
from mqstore.rabbitmq.definitions.document import queue_type
from mqstore.rabbitmq.definitions.known_directories import KnownDirectories, known_directories
from mqstore.rabbitmq.definitions.metadata import CLASSIC, Definitions, QueueDefinition, names_of_node, read_definitions
from mqstore.rabbitmq.definitions.node_directory import node_directory, stream_release
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.format.layout import REQUIRED, find_vhosts, mapped_bytes, unread_entries
from mqstore.rabbitmq.message.message_term import MessageTerm
from mqstore.rabbitmq.message.properties import Properties
from mqstore.rabbitmq.message.stored_columns import StoredTerms
from mqstore.rabbitmq.quorum.examination import ExaminedNode, examine
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.rabbitmq.quorum.rows import QuorumRows, rows_of
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import ACKNOWLEDGED
from mqstore.rabbitmq.store.message_store import MessageStore
from mqstore.rabbitmq.store.message_table import MessageRows, orphan_rows
from mqstore.rabbitmq.store.queue import WHOLE, EntryTable, Queue, SequenceRange
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.rabbitmq.streams.delivered_entry import RULES, Rules
from mqstore.rabbitmq.streams.examination import Examination
from mqstore.rabbitmq.streams.rows import StreamRows, walk_rows
from mqstore.rabbitmq.streams.stream import NamedStream, named_streams
from mqstore.shown import Shown
from mqstore.store import StorePlace
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import CLASSIC as CLASSIC_TYPE
from mqstore.table.columns import QUORUM, RABBITMQ_COLUMNS, STREAM, QueueSelection, check_rabbitmq_columns, rabbitmq_schema
from mqstore.table.formatting import command, did_you_mean, no_vhost
from mqstore.table.rows import first_rows

if TYPE_CHECKING:
    import pyarrow as pa

TableRows = MessageRows | QuorumRows | StreamRows

BATCH_ROWS = 2048
BATCH_BYTES = 32 << 20


class ReplayedMessage(NamedTuple):
    """A message of a quorum queue or a stream. number: ascending in its queue; entry: its index in the log, or its offset.

    verdict, stored, properties: as `QuorumRows.stored` yields them. leaves: why it is about to leave the queue.
    """

    vhost: str | None
    queue: str
    number: int
    entry: int
    verdict: str
    stored: MessageTerm | None
    properties: Properties | None
    leaves: str | None = None


class RabbitMQStore(Shown):
    """The message stores below a directory: `msg_stores`, a node's data directory, or one vhost.

    now: microseconds since the epoch, the time at which expiry is judged; None: not judged. names: pairs of vhost and queue, for
    directories without a valid `.queue_name`; the node's metadata is the last resort. directory: the directory to read, if it is not
    the one at path. careful: search also for messages whose records in a message file have a destroyed head, by the ids that the indexes
    name; a broker would not find them.
    """

    family: ClassVar[Literal["rabbitmq"]] = "rabbitmq"
    names_path: Path | None = None  # of the file of names, if one was given

    def __init__(
        self,
        path: Path,
        *,
        now: int | None = None,
        names: Iterable[tuple[str, str]] = (),
        keep: object = None,
        directory: ReadOnlyDirectory | None = None,
        careful: bool = False,
    ) -> None:
        self.path = path
        self.directory = ConfinedDirectory(path) if directory is None else directory
        self.directory.tolerate_unlisted(*REQUIRED)
        self.now = now
        self.names = tuple(names)
        self.careful = careful
        self.walked: dict[Damage, None] = {}  # what was found in streams while their rows were read
        self._keep = keep  # an unpacked archive must exist as long as the store that reads it

    @classmethod
    def at(cls, place: StorePlace, *, now: int | None = None, names: Iterable[tuple[str, str]] = (), careful: bool = False) -> Self:
        """Open the store at a place."""
        store = cls(Path(str(place.root)), now=now, names=names, keep=place.keep, careful=careful)
        store.path = Path(str(place.path))
        return store

    def command(self, verb: str, *words: object) -> str:
        """Return the command line of a verb for this store, with the file of names that was given."""
        given = () if self.names_path is None else ("--names", self.names_path)
        return command("mqstore", verb, self.path, *words, *given)

    def carefully(self) -> RabbitMQStore:
        """Return the store opened carefully: itself, if it is."""
        if self.careful:
            return self
        return RabbitMQStore(self.path, now=self.now, names=self.names, keep=self, directory=self.directory, careful=True)

    def _title(self) -> str:
        return f"RabbitMQ message store {str(self.path)!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "vhosts", ", ".join(repr(vhost.name) for vhost in self.vhosts)
        yield "queues", f"{len({(queue.vhost, queue.name) for queue in self.queues}):,}"

    @cached_property
    def vhosts(self) -> list[Vhost]:
        """The vhosts, by name; those without a name by directory."""
        vhosts = [self._vhost(place, careful=self.careful) for place in find_vhosts(self.directory)]
        return sorted(vhosts, key=lambda vhost: (vhost.name or "", vhost.directory))

    @cached_property
    def node(self) -> ReadOnlyDirectory | None:
        """The data directory of the node whose messages these are; None if it is not there."""
        return node_directory(self.directory)

    @cached_property
    def definitions(self) -> Definitions:
        """The definitions of the node whose messages these are; nothing if its metadata is not beside them."""
        try:
            return Definitions() if self.node is None else read_definitions(self.node)
        except CannotOpenError:
            return Definitions()

    @cached_property
    def known_directories(self) -> KnownDirectories | None:
        """The directories of queues that the node keeps; None where its metadata does not say it."""
        return known_directories(self.directory, self.definitions)

    @cached_property
    def _names_of_node(self) -> tuple[tuple[str, str], ...]:
        return names_of_node(self.directory)

    @cached_property
    def stream_definitions(self) -> dict[str, QueueDefinition]:
        """The definitions of streams by the names of their directories."""
        return {queue.stream_directory: queue for queue in self.definitions.queues if queue.stream_directory is not None}

    @cached_property
    def streams(self) -> list[NamedStream]:
        """The streams of the node whose data directory this is, by vhost and queue."""
        names = {directory: queue.names for directory, queue in self.stream_definitions.items()}
        return named_streams(self.directory, names, mends_first=self._stream_release != "3.10")

    @cached_property
    def stream_rules(self) -> Rules:
        """How the node's version delivers messages of streams."""
        return RULES[self._stream_release]

    @cached_property
    def _stream_release(self) -> str:
        return "4.3" if self.node is None else stream_release(self.node)

    @cached_property
    def examined_streams(self) -> list[tuple[NamedStream, Examination]]:
        """The streams, each read as a whole."""
        return [(named, Examination(named.stream)) for named in self.streams]

    @cached_property
    def quorum_queues(self) -> list[QuorumQueue]:
        """The members of quorum queues in the node's data directory, by vhost and queue; their logs are indexed."""
        queues = [QuorumQueue(system.member(uid)) for system in raft_systems(self.directory, "quorum") for uid in system.uids]
        return sorted(queues, key=lambda queue: (queue.name[0] or "", queue.name[1], queue.log.place))

    @cached_property
    def examined_quorum(self) -> list[ExaminedNode]:
        """The quorum queues, each replayed as a whole: one item for each node that wrote here."""
        return examine(self.directory)

    def vhost_with_stores(self, place: str, stores: tuple[MessageStore, MessageStore], refusals: tuple[str, ...]) -> Vhost:
        """Return the vhost at a place with these message stores. refusals: why the broker would not start it."""
        return self._vhost(place, stores=stores, refusals=refusals)

    def _vhost(
        self,
        place: str,
        *,
        stores: tuple[MessageStore, MessageStore] | None = None,
        refusals: tuple[str, ...] | None = None,
        careful: bool = False,
    ) -> Vhost:
        return Vhost(
            self.directory,
            place,
            names=self.names,
            now=self.now,
            more_names=lambda: self._names_of_node,
            stores=stores,
            refusals=refusals,
            known=lambda: self.known_directories,
            careful=careful,
        )

    @property
    def queues(self) -> list[Queue]:
        """Every queue directory, by vhost, queue and priority level, the highest level first."""
        return [queue for vhost in self.vhosts for queue in vhost.queues]

    @cached_property
    def vhost_names(self) -> frozenset[str]:
        """The names of the vhosts, those without a queue and those of the node's definitions among them."""
        own = (
            *(vhost.name for vhost in self.vhosts),
            *(queue.vhost for queue in self.queues),
            *(queue.name[0] for queue in self.quorum_queues),
            *(stream.vhost for stream in self.streams),
        )
        return frozenset((*(name or "" for name in own), *map(text_of, self.definitions.vhosts)))

    def unknown_name(self, vhosts: Iterable[str] | None, queues: Iterable[str] | None) -> str:
        """Return a sentence on the first of these vhosts and queues that the store does not have; empty if it has all."""
        for vhost in sorted(set(vhosts or ()) - self.vhost_names):
            return no_vhost(vhost, self.vhost_names)
        names = {queue.name for queue in self.queues} | self._other_names
        for queue in sorted(set(queues or ()) - names):
            return f"the store has no directory of a queue {queue!r}{did_you_mean(queue, names)}"
        return ""

    @property
    def findings(self) -> tuple[Damage, ...]:
        """All findings; reads all indexes and message stores."""
        return (*self.unread, *(item for vhost in self.vhosts for item in vhost.findings))

    @cached_property
    def unread(self) -> tuple[Damage, ...]:
        """Entries in the place of the store's files that are not read."""
        return tuple(unread_entries(self.directory))

    def queue(self, vhost: str, queue: str) -> list[Queue]:
        """Return the directories of a queue: one, or one for each priority level. Raises NotFoundError."""
        directories = [each for each in self.queues if each.name == queue and (each.vhost or "") == vhost]
        if not directories:
            if self.stream_or_none(vhost, queue) is not None:
                where = "`mqstore messages --queue-type stream --queue` lists its messages"
                raise NotFoundError(f"{queue!r} of vhost {vhost!r} is a stream, which has no entries of a queue; {where}")
            for defined in self.definitions.queues:
                if defined.names == (vhost, queue):
                    what = (
                        "is empty: it has no directory"
                        if defined.type == CLASSIC
                        else f"is a {queue_type(defined.type)} queue, which is not read"
                    )
                    raise NotFoundError(f"queue {queue!r} of vhost {vhost!r} {what}; `mqstore topics` lists all queues")
            if vhost not in self.vhost_names:
                raise NotFoundError(no_vhost(vhost, self.vhost_names))
            logged = (each.name for each in self.quorum_queues)
            known = sorted(
                {each.name for each in self.queues if (each.vhost or "") == vhost} | {name for of, name in logged if (of or "") == vhost}
            )
            there = f"it has {', '.join(known[:20])}" if known else "the store has no queue directory of that vhost"
            raise NotFoundError(f"vhost {vhost!r} has no queue {queue!r}{did_you_mean(queue, known) or f'; {there}'}")
        return directories

    def quorum_members(self, vhost: str, queue: str) -> list[QuorumQueue]:
        """Return the members of a quorum queue in this directory: usually one; none if it has no such queue."""
        return [each for each in self.quorum_queues if (each.name[0] or "", each.name[1]) == (vhost, queue)]

    def vhost_of(self, vhost: str | None, queue: str) -> str:
        """Return the vhost of a queue: the one given, or the only one that has such a queue. Raises NotFoundError, UsageError."""
        if vhost is not None:
            if vhost not in self._other_vhosts(queue):
                self.queue(vhost, queue)
            return vhost
        having = sorted({each.vhost or "" for each in self.queues if each.name == queue} | self._other_vhosts(queue))
        if not having:
            meant = did_you_mean(queue, {each.name for each in self.queues} | self._other_names)
            raise NotFoundError(f"no vhost has a queue {queue!r}{meant or '; `mqstore topics` lists all queues'}")
        if len(having) > 1:
            raise UsageError(f"{', '.join(having)} have a queue {queue!r}; add --vhost")
        return having[0]

    @property
    def _other_names(self) -> set[str]:
        return {queue.name[1] for queue in self.quorum_queues} | {stream.queue for stream in self.streams}

    def _other_vhosts(self, queue: str) -> set[str]:
        """Return the vhosts that have such a quorum queue or stream."""
        of_streams = {each.vhost or "" for each in self.streams if each.queue == queue}
        return of_streams | {each.name[0] or "" for each in self.quorum_queues if each.name[1] == queue}

    def index_entries(self, vhost: str, queue: str) -> Iterator[tuple[Queue, EntryTable]]:
        """Yield the index entries of a queue, segment by segment, acknowledged ones included. Raises NotFoundError."""
        for each in self.queue(vhost, queue):
            for table in each.entry_tables():
                yield each, table

    # the message table

    def to_batches(
        self, columns: Sequence[str] = RABBITMQ_COLUMNS, selection: QueueSelection = QueueSelection()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table by vhost, queue, priority (high first) and sequence id; then quorum queues, then streams.

        With `everything`, messages that are in no queue come at the end of each vhost. Raises UsageError for an unknown column.
        """
        return self._batches(check_rabbitmq_columns(columns), selection)

    def to_arrow(self, columns: Sequence[str] = RABBITMQ_COLUMNS, selection: QueueSelection = QueueSelection()) -> pa.Table:
        """Return the message table in memory. If it does not fit into memory, use `to_batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(columns, selection), rabbitmq_schema(columns))

    def _batches(self, columns: tuple[str, ...], selection: QueueSelection) -> Iterator[pa.RecordBatch]:
        batches = (self.batch(rows, columns, selection) for rows in self.all_rows(selection))
        yield from first_rows((batch for batch in batches if batch is not None), selection.limit)

    def batch(self, rows: TableRows, columns: tuple[str, ...], selection: QueueSelection = QueueSelection()) -> pa.RecordBatch | None:
        """Return rows as a batch, filtered by the conditions on message contents; None if no row is left."""
        if not isinstance(rows, MessageRows):
            return rows.batch(columns, selection)
        searched = selection.grep is not None or selection.verdicts is not None
        messages = self.terms(rows) if searched or message_table.needs_terms(rows, columns) else None
        if searched and messages is not None:
            keep = np.ones(len(rows), np.bool_)
            if selection.grep is not None:
                search = selection.grep.search
                keep &= [body is not None and bool(search(body)) for body in messages.payloads()]
            if selection.verdicts is not None:
                keep &= [verdict in selection.verdicts for verdict in message_table.verdicts(rows, messages)]
            if not keep.all():
                rows = rows.take(np.flatnonzero(keep))
                messages = self.terms(rows)
        return message_table.build_batch(rows, columns, messages) if len(rows) else None

    def terms(self, rows: MessageRows) -> StoredTerms:
        """Return the stored messages of rows of classic queues."""
        return message_table.decode_terms(rows, lambda name: mapped_bytes(self.directory, name))

    def rows(self, selection: QueueSelection = QueueSelection()) -> Iterator[MessageRows]:
        """Yield the rows of classic queues in order, before their messages are read, in pieces of bounded size."""
        for vhost in self.vhosts if selection.has_type(CLASSIC_TYPE) else ():
            if selection.vhosts is None or vhost.name in selection.vhosts:
                yield from self.rows_of(vhost, selection)
                if selection.everything and selection.queues is None and selection.recovered is not True:
                    yield from self.orphan_rows(vhost)

    def all_rows(self, selection: QueueSelection = QueueSelection()) -> Iterator[TableRows]:
        """Yield the rows of the message table: classic queues, then quorum queues, then streams."""
        yield from self.rows(selection)
        yield from self.quorum_rows(selection)
        for named in self.selected_streams(selection):
            yield from self.stream_rows(named, selection)

    def replayed_messages(self, selection: QueueSelection = QueueSelection()) -> Iterator[ReplayedMessage]:
        """Yield the messages of quorum queues, then those of streams, as a node delivers them."""
        for held in self.quorum_rows(selection):
            for number, (queued, (verdict, stored, sent)) in enumerate(zip(held.messages, held.stored(), strict=True), held.first):
                yield ReplayedMessage(*held.queue.name, number, queued.index, verdict, stored, sent, queued.leaves)
        for named in self.selected_streams(selection):
            for part in self.stream_rows(named, selection):
                for offset, (verdict, stored, sent) in zip(part.records.offset.tolist(), part.stored(), strict=True):
                    yield ReplayedMessage(named.vhost, named.queue, offset, offset, verdict, stored, sent)

    def stream_or_none(self, vhost: str, queue: str) -> NamedStream | None:
        """Return a stream by its names, the vhost empty where it is not known; None if there is none."""
        return next((named for named in self.streams if (named.vhost or "", named.queue) == (vhost, queue)), None)

    def selected_streams(self, selection: QueueSelection) -> Iterator[NamedStream]:
        """Yield the selected streams, by vhost and queue."""
        for named in self.streams if selection.has_type(STREAM) else ():
            if selection.has_queue(named.vhost, named.queue):
                yield named

    def stream_rows(
        self, named: NamedStream, selection: QueueSelection = QueueSelection(), segments: range | None = None
    ) -> Iterator[StreamRows]:
        """Yield the rows of a stream, or of some of its segments. What is damaged there is added to `walked`."""
        for rows, damage in walk_rows(named, selection, rules=self.stream_rules, segments=segments):
            self.walked.update(dict.fromkeys(damage))
            if len(rows):
                yield rows

    def quorum_rows(self, selection: QueueSelection = QueueSelection(), places: Collection[str] | None = None) -> Iterator[QuorumRows]:
        """Yield the rows of quorum queues, by vhost and queue. places: of the members, by default all."""
        for queue in self.selected_quorum_queues(selection):
            if places is None or queue.log.place in places:
                yield from rows_of(queue, selection, self.now)

    def selected_quorum_queues(self, selection: QueueSelection) -> Iterator[QuorumQueue]:
        """Yield the members of the selected quorum queues, by vhost and queue."""
        for queue in self.quorum_queues if selection.has_type(QUORUM) else ():
            if selection.has_queue(*queue.name):
                yield queue

    def rows_of(
        self, vhost: Vhost, selection: QueueSelection = QueueSelection(), parts: Mapping[str, SequenceRange] | None = None
    ) -> Iterator[MessageRows]:
        """Yield the rows of the queues of one vhost. parts: by directory; of a queue that has one of these, only they are read."""
        divided = {queue.name for queue in vhost.queues if queue.directory in parts} if parts else frozenset()
        before: tuple[str | None, str] | None = None
        position = 0
        for queue in vhost.queues:
            if selection.queues is not None and queue.name not in selection.queues:
                continue
            if (queue.vhost, queue.name) != before:
                before, position = (queue.vhost, queue.name), 0
            refused = vhost.stops(queue)
            part = WHOLE
            if parts and queue.name in divided:
                part = parts.get(queue.directory, SequenceRange(0, 0))
                position += 0 if refused else queue.recovered_before(part.start if part.stop != 0 else None)
            for rows, following in _directory_rows(queue, part, position, selection, refused=refused, now=self.now):
                yield from _split_rows(rows)
                position = following

    def orphan_rows(self, vhost: Vhost) -> Iterator[MessageRows]:
        """Yield the rows of the messages of one vhost that are in no queue."""
        for rows in orphan_rows(vhost):
            yield from _split_rows(rows)


def _directory_rows(
    queue: Queue, part: SequenceRange, position: int, selection: QueueSelection, *, refused: bool, now: int | None
) -> Iterator[tuple[MessageRows, int]]:
    """Yield the rows of one queue directory, each piece with the `pos` of the next recovered message.

    position: the `pos` of the first. refused: the broker would not start it.
    """
    for table in queue.entry_tables(part):
        if refused:
            table.refuse()
        pos = np.where(table.recovered, position + np.cumsum(table.recovered) - 1, -1)
        position += int(table.recovered.sum())
        keep = np.ones(len(pos), np.bool_)
        if not selection.everything:
            keep = table.fate != ACKNOWLEDGED
        if selection.from_seq is not None:
            keep &= table.entries["seq"] >= selection.from_seq
        if selection.to_seq is not None:
            keep &= table.entries["seq"] < selection.to_seq
        if selection.recovered is not None:
            keep &= table.recovered == selection.recovered
        rows = MessageRows(queue.vhost, queue.name, queue.priority_level, table, pos, now)
        yield rows if keep.all() else rows.take(np.flatnonzero(keep)), position


def _split_rows(rows: MessageRows) -> Iterator[MessageRows]:
    """Yield the rows in pieces of at most BATCH_ROWS rows and about BATCH_BYTES bytes."""
    for start, stop in pieces(np.where(rows.table.source < 0, 0, rows.table.length), BATCH_BYTES, BATCH_ROWS):
        yield rows if stop - start == len(rows) else rows.take(np.arange(start, stop))
