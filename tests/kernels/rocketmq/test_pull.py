"""The fast path of a pull: the same answers as the rules, cached and released maps, and results that outlive the store."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kernels import sources

from mqstore.kernels import is_compiled
from mqstore.kernels.rocketmq import pull
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.tag_filter import TagFilter
from mqstore.rocketmq.query.pull import GetResult, GetStatus, PullRules, _scan_slow, filter_hashes, kernel_limits

VERSIONS = ("4.9.3", "5.3.3")
TAGS = ("TagA", "TagB", "TagC")
LIMITS = (
    "is_v5", "in_memory_bytes", "travel_files", "max_filter_bytes", "count_in_memory", "bytes_in_memory", "count_on_disk", "bytes_on_disk",
)  # fmt: skip

compiled = pytest.mark.skipif(not is_compiled(), reason="uncompiled, every pull goes the long way")


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


@compiled
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


@compiled
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


@compiled
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


@compiled
def test_a_file_that_is_being_removed_is_not_held() -> None:
    class File:
        mapped_bytes: pull.MappedBytes | None = None
        kept: object = "its own map"

    path = pull.PullPath(GetResult, 1, 2, {}, None, kernel_limits(PullRules(version="4.9.3", in_memory_bytes=0)))
    file = File()
    path.hold(file, memoryview(b"bytes"))
    assert file.mapped_bytes is not None
    assert file.mapped_bytes.view is None


def source_of_the_kernel() -> Any:
    """Return the kernel loaded from its `.py` file."""
    return sources(pull)[0]


def test_the_scan_equals_that_of_its_source() -> None:
    source = source_of_the_kernel()
    dice = random.Random(5)
    for _ in range(300):
        codes = [*range(4), -5] if dice.random() < 0.8 else [*range(4), -(1 << 31) - 1]
        sizes = [100, 300, 20_000] if dice.random() < 0.8 else [100, 0]
        rows = [(dice.randrange(1 << 20), dice.choice(sizes), dice.choice(codes)) for _ in range(dice.randrange(1, 60))]
        raw = np.array(rows, ENTRY).view(np.uint8)
        facts: dict[str, Any] = {
            "is_v5": dice.random() < 0.5, "in_memory_bytes": dice.choice([1 << 40, 1 << 19]), "travel_files": 1,
            "max_filter_bytes": dice.choice([16_000, 100]), "count_in_memory": 32, "bytes_in_memory": 30_000, "count_on_disk": 8,
            "bytes_on_disk": 2000,
        }  # fmt: skip
        hashes = dice.choice([None, np.array([1, -5], np.int32), np.array([], np.int32)])
        outs = []
        for kernel in (pull, source):
            limits = kernel.Limits(**facts)
            out = np.zeros(limits.room, np.int64)
            first, count = dice.randrange(len(rows)) if not outs else outs[0][3], dice.choice([1, 32, 900]) if not outs else outs[0][4]
            taken = kernel.scan(raw, first, len(rows), 7, count, 1 << 20, limits, out, hashes)
            outs.append((taken, out[: pull.SCAN_HEADER + 3 * max(0, taken)].tolist(), out[:0].tolist(), first, count))
        assert outs[0][:2] == outs[1][:2] or (outs[0][0], outs[1][0]) == (-1, -1)


def test_results_of_kernel_and_source_have_the_same_layout() -> None:
    rows = np.array([5, 100, 3, 7, 104, 2], np.int64).tobytes()
    for kernel in (pull, source_of_the_kernel()):
        found = kernel.PullResult("FOUND", 8, 0, 9)
        found.set_rows(rows, 96, memoryview(b"0123abcdefghij"))
        assert (found.queue_offsets, found.physical_offsets, found.sizes) == ([5, 7], [100, 104], [3, 2])
        assert [bytes(raw) for raw in found.slices] == [b"abc", b"ef"]
        assert found.slices is found.slices
        path = kernel.PullPath(kernel.PullResult, 1, 2, {}, None, kernel.Limits(**dict.fromkeys(LIMITS, 1)))
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
