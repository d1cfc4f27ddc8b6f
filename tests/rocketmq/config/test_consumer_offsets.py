"""Consumer offsets of a writable store: what a broker's offset manager answers, and its file."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, groups, opened

from mqstore.errors import NotFoundError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import ConsumerOffsets, OffsetChange, split
from mqstore.rocketmq.config.consumer_offsets import load_offset_table as load_table

VERSIONS = ("4.9.3", "5.3.3")
both = pytest.mark.parametrize("version", VERSIONS)


def made(version: str = "4.9.3", **tables: dict[int, int]) -> ConsumerOffsets:
    """offsets with group g: topic=by queue."""
    offsets = ConsumerOffsets(version, clock=lambda: 1000)
    for topic, by_queue in tables.items():
        for queue_id, offset in by_queue.items():
            offsets.commit("g", topic, queue_id, offset)
    return offsets


def written(root: Path, text: str, name: str = "consumerOffset.json") -> ReadOnlyDirectory:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(text)
    return ReadOnlyDirectory(root)


# committing and asking


@both
def test_an_unknown_offset_is_minus_one(version: str) -> None:
    offsets = made(version, t={1: 5})
    assert [offsets.query("g", "t", 0), offsets.query("h", "t", 1), offsets.query("g", "u", 1), offsets.query("g", "t", 1)] == [
        -1,
        -1,
        -1,
        5,
    ]


@both
def test_a_group_has_an_offset_where_it_has_committed_one(version: str) -> None:
    offsets = made(version, t={1: 0})
    assert [offsets.has_offset(*place) for place in (("g", "t", 1), ("g", "t", 0), ("h", "t", 1), ("g", "u", 1))] == [
        True,
        False,
        False,
        False,
    ]
    light = ConsumerOffsets(version, lmq=True)
    light.commit("%LMQ%g", "t", 0, 7)
    assert [light.has_offset(group, "t", 0) for group in ("%LMQ%g", "%LMQ%h", "g")] == [True, False, False]


@both
def test_a_commit_is_taken_even_when_it_goes_back(version: str) -> None:
    offsets = made(version, t={0: 9})
    assert offsets.commit("g", "t", 0, 4) == 9
    assert offsets.query("g", "t", 0) == 4


def test_the_data_version_counts_on_with_every_500th_commit_in_5_x() -> None:
    now = 1000
    offsets = ConsumerOffsets("5.3.3", clock=lambda: now)
    now = 2000
    for number in range(499):
        offsets.commit("g", "t", 0, number)
    assert '"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1000\n' in offsets.text()
    offsets.commit("g", "t", 0, 499)
    assert '"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":2000\n' in offsets.text()


@pytest.mark.parametrize(
    ("version", "min_offset", "first_entry", "zero", "answer"),
    [
        ("4.9.3", 0, "none", True, 0),  # an empty or unknown queue: 4.9.3 says zero, 5.3.3 not found
        ("5.3.3", 0, "none", True, None),
        ("4.9.3", 0, "memory", True, 0),
        ("5.3.3", 0, "memory", True, 0),
        ("5.3.3", 0, "memory", False, None),
        ("4.9.3", 0, "memory", False, 0),  # 4.9.3 has no such field in its request
        ("4.9.3", 0, "disk", True, None),
        ("5.3.3", 0, "disk", True, None),
        ("4.9.3", 7, "none", True, None),
        ("5.3.3", 7, "none", True, None),
    ],
)
def test_the_answer_for_an_unknown_offset(version: str, min_offset: int, first_entry: str, zero: bool, answer: int | None) -> None:
    offsets = made(version, t={0: 3})
    found = offsets.answer("g", "t", 1, min_offset=min_offset, first_entry=first_entry, zero_if_not_found=zero)  # type: ignore[arg-type]
    assert found == answer
    assert offsets.answer("g", "t", 0, min_offset=min_offset, first_entry="disk") == 3


def test_threads_that_commit_at_once_lose_nothing(tmp_path: Path) -> None:
    offsets = ConsumerOffsets("5.3.3", clock=lambda: 1000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def commit(thread: int) -> None:
        for number in range(1000):
            offsets.commit(f"g{number % 7}", f"t{thread}", number % 16, number)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    try:
        with DurableDirectory(tmp_path) as directory:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                offsets.persist(directory)
                assert fastjson.load(ReadOnlyDirectory(tmp_path), "config/consumerOffset.json").used == "main"
            for thread in threads:
                thread.join()
            offsets.persist(directory)
    finally:
        sys.setswitchinterval(interval)
    found = load_table(ReadOnlyDirectory(tmp_path)).offsets
    assert len(found) == 28
    for thread in range(4):
        last = {(number % 7, number % 16): number for number in range(1000)}
        assert {(group, queue): found[f"g{group}", f"t{thread}"][queue] for group, queue in last} == last
    assert '"counter":8,' in offsets.text()


# groups and topics


def test_groups_and_topics_are_found_by_each_other() -> None:
    offsets = made(t={0: 1}, u={0: 1})
    offsets.commit("h", "t", 0, 1)
    assert (offsets.groups_of("t"), offsets.groups_of("u"), offsets.groups_of("v")) == ({"g", "h"}, {"g"}, frozenset())
    assert (offsets.topics_of("g"), offsets.topics_of("h"), offsets.topics_of("x")) == ({"t", "u"}, {"t"}, frozenset())


def test_keys_are_split_as_java_splits_them(tmp_path: Path) -> None:
    offsets = ConsumerOffsets.load(
        written(tmp_path, '{"offsetTable":{"a@b@":{0:1},"a@b@c":{0:2},"lone":{0:3},"t@":{0:4},"@g":{0:5},"@":{0:6},"":{0:7}}}'), "4.9.3"
    )
    assert (offsets.groups_of("a"), offsets.topics_of("g"), offsets.topics_of("c")) == ({"b"}, {""}, frozenset())
    assert [split(key) for key in ("", "@", "@@b", "a@@b")] == [None, None, None, None]
    assert fastjson.parse(offsets.text()) == json.loads((tmp_path / "config/consumerOffset.json").read_text().replace("0:", '"0":'))


def test_a_clone_takes_the_place_of_what_the_target_had_and_goes_its_own_way() -> None:
    offsets = made(t={0: 1, 1: 2})
    offsets.commit("h", "t", 5, 50)
    assert offsets.clone("g", "h", "t")
    offsets.commit("g", "t", 0, 9)
    assert offsets.by_queue("h", "t") == {0: 1, 1: 2}
    assert not offsets.clone("nobody", "h", "t")
    assert offsets.by_queue("h", "t") == {0: 1, 1: 2}


def test_removing_a_group_takes_its_resets_along_and_no_group_of_a_longer_name() -> None:
    offsets = made("5.3.3", t={0: 1}, u={0: 2})
    offsets.commit("gg", "t", 0, 3)
    offsets.assign_reset("g", "t", 0, 7)
    assert offsets.remove("g") == 2
    assert [offsets.query("g", "t", 0), offsets.query("gg", "t", 0)] == [-1, 3]
    assert not offsets.has_reset("g", "t", 0)
    assert offsets.remove("g") == 0


def test_removing_a_topic_leaves_the_other_topics() -> None:
    offsets = made(t={0: 1}, u={0: 2})
    offsets.commit("h", "t", 0, 3)
    assert offsets.remove_topic("t") == 2
    assert (offsets.topics_of("g"), offsets.topics_of("h")) == ({"u"}, frozenset())


@both
def test_the_smallest_offset_of_all_groups_leaves_out_what_has_expired_and_deletes_nothing(version: str) -> None:
    offsets = made(version, t={0: 3, 1: 20, 2: 1}, u={0: 1})
    for queue_id, offset in {0: 9, 1: 10}.items():
        offsets.commit("h", "t", queue_id, offset)
    before = offsets.text()
    assert offsets.min_in_all_groups("t", lambda queue_id: 2) == {0: 3, 1: 10}
    assert offsets.min_in_all_groups("t", lambda queue_id: 4) == {0: 9, 1: 10}
    assert offsets.min_in_all_groups("t", lambda queue_id: 2, without=["g"]) == {0: 9, 1: 10}
    assert offsets.text() == before  # the broker deletes all of g here, of topic u too


def test_lag_is_told_of_queues_with_an_offset_and_is_negative_behind_the_end() -> None:
    assert made(t={0: 3, 1: 12}).lag("g", "t", {0: 10, 1: 10, 2: 10}) == {0: 7, 1: -2}


# resets


def test_a_server_side_reset_comes_first_until_a_pull_takes_it() -> None:
    offsets = made("5.3.3", t={0: 30})
    offsets.assign_reset("g", "t", 0, 7)
    offsets.commit("g", "t", 0, 31)  # a consumer that does not know of the reset yet
    assert (offsets.query("g", "t", 0), offsets.has_reset("g", "t", 0)) == (7, True)
    assert [offsets.pop_reset("g", "t", 0), offsets.pop_reset("g", "t", 0)] == [7, None]
    assert (offsets.query("g", "t", 0), offsets.has_reset("g", "t", 0)) == (31, False)


@pytest.mark.parametrize(("group", "topic", "queue_id", "offset"), [("", "t", 0, 0), ("g", "", 0, 0), ("g", "t", -1, 0), ("g", "t", 0, -1)])
def test_a_reset_without_a_name_or_below_zero_is_refused(group: str, topic: str, queue_id: int, offset: int) -> None:
    offsets = made("5.3.3")
    before = offsets.text()
    with pytest.raises(UsageError):
        offsets.assign_reset(group, topic, queue_id, offset)
    assert offsets.text() == before


def test_a_reset_goes_back_only_unless_it_is_forced() -> None:
    offsets = made(t={0: 30, 1: 3})
    assert offsets.reset("g", "t", {0: 10, 1: 10, 2: 10}, force=False) == (
        OffsetChange(0, 30, 10, 10),
        OffsetChange(1, 3, 10, 3),
        OffsetChange(2, -1, 10, -1),
    )
    assert offsets.by_queue("g", "t") == {0: 10, 1: 3}
    offsets.reset("g", "t", {0: 12, 1: 10, 2: 10}, force=True)
    assert offsets.by_queue("g", "t") == {0: 12, 1: 10, 2: 10}


def test_4_9_3_resets_by_time_only_a_group_that_has_an_offset_everywhere() -> None:
    offsets = made("4.9.3", t={0: 30, 1: 30})
    times = {0: 12, 1: -1, 2: 5}

    def by_time(queue_id: int, timestamp: int) -> int:
        assert timestamp == 777
        return times[queue_id]

    changes = offsets.reset_by_time("g", "t", [0, 1], 777, offset_by_time=by_time, max_offset=lambda queue_id: 99)
    assert [(change.before, change.after) for change in changes] == [(30, 12), (30, 0)]
    with pytest.raises(NotFoundError, match="no offset in queue 2"):
        offsets.reset_by_time("g", "t", [0, 1, 2], 777, offset_by_time=by_time, max_offset=lambda queue_id: 99, force=True)
    assert offsets.by_queue("g", "t") == {0: 12, 1: 0}


def test_5_3_3_resets_by_time_on_the_server_side_forced_or_not() -> None:
    offsets = made("5.3.3", t={0: 3})
    offsets.reset_by_time("g", "t", [0, 1], -1, offset_by_time=lambda queue_id, timestamp: 0, max_offset=lambda queue_id: 40 + queue_id)
    assert offsets.by_queue("g", "t") == {0: 40, 1: 41}
    assert (offsets.pop_reset("g", "t", 0), offsets.pop_reset("g", "t", 1)) == (40, 41)


def test_skipping_moves_to_the_end() -> None:
    offsets = made(t={0: 3})
    offsets.skip_to_max("g", "t", {0: 10, 1: 20})
    assert offsets.lag("g", "t", {0: 10, 1: 20}) == {0: 0, 1: 0}


# LMQ


@both
def test_an_lmq_group_has_one_offset_per_topic_in_a_table_of_its_own(version: str, tmp_path: Path) -> None:
    """The texts are what the LmqConsumerOffsetManager of either version prints."""
    offsets = ConsumerOffsets(version, lmq=True, clock=lambda: 1000)
    offsets.commit("%LMQ%g", "%LMQ%t", 3, 9)
    offsets.commit("g", "t", 3, 5)
    assert [offsets.query("%LMQ%g", "%LMQ%t", queue_id) for queue_id in (0, 3)] == [9, 9]
    assert offsets.by_queue("%LMQ%g", "%LMQ%t") == {0: 9}
    five = (
        '\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":1000\n\t},\n\t"groupTopicMap":{\n\t\t"g":["t"]\n\t},'
    )
    tables = '\n\t"lmqOffsetTable":{\n\t\t"%LMQ%t@%LMQ%g":9\n\t},\n\t"offsetTable":{\n\t\t"t@g":{3:5\n\t\t}\n\t}\n}'
    assert offsets.text() == "{" + (five if version == "5.3.3" else "") + tables
    with DurableDirectory(tmp_path) as directory:
        offsets.persist(directory)
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["lmqConsumerOffset.json"]
    again = ConsumerOffsets.load(ReadOnlyDirectory(tmp_path), version, lmq=True, clock=lambda: 1000)
    assert again.text() == offsets.text()
    assert again.remove("%LMQ%g") == (1 if version == "5.3.3" else 0)


def test_without_lmq_such_a_group_is_like_any_other() -> None:
    offsets = ConsumerOffsets("4.9.3")
    offsets.commit("%LMQ%g", "t", 3, 9)
    assert offsets.text() == '{\n\t"offsetTable":{\n\t\t"t@%LMQ%g":{3:9\n\t\t}\n\t}\n}'


# the file


def test_the_empty_table_of_each_version(tmp_path: Path) -> None:
    assert ConsumerOffsets.load(ReadOnlyDirectory(tmp_path), "4.9.3").text() == '{\n\t"offsetTable":{}\n}'
    assert ConsumerOffsets.load(ReadOnlyDirectory(tmp_path), "5.3.3", clock=lambda: 7).text() == (
        '{\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":7\n\t},\n\t"groupTopicMap":{},\n\t"offsetTable":{}\n}'
    )


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_offsets_of_real_stores_are_those_the_broker_loads(case: GoldenCase) -> None:
    offsets = ConsumerOffsets.load(ReadOnlyDirectory(opened(case)), case.version)
    wanted = {key: {int(queue): offset for queue, offset in part.items()} for key, part in groups(case)["offset_table"].items()}
    for key, by_queue in wanted.items():
        topic, _, group = key.partition("@")
        assert offsets.by_queue(group, topic) == by_queue
    assert fastjson.parse(offsets.text())["offsetTable"].keys() == wanted.keys()


def test_what_is_not_known_here_survives_a_save(tmp_path: Path) -> None:
    reading = written(tmp_path, '{"aaa":{"deep":[1,{"b":null}]},"offsetTable":{"t@g":{0:1}},"zzz":"x"}')
    for version in VERSIONS:
        value = fastjson.parse(ConsumerOffsets.load(reading, version).text())
        assert (value["aaa"], value["zzz"], next(iter(value)), list(value)[-1]) == ({"deep": [1, {}]}, "x", "aaa", "zzz")


def test_4_9_3_drops_what_5_3_3_derives_and_5_3_3_makes_it() -> None:
    five = ReadOnlyDirectory(opened(case_named("5.3.3/j-broker-offsets")))
    assert list(fastjson.parse(ConsumerOffsets.load(five, "4.9.3").text())) == ["offsetTable"]
    four = ReadOnlyDirectory(opened(case_named("4.9.3/f-broker-offsets")))
    upgraded = fastjson.parse(ConsumerOffsets.load(four, "5.3.3", clock=lambda: 5).text())
    assert upgraded["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 5}
    assert sorted(upgraded["groupTopicMap"]["s62_odd"]) == ["%RETRY%s62_odd", "s62_audit-log"]


def test_what_cannot_be_taken_is_a_finding_and_left_out(tmp_path: Path) -> None:
    offsets = ConsumerOffsets.load(written(tmp_path, '{"offsetTable":{"t@g":{0:1,1:"x"},"u@g":7},"lmqOffsetTable":[]}'), "4.9.3")
    assert {item.kind for item in offsets.findings} == {Kind.BAD_CONFIG}
    assert (offsets.by_queue("g", "t"), offsets.by_queue("g", "u")) == ({0: 1}, {})


def test_queue_ids_are_written_in_ascending_order() -> None:
    assert '"t@g":{1:1,2:2,10:3\n' in made(t={10: 3, 2: 2, 1: 1}).text()


def test_the_group_map_is_in_the_order_of_javas_hash_map() -> None:
    """Names and order are those of the golden store's file, committed here in another order."""
    file = fastjson.load(ReadOnlyDirectory(opened(case_named("5.3.3/j-broker-offsets"))), "config/consumerOffset.json").value
    offsets = ConsumerOffsets("5.3.3")
    for key in sorted(file["offsetTable"]):
        topic, _, group = key.partition("@")
        offsets.commit(group, topic, 0, 1)
    found = fastjson.parse(offsets.text())["groupTopicMap"]
    assert list(found) == list(file["groupTopicMap"])
    assert found == file["groupTopicMap"]
