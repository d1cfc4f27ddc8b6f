"""Key queries on stores of real brokers: exactly the broker's index hits, and messages only if they have the key."""

from __future__ import annotations

from functools import cache

import pytest
from support.golden import CASES, GoldenCase, Outcome, case_id, expected, has, keys_of, opened, queries, run_cli, unchanged

import mqstore
from mqstore.rocketmq.lookup import explain
from mqstore.rocketmq.query import index_search
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import View

ASKED = tuple(case for case in CASES if has(case, "queries.jsonl"))
SAMPLE = 12  # queries per case that go through the whole command


@cache
def recovered(case: GoldenCase) -> tuple[RocketMQStore, View]:
    store = mqstore.open(opened(case))
    return store, store.view("recovered", as_=case.version)


def meant(case: GoldenCase, query: dict[str, object]) -> set[int]:
    """Return the index hits whose record is of the topic and has the key."""
    by_offset = {message["physical_offset"]: message for message in expected(case) if message.get("intact", True)}
    hits = query["index_offsets"]
    assert isinstance(hits, list)
    return {
        offset
        for offset in hits
        if offset in by_offset and by_offset[offset]["topic"] == query["topic"] and query["key"] in keys_of(by_offset[offset])
    }


def ask(case: GoldenCase, query: dict[str, object], *options: str) -> Outcome:
    asked = ["-t", query["topic"], "-k", query["key"], "-n", query["max_num"], "-b", query["begin"], "-e", query["end"]]
    return run_cli("query", opened(case), *asked, "-o", "json", "--view", "recovered", "--as", case.version, *options)


@pytest.mark.parametrize("case", ASKED, ids=case_id)
def test_the_index_answers_every_query_as_the_broker_does(case: GoldenCase) -> None:
    store, view = recovered(case)
    for query in queries(case):
        answer = explain.query(store, view, query["topic"], query["key"], query["max_num"], query["begin"], query["end"], scan=False)
        asked = f"{query['topic']} {query['key']} {query['max_num']} {query['begin']} {query['end']} {query.get('note', '')}"
        assert list(answer.index_hits) == query["index_offsets"], asked
        assert answer.index_last_update_timestamp == query["index_last_update_timestamp"], asked
        assert answer.index_last_update_phyoffset == query["index_last_update_phyoffset"], asked
        assert set(answer.messages) == meant(case, query), asked


@pytest.mark.parametrize("case", ASKED, ids=case_id)
def test_query_message_gives_the_brokers_messages_in_its_order(case: GoldenCase) -> None:
    _, view = recovered(case)

    def store_timestamp_at(offset: int) -> int | None:
        message = view.record(offset)
        return None if message is None else message.store_timestamp

    for query in queries(case):
        answer = index_search.query_messages(
            view.index_files(), store_timestamp_at, query["topic"], query["key"], query["max_num"], query["begin"], query["end"]
        )
        asked = f"{query['topic']} {query['key']} {query['max_num']} {query['begin']} {query['end']} {query.get('note', '')}"
        assert list(answer.offsets) == query["expected"], asked
        assert answer.last_update_timestamp == query["result_last_update_timestamp"], asked
        assert answer.last_update_physical_offset == query["result_last_update_phyoffset"], asked


@pytest.mark.parametrize("case", ASKED, ids=case_id)
def test_the_query_command_prints_hits_messages_and_what_is_missing(case: GoldenCase) -> None:
    asked = queries(case)
    with unchanged(opened(case)):
        for query in asked[:: max(1, len(asked) // SAMPLE)]:
            outcome = ask(case, query)
            assert outcome.status in (0, 1), outcome.stderr
            answer = outcome.document
            assert (answer["topic"], answer["key"], answer["view"]) == (query["topic"], query["key"], "recovered")
            assert answer["index_hits"] == query["index_offsets"]
            assert answer["index_last_update_timestamp"] == query["index_last_update_timestamp"]
            assert answer["index_last_update_phyoffset"] == query["index_last_update_phyoffset"]
            assert {row["physical_offset"] for row in answer["messages"]} == meant(case, query)
            assert isinstance(answer["complete"], bool)
            if not answer["messages"]:
                assert answer["reason"], "an empty answer has a reason"


@pytest.mark.parametrize("case", ASKED, ids=case_id)
def test_explained_answers_are_the_same_answers_with_steps(case: GoldenCase) -> None:
    asked = [query for query in queries(case) if query["index_offsets"]]
    for query in asked[:: max(1, len(asked) // 3)]:
        answer = ask(case, query, "--explain").document
        assert answer["index_hits"] == query["index_offsets"]
        assert answer["steps"]
