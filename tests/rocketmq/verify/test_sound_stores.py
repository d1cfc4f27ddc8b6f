"""What real brokers of every version left is sound: `verify` finds no damage in it, with and without the broker's configuration."""

from __future__ import annotations

import pytest
from support.golden import FURTHER, PLAIN, GoldenCase, case_id, case_named, opened

import mqstore
from mqstore.findings import Kind, Report
from mqstore.rocketmq.verify.verification import verify

CLOSED = tuple(case for case in (*PLAIN, *FURTHER) if "kill9" not in case.name)
KILLED = tuple(case for case in (*PLAIN, *FURTHER) if "kill9" in case.name)

each_way = pytest.mark.parametrize("configured", [False, True], ids=["inferred", "configured"])


def checked(case: GoldenCase, configured: bool) -> Report:
    return verify(mqstore.open(opened(case), config=case.config if configured and case.properties else None))


@each_way
@pytest.mark.parametrize("case", CLOSED, ids=case_id)
def test_a_store_that_a_broker_closed_is_sound(case: GoldenCase, configured: bool) -> None:
    report = checked(case, configured)
    assert (report.damage, report.ok) == ((), True)


@each_way
@pytest.mark.parametrize("case", KILLED, ids=case_id)
def test_a_killed_store_has_notes_and_at_most_a_torn_last_record(case: GoldenCase, configured: bool) -> None:
    report = checked(case, configured)
    assert {item.kind for item in report.damage} <= {Kind.TORN_RECORD}
    assert report.notes


def test_of_every_version_there_is_a_store() -> None:
    assert {case.version for case in CLOSED} == {"4.3.0", "4.7.1", "4.9.3", "5.1.4", "5.3.3", "5.5.0"}
    assert len(KILLED) == 6


def test_the_entries_of_tags_are_checked_like_those_of_keys() -> None:
    # 5.5.0 puts `topic#T#tags` after the keys of a record
    case = case_named("5.5.0/a-clean")
    store = mqstore.open(opened(case), config=case.config)
    assert store.rules().index_tags
    assert verify(store).checked.index_entries == 1663
    assert not mqstore.open(opened(case_named("5.3.3/g-clean-small"))).rules().index_tags
