"""Index files repaired in place: they become byte for byte what a broker wrote, whatever was overwritten."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
from support.golden import GoldenCase, case_named, opened, run_cli, unpack
from support.repairs import image_of
from support.stores import Store, message

from mqstore.places import open_rocketmq
from mqstore.repair.change import Step
from mqstore.repair.journal import apply, undo
from mqstore.rocketmq.diagnosis.diagnosis import KEEPS, START, diagnose
from mqstore.rocketmq.repair import index_steps, missing_index_steps
from mqstore.rocketmq.repair.plan import LOCKING, plan
from mqstore.table.formatting import command

CASE = case_named("4.9.3/m-damaged/0-clean")


def _index(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "index").iterdir())}


def _planned(store: Path, case: GoldenCase = CASE, *, configured: bool = True) -> list[Step]:
    steps = plan(open_rocketmq(store, config=case.config if configured else None))
    return [step for step in steps if step.kind == "index-file"]


def _patched(number: int, at: int, content: bytes) -> Callable[[Path], None]:
    def patch(store: Path) -> None:
        with sorted((store / "index").iterdir())[number].open("r+b") as file:
            file.seek(at)
            file.write(content)

    return patch


def _zeros(*numbers: int) -> Callable[[Path], None]:
    def overwrite(store: Path) -> None:
        files = sorted((store / "index").iterdir())
        for number in numbers:
            files[number].write_bytes(bytes(files[number].stat().st_size))

    return overwrite


def _given_to_each_other(*numbers: int) -> Callable[[Path], None]:
    def exchange(store: Path) -> None:
        files = [sorted((store / "index").iterdir())[number] for number in numbers]
        contents = [file.read_bytes() for file in files]
        for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
            file.write_bytes(content)

    return exchange


DAMAGE = {
    "swapped": _given_to_each_other(0, 1),
    "swapped-with-the-last": _given_to_each_other(0, -1),
    "a-circle-of-three": _given_to_each_other(0, 1, 2),
    "header-of-the-first": _patched(0, 0, bytes(40)),
    "header-of-the-last": _patched(-1, 0, b"\xff" * 40),
    "slots": _patched(1, 80, b"\x55" * 200),
    "entries": _patched(0, 480, b"\x77" * 400),
    "a-whole-file": _zeros(1),
    "all-files": _zeros(0, 1, 2),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_an_index_file_becomes_what_the_broker_wrote(name: str, tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    before = _index(store)
    DAMAGE[name](store)
    assert _index(store) != before
    steps = _planned(store)
    assert all(step.possible and "of the log is written" in step.why for step in steps)
    apply(store, tmp_path / "undo", steps, LOCKING)
    assert _index(store) == before
    assert _planned(store) == []


def test_the_index_of_the_damaged_golden_store_becomes_that_of_the_intact_one(tmp_path: Path) -> None:
    store = unpack(case_named("4.9.3/m-damaged/09-index"), tmp_path / "store")
    apply(store, tmp_path / "undo", _planned(store), LOCKING)
    assert _index(store) == _index(opened(CASE))


@pytest.mark.parametrize("gone", [(0,), (1,), (-1,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", ["4.9.3/m-damaged/0-clean", "5.3.3/p-upgraded", "5.5.0/b-batch-queue", "4.9.3/c-index-collisions"])
def test_index_files_that_are_gone_are_made_again_byte_for_byte(name: str, gone: tuple[int, ...], tmp_path: Path) -> None:
    """Their names are between those of their neighbours: a broker takes them from its clock."""
    case = case_named(name)
    store = unpack(case, tmp_path / "store")
    before, image = _index(store), image_of(store)
    for file in [sorted((store / "index").iterdir())[number] for number in gone]:
        file.unlink()
    if not any((store / "index").iterdir()):
        (store / "index").rmdir()
    removed = image_of(store)
    assert command("mqstore", "repair", store, "--config", case.config) == diagnose(open_rocketmq(store, config=case.config)).next
    steps = [step for step in plan(open_rocketmq(store, config=case.config)) if step.possible]
    journal = apply(store, tmp_path / "undo", steps, LOCKING)
    assert list(_index(store).values()) == list(before.values())
    after = open_rocketmq(store, config=case.config)
    assert (plan(after), diagnose(after).next) == ([], START)
    undo(store, journal, LOCKING)
    assert image_of(store) == removed != image


@pytest.mark.parametrize("unclean", [False, True])
def test_a_full_file_that_is_gone_before_one_that_begins_with_a_log_file_was_not_deleted_by_a_recovery(
    unclean: bool, tmp_path: Path
) -> None:
    """Seed 3509 of `diagnosis-rocketmq`, of which it was said that a broker keeps everything."""
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path / "store")
    if unclean:
        (store / "abort").touch()
    before = _index(store)
    sorted((store / "index").iterdir())[2].unlink()
    answer = diagnose(open_rocketmq(store, config=case.config))
    assert "missing-index-entry" in {item.finding for item in answer.evidence}
    assert answer.next == command("mqstore", "repair", store, "--config", case.config)
    apply(store, tmp_path / "undo", plan(open_rocketmq(store, config=case.config)), LOCKING)
    assert list(_index(store).values()) == list(before.values())


@pytest.mark.parametrize(("gone", "made"), [((0, 1, 2), (0, 1)), ((1, 2), (1,)), ((0,), (0,)), ((2,), ())])
def test_after_a_kill_index_files_are_made_again_up_to_the_last_one_that_a_broker_keeps(
    gone: tuple[int, ...], made: tuple[int, ...], tmp_path: Path
) -> None:
    """What a real broker finds after it: `tests/interop/test_index_after_a_kill.py`."""
    case = case_named("4.9.3/b2-kill9-live")
    store = unpack(case, tmp_path / "store")
    files = sorted((store / "index").iterdir())
    before = [path.read_bytes() for path in files]
    for number in gone:
        files[number].unlink()
    steps = [step for step in plan(open_rocketmq(store, config=case.config)) if step.kind == "index-file"]
    assert len(steps) == len(made)
    assert all("but for those that a broker indexes again" in step.otherwise for step in steps)
    apply(store, tmp_path / "undo", steps, LOCKING)
    left = [number for number in range(3) if number in made or number not in gone]
    assert list(_index(store).values()) == [before[number] for number in left]
    after = open_rocketmq(store, config=case.config)
    assert not [step for step in plan(after) if step.kind == "index-file"]
    # also where the last record of the last file has a key in the next one, too
    assert (diagnose(after).why, diagnose(after).harmless) == (KEEPS, True)


def test_keys_between_the_files_that_a_broker_keeps_and_the_begin_of_its_recovery_are_lost(tmp_path: Path) -> None:
    """Seed 3579 of `diagnosis-rocketmq`: the index of a killed store, made again up to its last full file."""
    case = case_named("5.3.3/k-rolled")
    store = unpack(case, tmp_path / "store")
    (store / "abort").touch()
    sorted((store / "index").iterdir())[-1].unlink()
    answer = diagnose(open_rocketmq(store, config=case.config), "5.5.0")
    assert [item.file for item in answer.evidence if item.finding == "keys-lost"] == ["index"]
    assert answer.next.startswith("mqstore rebuild ")


def test_without_the_geometry_or_the_beginning_of_the_log_an_index_file_is_not_repaired(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    for path in (store / "index").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    steps = _planned(store, configured=False)
    assert len(steps) == 3
    assert not any(step.possible for step in steps)
    assert all("give the broker's settings with --config" in step.why for step in steps)
    rolled = case_named("4.9.3/d-rolled")
    store = unpack(rolled, tmp_path / "rolled")
    _patched(0, 44, b"\x55" * 100)(store)
    (step,) = _planned(store, rolled)
    assert not step.possible
    assert "the log no longer has its first messages" in step.why


SLOTS = _patched(0, 80, b"\x55" * 200)


def test_the_last_index_file_after_a_kill_is_left_to_the_broker_which_makes_it_again(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    _patched(-1, 80, b"\x55" * 200)(store)
    assert len(_planned(store)) == 1
    (store / "abort").touch()
    assert _planned(store) == []


def test_an_empty_file_after_the_last_one_is_not_changed(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    before = _index(store)
    last = max((store / "index").iterdir())
    ahead = last.with_name(str(int(last.name) + 1000))
    ahead.write_bytes(bytes(last.stat().st_size))
    SLOTS(store)
    apply(store, tmp_path / "undo", _planned(store), LOCKING)
    ahead.unlink()
    assert _index(store) == before


def test_an_index_file_without_the_one_before_it_becomes_what_the_broker_wrote(tmp_path: Path) -> None:
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path / "store")
    min((store / "index").iterdir()).unlink()
    before = _index(store)
    SLOTS(store)
    apply(store, tmp_path / "undo", _planned(store, case), LOCKING)
    assert _index(store) == before


def test_an_index_file_gets_the_only_key_that_the_log_still_has_for_it(tmp_path: Path) -> None:
    case = case_named("4.9.3/c-index-collisions")
    store = unpack(case, tmp_path / "store")
    begin, second = (open_rocketmq(store, config=case.config).index_files()[-1].entry(number).physical_offset for number in (1, 2))
    _cut_log(store, second)
    (step,) = _planned(store, case)
    assert "the 1 key of the log" in step.why
    apply(store, tmp_path / "undo", [step], LOCKING)
    last = open_rocketmq(store, config=case.config).index_files()[-1]
    assert (last.header.index_count, last.header.begin_physical_offset, last.header.end_physical_offset) == (2, begin, begin)


def test_an_index_file_of_which_the_log_has_no_key_is_not_repaired(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    _cut_log(store, open_rocketmq(store, config=CASE.config).index_files()[-1].header.begin_physical_offset)
    (step,) = _planned(store)
    assert not step.possible
    assert "the log has 0 keys for it: `mqstore rebuild` makes the index from the log" in step.why


def _cut_log(store: Path, end: int) -> None:
    """Overwrite the log with zeros from a physical offset on."""
    for path in (store / "commitlog").iterdir():
        keep = max(0, end - int(path.name))
        raw = path.read_bytes()
        path.write_bytes(raw[:keep].ljust(len(raw), b"\0"))


def test_a_log_file_without_keys_adds_nothing_to_an_index_file(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    _, blank, *_ = sorted((store / "commitlog").iterdir())
    blank.write_bytes(blank.stat().st_size.to_bytes(4, "big") + bytes.fromhex("cbd43194") + blank.read_bytes()[8:])
    SLOTS(store)
    before = open_rocketmq(store, config=CASE.config).index_files()
    (step,) = (step for step in _planned(store) if step.file == before[0].relative)
    apply(store, tmp_path / "undo", [step], LOCKING)
    after = open_rocketmq(store, config=CASE.config).index_files()[0]
    offsets = {after.entry(number).physical_offset for number in range(1, after.stop)}
    assert offsets
    assert not any(int(blank.name) <= offset < int(blank.name) + blank.stat().st_size for offset in offsets)


def test_an_index_file_with_more_keys_than_are_written_in_place_is_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = unpack(CASE, tmp_path / "store")
    SLOTS(store)
    monkeypatch.setattr(index_steps, "MOST_KEYS", 398)
    (step,) = _planned(store)
    assert not step.possible
    assert "it has 399 keys: `mqstore rebuild`" in step.why


def test_index_files_with_more_keys_than_are_made_at_once_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = unpack(CASE, tmp_path / "store")
    sorted((store / "index").iterdir())[1].unlink()
    assert len(_planned(store)) == 1
    monkeypatch.setattr(missing_index_steps, "MOST_KEYS", 10)
    assert _planned(store) == []


def test_without_a_configuration_a_cut_file_has_no_geometry_to_be_repaired_with(tmp_path: Path) -> None:
    store = unpack(CASE, tmp_path / "store")
    first, *others = sorted((store / "index").iterdir())
    for path in others:
        path.unlink()
    first.write_bytes(first.read_bytes()[:1000])
    (step,) = _planned(store, configured=False)
    assert not step.possible
    assert "the geometry is not known: give the broker's settings with --config" in step.why


def test_a_file_after_that_of_the_first_record_of_the_log_begins_with_the_next_record(tmp_path: Path) -> None:
    made = Store(tmp_path / "store", slots=10, positions=2)
    for number in range(4):
        made.put(message("orders", b"x", keys=f"k{number}"))
    store = made.write()
    before = _index(store)
    _patched(1, 0, bytes(120))(store)
    config = tmp_path / "broker.conf"
    config.write_text("maxHashSlotNum=10\nmaxIndexNum=2\n")
    (step,) = (step for step in plan(open_rocketmq(store, config=config)) if step.kind == "index-file")
    apply(store, tmp_path / "undo", [step], LOCKING)
    assert _index(store) == before


def test_advised_commands_have_the_configuration_that_was_given(tmp_path: Path) -> None:
    """Without it there is no step for an index of which nothing but the configuration shows the size."""
    case = case_named("4.9.3/c-index-collisions")
    store = unpack(case, tmp_path / "store")
    before = _index(store)
    rmtree(store / "index")
    listing = run_cli("diagnose", store, "--config", case.config, "-o", "json").document["next"]
    done = run_cli(*shlex.split(listing)[1:])
    assert run_cli(*shlex.split(done.stdout.splitlines()[-1].strip())[1:]).status == 0
    assert list(_index(store).values()) == list(before.values())
