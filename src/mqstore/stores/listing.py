"""The messages of a store as `messages` lists them: batches of a selection, and what has no rows because it is damaged.

    listing = listing_of(store, selection)
    for batch in listing.batches(listing.columns("sha256")): …
    listing.damage()                           once all batches are read

RabbitMQ stores do not record when a message arrived. `since` and `until` apply to the AMQP property `timestamp`, which a publisher may set,
in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from mqstore.findings import LOST_VERDICTS, Damage, Kind
from mqstore.rabbitmq.delayed import delayed_sentences
from mqstore.rabbitmq.site import AbsentQueue, absent_queues
from mqstore.rabbitmq.store import task_groups
from mqstore.rocketmq.store.compacted import compacted_topics
from mqstore.rocketmq.store.log_site import LogElsewhere, log_elsewhere, misnamed_log
from mqstore.table.columns import QueueSelection, Selection
from mqstore.table.formatting import count
from mqstore.table.text import columns_for, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.rocketmq.store.view import View

_MOST = 20  # damaged ranges that are named one by one


class Listing(Protocol):
    """The selected messages of a store of either family. body: the form of bodies in JSON and CSV if none is chosen."""

    @property
    def body(self) -> str: ...

    def columns(self, body: str) -> tuple[str, ...]:
        """Return the names of the columns, with bodies as none, sha256, base64 or text."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the selected messages, with times in milliseconds."""
        ...

    def nothing(self) -> str:
        """Return why there are no messages."""
        ...

    def damage(self) -> tuple[str, ...]:
        """Return sentences on what has no rows, or rows without bytes, once all batches are read; empty if all is intact."""
        ...

    def notes(self) -> Iterator[str]:
        """Yield sentences on messages that are elsewhere, and not missing."""
        ...


class LogListing:
    """The messages of a view of a RocketMQ store, in the order of the log."""

    body = "sha256"

    def __init__(self, store: RocketMQStore, view: View, selection: Selection) -> None:
        self._store = store
        self._view = view
        self._selection = selection
        self._lost: list[Damage] = [item for item in store.log.findings if item.kind is Kind.UNREADABLE]

    @cached_property
    def _elsewhere(self) -> LogElsewhere | None:
        return log_elsewhere(self._store) or misnamed_log(self._store)

    def columns(self, body: str) -> tuple[str, ...]:
        """Return the names of the columns."""
        return columns_for(body)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the messages."""
        return self._view.batches(columns, self._selection, milliseconds=True, on_damage=self._lost.append)

    def nothing(self) -> str:
        """Return why there are no messages."""
        one_file = self._store.one_file
        if self._elsewhere is not None:
            return f"no messages: which there are {self._elsewhere.sentence}"
        if self._selection == Selection():
            return f"no messages: the {'file' if one_file else 'log'} holds no valid record"
        if self._store.log_only:
            return f"no message matches in {'this file' if one_file else 'these files'}"
        unknown = self._store.unknown_topic(self._selection.topics)
        return f"no message matches: {unknown}" if unknown else "no message matches"

    def damage(self) -> tuple[str, ...]:
        """Return sentences on the ranges of the log that have no rows."""
        sentences = [f"no rows for {item.file} at {item.offset}, {item.length} bytes: {item.detail}" for item in self._lost[:_MOST]]
        if len(self._lost) > _MOST:
            sentences.append(f"nor for {len(self._lost) - _MOST} further ranges of the log; `mqstore verify` lists them all")
        if self._elsewhere is not None:
            sentences.append(f"which messages are in the rest of the log {self._elsewhere.sentence}")
        return tuple(sentences)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each topic that consumers get from its compaction log."""
        return compacted_topics(self._store.directory) if not self._store.log_only else iter(())


class QueueListing:
    """The messages of a RabbitMQ store, by vhost, queue, priority (high first) and position. since, until: milliseconds."""

    body = "base64"

    def __init__(self, store: RabbitMQStore, selection: QueueSelection, since: int | None = None, until: int | None = None) -> None:
        self._store = store
        self._selection = selection
        self._times = since, until
        self._timed = since is not None or until is not None
        self._lost: Counter[str] = Counter()

    def columns(self, body: str) -> tuple[str, ...]:
        """Return the names of the columns; with a time at which messages expire, also whether each has."""
        expired = ("expired",) if self._store.now is not None else ()
        return tuple("properties" if name == "properties_json" else name for name in (*rabbitmq_columns_for(body), *expired))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the messages."""
        names = ["properties_json" if name == "properties" else name for name in columns]
        if self._timed:
            every = self._store.to_batches((*names, "properties"), replace(self._selection, limit=None))
            every = task_groups.filter_by_time(every, *self._times, self._selection.limit)
        else:
            every = self._store.to_batches(names, self._selection)
        for batch in every:
            self._count(batch)
            yield rename_properties_json(batch) if "properties_json" in names else batch

    def _count(self, batch: pa.RecordBatch) -> None:
        pairs = zip(batch.column("verdict").to_pylist(), batch.column("persistent").to_pylist(), strict=True)
        for verdict, persistent in pairs:
            # a broker drops transient messages at every start; what is wrong with one is a finding only after a clean stop
            if verdict in LOST_VERDICTS and persistent is not False:
                self._lost[verdict] += 1

    def nothing(self) -> str:
        """Return why there are no messages."""
        if not self._timed and self._selection == QueueSelection():
            return "no messages in what is here" if self._absent else "no messages: the queues of this store are empty"
        unknown = self._store.unknown_name(self._selection.vhosts, self._selection.queues)
        return f"no message matches: {unknown}" if unknown else "no message matches"

    def damage(self) -> tuple[str, ...]:
        """Return sentences on the messages that are lost or damaged, and on the findings made while reading."""
        sentences = []
        for what, number in sorted(self._lost.items()):
            more = ", --careful searches for its bytes" if what == "unreachable" and not self._store.careful else ""
            sentences.append(f"{count(number, 'message')} {what}; `mqstore verify` reports what is wrong with each{more}")
        damage = (*self._store.findings, *self._store.walked)
        sentences += [f"{item.file} at {item.offset}: {item.detail}" for item in damage[:_MOST]]
        if len(damage) > _MOST:
            sentences.append(f"and {len(damage) - _MOST} further findings; `mqstore verify` lists them all")
        sentences += [each.sentence for each in self._absent if each.is_damage]
        return tuple(sentences)

    @cached_property
    def _absent(self) -> list[AbsentQueue]:
        """The selected vhosts and queues that are not here."""
        vhosts, queues = self._selection.vhosts, self._selection.queues
        return [
            each
            for each in absent_queues(self._store)
            if each.sure
            and self._selection.has_type(each.queue_type)
            and (vhosts is None or each.vhost is None or each.vhost in vhosts)
            and (queues is None or each.queue is None or each.queue in queues)
        ]

    def notes(self) -> Iterator[str]:
        """Yield sentences on queues that are on other nodes, and on messages that a plug-in delays."""
        yield from (each.sentence for each in self._absent if not each.is_damage)
        if self._selection.queues is None:
            yield from delayed_sentences(self._store)
