"""Opening a queue after a kill: 1,000,000 persistent messages of 100 B, ours and the real node on the same files.

The node's figure is the queue recovery time that it logs, without the rest of its boot; ours is all of `QueueStore.open`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import rabbitkit
from benchkit import Bench, Row, Target, Timed, costs, divided, timed

from mqstore.rabbitmq.engine.queue_store import QueueStore

COUNT = 1_000_000


def opened(bench: Bench, source: Path, count: int) -> Timed:
    with bench.scratch("recovered") as path:
        shutil.copytree(source, path)
        run = timed(QueueStore.open, path)
        assert run.result.counts(rabbitkit.QUEUE).ready == count
        run.result.abandon()
        return run


def main() -> None:
    bench = Bench(__doc__ or "")
    count = rabbitkit.scaled(bench, COUNT)
    source = rabbitkit.store(bench, count, 100)
    mine: list[Timed] = []
    theirs: list[float] = []
    with rabbitkit.node() as node:
        for _ in range(bench.rounds):
            theirs.append(rabbitkit.adopt(node, source))
            assert rabbitkit.messages(node) == count
            node.kill()
            mine.append(opened(bench, source, count))
    ours = costs(mine)
    bench.emit(
        Row(
            f"dirty recovery of {count} x 100 B",
            [Target("<=", 0.5, "x the real node")],
            {**ours, "best": min(ours["seconds"])},
            {"seconds": theirs, "best": min(theirs)},
            divided(ours["seconds"], theirs),
            "files in the page cache",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
