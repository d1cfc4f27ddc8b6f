"""Messages at the limits of a store that gives them offsets of further queues: the real stores refuse the same ones, by the same status."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.laboratory import put_answers, run_scripts, same_files
from interop.realbroker import VERSIONS, why_not
from interop.scripts import SNAPSHOT, START, Operation, Script

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

LIMIT = 2000
QUEUES = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%bb"


def put(body: int, properties: str) -> Operation:
    return {"topic": "T", "queue_id": 0, "born_timestamp": START, "properties_text": properties, "body": "x" * body}


def script(seed: int, version: str, puts: list[Operation], **options: str) -> Script:
    settings = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "8", "maxIndexNum": "40"}
    settings |= {"enableMultiDispatch": "true", "enableLmq": "true", **options}
    first = [{"op": "clock", "set": START, "step": 1}, *puts, {"op": "snapshot", "to": SNAPSHOT}]
    return Script(seed, version, settings, first, [{"op": "clock", "set": START + 90_000_000, "step": 1}, put(1, "KEYS\x01k")])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_that_its_queue_offsets_make_too_long_is_refused_as_the_real_store_refuses_it(version: str, tmp_path: Path) -> None:
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)
    bodies = [put(body, f"{QUEUES}\x02{rest}") for body in range(LIMIT - 220, LIMIT + 2) for rest in ("", "WAIT\x01true")]
    texts = [put(1, f"{QUEUES}\x02a\x01{'v' * filler}") for filler in range(32_767 - 90, 32_767 - 20)]
    scripts = [
        script(1, version, bodies, maxMessageSize=str(LIMIT), mappedFileSizeCommitLog="65536"),
        script(2, version, texts, maxMessageSize="65536", mappedFileSizeCommitLog="1048576"),
    ]
    lab = run_scripts(version, tmp_path, scripts)
    for each in scripts:
        assert put_answers("first")(lab, each) + same_files("first")(lab, each) == []
    statuses = {row["status"] for each in scripts for row in lab.ours["first", each.seed]}
    assert statuses == {"PUT_OK", "MESSAGE_ILLEGAL"} | ({"UNKNOWN_ERROR"} if version == "4.9.3" else set())
