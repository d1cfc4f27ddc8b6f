"""SQL queries over a store: plain Spark, narrowed Spark, and DuckDB in one process, local[2].

The peer is the same query on the views of the store in plain Spark, which reads all columns and messages. The session is warm. The first
query is the one that should end early: rows after a physical offset in the last tenth of the log, of which ten are wanted.
"""

from __future__ import annotations

from benchkit import Bench, Row, Timed, cpu_time, divided, timed

import mqstore
from mqstore import pipeline
from mqstore.pipeline.queries.duck import StoreTables
from mqstore.pipeline.spark.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s1")
    log = mqstore.open(store).log
    size = sum(file.size for file in log.files)
    late = log.start + size * 9 // 10
    queries = {
        "physical_offset > X limit 10": f"select topic, size from messages where physical_offset > {late} limit 10",
        "count(*)": "select count(*) from messages",
        "one queue, a range": "select sum(size) from messages where topic = 'bench-0' and queue_id = 1 and queue_offset < 1000",
        "join with the queues": (
            "select count(*) from messages m join queues q on m.physical_offset = q.physical_offset "
            "where m.topic = 'bench-0' and q.queue_id = 1"
        ),
    }
    with session(master="local[2]") as spark, StoreTables(store) as tables:
        pipeline.views(spark, store)
        for what, query in queries.items():

            def plain(query: str = query) -> None:
                spark.sql(query).collect()

            def narrowed(query: str = query) -> None:
                pipeline.sql(spark, query).collect()

            def duck(query: str = query) -> None:
                list(tables.query(query).rows)

            first = timed(narrowed).seconds
            runs: dict[str, list[Timed]] = {"Spark": [], "DuckDB": [], "plain": []}
            for _ in range(bench.rounds):
                for found, job in zip(runs.values(), (narrowed, duck, plain), strict=True):
                    found.append(timed(job, clock=cpu_time))
            seconds = {name: [run.seconds for run in found] for name, found in runs.items()}
            ours = {}
            for name in ("Spark", "DuckDB"):
                ours |= {f"{name}, seconds": seconds[name], f"{name}, CPU s": [run.cpu for run in runs[name]]}
            ours["narrowed, first"] = first
            ratios = divided(seconds["plain"], seconds["Spark"])
            bench.emit(Row(f"SQL: {what}", (), ours, {"plain Spark, seconds": seconds["plain"]}, ratios, f"{size / 1e9:.2f} GB of log"))


if __name__ == "__main__":
    main()
