"""`timers`: what a real 5.5.0 broker left in its timer wheel, and damaged wheels."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli, unchanged, unpack

import mqstore
from mqstore.findings import Kind
from mqstore.rocketmq.format.timer_wheel import TimerLog, slots
from mqstore.rocketmq.verify.verification import verify

CASE = case_named("5.5.0/f-timer-wheel")
SLOTS = [json.loads(line) for line in (CASE.path / "timer.jsonl").read_text().splitlines()]
NAMES = {"due_time", "topic", "queue_id", "physical_offset", "size", "uniq_key", "state"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack(CASE, tmp_path / "store")


def write(path: Path, at: int, layout: str, *values: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(layout, *values))


def test_every_message_is_listed_with_its_state() -> None:
    with unchanged(opened(CASE)):
        found = run_cli("timers", opened(CASE), "-o", "jsonl")
    assert (found.status, found.stderr) == (0, "")
    assert Counter(row["state"] for row in found.rows) == {"waiting": 33, "delivered": 18, "recalled": 3}
    assert all(set(row) == NAMES for row in found.rows)
    metrics = json.loads((opened(CASE) / "config" / "timermetrics").read_text())  # the broker's own count of what waits
    assert metrics["timingCount"]["s31_timed"]["count"] == 33


def test_the_states_are_those_of_the_slots_and_of_the_real_topic() -> None:
    rows = {row["physical_offset"]: row for row in run_cli("timers", opened(CASE), "-o", "jsonl").rows}
    units = {unit["physical_offset"]: (slot, unit) for slot in SLOTS for unit in slot["units"]}
    assert set(rows) == {offset for offset, (_, unit) in units.items() if not unit["magic"] & 4}
    for offset, row in rows.items():
        slot, unit = units[offset]
        assert row["state"] in (("waiting", "recalled") if slot["waiting"] else ("delivered",))
        assert unit["magic"] & 2 or row["due_time"] == 1000 * slot["time"]
        assert row["size"] == unit["size"]
    delivered = {row["uniq_key"] for row in run_cli("messages", opened(CASE), "--topic", "s31_timed", "-o", "jsonl").rows}
    for row in rows.values():
        assert (row["uniq_key"] in delivered) == (row["state"] == "delivered")


def test_a_message_due_after_the_range_of_the_wheel_has_its_own_due_time() -> None:
    rows = {row["physical_offset"]: row for row in run_cli("timers", opened(CASE), "-o", "jsonl").rows}
    rolled = [unit for slot in SLOTS for unit in slot["units"] if unit["magic"] & 2]
    assert len(rolled) == 6
    for unit in rolled:
        assert rows[unit["physical_offset"]]["due_time"] == unit["write_time"] + 172_800_000


def test_the_slots_are_those_of_an_independent_reading() -> None:
    found = [tuple(slot) for slot in slots(mqstore.open(opened(CASE)).directory)]
    assert found == [(slot["slot"], slot["time"], slot["first"], slot["last"], slot["count"]) for slot in SLOTS]
    log = TimerLog(mqstore.open(opened(CASE)).directory)
    assert (log.start, log.end) == (0, 52 * sum(len(slot["units"]) for slot in SLOTS))
    assert log.unit(1) is None
    assert log.unit(log.end) is None


def test_one_state_and_one_topic_can_be_chosen() -> None:
    assert len(run_cli("timers", opened(CASE), "--state", "recalled", "-o", "jsonl").rows) == 3
    assert run_cli("timers", opened(CASE), "--topic", "other", "-o", "jsonl").rows == []
    text = run_cli("timers", opened(CASE), "--state", "waiting")
    assert "33 messages: 33 waiting" in text.stdout
    assert run_cli("timers", opened(CASE), "--state", "gone").status == 2


def test_a_store_without_timers_has_no_rows() -> None:
    found = run_cli("timers", opened(case_named("4.9.3/a-clean-small")))
    assert (found.status, found.stdout.strip()) == (0, "no messages with an arbitrary delay")


def test_a_record_that_has_not_reached_the_wheel_waits(store: Path) -> None:
    whole = run_cli("timers", store, "-o", "jsonl").rows
    for at in range(40, 57):
        write(store / "timerlog" / "00000000000000000000", 52 * at, ">6qi", *[0] * 7)
    rows = run_cli("timers", store, "-o", "jsonl").rows
    assert {row["physical_offset"]: row["due_time"] for row in rows} == {row["physical_offset"]: row["due_time"] for row in whole}
    assert {row["state"] for row in rows[-15:]} <= {"waiting", "recalled"}


def test_without_the_check_file_the_state_is_unknown(store: Path) -> None:
    (store / "config" / "timercheck").unlink()
    found = run_cli("timers", store, "-o", "jsonl")
    assert Counter(row["state"] for row in found.rows) == {"unknown": 51, "recalled": 3}
    assert "config/timercheck is missing" in run_cli("timers", store).stderr


def test_a_sound_wheel_has_no_finding() -> None:
    report = verify(mqstore.open(opened(CASE)))
    assert (report.damage, report.ok) == ((), True)


def _slot(second: int) -> int:
    return 32 * (second % 1_209_600)


DAMAGE = {
    "loops": "its chain loops: the unit at position 1092 leads to one at 2080, which is not older",
    "another second": "which is for second",
    "no unit": "where no unit of the timer log starts",
    "wrong slot": "belongs to slot",
    "wrong start": "and not at its first unit",
    "record": "a message waits, but its record at physical offset 1 cannot be read",
    "unit": "the unit has size 51, and not 52",
}


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_wheel_is_a_finding(what: str, unclean: bool, store: Path) -> None:
    wheel, log = store / "timerwheel", store / "timerlog" / "00000000000000000000"
    waiting = 1795314906  # units at 2080, 1612, 1092
    if what == "loops":
        write(log, 1092 + 4, ">q", 2080)
    elif what == "another second":
        write(wheel, _slot(waiting) + 16, ">q", 2600)
    elif what == "no unit":
        write(wheel, _slot(waiting) + 16, ">q", 1 << 40)
    elif what == "wrong slot":
        write(wheel, _slot(waiting), ">q", waiting + 1)
    elif what == "wrong start":
        write(wheel, _slot(waiting) + 8, ">q", 1612)
    elif what == "record":
        write(log, 2080 + 28, ">q", 1)
    else:
        write(log, 2080, ">i", 51)
    if unclean:
        (store / "abort").write_text("1")
    report = verify(mqstore.open(store))
    found = [item.detail for item in report.damage if item.kind is Kind.BAD_TIMER]
    if unclean and what in ("another second", "no unit", "wrong start"):
        assert any("1 slots of the timer wheel differ from the timer log" in note for note in report.notes)
        assert found == []
    else:
        assert any(DAMAGE[what] in detail for detail in found)
    assert run_cli("timers", store, "-o", "jsonl").status == (1 if what == "record" else 0)


def test_a_wheel_of_zeros_or_of_no_whole_slot_is_read(store: Path) -> None:
    (store / "timerwheel").write_bytes(bytes(10))
    assert "not a whole number of slots" in " ".join(item.detail for item in verify(mqstore.open(store)).damage)
    (store / "timerwheel").write_bytes(b"")
    assert run_cli("timers", store, "-o", "jsonl").status == 0
