"""RSS with 10,000,000 queued messages: reading them, opening them after a kill, publishing them, delivering some; embedded and stored.

Each step is a separate process whose peak RSS is measured from outside and therefore includes pages of mapped files. `stored` messages
are in the message store, whose index has to hold the location of each.
"""

from __future__ import annotations

import sys

import rabbitkit
from benchkit import Bench, Child, Row, Target, child, costs

COUNT = 10_000_000
LIMIT = 500  # MB

READ = """
import sys, mqstore
store = mqstore.open(sys.argv[1])
print(sum(queue.counts.ready for queue in store.queues))
"""
TAKE = """
import sys
from mqstore.rabbitmq.engine.queue_store import QueueStore
store = QueueStore.open(sys.argv[1])
print(store.counts("orders").ready)
for _ in range(100):
    store.acknowledge(store.deliver("orders", 1000))
store.sync()
store.abandon()
"""
PUBLISH = """
import sys
sys.path.insert(0, sys.argv[3])
import rabbitkit
from mqstore.rabbitmq.engine.queue_store import QueueStore
from mqstore.rabbitmq.engine.engine_config import EngineConfig
store = QueueStore.open(sys.argv[1], config=EngineConfig(queue_index_embed_msgs_below=int(sys.argv[4])))
store.declare("orders")
rabbitkit.publish(store, rabbitkit.bodies(100), int(sys.argv[2]))
print(store.counts("orders").ready)
store.close()
"""


def main() -> None:
    bench = Bench(__doc__ or "")
    count = rabbitkit.scaled(bench, COUNT)
    here = str(rabbitkit.ROOT / "benchmarks")
    for kind, below in (("embedded", 4096), ("stored", 1)):
        runs: dict[str, list[Child]] = {}
        for _ in range(bench.rounds):
            with bench.scratch(f"queued-{kind}") as path:
                path.mkdir()
                store = path / "msg_stores"
                steps = {
                    "publishing": ("-c", PUBLISH, store, count, here, below),
                    "reading": ("-c", READ, store),
                    "opening, 100,000 delivered": ("-c", TAKE, store),
                }
                for name, arguments in steps.items():
                    run = child(sys.executable, *arguments)
                    assert run.status == 0, name
                    assert int(run.stdout) == count, run.stdout
                    runs.setdefault(name, []).append(run)
        peaks = {f"{name}, MB": [run.rss / 1e6 for run in found] for name, found in runs.items()}
        times = {f"{name}, {what}": value for name, found in runs.items() for what, value in costs(found).items()}
        targets = [Target("<=", LIMIT, f"MB {name}", [run.rss / 1e6 for run in found]) for name, found in runs.items()]
        bench.emit(Row(f"RSS with {count} queued messages, {kind}", targets, {**peaks, **times}, conditions="whole processes"))


if __name__ == "__main__":
    sys.exit(main())
