"""Rebuild of queues and index in this process with one and two threads, against the real store's dispatch alone in the same run.

Dispatch alone is reading the log and writing queue entries and index: for us without the final sync and rename, for the real store
its total minus its load. The rounds alternate; the real store is measured in the second round of a JVM. Its floor is the same walk and
dispatch of the same splits, of which nothing is written. A whole rebuild also copies the last log file and syncs; its floor is writing that
many bytes of it to a file, past the page cache, and syncing that.
"""

from __future__ import annotations

from benchkit import Bench, Row, Target, Timed, costs, divided, log_files, peer_dispatch, provide_memory, timed
from unwritten import walked, written

from mqstore.jobs.rebuild import rebuild
from mqstore.jobs.runner import ThreadRunner

TARGETS = {1: 5.0, 2: 8.0}


def main() -> None:
    bench = Bench(__doc__ or "")
    for kind in ("s1", "s2"):
        names = {threads: f"dispatch in process, {threads} thread{'s' * (threads > 1)}, {kind}" for threads in TARGETS}
        whole = f"whole rebuild in process, 2 threads, {kind}"
        if not bench.wants(*names.values(), whole):
            continue
        store = bench.store(kind)
        base: list[float] = []
        runs: dict[int, list[Timed]] = {threads: [] for threads in TARGETS}
        floors: dict[int, list[float]] = {threads: [] for threads in TARGETS}
        copies = []
        for _ in range(bench.rounds):
            peer = peer_dispatch(store, bench.work / "peer")
            base.append(peer["dispatch_seconds"])
            for threads, found in runs.items():
                provide_memory()
                with bench.scratch("rebuilt") as out:
                    found.append(timed(rebuild, store, out, threads=threads))
                assert found[0].result.messages == peer["entries"]
                floors[threads].append(walked(store, ThreadRunner(threads)))
            with bench.scratch("written") as place:
                copies.append(written(log_files(store)[-1], place))
        messages = peer["entries"]
        for threads, target in TARGETS.items():
            reports = [run.result for run in runs[threads]]
            alone = [sum(seconds for name, seconds in report.stages if name in ("scan", "queues", "index")) for report in reports]
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in reports[-1].stages)
            bench.emit(
                Row(
                    names[threads],
                    [Target(">=", target, "x the real store's dispatch alone")],
                    {
                        "M messages/s": [messages / seconds / 1e6 for seconds in alone],
                        "seconds": alone,
                        "seconds with sync and rename": [report.seconds for report in reports],
                        "CPU s of that": [run.cpu for run in runs[threads]],
                    },
                    {
                        "M messages/s": [messages / seconds / 1e6 for seconds in base],
                        "seconds": base,
                        "floor: the same, nothing written, seconds": floors[threads],
                    },
                    divided(base, alone),
                    f"{messages} messages, {reports[0].log_bytes / 1e9:.2f} GB; stages: {stages}",
                )
            )
        bench.emit(Row(whole, (), costs(runs[2]), {"floor: writing the last log file to the disk, seconds": copies}))


if __name__ == "__main__":
    main()
