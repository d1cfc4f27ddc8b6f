"""Offline conversion of queues, version 1 to 2, against the real node's; and of messages in the message store against reading them.

The node boots from the same version 1 store, then a policy changes the queue's version; time is measured until the queue reports
version 2. The node converts without a sync; ours is synced to disk.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rabbitkit
from benchkit import Bench, Row, median, timed

from mqstore.rabbitmq.convert.convert_vhost import convert

SMALL = 1_000_000
LARGE = 200_000
LARGE_BODY = 5000


def converted(bench: Bench, store: Path, count: int) -> float:
    with bench.scratch("converted") as path:
        report = convert(store, path, 2)
        assert report.ok, report
        assert report.messages == count
        return report.seconds


def main() -> None:
    bench = Bench(__doc__ or "")
    small = rabbitkit.scaled(bench, SMALL)
    store = rabbitkit.store(bench, small, 100)
    theirs, mine = [], []
    with rabbitkit.node() as node:
        for _ in range(bench.rounds):
            rabbitkit.adopt(node, store)
            assert rabbitkit.messages(node) == small
            theirs.append(rabbitkit.switch(node, 2))
            rabbitkit.forget(node)
            mine.append(converted(bench, store, small))
    ours, base = median(mine), median(theirs)
    bench.emit(
        Row(
            f"version 1 to 2, {small} x 100 B",
            "<= 4 s and <= 0.5 x the real node",
            {"seconds": ours, "best": min(mine)},
            {"seconds": base, "best": min(theirs)},
            ours / base,
            ours <= 4 and ours / base <= 0.5,
            f"medians of {bench.rounds}",
        )
    )
    large = rabbitkit.scaled(bench, LARGE)
    stored = rabbitkit.store(bench, large, LARGE_BODY)
    size = large * LARGE_BODY
    reading = median([timed(lambda: rabbitkit.warm(stored)) for _ in range(bench.rounds)])
    whole = median([converted(bench, stored, large) for _ in range(bench.rounds)])
    beyond = (whole - reading) / (size / 1e9)
    bench.emit(
        Row(
            f"version 1 to 2, {large} x {LARGE_BODY} B in the message store",
            "<= 3 s per GB on top of reading it",
            {"seconds per GB on top of reading": beyond, "seconds": whole},
            {"seconds to read all files": reading},
            None,
            beyond <= 3,
            f"{size / 1e9:.2f} GB of bodies, medians of {bench.rounds}; message files are copied and synced",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
