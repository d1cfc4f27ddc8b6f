"""Key query, warm, one key at a time: index probe to physical offsets, and to decoded messages, against the real store's queryMessage.

Both sides query the same number of random keys of the same store; each round queries each key once, so that its cache lines have been
evicted when it is queried again.
"""

from __future__ import annotations

import random
import time

from benchkit import TOPICS, Bench, Row, oracle

import mqstore
from mqstore.rocketmq.query.index_search import query_offsets

COUNT = 20_000


def percentiles(nanoseconds: list[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    return {"p50 us": ordered[len(ordered) // 2] / 1e3, "p95 us": ordered[len(ordered) * 95 // 100] / 1e3}


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    messages = bench.messages("s2") if bench.options.s2 is None else None
    view = mqstore.open(store).view("disk")
    if messages is None:
        messages = sum(queue.max_offset for queue in view.queues())
    (peer,) = oracle("query", store, "--messages", messages, "--count", COUNT)
    files = view.index_files()
    numbers = random.Random(7).choices(range(messages), k=COUNT)
    keys = [(f"bench-{number % TOPICS}", f"order-{number:09d}") for number in numbers]
    clock = time.perf_counter_ns
    probes: list[int] = []
    decodes: list[int] = []
    for _ in range(bench.rounds):
        probes, decodes = [], []
        for topic, key in keys:
            start = clock()
            answer = query_offsets(files, topic, key, 32)
            probes.append(clock() - start)
            assert answer.offsets
        for topic, key in keys:
            start = clock()
            found = [view.record(offset) for offset in query_offsets(files, topic, key, 32).offsets]
            decodes.append(clock() - start)
            assert any(message is not None and message.property_map()["KEYS"] == key for message in found)
    base = peer["query_message_us_p50"]
    probed, decoded = percentiles(probes), percentiles(decodes)
    conditions = f"{COUNT} random keys of {messages} messages, last of {bench.rounds} rounds"
    theirs = {
        "queryMessage p50 us": base,
        "p95 us": peer["query_message_us_p95"],
        "index alone p50 us": peer["query_offset_us_p50"],
        "with decoding p50 us": peer["query_decode_us_p50"],
    }
    for what, limit, ours in (("physical offsets", 3.0, probed), ("decoded messages", 6.0, decoded)):
        factor = ours["p50 us"] / base
        row = Row(f"key query to {what}", f"<= {limit:.0f} x queryMessage", dict(ours), dict(theirs), factor, factor <= limit, conditions)
        bench.emit(row)


if __name__ == "__main__":
    main()
