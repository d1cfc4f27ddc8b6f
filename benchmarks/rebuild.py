"""rebuild on Spark local[2], warm session, sync at commit included, against the real store's dispatch.

In the second row both sides check body CRCs. The first job of the session and the start of the session are printed separately. The rounds
of both sides alternate; the real store is measured in the second round of a JVM, so that it is warm too. The floor is what Spark takes for
walk and dispatch of the same splits with nothing written, and then the disk for as many bytes as queues and index hold.
"""

from __future__ import annotations

import time

from benchkit import Bench, Row, Target, Timed, costs, cpu_time, divided, floor, median, peer_dispatch, provide_memory, timed
from unwritten import bytes_written, walked

from mqstore.jobs.rebuild import rebuild
from mqstore.pipeline.spark.runner import SparkRunner
from mqstore.pipeline.spark.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    peer: list[dict[str, float]] = []
    warm: list[Timed] = []
    checked: list[Timed] = []
    reading: list[float] = []
    syncing: list[float] = []
    derived = 0
    start = time.perf_counter()
    with session(master="local[2]") as spark:
        session_seconds = time.perf_counter() - start

        def run(*, check_crc: bool) -> Timed:
            nonlocal derived
            provide_memory()
            with bench.scratch("rebuilt") as out:
                done = timed(rebuild, store, out, clock=cpu_time, spark=spark, check_crc=check_crc)
                derived = sum(file.stat().st_blocks * 512 for part in ("consumequeue", "index") for file in (out / part).rglob("*"))
            return done

        first = run(check_crc=False)
        runner = SparkRunner(spark)
        for _ in range(bench.rounds):
            peer.append(peer_dispatch(store, bench.work / "peer"))
            warm.append(run(check_crc=False))
            checked.append(run(check_crc=True))
            assert warm[-1].result.messages == checked[-1].result.messages == peer[0]["entries"]
            reading.append(walked(store, runner))
            with bench.scratch("written") as place:
                syncing.append(bytes_written(derived, place))
        empty = floor(spark, 4 * runner.width, bench.rounds)
    messages, size = peer[0]["entries"], peer[0]["max_phy_offset"]
    dispatch = [row["dispatch_seconds"] for row in peer]
    total = [row["total_seconds"] for row in peer]
    ours = costs(warm)
    bench.emit(
        Row(
            "rebuild on Spark local[2], warm session, s2",
            [Target(">=", 4.5, "x the real store's dispatch alone")],
            {
                "M messages/s": [messages / seconds / 1e6 for seconds in ours["seconds"]],
                **ours,
                "best": min(ours["seconds"]),
                "first job": first.seconds,
                "session start": session_seconds,
            },
            {
                "M messages/s": [messages / seconds / 1e6 for seconds in dispatch],
                "seconds": dispatch,
                "best": min(dispatch),
                "floor: walk and dispatch on Spark, nothing written, seconds": reading,
                "of which an empty job": empty,
                f"floor: {derived / 1e6:.0f} MB written and synced, seconds": syncing,
                "ratio of both floors together": median(dispatch) / (median(reading) + median(syncing)),
            },
            divided(dispatch, ours["seconds"]),
            f"{messages} messages, {size / 1e9:.2f} GB of log; {_stages(warm)}",
        )
    )
    ours = costs(checked)
    bench.emit(
        Row(
            "rebuild on Spark local[2], warm session, body CRCs checked, s2",
            [Target(">=", 2, "x the real store's total")],
            {**ours, "GB/s": [size / seconds / 1e9 for seconds in ours["seconds"]]},
            {"total seconds": total, "best": min(total), "GB/s": [size / seconds / 1e9 for seconds in total]},
            divided(total, ours["seconds"]),
            f"the real store checks the bodies of its last three log files, ours all; {_stages(checked)}",
        )
    )


def _stages(runs: list[Timed]) -> str:
    return "stages of the last: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in runs[-1].result.stages)


if __name__ == "__main__":
    main()
