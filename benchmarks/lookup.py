"""lookup: a million keys in 10 GB of log without an index, and a thousand keys through index files; local[2], session start excluded.

The peer of the million keys is one thread that decodes the log, the minimum for any program based on the real store's classes; the
peer of the thousand is the real store's queryMessage, one key after the other. The keys are spread evenly over the log; every tenth
occurs in no message. Reading the keys is included in the time.
"""

from __future__ import annotations

from pathlib import Path

from benchkit import TOPICS, Bench, Row, count_messages, floor, link_log, log_size, median, oracle

from mqstore.jobs.lookup import lookup
from mqstore.pipeline.spark.session import session
from mqstore.rocketmq.lookup.answer import LookupReport

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
    decoding = oracle("scan", store, "--rounds", 1)[0]["decode_seconds"]
    (peer,) = oracle("query", store, "--messages", messages, "--count", 1000, "--rounds", bench.rounds)[-1:]
    with session(master="local[2]") as spark, bench.scratch("bare") as bare:
        link_log(store, bare)

        def run(path: Path, keys: list[tuple[str, str]]) -> LookupReport:
            with bench.scratch("answers") as out:
                report = lookup(path, keys, out, columns=COLUMNS, spark=spark)
            assert report.found == sum(int(key[6:]) < messages for _, key in keys)
            return report

        scans = [run(bare, many) for _ in range(bench.rounds + 1)]
        probes = [run(store, few) for _ in range(bench.rounds + 1)]
        empty = floor(spark, 40, bench.rounds)
    seconds = median([report.seconds for report in scans[1:]])
    bench.emit(
        Row(
            f"lookup of {len(many):,} keys without an index, warm session",
            "<= 20 s for 10 GB",
            {"seconds": seconds, "first": scans[0].seconds, "GB/s of log": size / seconds / 1e9},
            {"decoding only, one thread, seconds": decoding, "empty Spark job seconds": empty},
            decoding / seconds,
            seconds <= 20.0 * size / 10e9,
            f"{size / 1e9:.2f} GB of log, {messages} messages, median of {bench.rounds}; {scans[-1].plan}, {scans[-1].runs_on}",
        )
    )
    seconds = median([report.seconds for report in probes[1:]])
    theirs = 1000 * peer["query_message_us_p50"] / 1e6
    bench.emit(
        Row(
            "lookup of 1,000 keys through index files, session started",
            "<= 1 s",
            {"seconds": seconds, "first": probes[0].seconds},
            {"1,000 x queryMessage p50, seconds": theirs, "empty Spark job seconds": empty},
            theirs / seconds,
            seconds <= 1.0,
            f"median of {bench.rounds}; {probes[-1].plan}, {probes[-1].runs_on}",
        )
    )


if __name__ == "__main__":
    main()
