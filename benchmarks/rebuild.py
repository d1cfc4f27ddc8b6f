"""rebuild on Spark local[2], warm session, sync at commit included, against the real store's dispatch.

In the second row both sides check body CRCs. The first job of the session and the start of the session are printed separately. The
real store runs several rounds in one JVM, so that it is warm too.
"""

from __future__ import annotations

import time

from benchkit import Bench, Row, median, peer_dispatch, provide_memory

from mqstore.pipeline.jobs.rebuild import rebuild
from mqstore.pipeline.spark.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    peer = peer_dispatch(store, bench.rounds, bench.work / "peer")
    start = time.perf_counter()
    with session(master="local[2]") as spark:
        session_seconds = time.perf_counter() - start

        def run(*, check_crc: bool) -> tuple[float, str]:
            provide_memory()
            with bench.scratch("rebuilt") as out:
                report = rebuild(store, out, spark=spark, check_crc=check_crc)
            assert report.messages == peer[0]["entries"]
            return report.seconds, ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stages)

        first, _ = run(check_crc=False)
        warm = [run(check_crc=False) for _ in range(bench.rounds)]
        checked = [run(check_crc=True) for _ in range(bench.rounds)]
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
            {"M messages/s": messages / dispatch / 1e6, "seconds": dispatch, "best": min(row["dispatch_seconds"] for row in peer)},
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
