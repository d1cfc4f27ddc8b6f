"""Crash replay: the model against the plain replay, its states counted by hand, and each kind of state catching its bug.

The program under test is a log of records framed by length and checksum, first written crash-safely and then with one mistake at
a time.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import (
    Create,
    Link,
    MakeDirectory,
    Mark,
    Operation,
    RecordedWrites,
    Remove,
    RemoveTree,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)
from mqstore.testing import CrashCheckError, CrashState, CrashStates, LossKind, run_states, scratch_directory
from mqstore.testing.disk_model import Disk
from mqstore.testing.losses import losses

FRAME = struct.Struct(">II")


def framed(record: bytes) -> bytes:
    return FRAME.pack(len(record), zlib.crc32(record)) + record


def records(log: bytes, *, checked: bool = True) -> Iterator[bytes]:
    """Return the records up to the first incomplete one."""
    at = 0
    while at + FRAME.size <= len(log):
        length, crc = FRAME.unpack_from(log, at)
        record = log[at + FRAME.size : at + FRAME.size + length]
        if not length or len(record) < length or (checked and zlib.crc32(record) != crc):
            return
        yield record
        at += FRAME.size + length


def written(steps: Callable[[DurableDirectory, RecordedWrites], None], base: Path | None = None) -> RecordedWrites:
    recorded = RecordedWrites()
    with scratch_directory() as place, DurableDirectory(place, recorder=recorded) as directory:
        steps(directory, recorded)
    return recorded


def log_written(*, sync: bool = True, sync_names: bool = True, size: int = 0, lengths: tuple[int, ...] = (90, 700, 5000)) -> RecordedWrites:
    """Write three records of those lengths, each acknowledged when it is durable."""

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        directory.create("log/0", size)
        directory.sync("log/0")
        if sync_names:
            directory.sync_directory("log")
            directory.sync_directory("")
        at = 0
        for number, length in enumerate(lengths):
            record = bytes([number + 1]) * length
            recorded.mark("attempted", record)
            directory.pwrite("log/0", at, framed(record))
            at += FRAME.size + length
            if sync:
                directory.sync("log/0")
            recorded.mark("acknowledged", record)

    return written(steps)


def log_check(directory: Path, state: CrashState) -> None:
    """Check that nothing acknowledged is lost and that only attempted records are there, in order."""
    log = directory / "log/0"
    found = list(records(log.read_bytes())) if log.exists() else []
    assert found[: len(state.acknowledged)] == state.acknowledged, "an acknowledged record is lost"
    assert found == state.marked("attempted")[: len(found)], "a record was invented"


def caught(recorded: RecordedWrites, check: Callable[[Path, CrashState], None]) -> Counter[LossKind]:
    """Return the number of states of each kind on which the check fails."""
    failed: Counter[LossKind] = Counter()
    with scratch_directory() as place:
        for state in CrashStates(recorded):
            state.lay_out(place)
            try:
                check(Path(place), state)
            except AssertionError:
                failed[state.kind] += 1
    return failed


# ---- the correct program, and its mistakes


@pytest.mark.parametrize("size", [0, 16384], ids=["growing file", "preallocated file"])
def test_a_crash_safe_log_keeps_its_promises_in_every_state(size: int) -> None:
    states = CrashStates(log_written(size=size))
    run = run_states(states, log_check)
    assert sum(run.checked.values()) == len(states) == states.distinct.total() > 20


def test_a_log_that_acknowledges_before_its_sync_is_caught() -> None:
    recorded = log_written(sync=False)
    with pytest.raises(CrashCheckError, match=r"(?s)after operation .* missing|survives.*AssertionError: an acknowledged record is lost"):
        run_states(CrashStates(recorded), log_check)
    failed = caught(recorded, log_check)
    assert {LossKind.NOTHING, LossKind.WRITE, LossKind.PAGE} <= failed.keys()


def test_a_log_whose_name_was_never_synced_is_caught_by_the_name_alone() -> None:
    failed = caught(log_written(sync_names=False), log_check)
    assert failed.keys() == {LossKind.NOTHING, LossKind.NAME}


def test_a_log_that_writes_a_count_before_the_record_is_caught_when_everything_survives() -> None:
    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        directory.append("count", b"1")
        directory.append("log", b"R")

    def check(directory: Path, _: CrashState) -> None:
        count = (directory / "count").read_bytes() if (directory / "count").exists() else b""
        assert not count or (directory / "log").exists()

    assert LossKind.EVERYTHING in caught(written(steps), check)


@pytest.mark.parametrize("length", [90, 5000], ids=["within a sector", "of two pages"])
def test_a_reader_that_checks_no_checksum_is_caught_by_torn_records(length: int) -> None:
    def check(directory: Path, state: CrashState) -> None:
        log = directory / "log/0"
        found = list(records(log.read_bytes(), checked=False)) if log.exists() else []
        invented = found != state.marked("attempted")[: len(found)]
        assert not invented  # pytest takes minutes to show the difference of two large records, hundreds of times

    assert caught(log_written(size=16384, lengths=(length,)), check).keys() == {LossKind.TORN}


def test_a_reader_that_trusts_the_end_of_a_record_is_caught_by_a_missing_page() -> None:
    """Pages reach the disk in any order: the first and the last page of a record may be there without those between."""
    record = b"(" + b"x" * 10_000 + b")"

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        directory.create("log", 16384)
        directory.sync("log")
        directory.sync_directory("")
        directory.pwrite("log", 0, record)

    def check(directory: Path, _: CrashState) -> None:
        log = (directory / "log").read_bytes() if (directory / "log").exists() else b""
        if log[:1] == b"(" and log[len(record) - 1 : len(record)] == b")":
            assert log[: len(record)] == record

    assert caught(written(steps), check) == {LossKind.PAGE: 1}


def test_a_log_that_appends_after_an_unsynced_cut_is_caught_by_the_missing_length() -> None:
    """Two records are removed and another is written in place of the first: the second may be back after it."""
    first, taken, back, new = (framed(letter * 100) for letter in (b"f", b"t", b"b", b"n"))

    def steps(directory: DurableDirectory, recorded: RecordedWrites, *, sync: bool) -> None:
        directory.append("log", first + taken + back)
        directory.sync("log")
        directory.sync_directory("")
        directory.truncate("log", len(first))
        if sync:
            directory.sync("log")
        directory.append("log", new)

    def check(directory: Path, state: CrashState) -> None:
        log = (directory / "log").read_bytes() if (directory / "log").exists() else b""
        assert b"".join(record[:1] for record in records(log)) in (b"", b"f", b"ft", b"ftb", b"fn")

    assert not caught(written(lambda directory, recorded: steps(directory, recorded, sync=True)), check)
    failed = caught(written(lambda directory, recorded: steps(directory, recorded, sync=False)), check)
    assert failed == {LossKind.LENGTH: 1}


def test_a_log_that_relies_on_the_order_of_two_writes_is_caught_by_the_missing_write() -> None:
    """A count is written after the record it counts, with one sync for both: the count may survive alone."""

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        directory.create("log", 8192)
        directory.sync("log")
        directory.sync_directory("")
        directory.pwrite("log", 8000, b"record")
        directory.pwrite("log", 0, b"\1")
        directory.sync("log")

    def check(directory: Path, _: CrashState) -> None:
        log = (directory / "log").read_bytes() if (directory / "log").exists() else b""
        assert log[:1] != b"\1" or log[8000:8006] == b"record"

    assert caught(written(steps), check) == {LossKind.WRITE: 1}


def test_a_file_that_relies_on_another_file_is_caught_by_the_file_alone() -> None:
    """The log's two writes are both needed by the queue; only the loss of the whole file takes both."""

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        for name in ("log", "queue"):
            directory.create(name)
        directory.sync_directory("")
        directory.append("log", bytes([1]) * 100)
        directory.pwrite("log", 5000, bytes([1]) * 100)
        directory.append("queue", b"two copies in the log")

    def check(directory: Path, state: CrashState) -> None:
        if (directory / "queue").exists() and len((directory / "queue").read_bytes()) == 21:
            log = (directory / "log").read_bytes()
            assert log[:100] == bytes([1]) * 100 or log[5000:] == bytes([1]) * 100, "neither copy"

    assert caught(written(steps), check) == {LossKind.FILE: 1}


def test_a_replaced_file_without_its_draft_synced_is_caught() -> None:
    def steps(directory: DurableDirectory, recorded: RecordedWrites, *, sync: bool) -> None:
        directory.write_small("offsets.json", b"{1}")
        with directory.open_new("draft") as draft:
            draft.write(b"{2}")
            if sync:
                draft.sync()
        directory.rename("draft", "offsets.json")
        directory.sync_directory("")
        recorded.mark("acknowledged", b"{2}")

    def check(directory: Path, state: CrashState) -> None:
        found = (directory / "offsets.json").read_bytes() if (directory / "offsets.json").exists() else None
        if state.operations_done > 5:
            assert found in (b"{1}", b"{2}")
        assert not state.acknowledged or found == b"{2}"

    assert not caught(written(lambda directory, recorded: steps(directory, recorded, sync=True)), check)
    failed = caught(written(lambda directory, recorded: steps(directory, recorded, sync=False)), check)
    assert failed.keys() == {LossKind.NOTHING, LossKind.WRITE, LossKind.PAGE}


def test_a_cut_that_never_reached_the_disk_is_a_state() -> None:
    """A torn tail is cut at recovery and new records written in its place; the cut and the new bytes may be separated by a crash."""

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        directory.append("log", b"good" + b"torn" * 2000)
        directory.sync("log")
        directory.sync_directory("")
        directory.truncate("log", 4)
        directory.append("log", b"new!")

    sizes = {
        len(state.files().get("log", b"")): state.describe()
        for state in CrashStates(written(steps))
        if state.kind is LossKind.LENGTH and state.operations_done == 6
    }
    assert sizes == {8004: "after operation 6 (Write log 4+4), Truncate log size 4 (operation 5) missing"}


# ---- the states themselves


def test_the_states_of_a_small_run_are_those_counted_by_hand() -> None:
    """Two writes into a synced file of two pages; the second crosses from page 0 to page 1 and from sector 7 to 8."""
    run = [Create("f", 8192), Sync("f"), SyncDirectory(""), Write("f", 0, b"abc"), Write("f", 4000, b"x" * 200), Sync("f")]
    states = CrashStates(run)
    told = [(state.name.split(".")[0], state.lost) for state in states]
    assert told == [
        ("0", "everything survives"),
        ("1", "everything survives"),
        ("1", "Truncate f size 8192 (operation 1) missing"),
        ("4", "everything survives"),
        ("4", "Write f 0+3 torn after 2 bytes"),
        ("5", "everything survives"),
        ("5", "Write f 0+3 (operation 4) missing"),
        ("5", "Write f 4000+200 torn after 96 bytes"),
        ("5", "page 0 of f missing"),
    ]
    # in all: 2 at point 0; at 1 everything, nothing, length, file, name; at 2 everything, nothing, name; at 3 everything,
    # nothing; at 4 these, write, torn, page, file; at 5 these, 2 writes, torn, 2 pages, file; at 6 everything, nothing
    assert states.total.total() == 2 + 5 + 3 + 2 + 6 + 8 + 2
    assert states.total == Counter(
        {
            LossKind.EVERYTHING: 7,
            LossKind.NOTHING: 7,
            LossKind.WRITE: 3,
            LossKind.LENGTH: 1,
            LossKind.TORN: 2,
            LossKind.PAGE: 3,
            LossKind.FILE: 3,
            LossKind.NAME: 2,
        }
    )
    assert states.distinct.total() == len(states) == 9


def test_equal_bytes_with_more_acknowledged_are_another_state() -> None:
    run: list[Operation] = [Create("f", 0), SyncDirectory(""), Write("f", 0, b"a"), Sync("f")]
    assert len(CrashStates([*run, Mark("seen", 1), Mark("seen", 2)])) == len(CrashStates(run))
    acknowledged = list(CrashStates([*run, Mark("acknowledged", 1)]))
    assert [(state.name, state.acknowledged, state.files()) for state in acknowledged[-1:]] == [("5.0", [1], {"f": b"a"})]
    assert len(acknowledged) == len(CrashStates(run)) + 1


@pytest.mark.parametrize("seed", range(60))
def test_the_model_agrees_with_the_plain_replay_of_random_runs(seed: int) -> None:
    """The states everything and nothing equal `replay`; a missing write or length equals the replay of the run without it."""
    run = random_run(random.Random(seed))
    recorded = RecordedWrites(run)
    disk = Disk(None)
    for done in range(1, len(run) + 1):
        disk.apply(done - 1, run[done - 1])
        lasting, seen = replayed(recorded, done, lose=True), replayed(recorded, done)
        keys: dict[int, dict[str, bytes | None]] = {}
        for loss in losses(disk, seed):
            tree = loss.tree(disk)
            found: dict[str, bytes | None] = {path: file.content() for path, file in tree.files.items()} | dict.fromkeys(tree.directories)
            assert keys.setdefault(loss.key(disk), found) == found
            if loss.kind is LossKind.EVERYTHING:
                assert found == seen
            elif loss.kind is LossKind.NOTHING:
                assert found == lasting
            elif loss.kind in (LossKind.WRITE, LossKind.LENGTH):
                number = loss.number  # type: ignore[attr-defined]
                without = run[number]
                shorter = [Create(without.path, 0)] if isinstance(without, Create) else []
                assert found == replayed(RecordedWrites(run[:number] + shorter + run[number + 1 : done])), str(loss)
            elif loss.kind in (LossKind.PAGE, LossKind.FILE, LossKind.TORN):
                assert {path for path in found if found[path] != seen[path]} <= {loss.path}  # type: ignore[attr-defined]
            elif not any(isinstance(step, Rename) and parent(step.old) != parent(step.new) for step in run[:done]):
                number = loss.change.number  # type: ignore[attr-defined]
                assert found.keys() == names_without(run[:done], number), str(loss)
        assert len(set(map(repr, keys.values()))) == len(keys), "two keys for one content"


def replayed(recorded: RecordedWrites, upto: int | None = None, *, lose: bool = False) -> dict[str, bytes | None]:
    with scratch_directory() as place:
        recorded.replay(place, upto, lose_unsynced=lose)
        root = Path(place)
        return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def names_without(run: list[Operation], missing: int) -> set[str]:
    """Return the names after a run without one operation and without those that depend on it."""
    names: set[str] = set()
    for number, operation in enumerate(run):
        match operation:
            case Create(path) | MakeDirectory(path) if number != missing and (not parent(path) or parent(path) in names):
                names.add(path)
            case Rename(old, new) if number != missing and old in names:
                names = names - {old} | {new}
            case Remove(path) if number != missing:
                names.discard(path)
    return names


def random_run(chance: random.Random) -> list[Operation]:
    files: dict[str, int] = {}
    run: list[Operation] = []
    directories = ["", *(f"d{number}" for number in range(2))]
    run += [MakeDirectory(path) for path in directories[1:]]
    for number in range(30):
        path = chance.choice(sorted(files)) if files else ""
        step = chance.choice(["create", "write", "write", "write", "write", "truncate", "sync", "sync directory", "rename", "remove"])
        match step:
            case "create":
                new = "/".join(part for part in (chance.choice(directories), f"f{number}") if part)
                files[new] = chance.choice([0, 0, 100, 8192])
                run.append(Create(new, files[new]))
            case "write" if path:
                offset = chance.choice([0, files[path], max(0, files[path] - 10), chance.randrange(9000)])
                run.append(Write(path, offset, bytes([number + 1]) * chance.choice([1, 10, 600, 5000])))
                files[path] = max(files[path], offset + len(run[-1].data))
            case "truncate" if path:
                files[path] = chance.choice([0, files[path] // 2, files[path] + 500])
                run.append(Truncate(path, files[path]))
            case "sync" if path:
                run.append(Sync(path))
            case "sync directory":
                run.append(SyncDirectory(chance.choice(directories)))
            case "rename" if path:
                new = chance.choice([*sorted(files), f"r{number}", f"d1/r{number}"])
                if new != path:
                    run.append(Rename(path, new))
                    files[new] = files.pop(path)
            case "remove" if path:
                run.append(Remove(path))
                del files[path]
    return run


def names_lost(run: list[Operation]) -> dict[str, dict[str, bytes]]:
    return {lost: files for lost, files in all_losses(run) if lost.startswith(("Create", "Make", "Re", "Link"))}


SAFE: list[Operation] = [
    Create("a", 0),
    Create("b", 0),
    Write("a", 0, b"old"),
    Write("b", 0, b"new"),
    Sync("a"),
    Sync("b"),
    SyncDirectory(""),
]


def test_a_lost_name_affects_only_what_depends_on_it() -> None:
    assert names_lost([*SAFE, Rename("b", "a")]) == {"Rename b to a (operation 8) missing": {"a": b"old", "b": b"new"}}
    assert names_lost([*SAFE, Remove("a")]) == {"Remove a (operation 8) missing": {"a": b"old", "b": b"new"}}
    draft: list[Operation] = [*SAFE, Create("draft", 0), Write("draft", 0, b"newer"), Sync("draft"), Rename("draft", "a")]
    assert names_lost(draft) == {
        "Create draft (operation 8) missing": {"a": b"old", "b": b"new"},
        "Rename draft to a (operation 11) missing": {"a": b"old", "b": b"new", "draft": b"newer"},
    }
    assert names_lost([*SAFE, Rename("a", "c"), Rename("b", "a")]) == {
        "Rename a to c (operation 8) missing": {"a": b"new"},
        "Rename b to a (operation 9) missing": {"b": b"new", "c": b"old"},
    }
    assert names_lost([*SAFE, MakeDirectory("d"), Create("d/x", 0)]) == {
        "MakeDirectory d (operation 8) missing": {"a": b"old", "b": b"new"},
        "Create d/x (operation 9) missing": {"a": b"old", "b": b"new"},
    }


def test_a_removed_tree_may_return_whole() -> None:
    run: list[Operation] = [MakeDirectory("d"), Create("d/x", 3), Sync("d/x"), SyncDirectory("d"), SyncDirectory(""), RemoveTree("d")]
    (back,) = [loss for loss in all_losses(run) if loss[0].startswith("RemoveTree")]
    assert back == ("RemoveTree d (operation 6) missing", {"d/x": bytes(3)})


def all_losses(run: list[Operation]) -> list[tuple[str, dict[str, bytes]]]:
    disk = Disk(None)
    for number, operation in enumerate(run):
        disk.apply(number, operation)
    return [(str(loss), {path: file.content() for path, file in loss.tree(disk).files.items()}) for loss in losses(disk)]


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    run: list[Operation] = [
        Create("f", 0),
        SyncDirectory(""),
        Write("f", 0, b"before"),
        Write("f", 6, b"meanwhile"),
        Sync("f", begun=3),
    ]
    assert dict(all_losses(run))["nothing unsynced survives"] == {"f": b"before"}
    assert dict(all_losses([*run, Sync("f")]))["nothing unsynced survives"] == {"f": b"beforemeanwhile"}


def test_an_empty_write_and_one_after_the_removal_change_no_file() -> None:
    disk, sizes = Disk(None), []
    again = (Create("f", 0), Write("f", 3, b"y"))
    for number, operation in enumerate((Create("f", 0), Write("f", 10, b""), Remove("f"), Write("f", 0, b"x"), *again)):
        disk.apply(number, operation)
        sizes.append(disk.files["f"].size if "f" in disk.files else None)
    assert sizes == [0, 0, None, None, 0, 4]


def test_a_copy_from_outside_is_durable_after_its_sync_and_a_link_at_once(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"bytes")
    for copied, lasting in ((True, b""), (False, b"bytes")):
        run: list[Operation] = [Link(str(tmp_path / "outside"), "f", copied), SyncDirectory("")]
        assert dict(all_losses(run))["everything survives"] == {"f": b"bytes"}
        assert dict(all_losses(run))["nothing unsynced survives"] == {"f": lasting}
    assert dict(all_losses([*run, Sync("f")]))["nothing unsynced survives"] == {"f": b"bytes"}


def test_what_existed_before_the_run_survives(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_bytes(b"{}")
    with open(tmp_path / "log", "wb") as log:
        log.truncate(1 << 30)
        log.write(b"old")
    run: list[Operation] = [Write("log", 1 << 29, b"new"), Remove("config/topics.json")]
    with scratch_directory() as place:
        for state in CrashStates(run, tmp_path):
            state.lay_out(place)
            assert (Path(place) / "log").stat().st_size == 1 << 30
            assert (Path(place) / "log").stat().st_blocks * 512 <= 65536, "a large file stays sparse"
            with open(Path(place) / "log", "rb") as laid:
                assert laid.read(3) == b"old"
                laid.seek(1 << 29)
                assert laid.read(3) in (b"new", b"n\0\0", b"ne\0", bytes(3))
    with pytest.raises(ValueError, match="pass the directory before the run as base"):
        CrashStates(run)


# ---- choosing, reproducing, running


def test_the_same_seed_chooses_the_same_states_evenly_over_the_kinds() -> None:
    recorded = log_written(lengths=(90, 700, 5000, 30, 20_000))
    everything = CrashStates(recorded)
    chosen = CrashStates(recorded, limit=40, seed=7)
    assert len(chosen) == 40
    assert chosen.names() == CrashStates(recorded, limit=40, seed=7).names() != CrashStates(recorded, limit=40, seed=8).names()
    kinds = Counter(state.kind for state in chosen)
    assert all(kinds[kind] == min(count, kinds[LossKind.TORN]) or kinds[kind] >= 5 for kind, count in everything.distinct.items())
    assert len(set(chosen.names())) == 40
    assert len(CrashStates(recorded, limit=10**6)) == len(everything)


def test_a_state_is_laid_out_again_by_its_name() -> None:
    states = CrashStates(log_written(), limit=10, seed=3)
    for state in states:
        again = states.state(state.name)
        assert (again.describe(), again.files(), again.acknowledged) == (state.describe(), state.files(), state.acknowledged)
    with pytest.raises(ValueError, match=r"no crash state 999\.0"):
        states.state("999.0")


def test_a_directory_that_a_check_has_changed_holds_the_next_state_and_nothing_else(tmp_path: Path) -> None:
    for state in CrashStates(log_written(size=16384)):
        state.lay_out(tmp_path)
        held = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert held == state.files()
        assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_dir()} == set(state.tree.directories)
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / "log/0").write_bytes(b"changed")
        (tmp_path / "abort").touch()
        (tmp_path / "other/below").mkdir(parents=True)
        (tmp_path / "other/below/file").touch()


def test_all_processes_together_check_each_state_once(tmp_path: Path) -> None:
    states = CrashStates(log_written(lengths=(90, 30_000, 30_000)))

    def check(_: Path, state: CrashState) -> None:
        with open(tmp_path / str(os.getpid()), "a") as seen:
            seen.write(state.name + "\n")

    lines: list[str] = []
    run_states(states, check, workers=2, report=lines.append)
    seen = [name for path in tmp_path.iterdir() for name in path.read_text().split()]
    assert sorted(seen) == sorted(states.names())
    assert lines[0].startswith(f"crash states: {len(states)} checked of {len(states)} distinct ones (")
    assert len(list(tmp_path.iterdir())) <= 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_shows_how_to_reproduce_it(workers: int) -> None:
    states = CrashStates(log_written(sync=False), seed=5)
    with pytest.raises(CrashCheckError) as raised:
        run_states(states, log_check, workers=workers)
    name = str(raised.value).split("crash state ")[1].split(":")[0]
    assert f"CrashStates(recorded, seed=5).state({name!r}).lay_out(directory)" in str(raised.value)
    assert states.state(name).describe() in str(raised.value)
    with scratch_directory() as place:
        states.state(name).lay_out(place)
        with pytest.raises(AssertionError):
            log_check(Path(place), states.state(name))


def test_a_check_whose_process_dies_is_a_failure_of_that_state() -> None:
    states = CrashStates(log_written())
    victim = states.names()[len(states) // 2]

    def check(_: Path, state: CrashState) -> None:
        if state.name == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(CrashCheckError, match=rf"(?s)crash state {victim}: .*exit code -9"):
        run_states(states, check)


def test_the_speed_of_a_store_of_twenty_files_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no limit, as the figure depends on the machine: a few thousand per second, and CI opens 20,000 states."""

    def steps(directory: DurableDirectory, recorded: RecordedWrites) -> None:
        for number in range(20):
            directory.create(f"consumequeue/topic-{number % 5}/{number}/00000000000000000000", 6000)
        directory.sync_tree("")
        for number in range(60):
            directory.pwrite(f"consumequeue/topic-{number % 5}/{number % 20}/00000000000000000000", 20 * number, bytes([number + 1]) * 20)

    states = CrashStates(written(steps), limit=2000)
    run = run_states(states, lambda directory, state: None)
    assert sum(run.checked.values()) == 2000
    assert f"{2000:,} checked of" in capsys.readouterr().out
    print(run)
