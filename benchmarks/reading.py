"""Getting 32 messages of 1 KiB from a queue, and querying a key, warm: our engine and the real 4.9.3 store on the same files.

The real store's getMessage returns slices of the mapped log, like our `slices`. Decoding is what its client does with them
(MessageDecoder.decode, every field and all properties); ours decodes either to one Arrow batch or to Python objects. Queues and
offsets are drawn at random, from the same distribution on both sides but not in the same order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchkit import TOPICS, Bench, Row, oracle, warm

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.query.pull import GetResult

MESSAGES = 200_000
COUNT = 4000
QUEUES = 8
BATCH = 32


def percentiles(nanoseconds: list[int]) -> dict[str, float]:
    ordered = sorted(nanoseconds)
    return {"p50 us": ordered[len(ordered) // 2] / 1e3, "p95 us": ordered[len(ordered) * 95 // 100] / 1e3}


def main() -> None:
    bench = Bench(__doc__ or "")
    messages = max(20_000, int(MESSAGES * bench.options.scale))
    with bench.scratch("reading") as path:
        oracle("gen", path, "--messages", messages, "--keys", "s1")
        warm(path)
        (get,) = oracle("get", path, "--count", COUNT, "--rounds", max(5, bench.rounds))
        (query,) = oracle("query", path, "--count", COUNT, "--messages", messages)
        with MessageStore.open(path, StoreConfig(version="4.9.3")) as store:
            gets(bench, store, messages, get)
            queries(bench, store, messages, query)


def gets(bench: Bench, store: MessageStore, messages: int, peer: dict[str, float]) -> None:
    last = messages // (TOPICS * QUEUES) - BATCH
    pick = random.Random(7)
    places = [(f"bench-{pick.randrange(TOPICS)}", pick.randrange(QUEUES), pick.randrange(last)) for _ in range(COUNT)]
    clock = time.perf_counter_ns

    def measured(use: Callable[[GetResult], int]) -> dict[str, float]:
        times: list[int] = []
        for _ in range(bench.rounds):
            times = []
            for topic, queue, offset in places:
                start = clock()
                count = use(store.get("bench", topic, queue, offset, BATCH))
                times.append(clock() - start)
                assert count == BATCH
        return percentiles(times)

    alone, decoded = peer["get_us_p50"], peer["get_decode_us_p50"]
    theirs = {
        "getMessage p50 us": alone,
        "p95 us": peer["get_us_p95"],
        "with decoding p50 us": decoded,
        "decoding p95 us": peer["get_decode_us_p95"],
    }
    for what, use, base, least in (
        ("as raw slices", lambda got: len(got.slices), alone, None),
        ("as an Arrow batch, decoded", lambda got: got.to_arrow().num_rows, decoded, 1.2),
        ("as Python objects", lambda got: len(got.records()), decoded, 0.8),
    ):
        ours = measured(use)
        ratio = base / ours["p50 us"]
        peer_name = "getMessage" if base is alone else "getMessage with the client's decoding"
        conditions = f"{COUNT} gets of {BATCH} x 1 KiB from {messages} messages, last of {bench.rounds} rounds"
        target, met = ("", None) if least is None else (f">= {least} x {peer_name}", ratio >= least)
        bench.emit(Row(f"get of {BATCH} messages {what}", target, dict(ours), dict(theirs), ratio, met, conditions))


def queries(bench: Bench, store: MessageStore, messages: int, peer: dict[str, float]) -> None:
    numbers = random.Random(7).choices(range(messages), k=COUNT)
    keys = [(f"bench-{number % TOPICS}", f"order-{number:09d}") for number in numbers]
    clock = time.perf_counter_ns
    times: list[int] = []
    for _ in range(bench.rounds):
        times = []
        for topic, key in keys:
            start = clock()
            found = store.query(topic, key, BATCH).records
            times.append(clock() - start)
            assert any(record.property_map()["KEYS"] == key for record in found)
    ours, base = percentiles(times), peer["query_message_us_p50"]
    factor = ours["p50 us"] / base
    theirs = {"queryMessage p50 us": base, "p95 us": peer["query_message_us_p95"], "with decoding p50 us": peer["query_decode_us_p50"]}
    conditions = f"{COUNT} random keys of {messages} messages, last of {bench.rounds} rounds"
    bench.emit(Row("query by key, decoded", "<= 3 x queryMessage", dict(ours), theirs, factor, factor <= 3, conditions))


if __name__ == "__main__":
    main()
