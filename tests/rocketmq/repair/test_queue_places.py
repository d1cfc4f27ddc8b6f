"""Places in a consume queue whose message is gone, or is claimed by a message that cannot be there: what a repair makes of them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.golden import Row, case_named, run_cli, unpack
from support.rocketmq_states import record_starts

from mqstore.jobs.rebuild import rebuild
from mqstore.places import open_rocketmq
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS
from mqstore.rocketmq.diagnosis.diagnosis import START
from mqstore.rocketmq.diagnosis.survival import SurvivalCheck
from mqstore.rocketmq.repair import queue_steps
from mqstore.rocketmq.repair.plan import plan

CASE = case_named("4.9.3/f-broker-offsets")
QUEUE_OFFSET_AT = 20
FAR = 1 << 25


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack(CASE, tmp_path / "store")


def _messages(store: Path, topic: str) -> list[Row]:
    """Return the messages of queue 1 of a topic, in the order of their queue offsets."""
    rows = run_cli("messages", store, "-t", topic, "-o", "jsonl", "--body", "none").rows
    return sorted((row for row in rows if row["queue_id"] == 1), key=lambda row: row["queue_offset"])


def _overwrite(store: Path, row: Row, at: int, content: bytes) -> None:
    with (store / row["store_file"]).open("r+b") as file:
        file.seek(row["physical_offset"] - int(Path(row["store_file"]).name) + at)
        file.write(content)


def _entries(store: Path, topic: str) -> dict[int, int]:
    """Return the physical offset of each entry of queue 1 of a topic, by queue offset, as the broker has them."""
    rows = run_cli("queue", store, topic, "1", "--view", "recovered", "-o", "jsonl").rows
    return {row["queue_offset"]: row["physical_offset"] for row in rows}


def test_the_place_of_the_first_message_leads_to_the_second_so_that_a_pull_does_not_pass_over_the_log_file(store: Path) -> None:
    first, second, *_ = _messages(store, "s62_bills")
    assert (first["queue_offset"], second["queue_offset"]) == (0, 1)
    _overwrite(store, first, 4, bytes(first["size"] - 4))
    assert run_cli("repair", store, "--apply").status == 0
    assert _entries(store, "s62_bills")[0] == second["physical_offset"]
    answer = run_cli("diagnose", store, "-o", "json").document
    assert (answer["loses"], answer["next"]) == (1, START)


def test_the_first_messages_of_a_log_that_does_not_begin_at_0_count_as_lost_after_the_repair_too(tmp_path: Path) -> None:
    """Seed 30000 of `scripts/prove --kind diagnosis-rocketmq`: their places got copies of entries whose messages had expired."""
    case = case_named("4.9.3/d-rolled")
    rolled = unpack(case, tmp_path / "store")
    config = ("--config", case.config)
    with min((rolled / "commitlog").iterdir()).open("r+b") as file:
        file.write(bytes(512))
    assert run_cli("diagnose", rolled, *config, "-o", "json").document["loses"] == 2
    run_cli("repair", rolled, *config, "--apply")
    answer = run_cli("diagnose", rolled, *config, "-o", "json").document
    assert (answer["loses"], answer["starts"]) == (2, True)


@pytest.mark.parametrize(("queue", "file", "lost"), [("orders/1", "00000000000000004000", 183), ("orders/0", "00000000000000004000", 75)])
def test_the_places_of_messages_that_have_expired_do_not_count_as_lost_after_the_repair(
    queue: str, file: str, lost: int, tmp_path: Path
) -> None:
    """Seeds 32343 and 32209 of `scripts/prove --kind diagnosis-rocketmq`: they got copies of the first message that is left."""
    case = case_named("5.3.3/k-rolled")
    rolled = unpack(case, tmp_path / "store") / "consumequeue"
    config = ("--config", case.config)
    one, other = rolled / queue / file, rolled / "rare/0" / ("00000000000000014000" if lost == 183 else "00000000000000012000")
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert run_cli("diagnose", tmp_path / "store", *config, "-o", "json").document["loses"] == lost
    assert run_cli("repair", tmp_path / "store", *config, "--apply").status == 0
    answer = run_cli("diagnose", tmp_path / "store", *config, "-o", "json").document
    assert (answer["loses"], answer["next"]) == (0, START)


def test_a_queue_offset_far_from_all_others_makes_no_file_far_away(store: Path) -> None:
    before = _messages(store, "s62_bills")
    _overwrite(store, before[-2], QUEUE_OFFSET_AT, FAR.to_bytes(8, "big"))
    shutil.rmtree(store / "consumequeue" / "s62_bills" / "1")
    steps = [step for step in run_cli("repair", store, "--assume-defaults", "-o", "json").document if step["file"].endswith("s62_bills/1")]
    assert [(step["step"], step["possible"]) for step in steps] == [("entries", True), ("entries", False)]
    run_cli("repair", store, "--apply", "--assume-defaults")
    entries = _entries(store, "s62_bills")
    assert max(entries) == len(before) - 1
    assert all(entries[row["queue_offset"]] == row["physical_offset"] for row in before[:-2])


def test_a_queue_offset_whose_file_would_not_be_read_ends_the_repair_and_what_a_rebuild_keeps_is_known(store: Path) -> None:
    """Seed 516 of `scripts/prove --kind advice-rocketmq`: an entry was written far away, again and again, and a rebuild lost six."""
    before = _messages(store, "s62_bills")
    _overwrite(store, before[0], QUEUE_OFFSET_AT, (1 << 19).to_bytes(8, "big"))
    run_cli("repair", store, "--apply")
    answer = run_cli("diagnose", store, "-v", "-o", "json").document
    assert answer["next"] == START
    assert not any(step["possible"] for step in run_cli("repair", store, "-o", "json").document)
    check = SurvivalCheck(open_rocketmq(store), None)
    check.run(2, None)
    rebuild(store, store.with_name("rebuilt"), mend=True)
    answer = run_cli("diagnose", store.with_name("rebuilt"), "-o", "json").document
    assert {way["command"]: way["keeps"] for way in answer["ways"]}[START] == check.listed - check.unbuilt
    assert answer["next"] == START
    assert check.unbuilt == len(before) - 1


def test_a_message_with_the_queue_offset_of_its_neighbour_gets_the_only_free_place_between_them(store: Path) -> None:
    before = _messages(store, "s62_bills")
    _overwrite(store, before[3], QUEUE_OFFSET_AT, (2).to_bytes(8, "big"))
    shutil.rmtree(store / "consumequeue" / "s62_bills" / "1")
    assert run_cli("repair", store, "--apply", "--assume-defaults").status == 0
    assert _entries(store, "s62_bills") == {row["queue_offset"]: row["physical_offset"] for row in before}


def test_no_rebuild_is_advised_again_for_a_topic_that_can_have_no_queue(store: Path) -> None:
    row = _messages(store, "s62_bills")[3]
    content = (store / row["store_file"]).read_bytes()
    at = content.index(b"s62_bills", row["physical_offset"] - int(Path(row["store_file"]).name))
    _overwrite(store, row, at - row["physical_offset"] + int(Path(row["store_file"]).name), b"s62\0bills")
    shutil.rmtree(store / "consumequeue" / "s62_bills")
    assert run_cli("rebuild", store, "--to", f"{store}.new").status in (0, 1)
    assert not run_cli("diagnose", f"{store}.new", "-o", "json").document["next"].startswith("mqstore rebuild")


def test_the_ways_are_weighed_by_what_each_keeps(store: Path) -> None:
    queue = next((store / "consumequeue" / "s62_bills" / "1").iterdir())
    queue.write_bytes(bytes(queue.stat().st_size))
    answer = run_cli("diagnose", store, "-o", "json").document
    keeps = {shlex.split(way["command"])[1] if way["command"] != START else START: way["keeps"] for way in answer["ways"]}
    assert answer["ways"][0]["command"] == answer["next"]
    assert keeps["repair"] == keeps["rebuild"] > keeps[START]
    assert keeps["salvage"] is None  # only its run shows it
    assert "What each way keeps:" in run_cli("diagnose", store).stdout
    assert run_cli("repair", store, "--apply").status == 0
    (way,) = run_cli("diagnose", store, "-o", "json").document["ways"]
    assert (way["command"], way["keeps"]) == (START, keeps["repair"])


def test_entries_after_the_last_message_that_repeat_those_of_an_earlier_file_are_cleared(tmp_path: Path) -> None:
    """Seed 60060 of `scripts/prove --kind diagnosis-rocketmq`: a real 5.3.3 did not start any more after the repair."""
    case = case_named("5.3.3/k-rolled")
    rolled = unpack(case, tmp_path / "store")
    config = ("--config", case.config)
    words = ("queue", rolled, "rare", "0", "--view", "recovered", "-o", "jsonl", *config)
    before = run_cli(*words).rows
    earlier, later = (rolled / "consumequeue" / "rare" / "0" / f"{start:020d}" for start in (14000, 18000))
    first, second = earlier.read_bytes(), later.read_bytes()
    earlier.write_bytes(second)
    later.write_bytes(first)
    (rolled / "abort").touch()
    assert run_cli("repair", rolled, "--apply", *config).status == 0
    answer = run_cli("diagnose", rolled, "-o", "json", *config).document
    assert (answer["starts"], answer["loses"], answer["next"]) == (True, 0, START)
    assert run_cli(*words).rows == before


def test_entries_of_a_file_in_the_place_of_another_one_are_not_those_of_lost_messages_after_the_repair(tmp_path: Path) -> None:
    """Seed 32287 of `scripts/prove --kind diagnosis-rocketmq`: what the other queue had after the end of this one counted as lost."""
    case = case_named("4.9.3/d-rolled")
    rolled = unpack(case, tmp_path / "store")
    config = ("--config", case.config)
    one, other = (rolled / "consumequeue" / path for path in ("orders/0/00000000000000006000", "TopicTest/0/00000000000000008000"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    (rolled / "commitlog" / f"{17 * 65536:020d}").unlink()
    (rolled / "abort").touch()
    gone = re.compile("of (140) messages only the places in their queues are left")
    for words in (("repair", rolled, "--apply", *config), ("diagnose", rolled, *config)):
        answer = run_cli("diagnose", rolled, *config, "-o", "json").document
        assert [item["detail"] for item in answer["evidence"] if item["finding"] == "gone" and gone.match(item["detail"])]
        run_cli(*words)
    assert (answer["starts"], answer["loses"], answer["next"]) == (True, 140, START)


def test_a_unit_whose_record_is_lost_leads_to_the_record_of_the_one_before_it_and_counts_as_lost(tmp_path: Path) -> None:
    """What clients drop without this: `tests/interop/test_batch_units_of_fillers.py`."""
    case = case_named("5.3.3/o-batch-queue")
    batched = unpack(case, tmp_path / "store")
    log = min((batched / "commitlog").iterdir())
    raw = log.read_bytes()
    begin, end = (record_starts(raw)[number] for number in (60, 75))
    log.write_bytes(raw[:begin] + bytes(end - begin) + raw[end:])
    before = [queue.entries(0, queue.max_offset) for queue in open_rocketmq(batched, config=case.config).batch_queues()]
    assert run_cli("repair", batched, "--config", case.config, "--apply").status == 0
    changed = 0
    for old, queue in zip(before, open_rocketmq(batched, config=case.config).batch_queues(), strict=True):
        new = queue.entries(0, queue.max_offset)
        assert (old[["base_offset", "count", "store_timestamp"]] == new[["base_offset", "count", "store_timestamp"]]).all()
        gone = (begin <= old["physical_offset"]) & (old["physical_offset"] < end)
        assert (old[~gone] == new[~gone]).all()
        (places,) = gone.nonzero()
        assert (new["physical_offset"][gone] == old["physical_offset"][places[0] - 1]).all()
        changed += len(places)
    answer = run_cli("diagnose", batched, "--config", case.config, "-o", "json").document
    assert (changed, answer["loses"], answer["next"], answer["redelivers"]) == (3, 15, START, 0)
    (batched / CONSUMER_OFFSETS).parent.mkdir()
    for place, again in ((3, 0), (6, 3), (7, 4), (10, 4), (15, 0)):  # the units for 7 and for 8 to 14 lead to the batch of 3 to 6
        (batched / CONSUMER_OFFSETS).write_text(f'{{"offsetTable":{{"batched@group":{{1:{place}}}}}}}')
        assert run_cli("diagnose", batched, "--config", case.config, "-o", "json").document["redelivers"] == again
    shutil.copyfile(batched / CONSUMER_OFFSETS, batched / f"{CONSUMER_OFFSETS}.bak")
    (batched / CONSUMER_OFFSETS).write_text('{"offsetTable":{"batched@group":{1:5}}}')
    # of the places from 5 to 14 eight have no message of their own, and two have those of the batch, which comes whole
    assert run_cli("diagnose", batched, "--config", case.config, "-o", "json").document["redelivers"] == 4


def test_a_unit_before_all_records_of_its_queue_that_are_left_is_not_taken_for_that_of_the_next_one(tmp_path: Path) -> None:
    case = case_named("5.3.3/o-batch-queue")
    batched = unpack(case, tmp_path / "store")
    log = min((batched / "commitlog").iterdir())
    raw = log.read_bytes()
    begin, end = (record_starts(raw)[number] for number in (0, 12))
    log.write_bytes(raw[:begin] + bytes(end - begin) + raw[end:])
    told = [run_cli("diagnose", batched, "--config", case.config, "-o", "json").document["loses"]]
    assert run_cli("repair", batched, "--config", case.config, "--apply").status == 0
    answer = run_cli("diagnose", batched, "--config", case.config, "-o", "json").document
    assert [*told, answer["loses"]] == [12, 12]
    assert "missing-queue-entry" not in {item["finding"] for item in answer["evidence"]}


def test_a_queue_that_is_missing_after_a_kill_is_not_written_and_a_rebuild_is_advised(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "s62_bills" / "1")
    assert [step.kind for step in plan(open_rocketmq(store)) if step.file == "consumequeue/s62_bills/1"] == ["entries"]
    (store / "abort").touch()
    assert not [step for step in plan(open_rocketmq(store)) if step.file == "consumequeue/s62_bills/1"]
    assert run_cli("diagnose", store, "-o", "json").document["next"].startswith("mqstore rebuild ")


def test_a_queue_without_files_gets_those_of_its_messages(store: Path) -> None:
    before = _entries(store, "s62_bills")
    for path in (store / "consumequeue" / "s62_bills" / "1").iterdir():
        path.unlink()
    assert run_cli("repair", store, "--apply", "--assume-defaults").status == 0
    assert _entries(store, "s62_bills") == before


def test_the_places_of_expired_messages_in_a_file_that_is_made_are_passed_over(tmp_path: Path) -> None:
    case = case_named("4.9.3/d-rolled")
    rolled = unpack(case, tmp_path / "store")
    config = ("--config", case.config)
    words = ("queue", rolled, "orders", "0", "--view", "recovered", "-o", "jsonl", *config)
    before = [row for row in run_cli(*words).rows if row["size"] > 0]
    shutil.rmtree(rolled / "consumequeue" / "orders" / "0")
    assert run_cli("repair", rolled, "--apply", *config).status == 0
    answer = run_cli("diagnose", rolled, *config, "-o", "json").document
    assert (answer["starts"], answer["loses"]) == (True, 0)
    last = {row["queue_offset"]: row["physical_offset"] for row in run_cli(*words).rows}
    assert {row["queue_offset"]: row["physical_offset"] for row in before}.items() <= last.items()


def test_a_queue_with_too_many_places_of_lost_messages_gets_no_copies(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in _messages(store, "s62_bills")[2:5]:
        _overwrite(store, row, 4, bytes(row["size"] - 4))
    place = "consumequeue/s62_bills/1"
    assert [step.kind for step in plan(open_rocketmq(store)) if step.file == place] == ["stand-in"]
    monkeypatch.setattr(queue_steps, "MOST_STAND_INS", 2)
    assert [step.kind for step in plan(open_rocketmq(store)) if step.file == place] == []


def test_a_queue_ends_before_all_that_leads_past_the_log_however_much_is_looked_at_at_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = _messages(store, "s62_bills")[4]["physical_offset"]
    for path in (store / "commitlog").iterdir():
        keep = max(0, cut - int(path.name))
        path.write_bytes(path.read_bytes()[:keep].ljust(path.stat().st_size, b"\0"))
    before = plan(open_rocketmq(store))
    assert before
    monkeypatch.setattr(queue_steps, "TAIL", 2)
    assert plan(open_rocketmq(store)) == before
