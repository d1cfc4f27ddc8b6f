"""Rebuild of queues and index in this process with one and two threads, against the real store's dispatch alone in the same run.

Dispatch alone is reading the log and writing queue entries and index: for us without the final sync and rename, for the real store
its total minus its load. Its floor is the same walk and dispatch of the same splits, of which nothing is written. A whole rebuild also
copies the last log file and syncs; its floor is writing that many bytes of it to a file, past the page cache, and syncing that.
"""

from __future__ import annotations

from benchkit import Bench, Row, log_files, median, peer_dispatch, provide_memory
from unwritten import walked, written

from mqstore.jobs.rebuild import rebuild
from mqstore.jobs.runner import ThreadRunner

TARGETS = {1: 5.0, 2: 8.0}


def main() -> None:
    bench = Bench(__doc__ or "")
    for kind in ("s1", "s2"):
        store = bench.store(kind)
        peer = peer_dispatch(store, bench.rounds, bench.work / "peer")
        peer_seconds = median([row["dispatch_seconds"] for row in peer])
        for threads, target in TARGETS.items():
            reports = []
            for _ in range(bench.rounds):
                provide_memory()
                with bench.scratch("rebuilt") as out:
                    reports.append(rebuild(store, out, threads=threads))
            assert reports[0].messages == peer[0]["entries"]
            floor = median([walked(store, ThreadRunner(threads)) for _ in range(bench.rounds)])
            alone = median([sum(seconds for name, seconds in report.stages if name in ("scan", "queues", "index")) for report in reports])
            whole = median([report.seconds for report in reports])
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in reports[-1].stages)
            bench.emit(
                Row(
                    f"dispatch in process, {threads} thread{'s' * (threads > 1)}, {kind}",
                    f">= {target:.0f} x the real store's dispatch alone",
                    {"M messages/s": reports[0].messages / alone / 1e6, "seconds": alone, "seconds with sync and rename": whole},
                    {
                        "M messages/s": peer[0]["entries"] / peer_seconds / 1e6,
                        "seconds": peer_seconds,
                        "floor: the same, nothing written, seconds": floor,
                    },
                    peer_seconds / alone,
                    peer_seconds / alone >= target,
                    f"{reports[0].messages} messages, {reports[0].log_bytes / 1e9:.2f} GB, medians of {bench.rounds}; stages: {stages}",
                )
            )
        copies = []
        for _ in range(bench.rounds):
            with bench.scratch("written") as place:
                copies.append(written(log_files(store)[-1], place))
        bench.emit(
            Row(
                f"whole rebuild in process, 2 threads, {kind}",
                "",
                {"seconds": whole},
                {"floor: writing the last log file to the disk, seconds": median(copies)},
                conditions=f"medians of {bench.rounds}",
            )
        )


if __name__ == "__main__":
    main()
