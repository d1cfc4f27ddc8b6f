"""What `mqstore.open` returns: a store whose messages are a table, which answers SQL, and which can be verified.

    store = mqstore.open("/backup/broker-a/store")
    orders = store.messages(topic="orders", since=datetime(2026, 11, 22, tzinfo=UTC))
    len(orders), orders.head(3), orders.to_pandas()
    store.sql("select topic, count(*) as messages from messages group by topic").to_arrow()
    store.verify().damage

Conditions are those of `mqstore.table.Selection` and `QueueSelection`. Nothing is read before rows are asked for, and nothing but what
the conditions and columns need. SQL needs DuckDB (`pip install 'mqstore[sql]'`), and no Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from mqstore.errors import UsageError
from mqstore.files.location import Url
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.columns import (
    RABBITMQ_COLUMNS,
    ROCKETMQ_COLUMNS,
    QueueSelection,
    Selection,
    check_columns,
    check_rabbitmq_columns,
    rabbitmq_schema,
    rocketmq_schema,
)
from mqstore.table.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.findings import Report

__all__ = ["RabbitMQ", "RocketMQ"]

Names = str | Iterable[str] | None


class RocketMQ(RocketMQStore):
    """A RocketMQ store, read-only."""

    def messages(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        topic: Names = None,
        queue: int | Iterable[int] | None = None,
        tag: Names = None,
        key: Names = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        limit: int | None = None,
    ) -> Rows:
        """Return messages in the order of the log, with what the disk holds: `view("recovered")` has what a broker would.

        topic, queue (by id), tag, key: one or several; a key is one of KEYS or the UNIQ_KEY. since, until: store time from, and up to but
        not including, with a time zone or in milliseconds. selection: further conditions. Raises UsageError.
        """
        wanted = check_columns(columns)
        queue_ids = None if queue is None else frozenset((queue,) if isinstance(queue, int) else queue)
        chosen = replace(
            selection,
            topics=selection.topics if topic is None else _names(topic),
            queue_ids=selection.queue_ids if queue_ids is None else queue_ids,
            tags=selection.tags if tag is None else _names(tag),
            keys=selection.keys if key is None else _names(key),
            since=selection.since if since is None else _milliseconds(since),
            until=selection.until if until is None else _milliseconds(until),
            limit=selection.limit if limit is None else limit,
        )

        def read(first: int | None, names: Sequence[str] = wanted) -> Iterator[pa.RecordBatch]:
            return self.to_batches(names, replace(chosen, limit=_least(first, chosen.limit)))

        return Rows(f"messages of {self._title()}", rocketmq_schema(wanted), read, _counted(read, "physical_offset"))

    def sql(self, query: str, *, columns: Sequence[str] | None = None) -> Rows:
        """Return the result of a query, in memory; tables: messages, queues, groups, damage, index_entries, timers, findings.

        columns: of `messages`; by default all but the body, with `body_len`. Raises UsageError, and UnsupportedError without DuckDB.
        """
        return _result(self, query, columns)

    def verify(self, *, threads: int = 2, progress: Callable[[int, int], None] | None = None) -> Report:
        """Check the whole store, with the result of the command `verify`. progress: called with bytes of log done and in total."""
        from mqstore.rocketmq.verify.verification import verify

        return verify(self, threads=threads, progress=progress)


class RabbitMQ(RabbitMQStore):
    """A RabbitMQ store, read-only."""

    def messages(
        self,
        columns: Sequence[str] = RABBITMQ_COLUMNS,
        selection: QueueSelection = QueueSelection(),
        *,
        vhost: Names = None,
        queue: Names = None,
        limit: int | None = None,
    ) -> Rows:
        """Return messages by vhost, queue, priority (high first) and sequence id.

        vhost, queue (by name): one or several. selection: further conditions. Raises UsageError.
        """
        wanted = check_rabbitmq_columns(columns)
        chosen = replace(
            selection,
            vhosts=selection.vhosts if vhost is None else _names(vhost),
            queues=selection.queues if queue is None else _names(queue),
            limit=selection.limit if limit is None else limit,
        )

        def read(first: int | None, names: Sequence[str] = wanted) -> Iterator[pa.RecordBatch]:
            return self.to_batches(names, replace(chosen, limit=_least(first, chosen.limit)))

        return Rows(f"messages of {self._title()}", rabbitmq_schema(wanted), read, _counted(read, "seq_id"))

    def sql(self, query: str, *, columns: Sequence[str] | None = None) -> Rows:
        """Return the result of a query, in memory; tables: messages, index_entries, records (of the message files), refusals.

        columns: of `messages`; by default all but the payload, with `payload_len`. Raises UsageError, and UnsupportedError without DuckDB.
        """
        return _result(self, query, columns)


def _result(store: RocketMQ | RabbitMQ, query: str, columns: Sequence[str] | None) -> Rows:
    from mqstore.pipeline.queries.duck import StoreTables

    place = store.path if isinstance(store.path, Url) else store.directory.root
    config = store.config_path if isinstance(store, RocketMQ) else None
    with StoreTables(place, columns=columns, config=config, family=store.family) as tables:
        table = tables.table(query)
    return Rows(f"result of {' '.join(query.split())!r}", table.schema, lambda _: iter(table.to_batches()), lambda: table.num_rows)


def _counted(read: Callable[[int | None, Sequence[str]], Iterator[pa.RecordBatch]], name: str) -> Callable[[], int]:
    return lambda: sum(batch.num_rows for batch in read(None, (name,)))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _names(given: Names) -> frozenset[str] | None:
    return None if given is None else frozenset((given,) if isinstance(given, str) else given)


def _milliseconds(when: datetime | int | None) -> int | None:
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise UsageError(f"{when} has no time zone; give one, such as datetime(…, tzinfo=UTC), or milliseconds since 1970")
    return round(when.timestamp() * 1000)
