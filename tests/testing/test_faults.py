"""Injected faults: each takes the path of a real error, each change fails once, and a program that hides a fault is caught."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.recorder import Sync, Write
from mqstore.testing import FailingDisk, Fault, FaultCheckError, RecordedWrites, every_fault

CHANGES: dict[str, tuple[Callable[[DurableDirectory], object], list[str]]] = {
    "create": (lambda directory: directory.create("d/new", 10), ["mkdir d", "create d/new", "truncate d/new"]),
    "ensure": (lambda directory: directory.ensure("new", 10), ["create new", "truncate new"]),
    "open_new": (lambda directory: directory.open_new("new").close(), ["create new"]),
    "pwrite": (lambda directory: directory.pwrite("file", 0, b"x"), ["write file"]),
    "append": (lambda directory: directory.append("file", b"x"), ["write file"]),
    "truncate": (lambda directory: directory.truncate("file", 1), ["truncate file"]),
    "rename": (lambda directory: directory.rename("file", "moved"), ["rename moved"]),
    "remove": (lambda directory: directory.remove("file"), ["remove file"]),
    "remove_tree": (lambda directory: directory.remove_tree("tree"), ["remove tree"]),
    "sync": (lambda directory: directory.sync("file"), ["sync file"]),
    "sync_directory": (lambda directory: directory.sync_directory("tree"), ["sync directory tree"]),
    "sync_tree": (lambda directory: directory.sync_tree("tree"), ["sync tree/leaf", "sync directory tree"]),
    "link": (lambda directory: directory.link_or_copy(directory.root / "file", "link"), ["link link"]),
    "copy": (lambda directory: directory.link_or_copy(directory.root / "file", "copy", copy=True), ["create copy"]),
    "write_small": (
        lambda directory: directory.write_small("small", b"x"),
        ["create DRAFT", "write DRAFT", "sync DRAFT", "rename small", "sync directory "],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_the_disk_can_fail_and_leaves_what_a_real_error_leaves(tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    met: list[str] = []
    for n in range(1, len(expected) + 2):
        place = tmp_path / str(n)
        (place / "tree").mkdir(parents=True)
        (place / "file").write_bytes(b"content")
        (place / "tree/leaf").touch()
        disk = FailingDisk(n, errno.EIO)
        with DurableDirectory(place, recorder=disk) as directory:
            if n > len(expected):
                change(directory)
                assert not disk.fired
                break
            before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            with pytest.raises(TargetError, match="cannot be written: Input/output error"):
                change(directory)
            assert disk.met is not None
            operation, path = disk.met
            met.append(f"{operation} {'DRAFT' if '.mqstore-' in path else path}")
            after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            if operation == "truncate" and name == "ensure":
                assert after.pop(place / path) == b""  # other processes may use it, too
            if operation == "sync directory" and not path:
                assert after.pop(place / "small") == b"x"
            assert after == before
    assert met == expected


def test_what_a_failed_run_has_recorded_is_what_is_there(tmp_path: Path) -> None:
    """Whatever fails, replaying the record gives the directory: a failed change records no operation, its clean-up does."""

    def steps(directory: DurableDirectory) -> None:
        directory.create("commitlog/0", 8192)
        directory.pwrite("commitlog/0", 0, b"record")
        directory.write_small("config/offsets.json", b"{1}")
        directory.write_small("config/offsets.json", b"{2}")
        directory.rename("commitlog/0", "commitlog/1")
        directory.append("commitlog/0", b"more")
        directory.remove("commitlog/1")

    def tree(place: Path) -> dict[str, bytes | None]:
        return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}

    failed = 0
    for n in range(1, 40):
        recorded = RecordedWrites()
        for name in ("run", "replayed"):
            (tmp_path / f"{name}-{n}").mkdir()
        disk = FailingDisk(n, errno.ENOSPC, observer=recorded)
        with DurableDirectory(tmp_path / f"run-{n}", recorder=disk) as directory:
            try:
                steps(directory)
            except TargetError:
                failed += 1
        recorded.replay(tmp_path / f"replayed-{n}")
        assert tree(tmp_path / f"run-{n}") == tree(tmp_path / f"replayed-{n}"), disk.met
        if not disk.fired:
            break
    assert failed == 18


def test_a_new_directory_is_not_published_when_any_change_fails() -> None:
    def run(place: Path, disk: FailingDisk) -> None:
        with NewDirectory(place / "store", recorder=disk) as new:
            new.directory.append("commitlog/0", b"record")
            new.publish()

    def check(place: Path, fault: Fault[None]) -> None:
        assert fault.error is not None
        if (place / "store").exists():
            assert fault.operation in ("sync directory", "remove")
            assert (place / "store/commitlog/0").read_bytes() == b"record"

    assert every_fault(run, check, report=lambda _: None).total > 20


# ---- every fault


def append_twice(place: Path, disk: FailingDisk) -> list[bytes]:
    acknowledged = []
    with DurableDirectory(place, recorder=disk) as directory:
        for text in (b"one.", b"two."):
            directory.append("log", text)
            directory.sync("log")
            acknowledged.append(text)
    return acknowledged


def test_each_fault_is_tried_once_and_counted() -> None:
    """There are five changes: the creation, two writes, two syncs."""
    seen: list[tuple[int, int, bool, str]] = []
    lines: list[str] = []

    def check(place: Path, fault: Fault[list[bytes]]) -> None:
        assert isinstance(fault.error, TargetError)
        assert fault.result is None
        seen.append((fault.n, fault.code, fault.lasting, fault.operation))

    run = every_fault(append_twice, check, report=lines.append)
    operations = ["create", "write", "sync", "write", "sync"]
    assert seen == [
        (number + 1, code, lasting, operation)
        for code in (errno.ENOSPC, errno.EIO)
        for lasting in (False, True)
        for number, operation in enumerate(operations)
    ]
    assert run.total == 20
    assert lines == ["faults: 20 (ENOSPC 5, ENOSPC from then on 5, EIO 5, EIO from then on 5)"]


def test_a_program_that_reports_success_despite_the_fault_is_caught() -> None:
    def run(place: Path, disk: FailingDisk) -> list[bytes]:
        try:
            append_twice(place, disk)
        except TargetError:
            pass
        return [b"one.", b"two."]

    def check(place: Path, fault: Fault[list[bytes]]) -> None:
        log = (place / "log").read_bytes() if (place / "log").exists() else b""
        assert log == b"".join(fault.result or []), "an acknowledged record is not there"

    with pytest.raises(FaultCheckError, match=r"ENOSPC at change 1 \(create log\): AssertionError: an acknowledged record is not there"):
        every_fault(run, check)


def test_an_error_that_is_not_an_error_of_the_package_is_caught() -> None:
    def run(place: Path, disk: FailingDisk) -> None:
        disk.attempt("write", "log")

    with pytest.raises(FaultCheckError, match=r"EIO at change 1 \(write log\): OSError"):
        every_fault(run, lambda place, fault: None, codes=[errno.EIO])


def test_an_error_without_a_fault_is_not_swallowed() -> None:
    def run(place: Path, disk: FailingDisk) -> None:
        raise TargetError("not because of the disk")

    with pytest.raises(FaultCheckError, match="not because of the disk"):
        every_fault(run, lambda place, fault: None)


def test_a_full_disk_still_removes_and_a_lasting_fault_ends_when_the_disk_is_healed(tmp_path: Path) -> None:
    disk = FailingDisk(2, errno.ENOSPC, lasting=True)
    with DurableDirectory(tmp_path, recorder=disk) as directory:
        directory.create("first")
        for _ in range(3):
            with pytest.raises(TargetError, match="the disk is full"):
                directory.create("second")
        directory.remove("first")
        disk.heal()
        directory.create("second")
    assert disk.met == ("create", "second")
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


# ---- recorders and threads


def test_threads_that_write_at_once_lose_no_operation_and_keep_their_own_order(tmp_path: Path) -> None:
    recorded = RecordedWrites()

    def task(number: int) -> None:
        with DurableDirectory(tmp_path, recorder=recorded) as directory:
            for turn in range(200):
                directory.append(f"log-{number}", turn.to_bytes(2, "big"))
                recorded.mark("written", (number, turn))

    threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        offsets = [step.offset for step in recorded.operations if isinstance(step, Write) and step.path == f"log-{number}"]
        assert offsets == list(range(0, 400, 2))
    assert len(recorded.operations) == 4 * 401


def test_a_sync_remembers_what_was_written_when_it_began() -> None:
    recorded = RecordedWrites()
    recorded.record(Write("log", 0, b"before"))
    began, wrote = threading.Event(), threading.Event()

    def sync() -> None:
        recorded.attempt("sync", "log")
        began.set()
        wrote.wait()
        recorded.record(Sync("log"))

    thread = threading.Thread(target=sync)
    thread.start()
    began.wait()
    recorded.record(Write("log", 6, b"meanwhile"))
    wrote.set()
    thread.join()
    assert [getattr(operation, "begun", None) for operation in recorded.operations] == [None, None, 1]
