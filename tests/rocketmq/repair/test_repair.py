"""Repairs of broken stores: what is planned, what a broker then makes of the store, and that undoing gives back every byte."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from support.golden import DAMAGED, PLAIN, GoldenCase, case_id, case_named, opened, unchanged, unpack
from support.rocketmq_states import STATES, made, record_starts
from support.stores import Store, message

from mqstore.diagnosis import Diagnosis
from mqstore.errors import CannotOpenError, TargetError, UnsupportedError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import RecordedWrites
from mqstore.jobs.rebuild import rebuild
from mqstore.places import open_rocketmq
from mqstore.repair.change import Step, chosen
from mqstore.repair.journal import APPLIED, apply, read_journal, undo
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.format.record import decode, encode
from mqstore.rocketmq.live.store_lock import StoreInUseError, StoreLock
from mqstore.rocketmq.repair import plan as plan_module
from mqstore.rocketmq.repair.log_steps import SMALLEST
from mqstore.rocketmq.repair.plan import LOCKING, plan

FOUR, FIVE, SMALL = case_named("4.9.3/f-broker-offsets"), case_named("5.3.3/j-broker-offsets"), case_named("4.9.3/m-damaged/0-clean")
LOST_FOR_GOOD = {"torn_tail", "zeroed_page", "missing_log_file", "short_log_file"}

Image = dict[str, tuple[bytes | None, int]]


def image(store: Path) -> Image:
    return {
        path.relative_to(store).as_posix(): (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in sorted(store.rglob("*"))
    }


def planned(store: Path, case: GoldenCase) -> list[Step]:
    return plan(open_rocketmq(store, config=case.config))


def diagnosed(store: Path, case: GoldenCase) -> Diagnosis:
    return diagnose(open_rocketmq(store, config=case.config), case.version)


def repaired_and_undone(store: Path, case: GoldenCase) -> tuple[Diagnosis, list[Step]]:
    """Repair a store, check that a second plan is empty and that undoing gives the store back. Returns the diagnosis in between."""
    before = image(store)
    steps = planned(store, case)
    journal = store.with_name("undo")
    apply(store, journal, [step for step in steps if step.possible], LOCKING)
    assert [step for step in planned(store, case) if step.possible] == []
    found = diagnosed(store, case)
    read = read_journal(journal)
    assert read is not None
    assert read.state == APPLIED
    undo(store, read, LOCKING)
    assert image(store) == before
    assert not journal.exists()
    return found, steps


@pytest.mark.parametrize("case", [case for case in PLAIN if "offsets" not in case.name and "0-clean" not in case.name], ids=case_id)
def test_nothing_is_to_be_repaired_in_what_a_broker_left(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        steps = planned(opened(case), case)
    # e: 4.9.3 wrote delay offsets that are older than what it had delivered
    left = {"b3-kill9-torn": ["torn-end"], "e-delay-transaction-batch": ["offsets"]}
    assert [step.kind for step in steps] == left.get(case.name, [])


@pytest.mark.parametrize("state", sorted(STATES.keys() - {"no_log"}))
@pytest.mark.parametrize("case", [FOUR, FIVE, SMALL], ids=case_id)
def test_after_a_repair_a_broker_starts_and_keeps_all_that_is_there_and_undoing_gives_back_every_byte(
    case: GoldenCase, state: str, tmp_path: Path
) -> None:
    store = made(state, case, tmp_path / "store")
    before = diagnosed(store, case)
    found, _ = repaired_and_undone(store, case)
    assert (found.starts, found.redelivers) == (True, 0)
    if state not in LOST_FOR_GOOD:
        assert found.loses == 0
    elif before.starts:
        assert found.loses <= before.loses


@pytest.mark.parametrize("case", DAMAGED, ids=case_id)
def test_a_damaged_store_loses_after_a_repair_only_messages_whose_bytes_are_lost(case: GoldenCase, tmp_path: Path) -> None:
    store = unpack(case, tmp_path / "store")
    (store / "lock").write_bytes(b"loc")  # that the lock is taken for a repair does not change the file
    found, steps = repaired_and_undone(store, case)
    assert steps
    assert found.starts
    assert found.loses == sum(item.messages for item in found.evidence if item.finding == "gone")


@pytest.mark.parametrize(("record", "kind"), [(-3, "filler"), (-1, "torn-end")])
def test_what_a_record_was_is_set_to_zero_only_where_no_other_one_follows_in_the_log(record: int, kind: str, tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path)
    last = max((store / "commitlog").iterdir())
    raw = bytearray(last.read_bytes())
    start = record_starts(raw)[record]
    size = int.from_bytes(raw[start : start + 4], "big")
    raw[start : start + size] = b"x" * size
    last.write_bytes(raw)
    (step,) = (step for step in planned(store, FOUR) if step.file == f"commitlog/{last.name}")
    assert (step.kind, step.offset) == (kind, start)


def test_the_last_eight_bytes_of_a_file_have_room_for_a_record_of_its_end(tmp_path: Path) -> None:
    record = message("orders", b"body")
    store = Store(tmp_path, file_size=len(encode(record)) + 8)
    store.put(record)
    store.put(record)
    store.write()
    store.patch(f"commitlog/{0:020d}", len(encode(record)), b"\1" * 8)
    (step,) = (step for step in plan(open_rocketmq(tmp_path)) if step.file == f"commitlog/{0:020d}")
    assert (step.kind, step.offset, step.length, step.possible) == ("end-of-file", len(encode(record)), 8, True)


def test_a_record_whose_size_is_wrong_is_restored_from_what_is_inside(tmp_path: Path) -> None:
    case = case_named("4.9.3/m-damaged/03-size-field")
    store = unpack(case, tmp_path / "store")
    steps = [step for step in planned(store, case) if step.kind == "frame"]
    assert len(steps) == 4
    assert all(step.loss == "" and "size and magic are restored" in step.why for step in steps)
    apply(store, tmp_path / "undo", steps, LOCKING)
    damage = json.loads((case.path / "damage.json").read_text())
    for item in damage:
        assert (store / item["file"]).read_bytes()[item["offset"] : item["offset"] + item["length"]].hex() == item["old_hex"]


@pytest.mark.parametrize("case", [FOUR, FIVE, SMALL], ids=case_id)
def test_records_with_the_offset_of_another_place_get_their_own(case: GoldenCase, tmp_path: Path) -> None:
    sound = image(unpack(case, tmp_path / "sound"))
    store = made("offset_flip", case, tmp_path / "store")
    assert diagnosed(store, case).loses == 2
    apply(store, tmp_path / "undo", [step for step in planned(store, case) if step.file.startswith("commitlog")], LOCKING)
    assert {name: found for name, found in image(store).items() if name.startswith("commitlog")} == {
        name: found for name, found in sound.items() if name.startswith("commitlog")
    }


def test_a_copy_of_a_record_in_the_place_of_another_is_no_message(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    path = next(path for path in sorted((store / "commitlog").iterdir()) if any(path.read_bytes()))
    raw = bytearray(path.read_bytes())
    places = [slice(low, high) for low, high in pairwise(record_starts(raw))]
    first, second = next((a, b) for a, b in combinations(places, 2) if a.stop - a.start == b.stop - b.start)
    raw[second] = raw[first]
    path.write_bytes(raw)
    steps = [step for step in planned(store, FOUR) if step.file.startswith("commitlog")]
    assert [(step.kind, step.offset) for step in steps] == [("filler", second.start)]


def test_only_chosen_steps_are_applied(tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "store")
    steps = planned(store, FOUR)
    assert [step.kind for step in steps] == ["take-out", "offsets"]
    apply(store, tmp_path / "undo", chosen(steps, {1}), LOCKING)
    assert [step.kind for step in planned(store, FOUR)] == ["offsets"]
    with pytest.raises(UsageError, match="the last step of the plan is 2"):
        chosen(steps, {3})


def test_a_store_in_use_is_not_touched(tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "store")
    before = image(store)
    with DurableDirectory(store) as directory, StoreLock(directory), pytest.raises(StoreInUseError):
        apply(store, tmp_path / "undo", planned(store, FOUR), LOCKING)
    assert image(store) == before
    assert not (tmp_path / "undo").exists()


def test_a_journal_inside_the_store_or_of_another_store_is_refused(tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "a" / "store")
    other = made("stray_file", FOUR, tmp_path / "other")
    steps = planned(store, FOUR)
    with pytest.raises(TargetError, match="inside the store"):
        apply(store, store / "undo", steps, LOCKING)
    apply(store, tmp_path / "a" / "undo", steps, LOCKING)
    found = read_journal(tmp_path / "a" / "undo")
    assert found is not None
    before = image(other)
    with pytest.raises(TargetError, match="another store"):
        undo(other, found, LOCKING)
    assert image(other) == before
    for junk in (tmp_path / "a", other / "lock"):
        with pytest.raises(CannotOpenError):
            read_journal(junk)


def test_a_second_apply_into_the_same_journal_is_refused(tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "store")
    steps = planned(store, FOUR)
    apply(store, tmp_path / "undo", chosen(steps, {1}), LOCKING)
    before = image(store)
    with pytest.raises(TargetError, match="exists already"):
        apply(store, tmp_path / "undo", planned(store, FOUR), LOCKING)
    assert image(store) == before


def test_a_store_that_changed_after_the_repair_is_not_undone(tmp_path: Path) -> None:
    store = made("body_flip", FOUR, tmp_path / "store")
    apply(store, tmp_path / "undo", planned(store, FOUR), LOCKING)
    with (store / "config" / "consumerOffset.json").open("ab") as file:
        file.write(b" ")
    before = image(store)
    found = read_journal(tmp_path / "undo")
    assert found is not None
    with pytest.raises(TargetError, match=r"consumerOffset.json was changed after the repair"):
        undo(store, found, LOCKING)
    assert image(store) == before


def test_a_damaged_journal_changes_nothing(tmp_path: Path) -> None:
    store = made("body_flip", FOUR, tmp_path / "store")
    apply(store, tmp_path / "undo", planned(store, FOUR), LOCKING)
    found = read_journal(tmp_path / "undo")
    assert found is not None
    saved = tmp_path / "undo" / found.changes[0].blobs[0].name
    saved.write_bytes(b"\xff" * saved.stat().st_size)
    before = image(store)
    with pytest.raises(CannotOpenError, match="does not match its checksum"):
        undo(store, found, LOCKING)
    assert image(store) == before


class _FullDisk(RecordedWrites):
    """A recorder that fails the n-th write with ENOSPC."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def attempt(self, operation: str, path: str) -> None:
        self.left -= operation == "write"
        if self.left < 0 and operation == "write":
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("after", [0, 1, 3])
def test_without_room_for_the_journal_nothing_is_changed_and_nothing_stays(after: int, tmp_path: Path) -> None:
    store = made("stray_file", FOUR, tmp_path / "store")
    before = image(store)
    with pytest.raises(TargetError):
        apply(store, tmp_path / "undo", planned(store, FOUR), LOCKING, recorder=_FullDisk(after), within="store")
    assert image(store) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["5.5.0/c-rocksdb-queues-clean", "5.5.0/g-dledger"])
def test_what_repair_does_not_write_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError):
        plan(open_rocketmq(opened(case_named(name))))


def test_a_stray_directory_comes_back_with_everything_in_it(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    old = store / "commitlog" / "old"
    (old / "deep" / "empty").mkdir(parents=True)
    (old / "deep" / "note").write_bytes(b"x" * 70_000)
    (old / "run").write_bytes(b"#!")
    (old / "run").chmod(0o640)
    found, _ = repaired_and_undone(store, FOUR)
    assert found.starts


def test_a_directory_in_the_place_of_an_index_file_is_taken_out_and_a_broker_starts(tmp_path: Path) -> None:
    store = unpack(FIVE, tmp_path / "store")
    (store / "index" / "20261121" / "deep").mkdir(parents=True)
    assert not diagnosed(store, FIVE).starts
    found, _ = repaired_and_undone(store, FIVE)
    assert found.starts


def test_a_file_at_a_position_where_no_queue_file_begins_is_taken_out(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    queue = store / "consumequeue" / "s62_bills" / "1"
    stray = queue / f"{int(max(queue.iterdir()).name) + 8192:020d}"
    stray.write_bytes(min(queue.iterdir()).read_bytes())
    found, steps = repaired_and_undone(store, FOUR)
    assert ("take-out", stray.relative_to(store).as_posix()) in {(step.kind, step.file) for step in steps}
    assert not any("s62_bills" in sentence for sentence in found.unknown)


def test_undoing_after_a_rebuild_gives_back_the_store_and_leaves_the_rebuilt_one_as_it_is(tmp_path: Path) -> None:
    case = next(case for case in DAMAGED if case.name.endswith("06-length-fields"))
    store = unpack(case, tmp_path / "store")
    before = image(store)
    journal = apply(store, tmp_path / "undo", [step for step in planned(store, case) if step.possible], LOCKING)
    written = {change.file for change in journal.changes if change.op == "write" and change.file.startswith("commitlog/")}
    rebuild(store, tmp_path / "new", threads=1, config=case.config)
    assert any((store / name).stat().st_nlink > 1 for name in written)
    rebuilt = image(tmp_path / "new")
    read = read_journal(tmp_path / "undo")
    assert read is not None
    undo(store, read, LOCKING)
    assert image(store) == before
    assert image(tmp_path / "new") == rebuilt


def test_offsets_before_the_end_of_the_log_are_kept_although_the_queues_of_a_killed_broker_end_before(tmp_path: Path) -> None:
    store = unpack(FIVE, tmp_path / "store")
    (store / "abort").touch()
    for queue in store.glob("consumequeue/*/*"):
        path = max(queue.iterdir())
        path.write_bytes(bytes(path.stat().st_size))
    (step,) = (step for step in planned(store, FIVE) if step.file == "config/consumerOffset.json")
    assert "s63_billing" not in step.why
    assert "s63_ahead on s63_bills 0 (9223372036854775807 to 48)" in step.why


@pytest.mark.parametrize("of_bak", [False, True])
def test_offsets_that_are_written_again_are_none_after_the_end_of_their_queue(of_bak: bool, tmp_path: Path) -> None:
    store = unpack(FIVE, tmp_path / "store")
    path, bak = (store / "config" / f"consumerOffset.json{ending}" for ending in ("", ".bak"))
    whole = path.read_bytes()
    bak.unlink(missing_ok=True)
    if of_bak:
        bak.write_bytes(whole)
    path.write_bytes(b"{" if of_bak else whole[:-3])
    (step,) = (step for step in planned(store, FIVE) if step.file == "config/consumerOffset.json")
    written = next(change.content for change in step.changes if change.op == "put")
    assert b"9223372036854775807" in whole
    assert b"9223372036854775807" not in written
    assert b'"s63_bills@s63_ahead":{0:48' in b"".join(written.split())


def test_the_folder_of_written_delay_offsets_is_removed_when_the_repair_is_undone(tmp_path: Path) -> None:
    store = unpack(FIVE, tmp_path / "store")
    for path in (*(store / "config").iterdir(), store / "config"):
        path.unlink() if path.is_file() else path.rmdir()
    _, steps = repaired_and_undone(store, FIVE)
    assert [step.file for step in steps if step.possible] == ["config/delayOffset.json"]


def test_entries_before_the_first_message_of_a_queue_file_are_no_end_of_the_queue(tmp_path: Path) -> None:
    """Seed 191 of the proof: the real store ended the queue at the first entry that was not written, and lost 137 messages."""
    case = case_named("5.3.3/k-rolled")
    store = unpack(case, tmp_path / "store")
    file = store / "consumequeue" / "TopicTest" / "0" / "00000000000000006000"
    file.write_bytes(bytes(file.stat().st_size))  # the messages of the first ten have expired
    found, _ = repaired_and_undone(store, case)
    assert (found.loses, found.status) == (0, 0)


def test_what_groups_get_twice_by_the_copies_of_a_repair_is_counted(tmp_path: Path) -> None:
    """Seed 371 of the proof: a group of the real store was about to read the place of a message that is lost, and gets the one before."""
    case = case_named("4.9.3/m-damaged/0-clean")
    store = unpack(case, tmp_path / "store")
    (store / "commitlog" / "00000000000000032768").unlink()
    found, _ = repaired_and_undone(store, case)
    assert (found.loses, found.redelivers) == (56, 1)


def test_a_topic_table_without_a_bak_is_written_again_from_the_queues(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    (store / "config" / "topics.json").write_bytes(b"{")
    (store / "config" / "topics.json.bak").unlink(missing_ok=True)
    found, steps = repaired_and_undone(store, FOUR)
    assert (found.starts, found.loses) == (True, 0)
    (step,) = (step for step in steps if step.file == "config/topics.json")
    assert step.why.endswith("written again from the queues that there are")
    assert step.loss == "permissions, attributes and topics without queues"
    (change,) = step.changes
    table = json.loads(change.content)["topicConfigTable"]
    queues = {(path.parent.name, int(path.name)) for path in store.glob("consumequeue/*/*")}
    assert {topic: row["readQueueNums"] for topic, row in table.items()} == {
        topic: max(number for name, number in queues if name == topic) + 1 for topic, _ in queues
    }


def test_a_table_of_which_nothing_can_be_read_is_taken_out_so_that_the_broker_starts(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    for name in ("subscriptionGroup.json", "subscriptionGroup.json.bak"):
        (store / "config" / name).write_bytes(b"{")
    assert not diagnosed(store, FOUR).starts
    found, steps = repaired_and_undone(store, FOUR)
    assert found.starts
    (step,) = (step for step in steps if step.file == "config/subscriptionGroup.json")
    assert {(change.op, change.file) for change in step.changes} == {
        ("remove", f"config/subscriptionGroup.json{ending}") for ending in ("", ".bak")
    }


def test_an_empty_table_has_nothing_to_be_restored_from(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    (store / "config" / "consumerFilter.json").write_bytes(b"")
    (store / "config" / "consumerFilter.json.bak").unlink(missing_ok=True)
    assert not [step for step in planned(store, FOUR) if "consumerFilter" in step.file]


def test_a_directory_in_the_place_of_the_checkpoint_is_taken_out_and_that_of_the_lock_is_left(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    (store / "checkpoint").unlink()
    (store / "checkpoint").mkdir()
    found, _ = repaired_and_undone(store, FOUR)
    assert found.starts
    (store / "lock").unlink(missing_ok=True)
    (store / "lock").mkdir()
    assert [step.possible for step in planned(store, FOUR) if step.file == "lock"] == [False]


def test_what_is_not_a_regular_file_is_left_alone(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    os.mkfifo(store / "commitlog" / "pipe")
    (store / "commitlog" / "old").mkdir()
    os.mkfifo(store / "commitlog" / "old" / "pipe")
    (store / "commitlog" / "older").mkdir()
    steps = {step.file: step for step in planned(store, FOUR) if step.kind == "take-out"}
    assert {name: step.possible for name, step in steps.items()} == {
        "commitlog/pipe": False, "commitlog/old": False, "commitlog/older": True
    }  # fmt: skip
    assert {(step.offset, step.length) for step in steps.values()} == {(0, 0)}
    assert steps["commitlog/old"].why.endswith("and holds pipe, which is not a regular file")


def test_two_log_files_with_the_names_of_each_other_get_them_back_before_anything_is_changed(tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    one, other, *_ = sorted((store / "commitlog").iterdir())
    raw = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(raw)
    steps = planned(store, SMALL)
    assert {(step.kind, step.file, step.possible) for step in steps} == {
        ("rename", f"commitlog/{path.name}", False) for path in (one, other)
    }
    assert f"its records are those of commitlog/{other.name}" in steps[0].why


@pytest.mark.parametrize("cut", [8, 95])
def test_bytes_that_are_too_few_for_a_record_stay(cut: int, tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    path, start, size = _a_record(store)
    _shortened(path, start, size, cut)
    (step,) = (step for step in planned(store, SMALL) if step.file.startswith("commitlog"))
    assert (step.kind, step.offset, step.length) == ("filler", start + size - cut, cut)
    assert step.possible == (cut >= SMALLEST)
    assert step.possible or f"{cut} bytes are too few for a record that a broker can parse" in step.why


def test_no_end_of_file_fits_into_less_than_eight_bytes(tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    path = min((store / "commitlog").iterdir())
    raw = path.read_bytes()
    last = record_starts(raw)[-1]
    _rewritten(path, last, len(raw) - 4 - last)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\xff" * 4)
    (step,) = (step for step in planned(store, SMALL) if step.file.startswith("commitlog"))
    assert (step.kind, step.offset, step.possible) == ("end-of-file", len(raw) - 4, False)
    assert "there is no room for a record of end of file" in step.why


def test_a_record_whose_size_and_body_are_damaged_is_not_restored(tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    path, start, size = _a_record(store)
    raw = bytearray(path.read_bytes())
    raw[start : start + 4] = bytes(4)
    raw[start + 88] ^= 1
    path.write_bytes(raw)
    (step,) = (step for step in planned(store, SMALL) if step.file.startswith("commitlog"))
    assert (step.kind, step.offset, step.length) == ("filler", start, size)


def test_records_with_wrong_offsets_of_which_one_is_not_valid_are_not_restored(tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    path, start, size = _a_record(store)
    raw = bytearray(path.read_bytes())
    for at in (start, start + size):
        raw[at + 29] ^= 1  # in the physical offset
    raw[start + size + 4] ^= 1  # in the magic
    path.write_bytes(raw)
    steps = [step for step in planned(store, SMALL) if step.file.startswith("commitlog")]
    assert [(step.kind, step.offset) for step in steps] == [("filler", start)]


def test_a_last_file_that_was_cut_after_its_last_record_gets_only_its_length(tmp_path: Path) -> None:
    store = unpack(SMALL, tmp_path / "store")
    path = max(path for path in (store / "commitlog").iterdir() if any(path.read_bytes()))
    raw = path.read_bytes()
    last = record_starts(raw)[-1]
    path.write_bytes(raw[: last + int.from_bytes(raw[last : last + 4], "big") + 100])
    assert {step.kind for step in planned(store, SMALL) if step.file.startswith("commitlog")} == {"length"}


def test_a_plan_that_its_first_round_completes_is_the_same_without_further_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("short_queue_file", FOUR, tmp_path / "store")
    whole = planned(store, FOUR)
    assert [step.after for step in whole] == [0, 0, 0]
    monkeypatch.setattr(plan_module, "ROUNDS", 1)
    assert planned(store, FOUR) == whole


def _a_record(store: Path) -> tuple[Path, int, int]:
    """Return a file of the log, and position and size of a record in the middle of it that has a body of more than 100 bytes."""
    path = min((store / "commitlog").iterdir())
    raw = path.read_bytes()
    at = next(at for at in record_starts(raw)[5:] if int.from_bytes(raw[at + 84 : at + 88], "big") > 100)
    return path, at, int.from_bytes(raw[at : at + 4], "big")


def _shortened(path: Path, start: int, size: int, cut: int) -> None:
    """Rewrite a record so that it ends before its end, with bytes that are nothing after it."""
    _rewritten(path, start, size - cut)
    raw = bytearray(path.read_bytes())
    raw[start + size - cut : start + size] = b"\xff" * cut
    path.write_bytes(raw)


def _rewritten(path: Path, start: int, size: int) -> None:
    """Give a record another size: its body becomes longer or shorter."""
    raw = bytearray(path.read_bytes())
    old = decode(bytes(raw[start : start + int.from_bytes(raw[start : start + 4], "big")]))
    other = size - len(encode(replace(old, body=b"")))
    new = encode(replace(old, body=old.body[:other].ljust(other, b"x"), body_crc=None))
    raw[start : start + len(new)] = new
    path.write_bytes(raw)
