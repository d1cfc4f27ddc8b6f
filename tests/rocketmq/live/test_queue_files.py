"""The files of queues: directories that vanish while their names are being synced, and others that still have to be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import Operation, SyncDirectory
from mqstore.rocketmq.live.queue_files import QueueFiles


class Disturbing:
    """A recorder that calls `before` ahead of each sync of a directory. Satisfies `files.recorder.Recorder`."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.before = lambda path: None

    def attempt(self, operation: str, path: str) -> None:
        if operation == "sync directory":
            self.before(path)

    def record(self, operation: Operation) -> None:
        if isinstance(operation, SyncDirectory):
            self.synced.append(operation.path)


@pytest.fixture
def disturbing() -> Disturbing:
    return Disturbing()


@pytest.fixture
def files(tmp_path: Path, disturbing: Disturbing) -> Iterator[QueueFiles]:
    writing, syncing = DurableDirectory(tmp_path), DurableDirectory(tmp_path, recorder=disturbing)
    files = QueueFiles(ReadOnlyDirectory(tmp_path), writing, syncing)
    for topic in ("A", "B"):
        files.create(f"consumequeue/{topic}/0/{0:020d}", 200, None)
    yield files
    files.close()


ALL = ["consumequeue/B/0", "consumequeue/B", "consumequeue/A/0", "consumequeue/A", "consumequeue", ""]


def test_directories_that_are_removed_before_their_sync_do_not_stop_it(files: QueueFiles, disturbing: Disturbing, tmp_path: Path) -> None:
    def remove(path: str) -> None:
        if path == "consumequeue/B/0":
            (tmp_path / path / f"{0:020d}").unlink()
            files.remove_directories(path)

    disturbing.before = remove
    files.sync()
    assert disturbing.synced == ALL[2:]
    assert not (tmp_path / "consumequeue/B").exists()
    assert files.sync()
    assert disturbing.synced == ALL[2:]


def test_directories_that_could_not_be_synced_are_synced_the_next_time(files: QueueFiles, disturbing: Disturbing) -> None:
    def fail(path: str) -> None:
        if path == "consumequeue/A/0":
            raise OSError(5, "input/output error")

    disturbing.before = fail
    with pytest.raises(TargetError, match="input/output error"):
        files.sync()
    assert disturbing.synced == ALL[:2]
    disturbing.before = lambda path: None
    assert files.sync()
    assert disturbing.synced == ALL


def test_an_interruption_is_not_taken_for_a_removed_directory(files: QueueFiles, disturbing: Disturbing, tmp_path: Path) -> None:
    def interrupt(path: str) -> None:
        (tmp_path / path / f"{0:020d}").unlink()
        files.remove_directories(path)
        raise KeyboardInterrupt

    disturbing.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        files.sync()
    disturbing.before = lambda path: None
    assert files.sync()
    assert disturbing.synced == ALL[2:]
