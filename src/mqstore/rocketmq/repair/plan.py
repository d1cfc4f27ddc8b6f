"""The plan of a repair: the steps after which a broker starts on the store and delivers everything that is intact.

What a broker repairs by itself and without loss is not in the plan: a torn end after a kill is, because its bytes would stay.
"""

from __future__ import annotations

from collections.abc import Callable

from mqstore.errors import UnsupportedError
from mqstore.repair.change import Step
from mqstore.repair.journal import StoreLocking
from mqstore.rocketmq.live.store_lock import LOCK, StoreLock
from mqstore.rocketmq.repair.config_steps import config_steps
from mqstore.rocketmq.repair.file_steps import file_steps
from mqstore.rocketmq.repair.index_steps import index_steps
from mqstore.rocketmq.repair.log_steps import log_steps
from mqstore.rocketmq.repair.queue_steps import RepairScan, queue_steps
from mqstore.rocketmq.store.store import RocketMQStore

__all__ = ["LOCKING", "plan"]

LOCKING = StoreLocking(StoreLock, LOCK)


def plan(store: RocketMQStore, *, threads: int = 2, progress: Callable[[int, int], None] | None = None) -> list[Step]:
    """Return the steps, in the order in which they are applied. Reads only. Raises UnsupportedError."""
    store.require_commit_log("repair")
    if store.queue_database is not None:
        raise UnsupportedError(f"the consume queues of {store.path} are in a RocksDB database, which repair does not write")
    store.require_directories()
    scan = RepairScan(store)
    report = scan.run(threads, progress)
    prefix = f"{store.log.queue.relative}/"
    damage = [item for item in report.damage if item.file.startswith(prefix)]
    in_log = list(log_steps(store.log, damage, scan.last_timestamp, scan.add_restored))
    starts = {file.relative: file.start for file in store.log.files}
    log_end = min([scan.log_end, *(starts[step.file] + step.offset for step in in_log if step.kind == "torn-end")])
    return [
        *file_steps(store),
        *in_log,
        *queue_steps(store, scan, log_end),
        *index_steps(store, scan, list(report.damage)),
        *config_steps(store, store.version_hint, scan.last_timestamp, scan.ends(log_end)),
    ]
