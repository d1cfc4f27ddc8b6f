"""Opening a store that was killed with 1 GiB of log, all of which has to be scanned: our engine and the real 4.9.3 store on copies.

The store was written by the real one, which halted without a shutdown once queues and index had caught up. Opening ends when puts
are accepted and everything is dispatched; each round has a new copy, in the page cache. The rounds alternate; the real store opens two
copies in one JVM, so that it is warm for the second. The floor is walk and dispatch of the log with one and two threads, without checksums,
of which nothing is written.
"""

from __future__ import annotations

import subprocess

from benchkit import Bench, Row, Target, Timed, costs, divided, oracle, timed, warm
from unwritten import walked

from mqstore.jobs.runner import ThreadRunner
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore

MESSAGES = 900_000


def main() -> None:
    bench = Bench(__doc__ or "")
    messages = max(10_000, int(MESSAGES * bench.options.scale))
    killed = bench.work / f"killed-{messages}"
    if not killed.exists():
        being_made = killed.with_name(killed.name + ".part")
        oracle("fill-and-halt", being_made, "--messages", messages)
        being_made.rename(killed)
    mine: list[Timed] = []
    peer: list[dict[str, float]] = []
    first: list[float] = []
    for _ in range(bench.rounds):
        cold, again = oracle("open", killed, "--rounds", 2, "--tmp", bench.work)
        first.append(cold["seconds"])
        peer.append(again)
        with bench.scratch("reopened") as copy:
            subprocess.run(["cp", "-a", "--sparse=always", "--", str(killed), str(copy)], check=True)
            warm(copy)
            mine.append(timed(MessageStore.open, copy, StoreConfig(version="4.9.3")))
            store = mine[-1].result
            assert store.dispatch_lag == 0
            assert sum(queue.max_offset for queue in store.queues()) == messages
            size = store.log_max
            store.close()
    assert {row["bytes"] for row in peer} == {size}
    theirs = [row["seconds"] for row in peer]
    ours = costs(mine)
    warm(killed)
    one, two = ([walked(killed, ThreadRunner(threads)) for _ in range(bench.rounds)] for threads in (1, 2))
    bench.emit(
        Row(
            "opening after kill -9",
            [Target("<=", 1, "x the real store")],
            {**ours, "best": min(ours["seconds"]), "GB/s": [size / seconds / 1e9 for seconds in ours["seconds"]]},
            {
                "seconds": theirs,
                "best": min(theirs),
                "first": first,
                "floor: walk and dispatch, nothing written, 1 thread, seconds": one,
                "2 threads": two,
            },
            divided(ours["seconds"], theirs),
            f"{messages} messages, {size / 1e9:.2f} GB of log",
        )
    )


if __name__ == "__main__":
    main()
