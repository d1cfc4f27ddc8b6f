"""verify: every check of every record, queue entry and index entry, with a warm page cache.

The peer walks the log with body CRCs, as its recovery does. It checks neither queues nor index and stops at the first damage; a
broker has nothing closer to verify.
"""

from __future__ import annotations

import json

from benchkit import Bench, Row, Target, child, costs, divided, mqstore, peer_walks


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    walks = peer_walks(store, bench.rounds)
    peer = [walk["crc_seconds"] for walk in walks]
    size = walks[0]["bytes"]
    runs = [child(*mqstore("verify", store, "-o", "json", "-q")) for _ in range(bench.rounds)]
    report = json.loads(runs[0].stdout)
    assert report["ok"] is True, report["damage"][:3]
    assert report["coverage"]["complete"] is True
    ours = costs(runs)
    rates = [size / seconds / 1e9 for seconds in ours["seconds"]]
    bench.emit(
        Row(
            "verify, every check, both cores, the whole command",
            [Target(">=", 1.5, "GB/s of log", rates)],
            {"GB/s": rates, **ours, "messages": report["checked"]["messages"], "peak RSS MB": max(run.rss for run in runs) / 1e6},
            {"GB/s, one thread, CRC only": [size / seconds / 1e9 for seconds in peer], "seconds": peer},
            divided(peer, ours["seconds"]),
            f"{size / 1e9:.2f} GB of log; paired, not alternated",
        )
    )


if __name__ == "__main__":
    main()
