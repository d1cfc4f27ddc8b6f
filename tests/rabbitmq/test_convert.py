"""Conversion between the queue versions: every message stays, with its number, its marks and its properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import goldenkit
import pytest
from goldenkit import GoldenCase, case_id

from mqstore.rabbitmq.convert import convert
from mqstore.rabbitmq.reader import RabbitMQStore

FIELDS = (
    "vhost", "queue", "priority_level", "pos", "seq_id", "persistent", "expiry_us", "size", "redelivered", "msg_id", "exchange",
    "routing_keys", "properties_json", "payload_len", "payload_sha256", "recovered",
)  # fmt: skip
GIVEN = [name for name in FIELDS if name != "properties_json"]


def rows(store: Path) -> list[dict[str, Any]]:
    """What a broker would recover of a store, in its order."""
    found = RabbitMQStore(store).to_arrow(FIELDS).to_pylist()
    return [row for row in found if row["recovered"]]


def expected(case: GoldenCase) -> list[dict[str, Any]]:
    return [row for row in goldenkit.expected(case) if row["recovered"]]


def beyond(case: GoldenCase) -> int:
    """Messages that are there and that the broker loses: in the left-over of a merge, behind zeros."""
    return 6 if case.name == "e3-gc-interrupted-zero-extended" else 0


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_golden_stores_keep_every_field_through_both_versions(case: GoldenCase, tmp_path: Path) -> None:
    want = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in expected(case)}
    source = goldenkit.opened(case)
    for step, version in enumerate((2, 1, 2)):
        report = convert(source, tmp_path / f"step{step}", version)
        assert report.messages == len(want) + beyond(case)
        source = tmp_path / f"step{step}"
        found = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in rows(source)}
        assert len(found) == report.messages
        for key, row in want.items():
            got = found[key]
            assert {name: got[name] for name in GIVEN if name != "pos" or not beyond(case)} == {
                name: row[name] for name in GIVEN if name != "pos" or not beyond(case)
            }
            assert json.loads(got["properties_json"]) == row["properties"]
    files = {path.suffix for path in source.rglob("*") if path.is_file()}
    assert not files & {".idx", ".jif", ".rdt", ".ets", ".dot"}
