"""The lock on a store, between processes and within one, and the mark of an unclean exit."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.golden import case_named, opened

from mqstore.errors import TargetError
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import RecordedWrites
from mqstore.rocketmq.live.store_lock import StoreLock, create_abort, remove_abort

# The lock as any POSIX program takes it (and so Java: FileChannel.tryLock(0, 1, false)), without the code under test.
HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1] + "/lock", os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import fcntl, os, sys
file = os.open(sys.argv[1] + "/lock", os.O_RDWR)
start, length = int(sys.argv[2]), int(sys.argv[3])
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
except OSError as error:
    print("refused")
else:
    print("granted")
"""


@contextlib.contextmanager
def held_elsewhere(root: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.communicate()


def tried(root: Path, start: int = 0, length: int = 1) -> str:
    """Return what another process gets that tries to lock a range of the lock file."""
    command = [sys.executable, "-c", TRY, str(root), str(start), str(length)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DurableDirectory]:
    with DurableDirectory(tmp_path) as made:
        yield made


def test_the_lock_is_on_the_first_byte_alone_and_ends_with_close(directory: DurableDirectory) -> None:
    lock = StoreLock(directory)
    assert (directory.root / "lock").stat().st_size == 4
    assert [tried(directory.root), tried(directory.root, 1, 0)] == ["refused", "granted"]
    lock.close()
    assert tried(directory.root) == "granted"
    assert (directory.root / "lock").read_bytes() == b"lock"
    lock.close()


def test_a_store_that_another_process_holds_is_refused_until_that_one_dies(directory: DurableDirectory) -> None:
    with held_elsewhere(directory.root) as process:
        with pytest.raises(TargetError, match="is in use by another process"):
            StoreLock(directory)
        process.kill()
        process.wait()
        StoreLock(directory).close()


def test_a_refusal_leaves_the_holders_file_as_it_is(directory: DurableDirectory) -> None:
    with held_elsewhere(directory.root):
        with pytest.raises(TargetError):
            StoreLock(directory)
        assert (directory.root / "lock").read_bytes() == b""
        assert tried(directory.root) == "refused"


def test_one_process_cannot_lock_a_store_twice_and_the_attempt_does_not_free_it(directory: DurableDirectory, tmp_path: Path) -> None:
    """POSIX would grant the second lock, and free both when the second descriptor is closed."""
    (tmp_path / "other").symlink_to(tmp_path)
    with StoreLock(directory):
        for root in (tmp_path, tmp_path / "other"):
            with DurableDirectory(root) as again, pytest.raises(TargetError, match="by this process"):
                StoreLock(again)
        assert tried(directory.root) == "refused"
    with StoreLock(directory):
        assert tried(directory.root) == "refused"


def test_stores_side_by_side_do_not_disturb_each_other(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with DurableDirectory(tmp_path / "a") as a, DurableDirectory(tmp_path / "b") as b, StoreLock(a):
        with StoreLock(b):
            assert [tried(a.root), tried(b.root)] == ["refused", "refused"]
        assert [tried(a.root), tried(b.root)] == ["refused", "granted"]


def test_a_lock_is_not_inherited_by_a_forked_child(directory: DurableDirectory) -> None:
    """The child does not hold the lock, is refused by the system, and its exit does not release the parent's."""
    with StoreLock(directory):
        child = os.fork()
        if child == 0:
            try:
                with DurableDirectory(directory.root) as again:
                    StoreLock(again)
            except TargetError as error:
                os._exit(7 if "another process" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert tried(directory.root) == "refused"


def test_taking_over_a_brokers_store_writes_nothing_into_its_lock_file(directory: DurableDirectory, tmp_path: Path) -> None:
    original = (opened(case_named("4.9.3/b-kill9")) / "lock").read_bytes()
    (tmp_path / "lock").write_bytes(original)
    before = (tmp_path / "lock").stat().st_mtime_ns
    StoreLock(directory).close()
    assert ((tmp_path / "lock").read_bytes(), (tmp_path / "lock").stat().st_mtime_ns) == (original, before)


def test_a_lock_file_that_is_a_link_is_refused(directory: DurableDirectory, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(TargetError):
        StoreLock(directory)
    assert (tmp_path / "precious").read_text() == "x"


def test_locking_is_recorded_and_an_error_at_any_step_leaves_no_lock(tmp_path: Path) -> None:
    class FailsAt(RecordedWrites):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.left = number

        def attempt(self, operation: str, relative: str) -> None:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, "input/output error")

    for number in (1, 2, 3, 4):
        root = tmp_path / str(number)
        root.mkdir()
        recorder = FailsAt(number)
        with DurableDirectory(root, recorder=recorder) as directory:
            if number == 4:
                StoreLock(directory).close()
                continue
            with pytest.raises(TargetError, match="input/output error"):
                StoreLock(directory)
        with DurableDirectory(root) as directory:
            StoreLock(directory).close()
    (tmp_path / "replayed").mkdir()
    recorder.replay(tmp_path / "replayed")
    assert (tmp_path / "replayed" / "lock").read_bytes() == b"lock"


# abort


def test_abort_of_4_9_3_is_empty(directory: DurableDirectory) -> None:
    create_abort(directory, "4.9.3", 586)
    assert [(path.name, path.read_bytes()) for path in directory.root.iterdir()] == [("abort", b"")]
    create_abort(directory, "4.9.3", 587)
    remove_abort(directory)
    assert list(directory.root.iterdir()) == []
    remove_abort(directory)


def test_abort_of_5_3_3_is_the_process_id_and_its_bak_the_one_before(directory: DurableDirectory) -> None:
    def found() -> dict[str, str]:
        return {path.name: path.read_text() for path in directory.root.iterdir()}

    create_abort(directory, "5.3.3", 586)
    assert found() == {"abort": "586", "abort.bak": ""}
    create_abort(directory, "5.3.3", 99)  # after a kill
    assert found() == {"abort": "99", "abort.bak": "586"}
    remove_abort(directory)
    assert found() == {"abort.bak": "586"}
    create_abort(directory, "5.3.3", 1234)
    assert found() == {"abort": "1234", "abort.bak": ""}


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_abort_outlives_a_crash_once_it_was_created_and_stays_gone_once_removed(version: str, tmp_path: Path) -> None:
    recorded = RecordedWrites()
    (tmp_path / "run").mkdir()
    with DurableDirectory(tmp_path / "run", recorder=recorded) as directory:
        create_abort(directory, version, 586)
        created = len(recorded.operations)
        remove_abort(directory)
    for upto, there in ((created, True), (len(recorded.operations), False)):
        root = tmp_path / str(upto)
        root.mkdir()
        recorded.replay(root, upto, lose_unsynced=True)
        assert (root / "abort").exists() is there
