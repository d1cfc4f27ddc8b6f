"""Scan of message files (`.rdq`): finding all records and reading their ids, one file per task, on two threads.

The peer is the broker's own scan of the same files inside the real node, which reads them through its file cache, one after the other.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import rabbitkit
from benchkit import Bench, Row, median, timed

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.store.message_store import MessageStore

COUNT = 200_000
SIZES = (5000, 500)
THEIRS = 4  # files


def main() -> None:
    bench = Bench(__doc__ or "")
    for size in SIZES:
        count = rabbitkit.scaled(bench, COUNT * 5000 // size)
        config = rabbitkit.EngineConfig(queue_index_embed_msgs_below=1)
        place = next((rabbitkit.store(bench, count, size, config, "-stored") / "vhosts").iterdir())
        total = sum(file.stat().st_size for file in place.glob("msg_store_persistent/*.rdq"))

        def scan(place=place, count=count) -> None:
            store = MessageStore(ReadOnlyDirectory(place), "msg_store_persistent")
            with ThreadPoolExecutor(2) as pool:
                found = sum(len(records.at) for records in pool.map(store.records, store.files))
            assert found == count

        def whole(place=place, count=count) -> None:
            assert len(MessageStore(ReadOnlyDirectory(place), "msg_store_persistent")) == count

        seconds = median([timed(scan) for _ in range(bench.rounds)])
        table = median([timed(whole) for _ in range(bench.rounds)])
        files = sorted(place.glob("msg_store_persistent/*.rdq"))[:THEIRS]
        with rabbitkit.node() as node:
            node.start()
            start = time.perf_counter()
            for file in files:
                node.eval(f'oracle:rdq("{file}", "{node.base}/scanned").')
            theirs = sum(file.stat().st_size for file in files) / (time.perf_counter() - start) / 1e9
        rate = total / seconds / 1e9
        bench.emit(
            Row(
                f"scan of .rdq files, messages of {size} B",
                ">= 1 GB/s on 2 cores",
                {"GB/s": rate, "one thread, sorted by id": total / table / 1e9},
                {"GB/s": theirs},
                rate / theirs,
                rate >= 1,
                f"{count} messages, {total / 1e9:.2f} GB, medians of {bench.rounds}, files in the page cache",
            )
        )


if __name__ == "__main__":
    sys.exit(main())
