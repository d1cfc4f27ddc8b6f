"""What a real consumer gets of a batch queue after a repair has filled a damaged place of the log, on real stores."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from interop.clientoracle import CLIENTS, why_not
from interop.realbroker import JVM, java
from support.golden import GoldenCase, case_named, opened, run_cli, unpack
from support.rocketmq_states import record_starts

from mqstore.places import open_rocketmq

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

CASES = {"5.3.3": "5.3.3/o-batch-queue", "5.5.0": "5.5.0/b-batch-queue"}
TOPIC = "batched"
PROGRAM = str(Path(__file__).with_name("batched") / "Pull.java")


def _delivered(version: str, case: GoldenCase, store: Path, queue_id: int, home: Path) -> list[str]:
    """Return what a real consumer gets by pulls of a queue, with the store opened in place: queue offset, topic, hash of the body."""
    command = [str(java()), *JVM, f"-Duser.home={home}", "-cp", f"{CLIENTS}/target/{version}/lib/*", PROGRAM]
    done = subprocess.run(
        [*command, str(store), str(case.config), TOPIC, str(queue_id)], capture_output=True, text=True, timeout=300, cwd=home, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.count("\t") == 2]  # others are its log


@pytest.mark.parametrize("version", CASES)
def test_consumers_get_everything_else_of_a_batch_queue_whose_records_a_repair_has_filled(version: str, tmp_path: Path) -> None:
    """Without a step for its units clients dropped up to 20 messages more, which they had pulled with the filler."""
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    case = case_named(CASES[version])
    stores = unpack(case, tmp_path / "sound"), unpack(case, tmp_path / "store")
    log = min((stores[1] / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    begin, end = (record_starts(raw)[number] for number in (60, 75))
    log.write_bytes(raw[:begin] + bytes(end - begin) + raw[end:])
    assert run_cli("repair", stores[1], "--config", case.config, "--apply").status == 0
    total = 0
    for queue in open_rocketmq(opened(case), config=case.config).batch_queues():
        units = queue.entries(queue.min_offset, queue.max_offset)
        gone = units[(units["physical_offset"] >= begin) & (units["physical_offset"] < end)]
        lost = {int(base) + number for base, count in zip(gone["base_offset"], gone["count"], strict=True) for number in range(count)}
        before, after = (Counter(_delivered(version, case, store, queue.queue_id, tmp_path)) for store in stores)
        assert before.total() == queue.listed
        assert {int(line.partition("\t")[0]) for line in before - after} == lost
        assert set(after) <= set(before)  # those of the units beside it come twice
        total += len(lost)
    assert total
