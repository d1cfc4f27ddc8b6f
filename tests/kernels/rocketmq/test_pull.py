"""The fast path of a pull: the same answers as the rules, cached and released maps, and results that outlive the store."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqstore.kernels.rocketmq import pull
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query.pull import GetResult, GetStatus, PullRules, _scan_slow, filter_hashes, kernel_limits

VERSIONS = ("4.9.3", "5.3.3")
TAGS = ("TagA", "TagB", "TagC")
LIMITS = (
    "goes_on_to_next_file", "in_memory_bytes", "travel_files", "max_filter_bytes",
    "count_in_memory", "bytes_in_memory", "count_on_disk", "bytes_on_disk",
)  # fmt: skip


def config(version: str, **changes: Any) -> StoreConfig:
    small = StoreConfig(version=version, commit_log_file_size=1 << 16, consume_queue_file_size=20 * 50, services=False)
    return replace(small, **changes)


def filled(store: MessageStore, count: int, dice: random.Random, queues: int = 3) -> None:
    for number in range(count):
        message = Message("T", bytes(dice.randrange(600)), queue_id=number % queues, tags=dice.choice(TAGS), keys=f"k{number}")
        assert store.put(message).stored
    store.dispatch_now()


def plainly(store: MessageStore, queue_id: int, offset: int, count: int, tags: TagFilter | None, rules: PullRules) -> GetResult:
    queue = store.queue_or_none("T", queue_id)
    assert queue is not None
    return _scan_slow(store.log, queue, offset, count, tags, rules, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fast_path_answers_like_the_entry_by_entry_rules(version: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with MessageStore.open(tmp_path / "store", config(version)) as store:
        filled(store, 900, dice)
        short = 0
        for _ in range(1500):
            if dice.random() < 0.02:
                filled(store, 5, dice)
            rules = PullRules(
                version=version,
                in_memory_bytes=dice.choice([1 << 40, 1 << 40, 0, 30_000]),
                travel_files=dice.choice([1, 1, 2]),
                max_total_bytes=dice.choice([128 << 20, 500, 1500]),
                max_filter_bytes=dice.choice([16_000, 16_000, 110]),
                max_bytes_in_memory=dice.choice([256 << 10, 3000]),
                max_count_in_memory=dice.choice([32, 5]),
            )
            path = pull.PullPath(
                GetResult, GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, store._recovery.queues, store.log, kernel_limits(rules)
            )
            tags = dice.choice([None, None, TagFilter.parse("TagA"), TagFilter.parse("TagB||TagC"), TagFilter.parse("TagZ")])
            queue_id, count = dice.randrange(3), dice.choice([-1, 0, 1, 7, 32, 900, 2**31 - 1])
            offset = dice.randrange(store.min_offset("T", queue_id), store.max_offset("T", queue_id))
            found = path.get("T", queue_id, offset, count, None if tags is None else filter_hashes(tags))
            if found is not None:
                short += 1
                assert found == plainly(store, queue_id, offset, count, tags, rules), (seed, queue_id, offset, count, tags, rules)
        assert short > 900


@pytest.mark.parametrize("version", VERSIONS)
def test_ordinary_pulls_of_a_store_take_the_fast_path_and_others_do_not(version: str, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", config(version)) as store:
        filled(store, 100, random.Random(1))
        get = store._pulls.get
        assert get("T", 0, 0, 32).queue_offsets == list(range(32))
        assert get("T", 0, 33, 32).next_begin_offset == 34
        nothing = get("T", 0, 0, 32, np.array([java_hash("TagZ")], np.int32))
        assert (nothing.status, nothing.next_begin_offset, nothing.slices) == (GetStatus.NO_MATCHED_MESSAGE, 34, [])
        for topic, queue_id, offset, count in [
            ("U", 0, 0, 32), ("T", 3, 0, 32), ("T", 0, -1, 32), ("T", 0, 34, 32), ("T", 0, 1 << 70, 32), ("T", 0, None, 32),
        ]:  # fmt: skip
            assert get(topic, queue_id, offset, count) is None
        assert store.get("g", "T", 0, 1 << 70).status == GetStatus.OFFSET_OVERFLOW_BADLY
        assert store.get("g", "T", 0, 0, filter="TagA || TagB").message_count == sum(
            record.property_map()["TAGS"] != "TagC" for record in store.get("g", "T", 0, 0, 900).records()
        ) + sum(record.property_map()["TAGS"] != "TagC" for record in store.get("g", "T", 0, 32, 900).records())


def test_few_maps_are_cached_and_those_of_removed_files_are_released(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with MessageStore.open(place, config("4.9.3")) as store:
        filled(store, 2000, random.Random(2), queues=120)
        for queue_id in range(120):
            assert store.get("g", "T", queue_id, 0).queue_offsets == list(range(store.max_offset("T", queue_id)))
        held = [file.mapped_bytes for queue in store.queues() for file in queue.files] + [file.mapped_bytes for file in store.log.files]
        assert 0 < sum(each is not None and each.view is not None for each in held) <= pull.MAX_MAPS
        first = store.log.files[0]
        found = store.get("g", "T", 1, 0, 1)
        before = (bytes(found.slices[0]), found.to_arrow())
        assert first.mapped_bytes is not None
        assert first.mapped_bytes.view is not None
        store.log.remove_first()
        assert first.mapped_bytes.view is None
        assert (bytes(found.slices[0]), found.to_arrow()) == before
        assert store.get("g", "T", 1, 0, 1).physical_offsets[0] >= store.log_min > 0
        whole = store.get("g", "T", 2, 5, 4)
        slices = [bytes(raw) for raw in whole.slices]
    assert [bytes(raw) for raw in whole.slices] == slices
    assert whole.to_arrow().num_rows == 4
    assert all(each is None or each.view is None for each in held)


def test_a_file_that_is_being_removed_is_not_held() -> None:
    class File:
        mapped_bytes: pull.MappedBytes | None = None
        kept: object = "its own map"

    path = pull.PullPath(GetResult, 1, 2, {}, None, kernel_limits(PullRules(version="4.9.3", in_memory_bytes=0)))
    file = File()
    path.hold(file, memoryview(b"bytes"))
    assert file.mapped_bytes is not None
    assert file.mapped_bytes.view is None


def test_rows_of_a_result_become_lists_and_slices() -> None:
    found = pull.PullResult("FOUND", 8, 0, 9)
    found.set_rows(np.array([5, 100, 3, 7, 104, 2], np.int64).tobytes(), 96, memoryview(b"0123abcdefghij"))
    assert (found.queue_offsets, found.physical_offsets, found.sizes) == ([5, 7], [100, 104], [3, 2])
    assert [bytes(raw) for raw in found.slices] == [b"abc", b"ef"]
    assert found.slices is found.slices


def test_a_queue_that_is_not_known_is_left_to_the_slow_path() -> None:
    path = pull.PullPath(pull.PullResult, 1, 2, {}, None, pull.Limits(**dict.fromkeys(LIMITS, 1)))
    assert path.get("T", 0, 0, 32) is None


def test_entries_outside_the_file_and_outputs_that_are_too_small_are_refused() -> None:
    raw = np.zeros(40, np.uint8)
    limits = kernel_limits(PullRules(version="4.9.3", in_memory_bytes=0))
    out = np.empty(limits.room, np.int64)
    for first, stop, room in ((-1, 2, out), (0, 3, out), (0, 2, out[:7])):
        with pytest.raises(ValueError, match="too small"):
            pull.scan(raw, first, stop, 0, 32, 0, limits, room)


def test_results_compare_and_show_what_was_pulled_not_its_address() -> None:
    one, other = (GetResult(GetStatus.FOUND, 1, 0, 1, [memoryview(b"a")], [0], [5], [1], 1, 1) for _ in range(2))
    other.view = memoryview(b"")
    assert one == other
    assert repr(one).startswith(
        "GetResult(status=<GetStatus.FOUND: 'FOUND'>, next_begin_offset=1, min_offset=0, max_offset=1, queue_offsets=[0]"
    )
    other.next_begin_offset = 2
    assert one != other
    assert one != "FOUND"
