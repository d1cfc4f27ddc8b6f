"""One vhost directory: its segment entry count, side files of the last stop, message stores and queues.

A broker starts a vhost completely or not at all. After an unclean stop it reads every index before it starts the first queue, so one
file on which it crashes prevents all queues of the vhost from starting: `refusals` has the reasons. This reader reads them anyway.

The broker trusts the store without a scan (`clean`) if no merge was interrupted, the tables of a clean stop can be loaded, in part or
whole, and `clean.dot` names exactly the queues that have terms in recovery.dets.

Format: docs/formats/rabbitmq.md, sections 2, 7.1 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.definitions.known_directories import KnownDirectories
from mqstore.rabbitmq.definitions.node_directory import delivers_queue_names, node_directory
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format import recovery_terms, vhost_config
from mqstore.rabbitmq.format.index_v1 import IN_STORE
from mqstore.rabbitmq.format.layout import QueueDirectory, names_by_directory, read_queues, read_vhost, small_file
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.format.vhost_config import InferredCount, inferred_entry_count
from mqstore.rabbitmq.store import stated_parts
from mqstore.rabbitmq.store.clean_tables import loadable, stops_vhost
from mqstore.rabbitmq.store.fate import MISSING, QueueStart
from mqstore.rabbitmq.store.message_store import MessageIds, MessageStore
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rabbitmq.store.stated_parts import MissingFile, MissingQueue, MissingStore

TABLES = recovery_terms.CLEAN_FILES[1:]
INDEX_MODULE = "rabbit_msg_store_ets_index"


class Vhost:
    """One vhost. place: relative to the root, empty if the root is the vhost. names: pairs of vhost and queue that may be here.

    now: microseconds. more_names: returns further pairs; called only if a queue directory has no known name. stores: the persistent and
    the transient message store to use in place of those in this directory; refusals: if they are known already. known: returns the
    directories that the node keeps, None if that is not known. careful: search for messages whose records have a destroyed head, by the
    ids that the indexes name.
    """

    def __init__(
        self,
        directory: ReadOnlyDirectory,
        place: str,
        *,
        names: Iterable[tuple[str, str]] = (),
        now: int | None = None,
        more_names: Callable[[], Iterable[tuple[str, str]]] | None = None,
        stores: tuple[MessageStore, MessageStore] | None = None,
        refusals: tuple[str, ...] | None = None,
        known: Callable[[], KnownDirectories | None] | None = None,
        careful: bool = False,
    ) -> None:
        self.root = directory
        self.place = read_vhost(directory, place)
        self.directory = self.place.directory
        self.now = now
        self._names = tuple(names)
        self._more_names = more_names
        self._careful = careful
        named = (lambda: self._named_ids) if careful else None
        self.persistent, self.transient = stores or (
            MessageStore(directory, self.place.below("msg_store_persistent"), named=named),
            MessageStore(directory, self.place.below("msg_store_transient"), named=named),
        )
        self._refusals = refusals
        self._known = known

    @property
    def name(self) -> str | None:
        """The name in `.vhost`, else the one that all named queues agree on; None if it is unknown."""
        if self.place.name is not None:
            return self.place.name
        names = {queue.vhost for queue in self._places if queue.named and queue.vhost is not None}
        return names.pop() if len(names) == 1 else None

    @cached_property
    def _config(self) -> tuple[int, tuple[Damage, ...]]:
        name = self.config_file
        content = small_file(self.root, name)
        stated = vhost_config.ENTRIES_WITHOUT_CONFIG if content is None else vhost_config.stated_entry_count(content)
        if isinstance(stated, int):
            return stated, ()
        if vhost_config.lacks_number(content or b""):
            detail = f"{stated}; the broker does not start after an unclean stop"
        else:
            detail = f"{stated}; the broker then uses {vhost_config.ENTRIES_WITHOUT_CONFIG} entries a segment"
        return vhost_config.ENTRIES_WITHOUT_CONFIG, (Damage(name, 0, len(content or b""), Kind.BAD_CONFIG, detail),)

    @property
    def config_file(self) -> str:
        """The name of the file with the segment entry count."""
        return self.place.below(".config")

    @cached_property
    def entry_count(self) -> int:
        """N: entries of a version 1 segment, as the broker takes it; as the segments show it if it takes none, or if read carefully."""
        inferred = self.inferred_count if self._careful or self.config_crash is not None else None
        return self._config[0] if inferred is None else inferred.entries

    @cached_property
    def inferred_count(self) -> InferredCount | None:
        """N as the segments show it, if `.config` does not state it; None if it does, or if they fit what the broker takes."""
        if self.config_stated and not self._config[1]:
            return None
        inferred = inferred_entry_count(self.root, (queue.place for queue in self._places))
        if inferred is None or (not self._config[1] and (not inferred.proved or inferred.entries == self._config[0])):
            return None
        return inferred

    @cached_property
    def config_crash(self) -> str | None:
        """Why the broker fails on `.config` after an unclean stop; None if it does not."""
        content = small_file(self.root, self.config_file)
        if content is None or not vhost_config.lacks_number(content):
            return None
        return f"{self.config_file} can be read, and does not state the number of entries of a segment"

    @property
    def config_findings(self) -> tuple[Damage, ...]:
        """What is wrong with `.config`."""
        return self._config[1]

    @property
    def config_stated(self) -> bool:
        """Whether `.config` could be read: vhosts created before 3.8.17 have none."""
        return small_file(self.root, self.config_file) is not None

    @property
    def config_there(self) -> bool:
        """Whether `.config` exists, or something in its place that cannot be read."""
        return self.root.has_entry(self.config_file)

    @cached_property
    def _recovery(self) -> tuple[dict[str, QueueTerms], tuple[Damage, ...]]:
        name = self.place.below("recovery.dets")
        content = small_file(self.root, name)
        if not content:
            return {}, ()
        table = dets.read_table(content, name)
        return recovery_terms.read_terms(dets.read_objects(content)), table.damage

    @property
    def terms(self) -> dict[str, QueueTerms]:
        """The terms that a clean stop recorded for each queue, by directory; empty after a crash."""
        return self._recovery[0]

    @cached_property
    def queue_addresses(self) -> bool:
        """Whether the version that wrote the vhost delivers a reply-to as 4.3 does (`MessageTerm.delivered`); False if unknown."""
        if any(terms.redeliver is not None for terms in self.terms.values()):
            return True
        if any(terms.next_deliver is not None for terms in self.terms.values()):
            return False
        node = node_directory(self.root)
        return node is not None and bool(delivers_queue_names(node))

    @cached_property
    def clean(self) -> bool:
        """Whether the broker would trust the message store without a scan."""
        store = self.persistent
        if store.has_leftovers or not store.has_clean_files:
            return False
        dot = recovery_terms.read_clean_dot(small_file(self.root, f"{store.place}/clean.dot") or b"")
        if isinstance(dot, str) or dot.index_module not in (INDEX_MODULE, None):
            return False
        for name in TABLES:
            try:
                if not loadable(self.root.map(f"{store.place}/{name}").data):
                    return False
            except CannotOpenError:
                return False
        references = {terms.reference for terms in self.terms.values() if terms.reference is not None}
        return dot.references == references

    @cached_property
    def failing_table(self) -> str:
        """The table of a clean stop at which the broker fails, so that it starts without this vhost; empty without one."""
        if not self.clean:
            return ""
        return next((name for name in TABLES if stops_vhost(self.root.map(f"{self.persistent.place}/{name}").data)), "")

    @cached_property
    def missing_files(self) -> tuple[MissingFile | MissingStore, ...]:
        """Message files that the lists of a clean stop name, and that are not there, or not whole; else all, if the indexes name some."""
        if self.clean:
            return tuple(stated_parts.missing_files(self.root, self.persistent.place))
        if self.persistent.files or not any(queue.counts.fates.missing for queue in self.queues):
            return ()
        tables = (table for queue in self.queues for table in queue.entry_tables())
        named = sum(int(((table.fate == MISSING) & (table.entries["place"] == IN_STORE)).sum()) for table in tables)
        return (MissingStore(self.persistent.place, named),) if named else ()

    @cached_property
    def missing_queues(self) -> tuple[MissingQueue, ...]:
        """Queues in which a clean stop counted messages, and whose directory, or a segment of whose index, is not there."""
        if not any(stated_parts.lacks_messages(self.root, self.place.below(f"queues/{own}"), noted) for own, noted in self.terms.items()):
            return ()
        names = names_by_directory((*self._names, *(() if self._more_names is None else self._more_names())), self.place)
        return tuple(stated_parts.missing_queues(self.root, self.place.below("queues"), self.terms, names))

    @property
    def missing_parts(self) -> tuple[MissingFile | MissingStore | MissingQueue, ...]:
        """All that is named and not there."""
        return (*self.missing_files, *self.missing_queues)

    @cached_property
    def _places(self) -> list[QueueDirectory]:
        queues = read_queues(self.root, self.place, self._names)
        more = () if self._more_names is None or all(queue.named for queue in queues) else tuple(self._more_names())
        return read_queues(self.root, self.place, (*more, *self._names)) if more else queues

    @cached_property
    def queues(self) -> list[Queue]:
        """The queue directories, by name and priority level, the highest level first."""
        stores = (self.persistent, self.transient)
        return [Queue(self.root, place, self.entry_count, stores, self.start(place.directory), self.now) for place in self._places]

    def start(self, directory: str) -> QueueStart:
        """Return how the queue of a directory would start."""
        return QueueStart(self.terms.get(directory), self.clean, self.queue_addresses)

    @cached_property
    def _named_ids(self) -> MessageIds:
        none = np.empty(0, np.int64)
        hi, lo = zip((none, none), *(queue.named_ids() for queue in self.queues), strict=True)
        return MessageIds.of(np.concatenate(hi), np.concatenate(lo))

    @cached_property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why the broker would not start this vhost; none for one that it does not know, which it leaves alone.

        After an unclean stop this reads every index.
        """
        if self._refusals is not None:
            return self._refusals
        reasons = list(self.persistent.crashes)
        if not self.clean:
            reasons += [] if self.config_crash is None else [self.config_crash]
            for queue in self.queues:
                reasons += [f"queue {queue.name!r}: {crash}" for crash in queue.crashes] if self.stopped_by(queue) else []
        known = self._known() if reasons and self._known is not None else None
        return tuple(reasons) if known is None or self.directory in known.vhosts else ()

    def stopped_by(self, queue: Queue) -> bool:
        """Whether no queue starts because of this one: the broker reads it before, and crashes on it."""
        return not self.clean and queue.version == 1 and bool(queue.crashes) and not self.deletes(queue)

    def deletes(self, queue: Queue) -> bool:
        """Whether the node does not know this queue: it deletes its directory at its start, without reading it."""
        known = None if self._known is None else self._known()
        return known is not None and known.deleted(self.directory, queue.place.directory)

    def stops(self, queue: Queue) -> bool:
        """Whether the broker would not start a queue: one process has all its priority levels, and ends with any of them."""
        return bool(self.refusals or self.failing_table) or any(level.crashes for level in self._levels[queue.name])

    @cached_property
    def _levels(self) -> dict[str, list[Queue]]:
        """The directories of each queue."""
        levels: dict[str, list[Queue]] = {}
        for queue in self.queues:
            levels.setdefault(queue.name, []).append(queue)
        return levels

    @property
    def findings(self) -> tuple[Damage, ...]:
        """All findings; reads all indexes and both message stores.

        What an unclean stop leaves of the transient store is not one of them: the broker deletes that store at every start.
        """
        findings = [part.damage for part in self.missing_parts]
        findings += [*self.place.findings, *self._config[1], *self._recovery[1], *self.persistent.findings]
        findings += self.transient.findings if self.clean else ()
        for queue in self.queues:
            findings += queue.findings
        findings += [Damage(self.persistent.place, 0, 0, Kind.BROKER_CRASH, sentence) for sentence in self.persistent.crashes]
        return tuple(findings)
