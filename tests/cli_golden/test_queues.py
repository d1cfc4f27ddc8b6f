"""`mqstore queue`, `topics` and `groups` on stores of real brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import (
    CASES,
    DAMAGED,
    PLAIN,
    GoldenCase,
    boot,
    boot_abort,
    case_id,
    expected,
    groups,
    opened,
    queues,
    run_cli,
    unchanged,
    unpack,
)

import mqstore


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_entry_of_every_queue_is_the_brokers(case: GoldenCase) -> None:
    store = opened(case)
    with unchanged(store):
        for queue in queues(case):
            outcome = run_cli("queue", store, queue["topic"], queue["queue_id"], "-o", "jsonl", "--view", "recovered", "--as", case.version)
            assert outcome.status == 0, outcome.stderr
            rows = outcome.rows
            found = [[row["physical_offset"], row["size"], row["tags_code"]] for row in rows]
            name = f"{queue['topic']} {queue['queue_id']}"
            assert found == [entry[:3] for entry in queue["entries"]], name
            offsets = [row["queue_offset"] for row in rows]
            if queue.get("batch"):
                assert offsets == [entry[3] for entry in queue["entries"]], name
            else:
                assert offsets == list(range(queue["min_offset"], queue["max_offset"])), name


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_queues_of_the_recovered_view_have_the_brokers_bounds(case: GoldenCase) -> None:
    store = mqstore.open(opened(case))
    found = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.batch)
        for queue in store.view("recovered", as_=case.version).queues()
    }
    for queue in queues(case):
        wanted = (queue["min_offset"], queue["max_offset"], queue.get("batch", False))
        assert found[queue["topic"], queue["queue_id"]] == wanted, queue["topic"]


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_topics_lists_every_queue_with_its_bounds(case: GoldenCase) -> None:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("topics", store, "-o", "jsonl", "--view", "recovered", "--as", case.version)
    assert outcome.status == 0, outcome.stderr
    found = {(row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"]) for row in outcome.rows if row["queue_id"] is not None}
    wanted = {(queue["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"]) for queue in queues(case)}
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_committed_offsets_are_those_that_the_broker_loads(case: GoldenCase) -> None:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("groups", store, "-o", "jsonl", "--view", "recovered", "--as", case.version)
    assert outcome.status in (0, 1), outcome.stderr
    found: dict[str, dict[str, int]] = {}
    for row in outcome.rows:
        found.setdefault(f"{row['topic']}@{row['group']}", {})[str(row["queue_id"])] = row["offset"]
        if row["min_offset"] is not None:
            assert row["lag"] == row["max_offset"] - row["offset"]
            state = "below-min" if row["offset"] < row["min_offset"] else "above-max" if row["offset"] > row["max_offset"] else "ok"
            assert row["state"] == state
    assert found == {name: offsets for name, offsets in groups(case)["offset_table"].items() if offsets}


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_recovery_cuts_the_log_where_the_broker_does(case: GoldenCase) -> None:
    wanted = boot(case)
    low, high = mqstore.open(opened(case)).view("recovered", as_=case.version).log_range()
    assert high == wanted["max_phy_offset_after_load"]
    assert low == wanted["min_phy_offset"]


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
@pytest.mark.parametrize("abort", [False, True], ids=["clean-exit", "abort-file"])
def test_recovery_of_a_damaged_store_is_the_brokers(case: GoldenCase, abort: bool, tmp_path: Path) -> None:
    wanted = boot_abort(case) if abort else boot(case)
    root = unpack(case, tmp_path / "store")
    if abort:
        (root / "abort").write_bytes(b"")
    if not wanted["load_ok"]:
        outcome = run_cli("messages", root, "-o", "jsonl", "--view", "recovered", "--as", case.version)
        assert outcome.status == 2
        assert "Traceback" not in outcome.stderr
        assert outcome.stderr.strip()
        return
    # without any consume queue, only the configuration has the size of their files
    view = mqstore.open(root, config=case.path / "store.properties").view("recovered", as_=case.version)
    assert view.log_range() == (wanted["min_phy_offset"], wanted["max_phy_offset_after_load"])
    bounds = [[queue.topic, queue.queue_id, queue.min_offset, queue.max_offset] for queue in view.queues()]
    assert sorted(bounds) == sorted(wanted["queues"])
    readable = {offset for batch in view.batches(["physical_offset"]) for offset in batch.column(0).to_pylist()}
    assert set(wanted["readable_offsets"]) <= readable
    assert readable <= {message["physical_offset"] for message in expected(case)}
