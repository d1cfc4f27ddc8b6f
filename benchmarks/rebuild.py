"""rebuild on Spark local[2], warm session, sync at commit included, against the real store's dispatch.

In the second row both sides check body CRCs. The first job of the session and the start of the session are printed separately. The
real store runs several rounds in one JVM, so that it is warm too. The floor is what Spark takes for walk and dispatch of the same splits
with nothing written, and then the disk for as many bytes as queues and index hold.
"""

from __future__ import annotations

import time

from benchkit import Bench, Row, floor, median, peer_dispatch, provide_memory
from unwritten import bytes_written, walked

from mqstore.jobs.rebuild import rebuild
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.pipeline.spark.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    peer = peer_dispatch(store, bench.rounds, bench.work / "peer")
    derived = 0
    start = time.perf_counter()
    with session(master="local[2]") as spark:
        session_seconds = time.perf_counter() - start

        def run(*, check_crc: bool) -> tuple[float, str]:
            nonlocal derived
            provide_memory()
            with bench.scratch("rebuilt") as out:
                report = rebuild(store, out, spark=spark, check_crc=check_crc)
                derived = sum(file.stat().st_blocks * 512 for part in ("consumequeue", "index") for file in (out / part).rglob("*"))
            assert report.messages == peer[0]["entries"]
            return report.seconds, ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stages)

        first, _ = run(check_crc=False)
        warm = [run(check_crc=False) for _ in range(bench.rounds)]
        checked = [run(check_crc=True) for _ in range(bench.rounds)]
        runner = SparkRunner(spark)
        reading = median([walked(store, runner) for _ in range(bench.rounds)])
        empty = floor(spark, 4 * runner.width, bench.rounds)
    syncing = []
    for _ in range(bench.rounds):
        with bench.scratch("written") as place:
            syncing.append(bytes_written(derived, place))
    # measure the peer again after ours: the machine may have been busier during one of the runs
    peer += peer_dispatch(store, bench.rounds, bench.work / "peer")
    messages = peer[0]["entries"]
    size = peer[0]["max_phy_offset"]
    ours = median([seconds for seconds, _ in warm])
    dispatch = median([row["dispatch_seconds"] for row in peer])
    bench.emit(
        Row(
            "rebuild on Spark local[2], warm session, s2",
            ">= 4 x the real store's dispatch alone",
            {
                "M messages/s": messages / ours / 1e6,
                "seconds": ours,
                "best": min(seconds for seconds, _ in warm),
                "first job": first,
                "session start": session_seconds,
            },
            {
                "M messages/s": messages / dispatch / 1e6,
                "seconds": dispatch,
                "best": min(row["dispatch_seconds"] for row in peer),
                "floor: walk and dispatch on Spark, nothing written, seconds": reading,
                "of which an empty job": empty,
                f"floor: {derived / 1e6:.0f} MB written and synced, seconds": median(syncing),
                "ratio of both floors together": dispatch / (reading + median(syncing)),
            },
            dispatch / ours,
            dispatch / ours >= 4.0,
            f"{messages} messages, {size / 1e9:.2f} GB of log, medians of {bench.rounds}; stages of the last: {warm[-1][1]}",
        )
    )
    with_crc = median([seconds for seconds, _ in checked])
    best = min(row["total_seconds"] for row in peer)
    bench.emit(
        Row(
            "rebuild on Spark local[2], warm session, body CRCs checked, s2",
            ">= 2 x the real store's best total",
            {"seconds": with_crc, "GB/s": size / with_crc / 1e9},
            {"best total seconds": best, "GB/s": size / best / 1e9},
            best / with_crc,
            best / with_crc >= 2.0,
            f"medians of {bench.rounds}; the real store checks the bodies of its last three log files, ours all; stages: {checked[-1][1]}",
        )
    )


if __name__ == "__main__":
    main()
