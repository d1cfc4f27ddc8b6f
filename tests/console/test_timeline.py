"""The chart of messages over time, for stores with more queue entries than a page can read."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support import stores as storekit
from support.console import tables, visiting, words

from mqstore.console.jobs import SMALL
from mqstore.rocketmq.format.consume_queue import ENTRY, ConsumeQueueReader
from mqstore.rocketmq.store import timeline
from mqstore.rocketmq.store.view import COUNTED

ENTRIES_PER_FILE = 300_000  # a broker's default
RECORDS = 1500  # of the log; each is listed 200 times by every queue
QUEUES = {"orders": 24, "payments": 12, "TopicTest": 9}
EACH = ENTRIES_PER_FILE // RECORDS
HOUR = 3_600_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> storekit.Store:
    """A store with 13.5 million queue entries in 45 full queue files. The files are one file with many names, so little is written."""
    made = storekit.Store(tmp_path_factory.mktemp("long") / "store", with_index=False, listed=0)
    for number in range(RECORDS):
        # busier by the hour: 1, 2, ... records
        hour = int((np.sqrt(8 * number + 1) - 1) / 2)
        made.put(storekit.message("orders"), at=hour * HOUR + number)
    made.write()
    entries = np.zeros(ENTRIES_PER_FILE, ENTRY)
    entries["physical_offset"] = np.repeat([put.offset for put in made.puts], EACH)
    entries["size"] = np.repeat([len(put.raw) for put in made.puts], EACH)
    first = made.write_file(f"consumequeue/orders/0/{0:020d}", entries.tobytes())
    for topic, number in QUEUES.items():
        for queue_id in range(number):
            place = made.root / f"consumequeue/{topic}/{queue_id}/{0:020d}"
            place.parent.mkdir(parents=True, exist_ok=True)
            if place != first:
                os.link(first, place)
    return made


def counting(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the entries that are read from queue files, and how often."""
    seen: Counter[str] = Counter()
    entries = ConsumeQueueReader.entries

    def counted(queue: ConsumeQueueReader, start: int, stop: int) -> Any:
        found = entries(queue, start, stop)
        seen["reads"] += 1
        seen["entries"] += len(found)
        return found

    monkeypatch.setattr(ConsumeQueueReader, "entries", counted)
    return seen


def whole(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.real_sizes
def test_the_page_of_a_store_with_millions_of_entries_reads_few_and_says_that_it_sampled(
    store: storekit.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(QUEUES.values()) * ENTRIES_PER_FILE
    assert total > max(timeline.COUNTED, COUNTED)
    assert sum(path.stat().st_blocks * 512 for path in store.root.rglob("*") if path.is_file()) > SMALL
    seen = counting(monkeypatch)
    with visiting(store.root) as visitor:
        visitor.get("/stores/0")
        for job in visitor.console.jobs.all():
            assert job.settled.wait(60)
        page = visitor.get("/stores/0")
    assert {job.kind for job in visitor.console.jobs.all()} == {"look", "draw"}
    assert seen["reads"] < 30_000
    assert seen["entries"] < total // 40
    text = words(page)
    assert "The store is large, so it is not read without being asked" in text
    assert re.search(rf"About {total:,} messages, at most [\d,]+ in .*: sampled", text)
    periods = tables(page)["Messages over time"]
    assert len(periods) > 20
    expected: Counter[int] = Counter()
    for put in store.puts:
        expected[(put.time - storekit.BEGIN) // HOUR] += EACH
    assert sum(whole(row["Messages"]) for row in periods) == total
    for row in periods:
        assert whole(row["orders"]) * 45 == whole(row["Messages"]) * QUEUES["orders"]
        assert whole(row["payments"]) == 12 * (whole(row["Messages"]) // 45)
    assert [whole(row["Messages"]) for row in periods] == [45 * number for _, number in sorted(expected.items())]
