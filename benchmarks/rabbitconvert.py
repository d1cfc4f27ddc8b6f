"""Offline conversion of queues, version 1 to 2, against the real node's; and of messages in the message store against reading them.

The node boots from the same version 1 store, then a policy changes the queue's version; time is measured until the queue reports
version 2. The node converts without a sync; ours is synced to disk.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rabbitkit
from benchkit import Bench, Row, Target, Timed, costs, divided, timed

from mqstore.rabbitmq.convert.convert_vhost import convert

SMALL = 1_000_000
LARGE = 200_000
LARGE_BODY = 5000


def converted(bench: Bench, store: Path, count: int) -> Timed:
    with bench.scratch("converted") as path:
        run = timed(convert, store, path, 2)
        assert run.result.ok, run.result
        assert run.result.messages == count
        return run


def main() -> None:
    bench = Bench(__doc__ or "")
    small = rabbitkit.scaled(bench, SMALL)
    store = rabbitkit.store(bench, small, 100)
    theirs: list[float] = []
    mine: list[Timed] = []
    with rabbitkit.node() as node:
        for _ in range(bench.rounds):
            rabbitkit.adopt(node, store)
            assert rabbitkit.messages(node) == small
            theirs.append(rabbitkit.switch(node, 2))
            rabbitkit.forget(node)
            mine.append(converted(bench, store, small))
    ours = costs(mine)
    ratios = divided(ours["seconds"], theirs)
    bench.emit(
        Row(
            f"version 1 to 2, {small} x 100 B",
            [Target("<=", 4, "s", ours["seconds"]), Target("<=", 0.5, "x the real node")],
            {**ours, "best": min(ours["seconds"])},
            {"seconds": theirs, "best": min(theirs)},
            ratios,
        )
    )
    large = rabbitkit.scaled(bench, LARGE)
    stored = rabbitkit.store(bench, large, LARGE_BODY)
    size = large * LARGE_BODY
    reading, mine = [], []
    for _ in range(bench.rounds):
        reading.append(timed(rabbitkit.warm, stored).seconds)
        mine.append(converted(bench, stored, large))
    ours = costs(mine)
    beyond = [(whole - read) / (size / 1e9) for whole, read in zip(ours["seconds"], reading, strict=True)]
    bench.emit(
        Row(
            f"version 1 to 2, {large} x {LARGE_BODY} B in the message store",
            [Target("<=", 3, "s per GB on top of reading it", beyond)],
            {"seconds per GB on top of reading": beyond, **ours},
            {"seconds to read all files": reading},
            conditions=f"{size / 1e9:.2f} GB of bodies; message files are copied and synced",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
