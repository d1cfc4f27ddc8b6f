"""export to Parquet with bodies and lineage, zstd level 1, warm session local[2].

The peer decodes the log with one thread and writes nothing.
"""

from __future__ import annotations

from benchkit import Bench, Row, median, oracle

from mqstore.pipeline.export import export
from mqstore.pipeline.session import session


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    walks = oracle("scan", store, "--rounds", bench.rounds)
    size, messages = walks[0]["bytes"], walks[0]["records"]
    decoding = median([walk["decode_seconds"] for walk in walks])
    seconds: list[float] = []
    written = 0
    with session(master="local[2]") as spark:
        for _ in range(bench.rounds + 1):
            with bench.scratch("exported") as out:
                report = export(store, out, spark=spark, format="parquet")
                assert report.messages == messages
                seconds.append(report.seconds)
                written = sum(path.stat().st_size for path in out.rglob("*.parquet"))
    warm = median(seconds[1:])
    rate = size / warm / 1e6
    bench.emit(
        Row(
            "export to Parquet with bodies, zstd level 1",
            ">= 600 MB/s of log",
            {"MB/s": rate, "seconds": warm, "first": seconds[0], "written MB": written / 1e6},
            {"MB/s, decoding only, one thread": size / decoding / 1e6, "seconds": decoding},
            decoding / warm,
            rate >= 600,
            f"{size / 1e9:.2f} GB of log, {messages} messages, median of {bench.rounds}",
        )
    )


if __name__ == "__main__":
    main()
