"""A directory as the changes of a repair would leave it, against what `apply` makes of the same directory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mqstore.errors import FileLostError
from mqstore.files import ReadOnlyDirectory
from mqstore.repair.change import Change, Step
from mqstore.repair.changed_directory import ChangedDirectory
from mqstore.repair.journal import apply
from mqstore.rocketmq.repair.plan import LOCKING

CHANGES = (
    Change("write", "empty", 0, b""),
    Change("write", "nothing", 0, b"now something"),
    Change("put", "made", content=b""),
    Change("remove", "stray/deep/note"),
    Change("rmdir", "stray/deep"),
    Change("rmdir", "stray"),
    Change("mkdir", "config"),
    Change("mkdir", "queues"),
    Change("put", "queues/0", content=b"entries"),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    for name, content in (("empty", b""), ("nothing", b""), ("stray/deep/note", b"x"), ("config/table", b"{}"), ("lock", b"lock")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_it_lists_and_reads_what_is_there_after_the_changes(store: Path, tmp_path: Path) -> None:
    seen = ChangedDirectory(ReadOnlyDirectory(store), CHANGES)
    directories = sorted(seen.directories())
    entries = {relative: [(entry.name, entry.size) for entry in seen.entries(relative) if entry.is_file] for relative in ("", *directories)}
    contents = {name: seen.read(name) for name in ("empty", "nothing", "made", "queues/0", "config/table")}
    assert not seen.is_directory("queues/0")
    assert not seen.exists("stray/deep/note")
    with pytest.raises(FileLostError, match="is taken out by an earlier step"):
        seen.map("stray/deep/note")
    apply(store, tmp_path / "undo", [Step("test", "", 0, 0, "", "", "", CHANGES)], LOCKING)
    assert directories == sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_dir())
    for relative, names in entries.items():
        files = sorted(path for path in (store / relative).iterdir() if path.is_file())
        assert names == [(path.name, path.stat().st_size) for path in files]
    assert contents == {name: (store / name).read_bytes() for name in contents}


def test_it_stays_in_its_process(store: Path) -> None:
    with pytest.raises(TypeError, match="only in the memory of this process"):
        pickle.dumps(ChangedDirectory(ReadOnlyDirectory(store), CHANGES))
