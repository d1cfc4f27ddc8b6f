"""How a DataFrame of the source will be read: which stores, which partitions, and the reason.

>>> print(pipeline.explain_read(messages.where("topic = 'orders' and queue_id = 1 and queue_offset < 100")))  # doctest: +SKIP
/backup/broker-a/store: queue, 1 partition: 0 bytes of log scanned, 100 records read one by one
    100 records by their entries in the consume queue; nothing is scanned
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError
from mqstore.pipeline.source.rocketmq import LogPart
from mqstore.pipeline.spark.session import failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ReadPlan", "StoreRead", "explain_read"]


@dataclass(frozen=True, slots=True)
class StoreRead:
    """The read of one store. how: `scan`, or `queue` or `index` if these determine what to read.

    log_bytes: scanned. records: read one by one.
    """

    store: str
    how: str
    why: str
    partitions: int
    log_bytes: int
    records: int

    def __str__(self) -> str:
        many = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        return (
            f"{self.store}: {self.how}, {many}: {self.log_bytes} bytes of log scanned, {self.records} records read one by one\n"
            f"    {self.why}"
        )


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of a DataFrame, without stores of which nothing has to be read. str() is a readable summary."""

    stores: tuple[StoreRead, ...]

    @property
    def log_bytes(self) -> int:
        return sum(each.log_bytes for each in self.stores)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.stores)

    def __str__(self) -> str:
        return "\n".join(map(str, self.stores)) or "nothing has to be read"


def explain_read(frame: DataFrame) -> ReadPlan:
    """Return what Spark plans to read from the stores of a DataFrame, with its filters. Plans, but reads no message.

    Raises PipelineError if planning fails, and UnsupportedError for a DataFrame of Spark Connect, whose plan is on the server.
    """
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None:
        raise UnsupportedError("the plan of a Spark Connect session is on its server; explain_read needs a classic session")
    with failures("planning the read"):
        leaves = plan.queryExecution().sparkPlan().collectLeaves()
        found = [part for k in range(leaves.size()) for part in _log_parts(leaves.apply(k))]
    return ReadPlan(
        tuple(_store_read(path, [part for part in found if part.path == path]) for path in dict.fromkeys(p.path for p in found))
    )


def _log_parts(leaf: Any) -> Iterable[LogPart]:
    """Return the partitions of a plan leaf if it reads this source: each holds what our reader pickled in a process of this session."""
    if not leaf.toString().startswith("BatchScan rocketmq["):
        return []
    partitions = leaf.inputPartitions()
    found = [pickle.loads(bytes(partitions.apply(k).pickedPartition())) for k in range(partitions.size())]
    return [part for part in found if isinstance(part, LogPart)]


def _store_read(path: str, parts: list[LogPart]) -> StoreRead:
    sizes = [part.as_dict() for part in parts]
    return StoreRead(
        path,
        parts[0].how,
        parts[0].why,
        len(parts),
        sum(size.get("bytes", 0) for size in sizes),
        sum(size.get("records", 0) for size in sizes),
    )
