"""The test kit itself: a golden store adopted by a node yields what was recorded when the store was made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Declared, adopt, differences

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

GOLDEN = Path(__file__).parents[2] / "golden" / "rabbitmq-3.10.8"


def test_a_golden_store_is_adopted_and_drained_as_recorded_when_it_was_made() -> None:
    place = GOLDEN / "d-large-fanout"
    expected = [json.loads(line) for line in (place / "expected.jsonl").read_text().splitlines()]
    queues = [Declared(vhost, queue) for vhost, queue in sorted({(row["vhost"], row["queue"]) for row in expected})]
    adopted = adopt(place / "msg_stores.tar.xz", queues, {"msg_store_file_size_limit": 262144})
    assert adopted.sound, adopted
    assert differences(adopted.rows, expected) == []
    assert len(adopted.rows) == 225
