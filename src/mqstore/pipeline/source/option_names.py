"""Which options a format has. Any other is refused, with the one that may have been meant: an option that is ignored changes the result.

Options that readers of Kafka know have the same names here where they mean the same; `subscribe` and `maxOffsetsPerTrigger` are other
names of `topic` and `maxRowsPerTrigger`.

    >>> checked({"subscribe": "orders"}, BATCH, "a batch of rocketmq")["topic"]
    'orders'
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from mqstore.errors import UsageError
from mqstore.pipeline.spark.source_api import CaseInsensitiveDict

TABLE = ("columns", "config", "mode")
_MESSAGES = (
    *TABLE,
    "includeHeaders",
    "topic",
    "subscribe",
    "subscribePattern",
    "queueId",
    "keys",
    "startingOffsets",
    "startingQueueOffset",
    "endingQueueOffset",
    "startingTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "view",
)
BATCH = (*_MESSAGES, "endingOffsets", "endingTimestamp", "useDerivedFiles")
STREAM = (*_MESSAGES, "maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
RABBITMQ = ("view", "columns", "vhost", "queue", "fromSeq", "toSeq", "recovered", "verdict", "all", "at", "now", "names", "splits", "mode")
SINK = (
    "writable",
    "runId",
    "batchId",
    "staging",
    "create",
    "version",
    "config",
    "storeHost",
    "lockTimeout",
    "checkpointLocation",
)

# what Spark, or `pipeline.read`, adds to the options that a user gives
_ADDED = ("path", "paths", "filters", "reported")
_SAME = {"subscribe": "topic", "maxOffsetsPerTrigger": "maxRowsPerTrigger"}
# options of Kafka's reader that have no equal here
_HINTS = {
    "assign": "give topic and queueId",
    "startingoffsetsbytimestamp": "give startingTimestamp",
    "endingoffsetsbytimestamp": "give endingTimestamp",
    "minoffsetspertrigger": "a batch begins as soon as there are messages",
    "maxtriggerdelay": "a batch begins as soon as there are messages",
    "endingoffsets": "it follows the log; read it as a batch, or use trigger(availableNow=True)",
    "endingtimestamp": "it follows the log; read it as a batch, or use trigger(availableNow=True)",
    "maxrowspertrigger": "it limits the batches of a stream",
    "maxoffsetspertrigger": "it limits the batches of a stream",
    "maxbytespertrigger": "it limits the batches of a stream",
    "usederivedfiles": "a stream reads the log",
}


def checked(options: Mapping[str, str], known: Sequence[str], what: str) -> CaseInsensitiveDict:
    """Return the options, each under one name. what: who has them, such as `a stream`. Raises UsageError for an unknown option."""
    spelt = {name.lower(): name for name in (*known, *_ADDED)}
    found = CaseInsensitiveDict(dict(options))
    for name in options:
        if name.lower() not in spelt and not name.lower().startswith("fs."):
            raise UsageError(f"{what} has no option {name!r}{_advice(name.lower(), known)}")
    for other, name in _SAME.items():
        if other in found and name in found:
            raise UsageError(f"the options {name} and {other} mean the same: give one of them")
        if other in found:
            found[name] = found.pop(other.lower())
    if "topic" in found and "subscribePattern" in found:
        raise UsageError("the options topic (or subscribe) and subscribePattern exclude each other: give one of them")
    return found


def _advice(name: str, known: Sequence[str]) -> str:
    if name.startswith("kafka."):
        return ": a store is read from its directory, without a server"
    if name in _HINTS:
        return f": {_HINTS[name]}"
    spelt = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name, spelt, 1, 0.7)
    return f"; did you mean {spelt[near[0]]}?" if near else f"; its options are {', '.join(known)}"
