"""Which messages a consumer may receive from a queue: by tag, by SQL92 expression, or all.

A pull by tag is done by the store. A pull by expression checks records one by one, at most 800 per pull, the same as the number of
entries that a pull by tag checks:

    queue offsets   4  5  6  7  8          pull from 4: records 5 and 7, next offset 9, maximum 9
    n BETWEEN 3 5   -  +  -  +  -

Protocol: docs/formats/rocketmq-remoting.md, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mqstore.broker.protocol.heartbeats import Subscription
from mqstore.broker.runtime.served_store import ServedStore
from mqstore.errors import UsageError
from mqstore.rocketmq.format.record import decode_properties, record_or_none
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query.pull import GetResult, GetStatus

if TYPE_CHECKING:
    from mqstore.broker.handlers.sql_filter import SqlFilter

LOOKED_AT = 800
AT_ONCE = 32
MOST_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class PullFilter:
    """Filter of a subscription. tags: None for all messages. sql: filter of an expression; tags are then ignored."""

    tags: TagFilter | None = None
    sql: SqlFilter | None = None

    @classmethod
    def of(cls, subscription: Subscription) -> PullFilter:
        """Return the filter of a subscription. Raises UsageError for an invalid expression."""
        if subscription.class_filter:
            return EVERYTHING
        if not subscription.by_tag:
            if find_spec("lark") is None:
                raise UsageError("this broker has no parser for SQL92 expressions: pip install 'mqstore[broker]'")
            from mqstore.broker.handlers.sql_filter import compile_expression  # imports a parser library, which few brokers need

            return cls(sql=compile_expression(subscription.expression))
        return cls(subscription.filter) if subscription.codes else EVERYTHING

    @property
    def everything(self) -> bool:
        return self.tags is None and self.sql is None

    def get(self, store: ServedStore, group: str, topic: str, queue_id: int, offset: int, max_count: int) -> GetResult:
        """Pull messages that pass the filter."""
        if self.sql is None:
            return store.get(group, topic, queue_id, offset, max_count, self.tags)
        return self._get_by_expression(store, self.sql, (group, topic, queue_id), offset, max_count)

    @staticmethod
    def _get_by_expression(
        store: ServedStore, lets_through: SqlFilter, queue: tuple[str, str, int], offset: int, max_count: int
    ) -> GetResult:
        most = min(max(max_count, 1), AT_ONCE)
        at, looked_at = offset, 0
        slices: list[memoryview] = []
        queue_offsets: list[int] = []
        physical_offsets: list[int] = []
        while True:
            page = store.get(*queue, at, AT_ONCE)
            if page.status is not GetStatus.FOUND:
                if slices:
                    break
                return page
            at = page.next_begin_offset
            for raw, queue_offset, physical in zip(page.slices, page.queue_offsets, page.physical_offsets, strict=True):
                record = record_or_none(raw)
                if record is None or not lets_through(decode_properties(record.properties)):
                    continue
                if len(slices) == most or (slices and sum(map(len, slices)) + len(raw) > MOST_BYTES):
                    at = queue_offset
                    break
                slices.append(raw)
                queue_offsets.append(queue_offset)
                physical_offsets.append(physical)
            looked_at += len(page.slices)
            if slices or looked_at >= LOOKED_AT or at >= page.max_offset:
                break
        status = GetStatus.FOUND if slices else GetStatus.NO_MATCHED_MESSAGE
        sizes = [len(raw) for raw in slices]
        return GetResult(
            status,
            at,
            page.min_offset,
            page.max_offset,
            slices,
            queue_offsets,
            physical_offsets,
            sizes,
            sum(sizes),
            len(slices),
        )


EVERYTHING = PullFilter()
