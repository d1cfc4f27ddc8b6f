"""The recovered view, against what the original brokers held in memory after loading the same directories."""

from __future__ import annotations

from typing import Any

import pytest
from goldenkit import CASES, DAMAGED, PLAIN, GoldenCase, boot, boot_abort, case_id, expected, has, opened, queries, queues, unchanged

import mqstore
from mqstore.errors import RefusedError
from mqstore.rocketmq.commitlog import Records
from mqstore.rocketmq.indexquery import query_offsets
from mqstore.rocketmq.recovery import RecoveredView, recover

Row = dict[str, Any]


def recovered(case: GoldenCase, *, unclean: bool | None = None) -> RecoveredView:
    store = mqstore.open(opened(case), config=case.config)
    return recover(store, case.version, unclean=unclean)


def header(file: Any) -> Row:
    fields = (file.begin_timestamp, file.end_timestamp, file.begin_physical_offset, file.end_physical_offset)
    names = ("begin_timestamp", "end_timestamp", "begin_phy_offset", "end_phy_offset")
    return {**dict(zip(names, fields, strict=True)), "hash_slot_count": file.hash_slot_count, "index_count": file.index_count}


def agrees(view: RecoveredView, found: Row) -> None:
    assert view.log_range() == (found["min_phy_offset"], found["max_phy_offset_after_load"])
    assert view.log_files() == found["after"]["commitlog"]
    assert [header(file) for file in view.index_files()] == [
        {name: value for name, value in file.items() if name != "name"} for file in found["index_files"]
    ]
    kept = [file["name"] for file in found["index_files"] if file["name"] in found["before"]["index"]]
    assert [file.name for file in view.index_files()][: len(kept)] == kept


def bounds(view: RecoveredView) -> list[list[Any]]:
    return [[queue.topic, queue.queue_id, queue.min_offset, queue.max_offset] for queue in view.queues()]


def walked(view: RecoveredView) -> list[int]:
    """Physical offsets of the records that an unbroken walk from the minimum reaches."""
    low, high = view.log_range()
    found: list[int] = []
    for event in view.log.scan(low, high):
        if isinstance(event, Records):
            found.extend((event.file.start + event.positions).tolist())
        elif not hasattr(event, "position"):
            break
    return found


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_log_and_index_are_what_the_broker_holds(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        agrees(recovered(case), boot(case))


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_queue_is_what_the_broker_holds(case: GoldenCase) -> None:
    view = recovered(case)
    assert [(queue.topic, queue.queue_id) for queue in view.queues()] == sorted((row["topic"], row["queue_id"]) for row in queues(case))
    for row in queues(case):
        queue = view.queue(row["topic"], row["queue_id"])
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (
            row["min_offset"],
            row["max_offset"],
            row["max_physic_offset"],
        )
        entries = queue.entries(queue.min_offset, queue.max_offset)
        names = ["physical_offset", "size", "tags_code"] + (["base_offset", "count"] if queue.batch else [])
        found = [[int(entry[name]) for name in names] for entry in entries]
        assert found == row["entries"], f"{row['topic']}/{row['queue_id']}"


@pytest.mark.parametrize("case", [case for case in CASES if has(case, "queries.jsonl")], ids=case_id)
def test_every_key_query_is_answered_as_the_broker_does(case: GoldenCase) -> None:
    files = recovered(case).index_files()
    for row in queries(case):
        answer = query_offsets(files, row["topic"], row["key"], row["max_num"], row["begin"], row["end"])
        wanted = (row["index_offsets"], row["index_last_update_timestamp"], row["index_last_update_phyoffset"])
        assert (list(answer.offsets), answer.last_update_timestamp, answer.last_update_physical_offset) == wanted, row


@pytest.mark.parametrize("case", [case for case in PLAIN if has(case, "expected.jsonl")], ids=case_id)
def test_the_messages_are_those_that_the_broker_reads(case: GoldenCase) -> None:
    offsets = [offset for batch in recovered(case).batches(["physical_offset"]) for offset in batch.column(0).to_pylist()]
    assert offsets == [row["physical_offset"] for row in expected(case)]


@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_a_damaged_store_is_loaded_as_the_broker_loads_it(case: GoldenCase, unclean: bool) -> None:
    found = boot_abort(case) if unclean else boot(case)
    if not found["load_ok"]:
        with pytest.raises(RefusedError):
            recovered(case, unclean=unclean)
        return
    view = recovered(case, unclean=unclean)
    agrees(view, found)
    assert bounds(view) == sorted(found["queues"])
    assert walked(view) == found["readable_offsets"]
