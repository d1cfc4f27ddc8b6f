"""How a DataFrame of the source will be read: which stores, which partitions, and the reason; and which paths are skipped.

>>> print(pipeline.explain_read(messages.where("topic = 'orders' and queue_id = 1 and queue_offset < 100")))  # doctest: +SKIP
/backup/broker-a/store: queue, 1 partition: 0 bytes of log scanned, 100 records read one by one
    100 records by their entries in the consume queue; nothing is scanned
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError
from mqstore.pipeline.source.planning import PartGroup, SkippedStore, parts_in
from mqstore.pipeline.source.rocketmq import LogPart
from mqstore.pipeline.spark.session import failures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mqstore.pipeline.spark.source_api import InputPartition

SHOWN = 20  # stores, and skipped paths, that the summary shows


@dataclass(frozen=True, slots=True)
class StoreRead:
    """The read of one store. how: `scan`, or `queue` or `index` if these determine what to read.

    partitions: those that read some of it, perhaps of other stores, too. log_bytes: scanned. records: read one by one.
    """

    store: str
    how: str
    why: str
    partitions: int
    log_bytes: int
    records: int

    def __str__(self) -> str:
        many = _count(self.partitions, "partition")
        return (
            f"{self.store}: {self.how}, {many}: {self.log_bytes} bytes of log scanned, {self.records} records read one by one\n"
            f"    {self.why}"
        )


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of a DataFrame, without stores of which nothing has to be read. str() is a readable summary.

    partitions: all of the read. skipped: paths that cannot be opened as a store, each with the reason.
    """

    stores: tuple[StoreRead, ...]
    partitions: int = 0
    skipped: tuple[SkippedStore, ...] = ()

    @property
    def log_bytes(self) -> int:
        return sum(each.log_bytes for each in self.stores)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.stores)

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "nothing has to be read"

    def _lines(self) -> Iterator[str]:
        if len(self.stores) > 1:
            yield f"{len(self.stores)} stores in {_count(self.partitions, 'partition')}"
        yield from map(str, self.stores[:SHOWN])
        if len(self.stores) > SHOWN:
            yield f"… {_count(len(self.stores) - SHOWN, 'more store')}"
        for each in self.skipped[:SHOWN]:
            yield f"{each.path}: skipped: {each.why}"
        if len(self.skipped) > SHOWN:
            yield f"… {_count(len(self.skipped) - SHOWN, 'more skipped path')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def explain_read(frame: DataFrame) -> ReadPlan:
    """Return what Spark plans to read from the stores of a DataFrame, with its filters. Plans, but reads no message.

    Raises PipelineError if planning fails, and UnsupportedError for a DataFrame of Spark Connect, whose plan is on the server.
    """
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None:
        raise UnsupportedError("the plan of a Spark Connect session is on its server; explain_read needs a classic session")
    with failures("planning the read"):
        leaves = plan.queryExecution().sparkPlan().collectLeaves()
        found = [partition for k in range(leaves.size()) for partition in _partitions(leaves.apply(k))]
    return read_plan(found)


def read_plan(partitions: Sequence[InputPartition]) -> ReadPlan:
    """Return the plan that consists of these partitions."""
    by_store: dict[str, list[tuple[int, LogPart]]] = {}
    skipped: list[SkippedStore] = []
    for number, partition in enumerate(partitions):
        if isinstance(partition, PartGroup):
            skipped.extend(partition.skipped)
        for part in parts_in(partition):
            if isinstance(part, LogPart):
                by_store.setdefault(part.path, []).append((number, part))
    reading = {number for parts in by_store.values() for number, _ in parts}
    return ReadPlan(tuple(_store_read(path, parts) for path, parts in by_store.items()), len(reading), tuple(skipped))


def _partitions(leaf: Any) -> Iterable[InputPartition]:
    """Return the partitions of a plan leaf if it reads this source: each holds what our reader pickled in a process of this session."""
    if not leaf.toString().startswith("BatchScan rocketmq["):
        return []
    partitions = leaf.inputPartitions()
    return [pickle.loads(bytes(partitions.apply(k).pickedPartition())) for k in range(partitions.size())]


def _store_read(path: str, parts: list[tuple[int, LogPart]]) -> StoreRead:
    sizes = [part.as_dict() for _, part in parts]
    return StoreRead(
        path,
        parts[0][1].how,
        parts[0][1].why,
        len({number for number, _ in parts}),
        sum(size.get("bytes", 0) for size in sizes),
        sum(size.get("records", 0) for size in sizes),
    )
