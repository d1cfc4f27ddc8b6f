"""What a real consumer gets of a batch queue after a repair has filled a damaged place of the log, on real stores."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from interop.clientoracle import CLIENTS, why_not
from interop.realbroker import JVM, java
from numpy.typing import NDArray
from support.golden import GoldenCase, case_named, opened, run_cli, unpack
from support.rocketmq_states import record_starts

from mqstore.places import open_rocketmq
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS
from mqstore.rocketmq.format.batch_consume_queue import BatchQueueReader

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

CASES = {"5.3.3": "5.3.3/o-batch-queue", "5.5.0": "5.5.0/b-batch-queue"}
TOPIC = "batched"
PROGRAM = str(Path(__file__).with_name("batched") / "Pull.java")


def _delivered(version: str, case: GoldenCase, store: Path, queue_id: int, home: Path, *begin: int) -> list[str]:
    """Return what a real consumer gets by pulls of a queue, with the store opened in place: queue offset, topic, hash of the body.

    begin: the queue offset at which it begins; by default the lowest.
    """
    command = [str(java()), *JVM, f"-Duser.home={home}", "-cp", f"{CLIENTS}/target/{version}/lib/*", PROGRAM]
    done = subprocess.run(
        [*command, str(store), str(case.config), TOPIC, str(queue_id), *map(str, begin)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.count("\t") == 2]  # others are its log


def _repaired(case: GoldenCase, store: Path, first: int, last: int) -> tuple[int, int]:
    """Zero the records of these numbers in the first log file, and repair the store. Returns the range of bytes."""
    unpack(case, store)
    log = min((store / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    begin, end = (record_starts(raw)[number] for number in (first, last))
    log.write_bytes(raw[:begin] + bytes(end - begin) + raw[end:])
    assert run_cli("repair", store, "--config", case.config, "--apply").status == 0
    return begin, end


def _lost_units(case: GoldenCase, begin: int, end: int) -> Iterator[tuple[BatchQueueReader, NDArray[np.void]]]:
    """Yield each batch queue of a golden store with its units that lead to a range of the log."""
    for queue in open_rocketmq(opened(case), config=case.config).batch_queues():
        units = queue.entries(queue.min_offset, queue.max_offset)
        yield queue, units[(units["physical_offset"] >= begin) & (units["physical_offset"] < end)]


@pytest.mark.parametrize("records", [(60, 75), (0, 12)], ids=str)
@pytest.mark.parametrize("version", CASES)
def test_consumers_get_everything_else_of_a_batch_queue_whose_records_a_repair_has_filled(
    version: str, records: tuple[int, int], tmp_path: Path
) -> None:
    """Without a step for its units clients dropped up to 20 messages more, which they had pulled with the filler."""
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    case = case_named(CASES[version])
    stores = unpack(case, tmp_path / "sound"), tmp_path / "store"
    begin, end = _repaired(case, stores[1], *records)
    total = 0
    for queue, gone in _lost_units(case, begin, end):
        lost = {int(base) + number for base, count in zip(gone["base_offset"], gone["count"], strict=True) for number in range(count)}
        before, after = (Counter(_delivered(version, case, store, queue.queue_id, tmp_path)) for store in stores)
        assert before.total() == queue.listed
        assert {int(line.partition("\t")[0]) for line in before - after} == lost
        assert set(after) <= set(before)  # those of the units beside it come twice
        total += len(lost)
    assert total


@pytest.mark.parametrize("records", [(60, 75), (0, 12)], ids=str)
@pytest.mark.parametrize("version", CASES)
def test_a_group_that_had_the_batch_beside_a_lost_one_gets_it_again_as_is_said(
    version: str, records: tuple[int, int], tmp_path: Path
) -> None:
    """Its offset is at a unit that a repair has led to the record beside it, or inside or after that unit, or at the begin."""
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    case, store, seen = case_named(CASES[version]), tmp_path / "store", set()
    begin, end = _repaired(case, store, *records)
    for queue, gone in _lost_units(case, begin, end):
        for place in sorted(
            {0, *(int(unit["base_offset"]) + into for unit in gone for into in (0, int(unit["count"]) - 1, int(unit["count"])))}
        ):
            (store / CONSUMER_OFFSETS).parent.mkdir(exist_ok=True)
            (store / CONSUMER_OFFSETS).write_text(json.dumps({"offsetTable": {f"{TOPIC}@group": {queue.queue_id: place}}}))
            said = run_cli("diagnose", store, "--config", case.config, "-o", "json").document
            copy = shutil.copytree(store, tmp_path / f"{queue.queue_id}-{place}")
            got = {int(line.partition("\t")[0]) for line in _delivered(version, case, copy, queue.queue_id, tmp_path, place)}
            assert said["redelivers"] == sum(number < place for number in got)
            seen.add(said["redelivers"])
    assert (seen == {0}) is (records[0] == 0)  # what comes after a lost batch comes first in its place
