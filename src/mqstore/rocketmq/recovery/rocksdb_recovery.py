"""Simulates the load and start of a 5.5 broker whose consume queues are in RocksDB, in memory.

As `broker_recovery`, but for the queues:

    * the database says up to where the log is listed in it; an empty one says 0, and the broker makes a new one where there is none
    * the log is parsed from the file that holds this place on, after an unclean exit, too: the checkpoint does not decide
    * entries are written where their records say, so that nothing is shifted
    * after an unclean exit all parsed records are dispatched; after a clean one those from there on, except the first of them: with an
      empty database, the first of the log

Format: docs/formats/rocketmq.md, sections 4.11 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqstore.rocketmq.dispatch.consume_queue_image import QueueImage
from mqstore.rocketmq.dispatch.rocksdb_queue_image import RocksQueueImage
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.format.rocksdb_queue import RocksQueueReader
from mqstore.rocketmq.recovery.broker_recovery import Recovery


class RocksRecovery(Recovery):
    """The load and start of a broker on a directory. readers: the queues of its database. listed: physical offset that it states."""

    def __init__(self, readers: Sequence[RocksQueueReader], listed: int, *arguments: Any, **options: Any) -> None:
        """arguments, options: those of `Recovery`."""
        self._readers = readers
        self._stated = listed
        super().__init__(*arguments, **options)

    def _load_queues(self) -> None:
        for reader in self._readers:
            self.queues[reader.topic, reader.queue_id, False] = RocksQueueImage(reader.topic, reader.queue_id, reader)

    def _listed(self) -> int:
        return self._stated

    def _first_unclean(self) -> int:
        return self._first_clean(self._stated)

    def _new_queue(self, kind: type[AnyQueueImage], topic: str, queue_id: int) -> AnyQueueImage:
        return RocksQueueImage(topic, queue_id) if kind is QueueImage else super()._new_queue(kind, topic, queue_id)
