"""lookup: a million keys in 10 GB of log without an index, and a thousand keys through index files; local[2], session start excluded.

The peer of the million keys is one thread that decodes the log, the minimum for any program based on the real store's classes; the
peer of the thousand is the real store's queryMessage, one key after the other. The keys are spread evenly over the log; every tenth
occurs in no message. Reading the keys is included in the time.
"""

from __future__ import annotations

from pathlib import Path

from benchkit import (
    TOPICS,
    Bench,
    Row,
    Target,
    Timed,
    costs,
    count_messages,
    cpu_time,
    divided,
    floor,
    link_log,
    log_size,
    oracle,
    peer_walks,
    timed,
)

from mqstore.jobs.lookup import lookup
from mqstore.pipeline.spark.session import session

COLUMNS = ("physical_offset", "queue_id", "queue_offset", "store_timestamp")


def asked(messages: int, count: int) -> list[tuple[str, str]]:
    """Return pairs of topic and key, nine out of ten with a message."""
    step = max(1, messages // count)
    numbers = range(0, step * count, step)
    return [(f"bench-{i % TOPICS}", f"order-{i if n % 10 else i + messages:09d}") for n, i in enumerate(numbers)]


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s10")
    messages, size = count_messages(store), log_size(store)
    many = asked(messages, min(1_000_000, messages))
    few = asked(messages, 1000)
    decoding = [walk["decode_seconds"] for walk in peer_walks(store, bench.rounds)]
    theirs: list[float] = []
    scans: list[Timed] = []
    probes: list[Timed] = []
    with session(master="local[2]") as spark, bench.scratch("bare") as bare:
        link_log(store, bare)

        def run(path: Path, keys: list[tuple[str, str]]) -> Timed:
            with bench.scratch("answers") as out:
                done = timed(lookup, path, keys, out, clock=cpu_time, columns=COLUMNS, spark=spark)
            assert done.result.found == sum(int(key[6:]) < messages for _, key in keys)
            return done

        first_scan, first_probe = run(bare, many), run(store, few)
        for _ in range(bench.rounds):
            (peer,) = oracle("query", store, "--messages", messages, "--count", 1000)
            theirs.append(1000 * peer["query_message_us_p50"] / 1e6)
            scans.append(run(bare, many))
            probes.append(run(store, few))
        empty = floor(spark, 40, bench.rounds)
    ours = costs(scans)
    rates = [size / seconds / 1e9 for seconds in ours["seconds"]]
    bench.emit(
        Row(
            f"lookup of {len(many):,} keys without an index, warm session",
            [Target("<=", 2, "s per GB of log", [1 / rate for rate in rates])],
            {**ours, "first": first_scan.seconds, "GB/s of log": rates},
            {"decoding only, one thread, seconds": decoding, "empty Spark job seconds": empty},
            divided(decoding, ours["seconds"]),
            f"{size / 1e9:.2f} GB of log, {messages} messages; paired, not alternated; {_how(scans)}",
        )
    )
    ours = costs(probes)
    bench.emit(
        Row(
            "lookup of 1,000 keys through index files, session started",
            [Target("<=", 1, "s", ours["seconds"])],
            {**ours, "first": first_probe.seconds},
            {"1,000 x queryMessage p50, seconds": theirs, "empty Spark job seconds": empty},
            divided(theirs, ours["seconds"]),
            _how(probes),
        )
    )


def _how(runs: list[Timed]) -> str:
    return f"{runs[-1].result.plan}, {runs[-1].result.runs_on}"


if __name__ == "__main__":
    main()
