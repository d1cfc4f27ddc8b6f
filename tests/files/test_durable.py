"""The durable layer on real directories: writes, refusals, and what remains after an error."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import limits
from support.privilege import needs_permissions, without_privilege

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.durable import OPEN_FILES, DurableDirectory, NewDirectory, NewFile
from mqstore.files.recorder import Create, MakeDirectory, RecordedWrites, Rename, Sync, SyncDirectory, Write
from mqstore.kernels.common.positioned_writes import write_all


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def tree(place: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DurableDirectory]:
    (tmp_path / "root").mkdir()
    with DurableDirectory(tmp_path / "root") as opened:
        yield opened


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 256 KiB."""
    with limits.small_disk(tmp_path / "small-disk", 256) as place:
        yield place


# ---- writing into an existing directory


def test_a_preallocated_file_occupies_no_disk_and_takes_positioned_writes(directory: DurableDirectory) -> None:
    directory.create("consumequeue/orders/0/00000000000000000000", size=64 << 20)
    directory.pwrite("consumequeue/orders/0/00000000000000000000", 20, np.arange(5, dtype=">i4"))
    status = (directory.root / "consumequeue/orders/0/00000000000000000000").stat()
    assert status.st_size == 64 << 20
    assert status.st_blocks * 512 < 1 << 20
    with open(directory.root / "consumequeue/orders/0/00000000000000000000", "rb") as file:
        assert file.read(44) == bytes(20) + bytes.fromhex("0000000000000001000000020000000300000004") + bytes(4)


def test_structured_arrays_and_read_only_views_are_written_as_their_bytes(directory: DurableDirectory) -> None:
    entries = np.array([(1000, 184, 96354)], dtype=[("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
    entries.setflags(write=False)
    directory.append("queue", entries)
    assert (directory.root / "queue").read_bytes().hex() == "00000000000003e8000000b80000000000017862"


def test_a_buffer_with_gaps_is_refused_instead_of_written_wrongly(directory: DurableDirectory) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        directory.append("log", np.arange(10)[::2])


def test_append_returns_the_position_of_the_bytes(directory: DurableDirectory) -> None:
    assert [directory.append("log", b"abc"), directory.append("log", b"de"), directory.append("log", b"")] == [0, 3, 5]
    assert (directory.root / "log").read_bytes() == b"abcde"


@pytest.mark.parametrize("limit", [OPEN_FILES, 7])
def test_more_files_than_stay_open_can_be_written_in_turn(limit: int, tmp_path: Path) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    with DurableDirectory(tmp_path, open_files=limit) as directory:
        for turn in range(2):
            for number in range(3 * limit):
                assert directory.append(f"runs/{number}", bytes([turn])) == turn
        assert len(os.listdir("/proc/self/fd")) - open_before <= limit
    assert {(tmp_path / f"runs/{number}").read_bytes() for number in range(3 * limit)} == {b"\0\1"}


def test_a_file_is_cut_and_grown(directory: DurableDirectory) -> None:
    directory.append("log", b"abcdef")
    directory.truncate("log", 2)
    assert (directory.root / "log").read_bytes() == b"ab"
    directory.truncate("log", 4)
    assert (directory.root / "log").read_bytes() == b"ab\0\0"


def test_a_file_is_a_binary_sink(directory: DurableDirectory) -> None:
    with directory.open_new("rows.jsonl") as file:
        assert (file.write(b"one\n"), file.tell(), file.write(bytearray(b"two\n")), file.tell(), file.writable()) == (4, 4, 4, 8, True)
    assert (directory.root / "rows.jsonl").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/escaped", "a//b", "a/./b", "nul\0byte", "lone \ud800 surrogate"])
def test_a_name_from_damaged_bytes_never_leads_out_of_the_root(directory: DurableDirectory, name: str) -> None:
    for attempt in (directory.create, directory.make_directory, directory.remove, directory.exists):
        with pytest.raises(TargetError, match="cannot be the name of a file"):
            attempt(name)
    assert names(directory.root) == []
    assert names(directory.root.parent) == ["root"]


def test_a_name_too_long_for_the_file_system_gives_a_one_sentence_error(directory: DurableDirectory) -> None:
    with pytest.raises(TargetError, match="too long"):
        directory.create("t" * 300)


def test_an_existing_file_is_not_created_again(directory: DurableDirectory) -> None:
    directory.append("log", b"kept")
    for attempt in (directory.create, directory.open_new):
        with pytest.raises(TargetError, match="exists already"):
            attempt("log")
    assert (directory.root / "log").read_bytes() == b"kept"


def test_a_small_file_is_replaced_whole_and_its_draft_is_gone(directory: DurableDirectory) -> None:
    directory.write_small("config/topics.json", b"old")
    directory.write_small("config/topics.json", b"new", mode=0o600)
    assert names(directory.root / "config") == ["topics.json"]
    assert (directory.root / "config/topics.json").read_bytes() == b"new"
    assert (directory.root / "config/topics.json").stat().st_mode & 0o777 == 0o600


def test_a_renamed_file_is_written_under_its_new_name_only(directory: DurableDirectory) -> None:
    directory.append("run/1", b"a")
    directory.rename("run", "done")
    directory.append("done/1", b"b")
    directory.append("run/1", b"c")
    assert (directory.root / "done/1").read_bytes() == b"ab"
    assert (directory.root / "run/1").read_bytes() == b"c"
    directory.remove_tree("done")
    assert names(directory.root) == ["run"]
    directory.remove("run/1")
    with pytest.raises(TargetError, match="does not exist"):
        directory.remove("run/1")


def test_a_late_writer_does_not_bring_back_a_root_that_was_renamed_away(directory: DurableDirectory) -> None:
    directory.append("queue", b"entry")
    directory.root.rename(directory.root.with_name("published"))
    with pytest.raises(TargetError, match="does not exist"):
        directory.create("another/file")
    with pytest.raises(TargetError, match="no longer exists"):
        DurableDirectory(directory.root)
    assert names(directory.root.parent) == ["published"]


# ---- links and copies


def test_a_hard_link_is_never_written_through(directory: DurableDirectory, tmp_path: Path) -> None:
    source = tmp_path / "00000000000000000000"
    source.write_bytes(b"the dead broker's log")
    assert directory.link_or_copy(source, "commitlog/00000000000000000000")
    for attempt in (directory.append, lambda name, data: directory.pwrite(name, 0, data), lambda name, data: directory.truncate(name, 0)):
        with pytest.raises(TargetError, match="second hard link"):
            attempt("commitlog/00000000000000000000", b"x")
    assert source.read_bytes() == b"the dead broker's log"


def test_a_copy_is_independent_of_its_source_and_keeps_holes_and_times(directory: DurableDirectory, tmp_path: Path) -> None:
    source = tmp_path / "00000000000000000000"
    with open(source, "wb") as file:
        file.write(b"head")
        file.seek(8 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    os.utime(source, ns=(1_600_000_000_000_000_000, 1_600_000_000_000_000_000))
    assert not directory.link_or_copy(source, "commitlog/0", copy=True)
    copied = directory.root / "commitlog/0"
    assert copied.read_bytes() == source.read_bytes()
    assert copied.stat().st_blocks <= source.stat().st_blocks + 64
    assert copied.stat().st_mtime_ns == 1_600_000_000_000_000_000
    directory.pwrite("commitlog/0", 0, b"HEAD")
    assert source.read_bytes()[:4] == b"head"


def test_a_link_to_another_disk_becomes_a_copy(directory: DurableDirectory, full_disk: Path) -> None:
    (full_disk / "log").write_bytes(b"elsewhere")
    assert not directory.link_or_copy(full_disk / "log", "log")
    assert (directory.root / "log").read_bytes() == b"elsewhere"


def test_a_source_that_vanished_is_named(directory: DurableDirectory, tmp_path: Path) -> None:
    for copy in (False, True):
        with pytest.raises(CannotOpenError, match=r"no longer exists|cannot be read"):
            directory.link_or_copy(tmp_path / "vanished", "log", copy=copy)
    assert names(directory.root) == []


# ---- many writes at once


@pytest.mark.parametrize("recorder", [None, RecordedWrites()])
def test_many_files_are_written_at_once_more_than_stay_open(recorder: RecordedWrites | None, tmp_path: Path) -> None:
    with DurableDirectory(tmp_path, recorder=recorder, open_files=7) as directory:
        for number in range(20):
            directory.create(f"{number}", size=8)
        writes = [(f"{number % 20}", number // 20 * 4, np.full(4, number, np.uint8)) for number in range(40)]
        assert directory.pwrite_all(writes, write_all) == (40, None)
    assert all((tmp_path / f"{n}").read_bytes() == bytes([n] * 4 + [n + 20] * 4) for n in range(20))
    if recorder is not None:
        assert sum(isinstance(each, Write) for each in recorder.operations) == 40


def test_the_first_of_many_writes_that_fails_is_named(full_disk: Path) -> None:
    with DurableDirectory(full_disk) as directory:
        for name in "abc":
            directory.create(name, size=1 << 20)
        done, error = directory.pwrite_all([("a", 0, np.ones(9, np.uint8)), ("b", 0, np.ones(1 << 20, np.uint8)), ("c", 0, b"")], write_all)
        assert done == 1
        assert str(error) == f"{full_disk}/b cannot be written: the disk is full; free some space or choose a target on another disk"
        done, error = directory.pwrite_all([("a", 9, np.ones(1, np.uint8)), ("missing", 0, np.ones(1, np.uint8))], write_all)
        assert done == 1
        assert "missing" in str(error)
    assert (full_disk / "a").read_bytes()[:11] == b"\1" * 10 + b"\0"


# ---- errors of the operating system


def test_a_full_disk_gives_a_one_sentence_error_and_leaves_nothing(full_disk: Path) -> None:
    with pytest.raises(TargetError, match="the disk is full; free some space"), NewDirectory(full_disk / "out") as new:
        new.directory.create("queue", size=1 << 30)
        new.directory.pwrite("queue", 0, bytes(100_000))
        new.directory.pwrite("queue", 100_000, np.zeros(1 << 20, np.uint8))
    assert names(full_disk) == []


def test_a_copy_that_fills_the_disk_leaves_nothing(full_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * (1 << 20))
    with pytest.raises(TargetError, match="the disk is full"), DurableDirectory(full_disk) as directory:
        directory.link_or_copy(tmp_path / "big", "big")
    assert names(full_disk) == []


def test_a_small_file_that_does_not_fit_leaves_the_old_one(full_disk: Path) -> None:
    with DurableDirectory(full_disk) as directory:
        directory.write_small("config.json", b"old")
        with pytest.raises(TargetError, match="the disk is full"):
            directory.write_small("config.json", bytes(1 << 20))
    assert names(full_disk) == ["config.json"]
    assert (full_disk / "config.json").read_bytes() == b"old"


def test_the_file_size_limit_gives_a_one_sentence_error_and_leaves_nothing(tmp_path: Path) -> None:
    with limits.files_of_at_most(1 << 16), pytest.raises(TargetError, match="file size limit"), NewFile(tmp_path / "rows.csv") as new:
        new.file.write(bytes(1 << 17))
    assert names(tmp_path) == []


def test_a_read_only_disk_gives_a_one_sentence_error(full_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    with pytest.raises(TargetError, match="read-only"), NewDirectory(full_disk / "out"):
        raise AssertionError("nothing can be staged here")


@needs_permissions
def test_a_parent_without_permission_gives_a_one_sentence_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with without_privilege(), pytest.raises(TargetError, match="permission denied"), NewDirectory(tmp_path / "out"):
            raise AssertionError("nothing can be staged here")
    finally:
        tmp_path.chmod(0o700)


# ---- targets that appear whole or not at all


def test_a_new_directory_is_not_visible_before_it_is_published(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "out") as new:
        new.directory.append("commitlog/0", b"records")
        assert not (tmp_path / "out").exists()
        new.publish()
        assert names(tmp_path) == ["out"]
    assert (tmp_path / "out/commitlog/0").read_bytes() == b"records"
    assert names(tmp_path) == ["out"]


def test_an_existing_target_of_any_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "dangling"):
        for kind in (NewDirectory, NewFile):
            with pytest.raises(TargetError, match="exists already"), kind(tmp_path / name):
                raise AssertionError("the target exists")
    assert names(tmp_path) == ["dangling", "empty", "file"]


def test_a_target_that_was_created_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="meanwhile"), NewDirectory(tmp_path / "out") as new:
        (tmp_path / "out").mkdir()
        new.publish()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == []


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="create it first"), NewDirectory(tmp_path / "no" / "out"):
        raise AssertionError("the parent is missing")


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_staged_remains_however_the_block_ends(tmp_path: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), NewDirectory(tmp_path / "out") as new:
        new.directory.append("a/b/c", b"half")
        raise failure
    with pytest.raises(failure), NewFile(tmp_path / "rows") as file:
        file.file.write(b"half")
        raise failure
    assert names(tmp_path) == []


def test_a_new_file_appears_whole(tmp_path: Path) -> None:
    with NewFile(tmp_path / "rows.csv") as new:
        new.file.write(b"a,b\n")
        assert not (tmp_path / "rows.csv").exists()
        new.publish()
    assert names(tmp_path) == ["rows.csv"]
    assert (tmp_path / "rows.csv").read_bytes() == b"a,b\n"


def test_what_a_killed_run_staged_is_removed_by_the_next_and_that_of_a_live_one_is_not(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import time
        from mqstore.files.durable import NewDirectory
        with NewDirectory({str(tmp_path / "out")!r}) as new:
            new.directory.append("log", b"half")
            print("staged", flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "staged\n"
        (left,) = names(tmp_path)
        with contextlib.suppress(ZeroDivisionError), NewDirectory(tmp_path / "out"):
            assert left in names(tmp_path)
            raise ZeroDivisionError
        assert names(tmp_path) == [left]
        other.send_signal(signal.SIGKILL)
    assert names(tmp_path) == [left]
    with NewDirectory(tmp_path / "out") as new:
        assert left not in names(tmp_path)
        new.publish()
    assert names(tmp_path) == ["out"]


def test_tasks_in_threads_of_their_own_write_one_staged_file(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "out") as new:
        new.directory.create("queue", size=4 * 1000)

        def task(number: int) -> None:
            with DurableDirectory(new.directory.root) as mine:
                for place in range(number, 1000, 4):
                    mine.pwrite("queue", 4 * place, np.array([place], ">i4"))

        threads = [threading.Thread(target=task, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        new.publish()
    assert np.array_equal(np.fromfile(tmp_path / "out/queue", ">i4"), np.arange(1000))


# ---- replaying recorded writes


def test_a_recorded_run_replays_to_the_same_bytes(tmp_path: Path) -> None:
    recorded = RecordedWrites()
    (tmp_path / "first").mkdir()
    (tmp_path / "log").write_bytes(b"log of the broker")
    with NewDirectory(tmp_path / "first" / "out", recorder=recorded) as new:
        new.directory.create("queue", size=8)
        new.directory.pwrite("queue", 4, b"abcd")
        new.directory.write_small("config/x.json", b"{}")
        new.directory.link_or_copy(tmp_path / "log", "commitlog/0")
        new.directory.append("run", b"gone later")
        new.directory.remove("run")
        new.publish()
    (tmp_path / "second").mkdir()
    recorded.replay(tmp_path / "second")
    assert tree(tmp_path / "first") == tree(tmp_path / "second")
    for upto in range(len(recorded.operations) + 1):
        for lose in (False, True):
            crashed = tmp_path / f"crash-{upto}-{lose}"
            crashed.mkdir()
            recorded.replay(crashed, upto, lose_unsynced=lose)
            assert "out" not in names(crashed) or (crashed / "out/queue").read_bytes() == b"\0\0\0\0abcd"
    last = recorded.operations[-1]
    assert last == SyncDirectory("")
    assert names(tmp_path / f"crash-{len(recorded.operations)}-True") == ["out"]


def test_an_empty_directory_is_removed_and_nothing_else_is(tmp_path: Path) -> None:
    recorded = RecordedWrites()
    (tmp_path / "first").mkdir()
    with DurableDirectory(tmp_path / "first", recorder=recorded) as directory:
        directory.create("topic/0/file")
        directory.make_directory("topic/1")
        os.symlink("1", tmp_path / "first/topic/link")
        assert [directory.remove_empty(f"topic/{name}") for name in ("0", "0/file", "link", "1", "1", "2")] == [
            *(False, False, False),  # something is in it; a file; a link
            *(True, True, True),  # removed; not there any more; never there
        ]
        os.unlink(tmp_path / "first/topic/link")
        directory.remove("topic/0/file")
        directory.create("topic/1/file")  # the directory is made again
        assert [directory.remove_empty(f"topic/{name}") for name in ("0", "1")] == [True, False]
        directory.remove("topic/1/file")
        assert directory.remove_empty("topic/1")
        assert directory.remove_empty("topic")
    (tmp_path / "second").mkdir()
    recorded.replay(tmp_path / "second")
    assert tree(tmp_path / "first") == tree(tmp_path / "second") == {}


def test_a_crash_loses_what_was_not_synced() -> None:
    """Bytes are durable after a sync of the file, a name after a sync of its directory: the two are independent."""
    recorded = RecordedWrites(
        [
            MakeDirectory("d"),
            SyncDirectory(""),
            Create("d/a", 0),
            Write("d/a", 0, b"one"),
            Sync("d/a"),
            Write("d/a", 3, b"two"),
            SyncDirectory("d"),
            Rename("d/a", "d/b"),
            Sync("d/b"),
            SyncDirectory("d"),
        ]
    )
    expected = [{}, {}, {}, {}, {}, {}, {}, {"a": b"one"}, {"a": b"one"}, {"a": b"onetwo"}, {"b": b"onetwo"}]
    for upto, files in enumerate(expected):
        assert _crashed(recorded, upto) == files, upto


def _crashed(recorded: RecordedWrites, upto: int) -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        recorded.replay(place, upto, lose_unsynced=True)
        return {path.name: path.read_bytes() for path in Path(place).glob("d/*")}


def test_a_crash_in_an_existing_directory_keeps_what_was_there(tmp_path: Path) -> None:
    for place in ("live", "crash"):
        (tmp_path / place / "config").mkdir(parents=True)
        (tmp_path / place / "config/offsets.json").write_bytes(b"old")
        (tmp_path / place / "log").write_bytes(b"12345")
        (tmp_path / place / "untouched").write_bytes(b"!")
    recorded = RecordedWrites()
    with DurableDirectory(tmp_path / "live", recorder=recorded) as directory:
        directory.append("log", b"67")
        directory.sync("log")
        directory.append("log", b"89")
        directory.write_small("config/offsets.json", b"new")
        directory.remove("untouched")
    assert (tmp_path / "live/log").read_bytes() == b"123456789"
    recorded.replay(tmp_path / "crash", lose_unsynced=True)
    assert (tmp_path / "crash/log").read_bytes() == b"1234567"
    assert (tmp_path / "crash/config/offsets.json").read_bytes() == b"new"
    assert (tmp_path / "crash/untouched").read_bytes() == b"!"
    assert names(tmp_path / "crash") == ["config", "log", "untouched"]


def test_every_sync_is_a_real_sync(tmp_path: Path) -> None:
    """A path that cannot be synced is an error, never ignored."""
    with DurableDirectory(tmp_path) as directory, pytest.raises(TargetError, match=os.strerror(errno.ENOENT) + "|does not exist"):
        directory.sync("nothing")
