"""A store as a whole: what the files suggest, and that reading leaves no trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.golden import CASES, PLAIN, GoldenCase, case_id, expected, groups, opened, unchanged
from support.stores import Store, message

import mqstore
from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.lookup.explain import query
from mqstore.rocketmq.verify.verification import verify


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_reading_changes_nothing(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        store = mqstore.open(opened(case), config=case.config)
        assert sum(batch.num_rows for batch in store.to_batches()) > 0
        verify(store)
        first = expected(case)[0]
        for name in ("disk", "recovered"):
            try:
                view = store.view(name)
            except RefusedError:
                continue
            query(store, view, first["topic"], first["uniq_key"] or "k", explain=True)
            view.consumer_offsets()
            assert all(queue.min_offset <= queue.max_offset for queue in view.queues())


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_version_is_suggested_by_the_files(case: GoldenCase) -> None:
    assert mqstore.open(opened(case)).version_hint == case.version


@pytest.mark.parametrize("case", [case for case in PLAIN if "broker-offsets" in case.name], ids=case_id)
def test_consumer_offsets_are_those_the_broker_loads(case: GoldenCase) -> None:
    found: dict[str, dict[str, int]] = {}
    for item in mqstore.open(opened(case), config=case.config).view().consumer_offsets():
        found.setdefault(f"{item.topic}@{item.group}", {})[str(item.queue_id)] = item.offset
    wanted = groups(case)["offset_table"]
    assert found == {key: by_queue for key, by_queue in wanted.items() if key.count("@") == 1 and by_queue}


def test_an_abort_file_marks_an_unclean_exit(tmp_path: Path) -> None:
    store = Store(tmp_path, abort=True)
    store.put(message("T"))
    store.write()
    assert mqstore.open(tmp_path).unclean
    (tmp_path / "abort").unlink()
    assert not mqstore.open(tmp_path).unclean


def test_a_record_of_version_2_marks_a_store_of_5(tmp_path: Path) -> None:
    store = Store(tmp_path / "five")
    store.put(message("T" * 200, version=2))
    store.write()
    assert mqstore.open(tmp_path / "five").version_hint == "5.3.3"
    store = Store(tmp_path / "four")
    store.put(message("T"))
    store.write()
    assert mqstore.open(tmp_path / "four").version_hint == "4.9.3"


def test_the_error_for_a_missing_queue_names_those_that_exist(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("orders", queue_id=0), message("orders", queue_id=3))
    store.write()
    view = mqstore.open(tmp_path).view()
    with pytest.raises(NotFoundError, match="no queue 7; it has 0, 3"):
        view.queue("orders", 7)
    with pytest.raises(NotFoundError, match="no consume queue of topic 'order'"):
        view.queue("order", 0)
    assert [(queue.topic, queue.queue_id, queue.min_offset, queue.max_offset) for queue in view.queues()] == [
        ("orders", 0, 0, 1),
        ("orders", 3, 0, 1),
    ]


def test_offsets_are_compared_with_their_queues(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(*[message("orders") for _ in range(5)], message("listless"))
    store.listed = 5
    store.write()
    store.write_file(
        "config/topics.json", b'{"topicConfigTable":{"listless":{"topicName":"listless","readQueueNums":1,"writeQueueNums":1}}}'
    )
    store.write_file(
        "config/consumerOffset.json",
        b'{"offsetTable":{"orders@a":{0:2},"orders@b":{0:5,1:0},"orders@c":{0:6},"orders@d":{0:-1},"listless@a":{0:0},"gone@a":{0:1}}}',
    )
    found = {(item.group, item.topic, item.queue_id): (item.state, item.lag) for item in mqstore.open(tmp_path).view().consumer_offsets()}
    assert found == {
        ("a", "orders", 0): ("ok", 3),
        ("b", "orders", 0): ("ok", 0),
        ("b", "orders", 1): ("no-queue", None),
        ("c", "orders", 0): ("above-max", -1),
        ("d", "orders", 0): ("below-min", 5),
        ("a", "listless", 0): ("no-queue", None),
        ("a", "gone", 0): ("no-topic", None),
    }


def test_a_store_opens_without_reading_its_log(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=1 << 20)
    for number in range(20):
        store.put(message("orders", keys=f"k{number}"))
    store.write()
    for number in range(1, 100):
        os.truncate(store.write_file(f"commitlog/{number << 30:020d}", b""), 1 << 30)
    os.truncate(tmp_path / "commitlog" / f"{0:020d}", 1 << 30)
    found = mqstore.open(tmp_path)
    assert found.log.size_on_paper == 100 << 30
    assert found.view().log_range() == (0, store.puts[-1].offset + len(store.puts[-1].raw))
    assert query(found, found.view(), "orders", "k7").messages == (store.puts[7].offset,)
