"""Key query, warm, one key at a time: index probe to physical offsets, and to decoded messages, against the real store's queryMessage.

Both sides query the same number of random keys of the same store; each round queries each key once, so that its cache lines have been
evicted when it is queried again. The rounds alternate; one of the real store is the last of six in a JVM.
"""

from __future__ import annotations

import random
import time

from benchkit import TOPICS, Bench, Row, Target, divided, oracle, percentiles

import mqstore
from mqstore.rocketmq.query.index_search import query_offsets

COUNT = 20_000


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    messages = bench.messages("s2") if bench.options.s2 is None else None
    view = mqstore.open(store).view("disk")
    if messages is None:
        messages = sum(queue.max_offset for queue in view.queues())
    files = view.index_files()
    numbers = random.Random(7).choices(range(messages), k=COUNT)
    keys = [(f"bench-{number % TOPICS}", f"order-{number:09d}") for number in numbers]
    clock = time.perf_counter_ns
    peer: list[dict[str, float]] = []
    probes: list[list[int]] = []
    decodes: list[list[int]] = []
    for _ in range(bench.rounds):
        peer += oracle("query", store, "--messages", messages, "--count", COUNT)
        probes.append([])
        for topic, key in keys:
            start = clock()
            answer = query_offsets(files, topic, key, 32)
            probes[-1].append(clock() - start)
            assert answer.offsets
        decodes.append([])
        for topic, key in keys:
            start = clock()
            found = [view.record(offset) for offset in query_offsets(files, topic, key, 32).offsets]
            decodes[-1].append(clock() - start)
            assert any(message is not None and message.property_map()["KEYS"] == key for message in found)
    base = [row["query_message_us_p50"] for row in peer]
    theirs = {
        "queryMessage p50 us": base,
        "p95 us": [row["query_message_us_p95"] for row in peer],
        "index alone p50 us": [row["query_offset_us_p50"] for row in peer],
        "with decoding p50 us": [row["query_decode_us_p50"] for row in peer],
    }
    for what, limit, times in (("physical offsets", 3, probes), ("decoded messages", 6, decodes)):
        ours = percentiles(times)
        target = Target("<=", limit, "x queryMessage")
        conditions = f"{COUNT} random keys of {messages} messages"
        bench.emit(Row(f"key query to {what}", [target], ours, theirs, divided(ours["p50 us"], base), conditions))


if __name__ == "__main__":
    main()
