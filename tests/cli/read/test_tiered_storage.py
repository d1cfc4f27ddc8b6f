"""Tiered storage of a real 5.5.0 broker: each log segment is read as a log, `salvage` reads all, and `inspect` of the store names it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.golden import Row, run_cli
from support.tiered import expected, unpack

import mqstore
from mqstore.places import open_rocketmq
from mqstore.table.text import columns_for, python_rows

COMPARED = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags", "keys", "uniq_key", "flag")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return unpack(tmp_path_factory.mktemp("tiered"))


def segments(tier: Path) -> list[Path]:
    return sorted(tier.rglob("COMMIT_LOG/*"))


def comparable(rows: list[Row]) -> list[Row]:
    """Return what a row of the message table says of a message, in the form of the expectation."""
    found = [
        {name: row[name] for name in COMPARED}
        | {
            "born_timestamp": row["born_timestamp"],
            "store_timestamp": row["store_timestamp"],
            "born_port": int(row["born_host"].rpartition(":")[2]),
            "shop": row["properties"]["shop"],
            "body": row["body"],
        }
        for row in rows
    ]
    return sorted(found, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def wanted() -> list[Row]:
    return [{name: value for name, value in row.items() if name != "log_offset"} for row in expected()]


def test_each_log_segment_is_read_as_a_log_with_the_offsets_that_the_broker_read(directories: tuple[Path, Path]) -> None:
    columns = columns_for("base64")
    stores = [open_rocketmq(segment) for segment in segments(directories[1])]
    rows = [row for store in stores for batch in store.to_batches(columns, milliseconds=True) for row in python_rows(batch, "base64")]
    assert comparable(rows) == wanted()
    assert {row["verdict"] for row in rows} == {"intact"}


def test_a_log_segment_has_no_damage(directories: tuple[Path, Path]) -> None:
    for segment in segments(directories[1]):
        report = mqstore.open(segment).verify()
        assert (list(report.damage), report.ok) == ([], True)


def test_salvage_finds_each_message_of_tiered_storage_once_and_leaves_out_what_is_derived(
    directories: tuple[Path, Path], tmp_path: Path
) -> None:
    target = tmp_path / "all.jsonl"
    run = run_cli("salvage", directories[1], "--to", target, "-o", "json")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert (run.status, Counter(row["verdict"] for row in rows)) == (0, {"intact": 300})
    assert (run.document["pieces"], run.document["unclaimed"]) == (7, [])
    assert comparable(rows) == wanted()


def test_sixteen_bytes_at_the_end_of_a_full_segment_of_an_older_broker_are_not_damage(
    directories: tuple[Path, Path], tmp_path: Path
) -> None:
    segment = tmp_path / "COMMIT_LOG" / "cfcd208400000000000000000000"
    segment.parent.mkdir()
    shutil.copyfile(next(path for path in segments(directories[1]) if path.name == segment.name), segment)
    before = len(mqstore.open(segment).to_arrow())
    with segment.open("ab") as file:
        file.write(bytes.fromhex("00000010 cbd43194 000001a20b0d4e60"))
    assert not mqstore.open(segment).verify().damage
    assert len(mqstore.open(segment).to_arrow()) == before
    assert run_cli("salvage", segment.parent, "--to", tmp_path / "out.jsonl").status == 0


def test_a_damaged_segment_is_damaged_and_the_rest_of_it_is_read(directories: tuple[Path, Path], tmp_path: Path) -> None:
    segment = tmp_path / "piece"
    whole = segments(directories[1])[0].read_bytes()
    segment.write_bytes(whole[:300] + bytes(40) + whole[340:])
    store = mqstore.open(segment)
    assert store.verify().damage
    assert len(store.to_arrow()) == len(mqstore.open(segments(directories[1])[0]).to_arrow()) - 1


def test_inspect_of_the_store_says_what_is_in_tiered_storage_and_how_to_read_it(directories: tuple[Path, Path]) -> None:
    told = " ".join(run_cli("inspect", directories[0]).stdout.split())
    size = sum(path.stat().st_size for path in segments(directories[1]))
    assert f"tiered storage: {size:,} bytes in 7 log segments of 4 queues" in told
    assert "mqstore salvage" in told


@pytest.mark.parametrize("level", ["", "*/broker-a/orders/0", "*/broker-a/orders/0/COMMIT_LOG"])
def test_a_directory_of_tiered_storage_is_named_and_not_taken_for_a_store(directories: tuple[Path, Path], level: str) -> None:
    place = next(directories[1].glob(level)) if level else directories[1]
    refused = run_cli("messages", place)
    assert refused.status == 2
    assert "tiered storage" in refused.stderr
    assert "mqstore salvage" in refused.stderr


@pytest.mark.parametrize(("kind", "what"), [("CONSUME_QUEUE", "consume queue"), ("INDEX", "key index")])
def test_a_segment_without_messages_says_what_it_is(directories: tuple[Path, Path], kind: str, what: str) -> None:
    refused = run_cli("messages", next(directories[1].rglob(f"{kind}/*")))
    assert refused.status == 2
    assert f"is a segment of the {what} in tiered storage and holds no messages" in refused.stderr
