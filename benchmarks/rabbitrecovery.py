"""Opening a queue after a kill: 1,000,000 persistent messages of 100 B, ours and the real node on the same files.

The node's figure is the queue recovery time that it logs, without the rest of its boot; ours is all of `QueueStore.open`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import rabbitkit
from benchkit import Bench, Row, median, timed

from mqstore.rabbitmq.engine.queue_store import QueueStore

COUNT = 1_000_000


def opened(bench: Bench, source: Path, count: int) -> float:
    with bench.scratch("recovered") as path:
        shutil.copytree(source, path)
        found: list[QueueStore] = []
        seconds = timed(lambda: found.append(QueueStore.open(path)))
        assert found[0].counts(rabbitkit.QUEUE).ready == count
        found[0].abandon()
        return seconds


def main() -> None:
    bench = Bench(__doc__ or "")
    count = rabbitkit.scaled(bench, COUNT)
    source = rabbitkit.store(bench, count, 100)
    mine, theirs = [], []
    with rabbitkit.node() as node:
        for _ in range(bench.rounds):
            theirs.append(rabbitkit.adopt(node, source))
            assert rabbitkit.messages(node) == count
            node.kill()
            mine.append(opened(bench, source, count))
    ours, base = median(mine), median(theirs)
    bench.emit(
        Row(
            f"dirty recovery of {count} x 100 B",
            "<= 0.5 x the real node",
            {"seconds": ours, "best": min(mine)},
            {"seconds": base, "best": min(theirs)},
            ours / base,
            ours / base <= 0.5,
            f"medians of {bench.rounds}, files in the page cache",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
