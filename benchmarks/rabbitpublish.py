"""Publishing persistent messages of 100 B into the engine, synced every 1,000, and into the real node by pika with confirms.

The peer has up to 1,000 unconfirmed messages, as ours has up to 1,000 unsynced ones; its second figure waits for each confirm.
The rounds of both sides alternate, each on an empty queue.
"""

from __future__ import annotations

import sys

import rabbitkit
from benchkit import Bench, Row, Target, divided, timed

from mqstore.rabbitmq.engine.queue_store import QueueStore

COUNT = 300_000
THEIRS = 60_000
SINGLY = 3_000


def main() -> None:
    bench = Bench(__doc__ or "")
    count, theirs, singly = (rabbitkit.scaled(bench, each) for each in (COUNT, THEIRS, SINGLY))
    texts = rabbitkit.bodies(100)
    mine: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    windows: list[float] = []
    alone: list[float] = []
    with rabbitkit.node() as node:
        node.start()
        for _ in range(bench.rounds):
            rabbitkit.pika_windows(node.port, texts, theirs // 4)
            windows.append(theirs / rabbitkit.pika_windows(node.port, texts, theirs))
            alone.append(singly / rabbitkit.pika_singly(node, texts, singly))
            for version, found in mine.items():
                with bench.scratch("published") as path:
                    path.mkdir()
                    with QueueStore.open(path / "msg_stores") as store:
                        store.declare(rabbitkit.QUEUE, {"x-queue-version": version})
                        rabbitkit.publish(store, texts, count // 4)
                        run = timed(rabbitkit.publish, store, texts, count)
                        found.append(count / run.result)
                        cpu[version].append(run.cpu / count * 1e6)
            assert rabbitkit.messages(node) > 0
            rabbitkit.empty(node)
    bench.emit(
        Row(
            "publish persistent 100 B into the engine, synced every 1,000",
            [Target(">=", 10, "x pika with confirms to the real node")],
            {"messages/s": mine[1], "CPU us a message": cpu[1], "version 2": mine[2], "CPU us": cpu[2]},
            {"messages/s": windows, "waiting for each confirm": alone},
            divided(mine[1], windows),
            f"{count} messages of ours, {theirs} of the peer after a quarter as many to warm up",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
