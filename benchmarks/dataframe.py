"""The store as a DataFrame, local[2]: count by topic, a key found by scanning, all columns discarded; the peer decodes.

The real store has no such thing as a table; its figure is one thread that decodes every message, which is what a program
on its classes would do first. Only the columns that a question needs are asked for. The floor is an empty job of as many Python tasks. The
session is warm and made for long work, `session(throughput=True)`.
"""

from __future__ import annotations

from benchkit import Bench, Row, floor, median, oracle, timed

from mqstore import pipeline
from mqstore.pipeline.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    walks = oracle("scan", store, "--rounds", bench.rounds)
    size, messages = walks[0]["bytes"], walks[0]["records"]
    decoding = median([walk["decode_seconds"] for walk in walks])
    with session(master="local[2]", throughput=True) as spark:
        pipeline.register(spark)

        def count_by_topic() -> None:
            table = pipeline.read(spark, str(store), columns=["topic"])
            counts = {row["topic"]: row["count"] for row in table.groupBy("topic").count().collect()}
            assert sum(counts.values()) == messages

        wanted = f"order-{messages // 2:09d}"

        def find_key() -> None:
            table = pipeline.read(spark, str(store), columns=["keys", "physical_offset"])
            assert table.filter(f"array_contains(keys, '{wanted}')").count() == 1

        def discard() -> None:
            pipeline.read(spark, str(store)).write.format("noop").mode("overwrite").save()

        tasks = pipeline.read(spark, str(store), columns=["topic"]).rdd.getNumPartitions()
        empty = floor(spark, tasks, bench.rounds)
        for what, target, job in (
            ("count by topic, column given", 0.9, count_by_topic),
            ("key filter by scan, columns given", 0.7, find_key),
            ("all columns, discarded (noop)", 0.5, discard),
        ):
            first = timed(job)
            warm = [timed(job) for _ in range(bench.rounds)]
            seconds = median(warm)
            rate = size / seconds / 1e9
            bench.emit(
                Row(
                    f"DataFrame: {what}",
                    f">= {target} GB/s of log",
                    {"GB/s": rate, "seconds": seconds, "first": first},
                    {"GB/s, decoding, one thread": size / decoding / 1e9, "seconds": decoding, "floor: empty job seconds": empty},
                    decoding / seconds,
                    rate >= target,
                    f"{size / 1e9:.2f} GB of log, {messages} messages, {tasks} tasks, median of {bench.rounds}",
                )
            )


if __name__ == "__main__":
    main()
