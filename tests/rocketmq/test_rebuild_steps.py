"""The steps of a rebuild: entries in their places, index files as the broker chains them, queues by its append rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, opened
from support.stores import Store, message

import mqstore
from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rocketmq.index_chains import build
from mqstore.rocketmq import rebuild_steps
from mqstore.rocketmq.dispatch.consume_queue_image import QueueImage
from mqstore.rocketmq.dispatch.dispatcher import KEY_ROW, QueueRun
from mqstore.rocketmq.dispatch.index_builder import IndexSequence, build_index, index_name, plan_index
from mqstore.rocketmq.rebuild_steps import DispatchTask, QueueBuildTask, RebuildSettings, build_queue, log_of, scan_split, settings_of
from mqstore.rocketmq.scan.splits import Split, plan


def task(store: Path, stage: Path, split: Split, **fields: object) -> DispatchTask:
    opened_store = mqstore.open(store)
    made = DispatchTask(str(store), None, str(stage), str(stage), split, settings_of(opened_store))
    return replace(made, **fields)  # type: ignore[arg-type]


def small(root: Path, count: int = 300) -> Path:
    store = Store(root, file_size=8192, queue_entries=20, positions=150)
    for number in range(count):
        store.put(message("orders", b"x" * (number % 90), keys=f"k{number} all", tags=f"T{number % 3}", queue_id=number % 3))
    return store.write()


def bytes_below(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def stage_in(root: Path) -> Path:
    root.mkdir()
    return root


def test_settings_come_from_the_files_that_are_there(tmp_path: Path) -> None:
    found = settings_of(mqstore.open(small(tmp_path)))
    assert (found.queue_file_size, found.index_slots, found.index_positions) == (400, 100, 150)


def test_tasks_of_one_run_in_one_process_share_the_log_and_those_of_another_open_it_again(tmp_path: Path) -> None:
    store = str(small(tmp_path, 1))
    assert log_of(store, None, "one") is log_of(store, None, "one")
    assert log_of(store, None, "one") is not log_of(store, None, "other")


def test_a_store_without_derived_files_gets_the_brokers_default_sizes(tmp_path: Path) -> None:
    store = Store(tmp_path, with_index=False, listed=0)
    store.put(message("orders"))
    found = settings_of(mqstore.open(store.write()))
    assert (found.queue_file_size, found.batch_file_size) == (6_000_000, 13_800_000)
    assert (found.index_slots, found.index_positions) == (5_000_000, 20_000_000)
    assert found.assumed_geometry.startswith("there is no index file that shows the geometry: ")


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_settings_of_a_golden_store_are_those_it_was_written_with(case: GoldenCase) -> None:
    found = settings_of(mqstore.open(opened(case)))
    assert found.index_slots == int(case.properties.get("maxHashSlotNum", 5_000_000))
    assert found.index_positions == int(case.properties.get("maxIndexNum", 20_000_000))
    assert found.queue_file_size == int(case.properties.get("mappedFileSizeConsumeQueue", 6_000_000))


def test_a_split_writes_its_entries_where_the_broker_has_them(tmp_path: Path) -> None:
    store, stage = small(tmp_path / "store"), stage_in(tmp_path / "stage")
    for split in plan(mqstore.open(store).log, count=4):
        result = scan_split(task(store, stage, split))
        assert all(part.plain and not part.segments for part in result.parts)
    assert bytes_below(stage / rebuild_steps.PLAIN / "consumequeue") == bytes_below(store / "consumequeue")


def test_a_repeated_attempt_changes_no_byte_and_stages_its_keys_again(tmp_path: Path) -> None:
    store, stage = small(tmp_path / "store"), stage_in(tmp_path / "stage")
    (split,) = plan(mqstore.open(store).log, count=1)
    first = scan_split(task(store, stage, split))
    before = bytes_below(stage)
    second = scan_split(task(store, stage, split))
    after = bytes_below(stage)
    assert first.parts == second.parts
    assert first.keys is not None
    assert second.keys is not None
    assert first.keys.path != second.keys.path
    assert before[first.keys.path] == after[second.keys.path]
    assert {name: raw for name, raw in after.items() if name != second.keys.path} == before


def test_a_late_attempt_does_not_make_its_stage_again(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    (split,) = plan(mqstore.open(store).log, count=1)
    with pytest.raises(TargetError):
        scan_split(task(store, tmp_path / "gone", split))
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "..", "", "x" * 300, "nul\0byte"])
def test_a_topic_that_cannot_be_a_directory_is_reported_and_writes_nothing(tmp_path: Path, topic: str) -> None:
    store = Store(tmp_path / "store")
    store.put(message("orders"), message(topic, version=2), message("orders"))
    for base, data in store.files.items():
        store.write_file(f"commitlog/{base:020d}", bytes(data).ljust(store.file_size, b"\0"))
    stage = stage_in(tmp_path / "stage")
    (split,) = plan(mqstore.open(store.root).log, count=1)
    result = scan_split(task(store.root, stage, split))
    assert result.records == 3
    assert result.unqueued == (topic,)
    assert [part.topic for part in result.parts] == ["orders"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage", "store"]


@pytest.mark.parametrize("queue_offset", [-1, -(2**63), 2**63 - 1, 2**60])
def test_a_queue_offset_beyond_all_bounds_is_left_to_the_append_rules(tmp_path: Path, queue_offset: int) -> None:
    store = Store(tmp_path / "store")
    store.next_queue_offset["orders", 0] = queue_offset
    store.put(message("orders"))
    for base, data in store.files.items():
        store.write_file(f"commitlog/{base:020d}", bytes(data).ljust(store.file_size, b"\0"))
    stage = stage_in(tmp_path / "stage")
    (split,) = plan(mqstore.open(store.root).log, count=1)
    result = scan_split(task(store.root, stage, split))
    assert [part.plain for part in result.parts] == [False]
    assert not (stage / rebuild_steps.PLAIN).exists()


# queues that are not plain


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_queue_built_from_segments_is_the_queue_the_broker_appends_to(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], cuts: int
) -> None:
    stage = tmp_path_factory.mktemp("stage")
    rows = np.zeros(len(offsets), np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]))
    rows["physical_offset"], rows["size"], rows["tags_code"] = 100 * np.arange(len(offsets)), 100, offsets
    image = QueueImage("orders", 0, 200)
    segments = []
    for number, chosen in enumerate(np.array_split(np.arange(len(offsets)), cuts)):
        if not len(chosen):
            continue
        numbers = np.array(offsets, np.int64)[chosen]
        entries = np.ascontiguousarray(rows[chosen]).view(np.uint8)
        plain = bool((np.diff(numbers) == 1).all())
        image.append(QueueRun("orders", 0, numbers, entries, plain))
        (stage / f"{number}.rows").write_bytes(numbers.astype("<i8").tobytes() + entries.tobytes())
        segments.append(rebuild_steps.StagedRows(f"{number}.rows", 0, len(chosen)))
    result = build_queue(QueueBuildTask(str(stage), "orders", 0, False, 200, tuple(segments)))
    wanted = {f"{file.start:020d}": file.bytes().tobytes().ljust(200, b"\0") for file in image.files}
    assert bytes_below(stage / rebuild_steps.EXACT / "consumequeue/orders/0") == wanted
    assert 20 * result.entries == sum(file.written for file in image.files)


# index files


def keys_of(count: int, start: int = 1_640_995_200_000, step: int = 700) -> np.ndarray:
    rows = np.zeros(count, KEY_ROW)
    rows["hash"] = np.arange(count) * 7919 % 1009
    rows["physical_offset"] = 1000 + 50 * (np.arange(count) // 2)
    rows["store_timestamp"] = start + step * (np.arange(count) // 2)
    return rows


@pytest.mark.parametrize("count", [0, 1, 18, 19, 20, 38, 39, 100])
@pytest.mark.parametrize("pieces", [1, 3])
def test_index_files_written_as_keys_come_and_one_by_one_are_the_same(tmp_path: Path, count: int, pieces: int) -> None:
    rows = keys_of(count)
    last = 10**6 if count % 2 else int(rows["physical_offset"][-1]) if count else -1
    one, other = stage_in(tmp_path / "one"), stage_in(tmp_path / "other")
    with DurableDirectory(one) as stage:
        sequence = IndexSequence(stage, "index", 10, 20)
        for part in np.array_split(rows, pieces):
            sequence.put(part)
        ends = sequence.finish(last, 1_700_000_000_000)
    staged = []
    for number, part in enumerate(np.array_split(rows, pieces)):
        (other / f"{number}.keys").write_bytes(part.tobytes())
        staged.append((f"{number}.keys", len(part)))
    tasks = plan_index(str(other), "index", 10, 20, staged, last, 1_700_000_000_000)
    assert [build_index(each) for each in reversed(tasks)][::-1] == ends
    assert bytes_below(one / "index") == bytes_below(other / "index") if ends else not tasks


def test_the_first_entry_of_a_follow_up_file_counts_from_the_end_of_the_file_before(tmp_path: Path) -> None:
    rows = keys_of(5, step=10_000)
    rows["store_timestamp"] = 1_640_995_200_000 + 10_000 * np.arange(5)
    with DurableDirectory(tmp_path) as stage:
        sequence = IndexSequence(stage, "index", 2, 4)
        sequence.put(rows)
        sequence.finish(int(rows["physical_offset"][-1]), 0)
    first, second = sorted((tmp_path / "index").iterdir())
    seconds = [[int.from_bytes(path.read_bytes()[48 + 20 * n + 12 :][:4], "big") for n in (1, 2)] for path in (first, second)]
    assert seconds == [[0, 10], [10, 10]]


def test_an_empty_index_file_is_there_once_a_record_without_keys_was_dispatched(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as stage:
        ends = IndexSequence(stage, "index", 2, 4).finish(0, 1_640_995_200_123)
    assert [(end.name, end.keys) for end in ends] == [("20220101000000123", 0)]
    assert (tmp_path / "index/20220101000000123").read_bytes() == bytes(40 + 8 + 80)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 5))
def test_names_of_index_files_ascend_whatever_the_times_are(time: int, more: int) -> None:
    name = index_name(time, None)
    for _ in range(more):
        following = index_name(time, name)
        assert following > name or name.startswith("99991231235959")
        name = following
    assert len(name) == 17
    assert name.isdecimal()


def test_slots_of_which_few_are_used_leave_the_file_a_hole(tmp_path: Path) -> None:
    with DurableDirectory(tmp_path) as stage:
        sequence = IndexSequence(stage, "index", 5_000_000, 20_000_000)
        sequence.put(keys_of(100))
        sequence.finish(0, 0)
    (path,) = (tmp_path / "index").iterdir()
    assert path.stat().st_size == 420_000_040
    assert path.stat().st_blocks * 512 < 1 << 20
    slots = np.zeros(5_000_000, np.int32)
    out = np.empty(100 * 20, np.uint8)
    build(keys_of(100).view(np.uint8), 1_640_995_200_000, 1, slots, out)
    with path.open("rb") as file:
        file.seek(40)
        assert (np.frombuffer(file.read(20_000_000), ">i4") == slots).all()
        file.seek(20_000_040 + 20)
        assert file.read(2000) == out.tobytes()


def test_defaults_are_the_brokers() -> None:
    assert RebuildSettings() == RebuildSettings(
        queue_file_size=300_000 * 20, batch_file_size=300_000 * 46, index_slots=5_000_000, index_positions=20_000_000
    )
