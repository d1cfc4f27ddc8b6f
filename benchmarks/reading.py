"""Getting 32 messages of 1 KiB from a queue, and querying a key, warm: our engine and the real 4.9.3 store on the same files.

The real store's getMessage returns slices of the mapped log, like our `slices`. Decoding is what its client does with them
(MessageDecoder.decode, every field and all properties); ours decodes either to one Arrow batch or to Python objects. Queues and
offsets are drawn at random, from the same distribution on both sides but not in the same order. The rounds alternate; each
opens the store and measures the last of several passes over the same drawn gets, for us the second, for the real store the fifth or sixth.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchkit import TOPICS, Bench, Row, Target, divided, oracle, percentiles, warm

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.query.pull import GetResult

MESSAGES = 200_000
COUNT = 4000
QUEUES = 8
BATCH = 32
USES: dict[str, tuple[Callable[[GetResult], int], str, float | None]] = {  # with the peer's figure, and how many times as fast it should be
    "as raw slices": (lambda got: len(got.slices), "get_us_p50", None),
    "as an Arrow batch, decoded": (lambda got: got.to_arrow().num_rows, "get_decode_us_p50", 1.2),
    "as Python objects": (lambda got: len(got.records()), "get_decode_us_p50", 0.8),
}


def main() -> None:
    bench = Bench(__doc__ or "")
    messages = max(20_000, int(MESSAGES * bench.options.scale))
    names = {use: f"get of {BATCH} messages {use}" for use in USES}
    by_key = "query by key, decoded"
    gets: list[dict[str, float]] = []
    queries: list[dict[str, float]] = []
    times: dict[str, list[list[int]]] = {what: [] for what in (*USES, by_key)}
    with bench.scratch("reading") as path:
        oracle("gen", path, "--messages", messages, "--keys", "s1")
        warm(path)
        for _ in range(bench.rounds):
            gets += oracle("get", path, "--count", COUNT)
            queries += oracle("query", path, "--count", COUNT, "--messages", messages)
            with MessageStore.open(path, StoreConfig(version="4.9.3")) as store:
                for what, (use, _, _) in USES.items():
                    if bench.wants(names[what]):
                        times[what].append([gets_of(store, messages, use) for _ in range(2)][-1])
                if bench.wants(by_key):
                    times[by_key].append([queries_of(store, messages) for _ in range(2)][-1])
    theirs = {
        "getMessage p50 us": [row["get_us_p50"] for row in gets],
        "p95 us": [row["get_us_p95"] for row in gets],
        "with decoding p50 us": [row["get_decode_us_p50"] for row in gets],
        "decoding p95 us": [row["get_decode_us_p95"] for row in gets],
    }
    for what, (_, peer, least) in USES.items():
        if times[what]:
            ours = percentiles(times[what])
            targets = [] if least is None else [Target(">=", least, "x getMessage with the client's decoding")]
            ratios = divided([row[peer] for row in gets], ours["p50 us"])
            conditions = f"{COUNT} gets of {BATCH} x 1 KiB from {messages} messages"
            bench.emit(Row(names[what], targets, ours, theirs, ratios, conditions))
    if times[by_key]:
        ours = percentiles(times[by_key])
        base = [row["query_message_us_p50"] for row in queries]
        theirs = {
            "queryMessage p50 us": base,
            "p95 us": [row["query_message_us_p95"] for row in queries],
            "with decoding p50 us": [row["query_decode_us_p50"] for row in queries],
        }
        conditions = f"{COUNT} random keys of {messages} messages"
        bench.emit(Row(by_key, [Target("<=", 3, "x queryMessage")], ours, theirs, divided(ours["p50 us"], base), conditions))


def gets_of(store: MessageStore, messages: int, use: Callable[[GetResult], int]) -> list[int]:
    """Return the nanoseconds of each get."""
    last = messages // (TOPICS * QUEUES) - BATCH
    pick = random.Random(7)
    places = [(f"bench-{pick.randrange(TOPICS)}", pick.randrange(QUEUES), pick.randrange(last)) for _ in range(COUNT)]
    clock = time.perf_counter_ns
    times = []
    for topic, queue, offset in places:
        start = clock()
        count = use(store.get("bench", topic, queue, offset, BATCH))
        times.append(clock() - start)
        assert count == BATCH
    return times


def queries_of(store: MessageStore, messages: int) -> list[int]:
    """Return the nanoseconds of each query."""
    numbers = random.Random(7).choices(range(messages), k=COUNT)
    clock = time.perf_counter_ns
    times = []
    for topic, key in [(f"bench-{number % TOPICS}", f"order-{number:09d}") for number in numbers]:
        start = clock()
        found = store.query(topic, key, BATCH).records
        times.append(clock() - start)
        assert any(record.property_map()["KEYS"] == key for record in found)
    return times


if __name__ == "__main__":
    main()
