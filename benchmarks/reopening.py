"""Opening a store that was killed with 1 GiB of log, all of which has to be scanned: our engine and the real 4.9.3 store on copies.

The store was written by the real one, which halted without a shutdown once queues and index had caught up. Opening ends when puts
are accepted and everything is dispatched; each round has a new copy, in the page cache. The real store opens all its copies in one
JVM, so that its later rounds are warm. The floor is walk and dispatch of the log with one and two threads, without checksums, of which
nothing is written.
"""

from __future__ import annotations

import subprocess

from benchkit import Bench, Row, median, oracle, timed, warm
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
    ours: list[float] = []
    for _ in range(bench.rounds):
        with bench.scratch("reopened") as copy:
            subprocess.run(["cp", "-a", "--sparse=always", "--", str(killed), str(copy)], check=True)
            warm(copy)
            opened: list[MessageStore] = []
            ours.append(timed(lambda copy=copy, opened=opened: opened.append(MessageStore.open(copy, StoreConfig(version="4.9.3")))))
            (store,) = opened
            assert store.dispatch_lag == 0
            assert sum(queue.max_offset for queue in store.queues()) == messages
            size = store.log_max
            store.close()
    peer = oracle("open", killed, "--rounds", bench.rounds + 1, "--tmp", bench.work)
    assert {row["bytes"] for row in peer} == {size}
    seconds = median([row["seconds"] for row in peer[1:]])
    factor = median(ours) / seconds
    warm(killed)
    floors = [median([walked(killed, ThreadRunner(threads)) for _ in range(bench.rounds)]) for threads in (1, 2)]
    bench.emit(
        Row(
            "opening after kill -9",
            "<= 1 x the real store",
            {"seconds": median(ours), "best": min(ours), "GB/s": size / median(ours) / 1e9},
            {
                "seconds": seconds,
                "best": min(row["seconds"] for row in peer),
                "first": peer[0]["seconds"],
                "floor: walk and dispatch, nothing written, 1 thread, seconds": floors[0],
                "2 threads": floors[1],
            },
            factor,
            factor <= 1,
            f"{messages} messages, {size / 1e9:.2f} GB of log, medians of {bench.rounds}",
        )
    )


if __name__ == "__main__":
    main()
