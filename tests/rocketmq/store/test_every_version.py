"""Stores of further versions: messages and answers to key queries are those that the broker of the same version had of them."""

from __future__ import annotations

import pytest
from support.golden import FURTHER, GoldenCase, boot, case_id, has, opened, queries

from mqstore.places import open_rocketmq
from mqstore.rocketmq.query.index_search import query_offsets

ANSWERED = [case for case in FURTHER if has(case, "boot.json")]


def test_of_every_version_there_are_answers() -> None:
    assert {case.version for case in ANSWERED if has(case, "queries.jsonl")} == {"4.3.0", "4.7.1", "5.1.4", "5.5.0"}


@pytest.mark.parametrize("case", ANSWERED, ids=case_id)
def test_the_recovered_view_has_the_messages_that_the_broker_read(case: GoldenCase) -> None:
    view = open_rocketmq(opened(case), config=case.config).view("recovered", case.version)
    said = boot(case)
    assert view.log_range() == (said["min_phy_offset"], said["max_phy_offset"])
    assert sum(batch.num_rows for batch in view.batches(["topic", "body"])) == said["messages"]


@pytest.mark.parametrize("case", [case for case in ANSWERED if has(case, "queries.jsonl")], ids=case_id)
def test_every_key_query_is_answered_as_by_the_broker_of_that_version(case: GoldenCase) -> None:
    opening = open_rocketmq(opened(case), config=case.config)
    view = opening.view("recovered", case.version)
    files, low = view.index_files(), view.log_range()[0]
    found = 0
    for row in queries(case):
        question = (row["topic"], row["key"], row["max_num"], row["begin"], row["end"])
        answer = query_offsets(files, *question)
        wanted = (row["index_offsets"], row["index_last_update_timestamp"], row["index_last_update_phyoffset"])
        assert (list(answer.offsets), answer.last_update_timestamp, answer.last_update_physical_offset) == wanted, row
        for offset in row["expected"]:
            record = opening.log.record(offset)
            assert record is not None
            assert offset >= low
            found += 1
    assert found > 50
