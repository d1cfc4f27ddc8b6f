"""`mqstore messages` on stores of real brokers: every field of every message as the broker itself reads it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from support.golden import CASES, DAMAGED, PLAIN, GoldenCase, case_id, case_named, expected, opened, run_cli, same_fields, unchanged

# the columns that expectations can be compared with; body_len and body_sha256 represent the body
FIELDS = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "tags",
    "keys",
    "uniq_key",
    "body_len",
    "body_sha256",
    "body_crc",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "msg_id",
    "properties",
)
BELIEVABLE = {"intact", "unindexed"}


def messages(case: GoldenCase, *options: str) -> list[dict[str, object]]:
    store = opened(case)
    with unchanged(store):
        outcome = run_cli("messages", store, "-o", "jsonl", "--body", "sha256", *options)
    assert outcome.status in (0, 1), outcome.stderr
    return outcome.rows


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_recovered_view_gives_every_message_as_the_broker_reads_it(case: GoldenCase) -> None:
    rows = messages(case, "--view", "recovered", "--as", case.version)
    wanted = expected(case)
    assert [row["physical_offset"] for row in rows] == [message["physical_offset"] for message in wanted]
    for row, message in zip(rows, wanted, strict=True):
        assert same_fields(row, message, FIELDS) == [], message["physical_offset"]
        assert row["body_crc_ok"] is True
        assert row["verdict"] in BELIEVABLE


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_the_disk_view_misses_nothing_that_the_broker_has(case: GoldenCase) -> None:
    rows = {row["physical_offset"]: row for row in messages(case)}
    for message in expected(case):
        row = rows[message["physical_offset"]]
        assert same_fields(row, message, FIELDS) == [], message["physical_offset"]
        assert row["verdict"] in BELIEVABLE
        assert (opened(case) / str(row["store_file"])).is_file()


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_exactly_the_untouched_messages_of_a_damaged_store_are_valid(case: GoldenCase) -> None:
    rows = messages(case)
    found = {row["physical_offset"]: row for row in rows if row["verdict"] in BELIEVABLE}
    intact = {message["physical_offset"]: message for message in expected(case) if message["intact"]}
    assert set(found) == set(intact)
    for offset, message in intact.items():
        assert same_fields(found[offset], message, FIELDS) == [], offset


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_rows_come_in_physical_order_and_once(case: GoldenCase) -> None:
    offsets = [row["physical_offset"] for row in messages(case)]
    assert offsets == sorted(set(offsets))  # type: ignore[type-var]


def test_filters_keep_exactly_the_rows_they_name() -> None:
    case = case_named("4.9.3/a-clean-small")
    everything = messages(case)
    topic = str(everything[5]["topic"])
    assert messages(case, "--topic", topic) == [row for row in everything if row["topic"] == topic]
    low, high = 100_000, 300_000
    inside = [row for row in everything if low <= int(str(row["physical_offset"])) < high]
    assert inside
    assert messages(case, "--from-offset", str(low), "--to-offset", str(high)) == inside
    times = sorted(int(str(row["store_timestamp"])) for row in everything)
    since, until = times[len(times) // 3], times[2 * len(times) // 3]
    window = [row for row in everything if since <= int(str(row["store_timestamp"])) < until]
    assert window
    assert messages(case, "--since", str(since), "--until", str(until)) == window
    tags = next(str(row["tags"]) for row in everything if row["tags"])
    assert messages(case, "--tags", tags) == [row for row in everything if row["tags"] == tags]
    assert messages(case, "--limit", "7") == everything[:7]


@pytest.mark.parametrize("name", ["4.9.3/e-delay-transaction-batch", "5.3.3/i-v2-codecs-crc"])
def test_bodies_are_printed_decompressed(name: str) -> None:
    case = case_named(name)
    outcome = run_cli("messages", opened(case), "-o", "jsonl", "--body", "base64", "--view", "recovered", "--as", case.version)
    for row, message in zip(outcome.rows, expected(case), strict=True):
        body = base64.b64decode(row["body"])
        assert hashlib.sha256(body).hexdigest() == message["body_sha256"], message["physical_offset"]


def test_an_archive_is_read_like_the_directory_in_it() -> None:
    case = case_named("5.3.3/h-kill9")
    packed = run_cli("messages", case.path / "store.tar.xz", "-o", "jsonl", "--body", "sha256")
    assert [row["physical_offset"] for row in packed.rows] == [row["physical_offset"] for row in messages(case)]


def test_csv_has_one_row_per_line(tmp_path: Path) -> None:
    import csv
    import io

    case = case_named("4.9.3/b-kill9")
    outcome = run_cli("messages", opened(case), "-o", "csv", "--view", "recovered")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert [int(row["physical_offset"]) for row in rows] == [message["physical_offset"] for message in expected(case)]
