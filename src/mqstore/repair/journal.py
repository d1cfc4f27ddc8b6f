"""The undo journal of a repair: a directory outside the store, complete and synced before the first byte of the store changes.

    DIR/
        manifest.json     the store, and the changes in order: operation, file, range, old and new state, checksums
        state             prepared, applied or undoing
        0000.old          bytes before the change
        0000.new          bytes after it

    apply   lock · journal appears by one rename · changes, each synced · state: applied
    undo    lock · state: undoing · changes reversed, each synced · journal removed

Every change can be repeated, so that after a crash the same command goes on: the journal holds both sides of each. Where nothing was
interrupted, the files must be as the repair left them; otherwise `undo` refuses and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.recorder import Recorder
from mqstore.repair.change import Change, Step

__all__ = ["APPLIED", "PREPARED", "UNDOING", "Journal", "StoreLocking", "apply", "read_journal", "resume", "undo"]

MANIFEST, STATE = "manifest.json", "state"
PREPARED, APPLIED, UNDOING = "prepared", "applied", "undoing"
JournalState = str
DRAFT = ".mqstore-repair"
PIECE = 8 << 20
LARGEST_MANIFEST = 1 << 30


class _Lock(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreLocking:
    """How a store is locked. take: raises TargetError if another process has it. file: what it leaves in the store, or empty."""

    take: Callable[[DurableDirectory], _Lock]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal that was read. store: the store's path when it was written, relative: from the journal to it, identity: its inode."""

    path: Path
    state: JournalState
    store: str
    relative: str
    identity: tuple[int, int]
    lock_existed: bool
    changes: tuple[dict[str, Any], ...]


def _identity(root: Path) -> tuple[int, int]:
    found = root.stat()
    return found.st_dev, found.st_ino


def read_journal(path: Path) -> Journal | None:
    """Read a journal; None if there is nothing at the path. Raises CannotOpenError for anything that is not a journal."""
    if not os.path.lexists(path):
        return None
    try:
        reading = ReadOnlyDirectory(path)
        document = json.loads(reading.read(MANIFEST, LARGEST_MANIFEST) or b"")
        state = (reading.read(STATE, 64) or b"").decode("ascii")
        if document["format"] != 1 or state not in (PREPARED, APPLIED, UNDOING):
            raise ValueError
        identity = (int(document["device"]), int(document["inode"]))
        return Journal(
            path,
            state,
            str(document["store"]),
            str(document["relative"]),
            identity,
            bool(document["lock_existed"]),
            tuple(document["changes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CannotOpenError(f"{path} is not the journal of a repair; give another directory with --journal") from error


def _check_place(root: Path, path: Path) -> None:
    real = path.parent.resolve() / path.name
    if real == root.resolve() or real.is_relative_to(root.resolve()):
        raise TargetError(f"{path} is inside the store; give a directory outside it with --journal")


def _check_owner(root: Path, journal: Journal) -> None:
    moved_together = journal.relative == os.path.relpath(root.resolve(), journal.path.resolve())
    if journal.store != str(root.resolve()) and journal.identity != _identity(root) and not moved_together:
        raise TargetError(
            f"the journal {journal.path} is that of another store, {journal.store}; give the journal of {root} with --journal"
        )


# apply


def apply(
    root: Path, path: Path, steps: Sequence[Step], locking: StoreLocking, *, recorder: Recorder | None = None, within: str = ""
) -> Journal:
    """Apply steps to a store whose lock is free. path: the journal, which must not exist yet. Raises TargetError with nothing changed."""
    _check_place(root, path)
    lock_existed = not locking.file or os.path.lexists(root / locking.file)
    with DurableDirectory(root, recorder=recorder, within=within) as directory, closing(locking.take(directory)):
        _write_journal(root, path, steps, lock_existed, recorder)
        journal = read_journal(path)
        assert journal is not None
        _redo(directory, journal, recorder)
    return journal


def resume(root: Path, journal: Journal, locking: StoreLocking, *, recorder: Recorder | None = None, within: str = "") -> None:
    """Finish an apply that was interrupted."""
    _check_owner(root, journal)
    with DurableDirectory(root, recorder=recorder, within=within) as directory, closing(locking.take(directory)):
        _redo(directory, journal, recorder)


def _write_journal(root: Path, path: Path, steps: Iterable[Step], lock_existed: bool, recorder: Recorder | None) -> None:
    device, inode = _identity(root)
    with NewDirectory(path, recorder=recorder) as new:
        changes: list[dict[str, Any]] = []
        for step in steps:
            for change in step.changes:
                changes.append(_record(root, change, new.directory, len(changes), step.kind))
        document = {
            "format": 1,
            "store": str(root.resolve()),
            "relative": os.path.relpath(root.resolve(), path.parent.resolve() / path.name),
            "device": device,
            "inode": inode,
            "lock_existed": lock_existed,
            "changes": changes,
        }
        for name, content in ((MANIFEST, json.dumps(document, indent=1).encode()), (STATE, PREPARED.encode())):
            with new.directory.open_new(name) as file:
                file.write(content)
        new.publish()


def _record(root: Path, change: Change, directory: DurableDirectory, number: int, kind: str) -> dict[str, Any]:
    """Save the old and the new state of one change."""
    found: dict[str, Any] = {"op": change.op, "file": change.file, "step": kind, "offset": change.offset}
    source = root / change.file
    present = os.path.lexists(source)
    size = source.stat().st_size if present and source.is_file() else 0
    content = change.made if change.op in ("write", "put") else b""
    found["existed"] = present
    if change.op == "write":
        found["old"] = _keep(directory, f"{number:04d}.old", source, change.offset, len(content))
        found["new"] = _keep_bytes(directory, f"{number:04d}.new", content)
    elif change.op == "rename":
        found |= {"to": change.to, "content": _checksum(source)}
    elif change.op == "resize":
        found |= {"old_length": size, "new_length": change.length}
        found["old"] = _keep(directory, f"{number:04d}.old", source, change.length, max(0, size - change.length))
    elif change.op in ("put", "remove") and present:
        found["mode"] = source.stat().st_mode & 0o7777
        found["old"] = _keep(directory, f"{number:04d}.old", source, 0, size)
    if change.op == "put":
        found["new"] = _keep_bytes(directory, f"{number:04d}.new", content)
    return found


def _checksum(source: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reading:
        while piece := reading.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return {"size": size, "sha256": digest.hexdigest()}


def _keep(directory: DurableDirectory, name: str, source: Path, offset: int, length: int) -> dict[str, Any]:
    """Copy a range of a file into the journal; bytes after its end, which an earlier change of the same plan adds, are zeros."""
    digest = hashlib.sha256()
    with directory.open_new(name) as file:
        if length:
            with source.open("rb") as reading:
                reading.seek(offset)
                left = length
                while left:
                    piece = reading.read(min(left, PIECE)) or bytes(min(left, PIECE))
                    digest.update(piece)
                    file.write(piece)
                    left -= len(piece)
    return {"blob": name, "size": length, "sha256": digest.hexdigest()}


def _keep_bytes(directory: DurableDirectory, name: str, content: bytes) -> dict[str, Any]:
    with directory.open_new(name) as file:
        file.write(content)
    return {"blob": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _redo(directory: DurableDirectory, journal: Journal, recorder: Recorder | None) -> None:
    for change in journal.changes:
        op, file = change["op"], change["file"]
        if op == "write":
            _write(directory, journal, file, change["offset"], change["new"])
        elif op == "resize":
            _resize(directory, file, change["new_length"])
        elif op == "put":
            _put(directory, journal, file, change["new"], change.get("mode", 0o644))
        elif op == "rename":
            _rename(directory, file, change["to"])
        elif op == "remove":
            _remove(directory, file)
        elif op == "mkdir":
            _make_directory(directory, file)
        else:
            _remove(directory, file, tree=True)
    _set_state(journal, APPLIED, recorder)


def _set_state(journal: Journal, state: JournalState, recorder: Recorder | None) -> None:
    with DurableDirectory(journal.path, recorder=recorder, within=journal.path.name if recorder is not None else "") as directory:
        directory.write_small(STATE, state.encode())


def _pieces(journal: Journal, blob: dict[str, Any]) -> Iterable[tuple[int, bytes]]:
    """Yield (position, bytes) of a saved range, checked against its checksum first."""
    path = journal.path / blob["blob"]
    digest = hashlib.sha256()
    try:
        with path.open("rb") as reading:
            while piece := reading.read(PIECE):
                digest.update(piece)
            if digest.hexdigest() != blob["sha256"]:
                raise CannotOpenError(f"{path} does not match its checksum in the manifest; nothing more is changed")
            reading.seek(0)
            at = 0
            while piece := reading.read(PIECE):
                yield at, piece
                at += len(piece)
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {error.strerror}") from error


def _write(directory: DurableDirectory, journal: Journal, file: str, offset: int, blob: dict[str, Any]) -> None:
    with directory.open(file) as writing:
        for at, piece in _pieces(journal, blob):
            writing.pwrite(offset + at, piece)
        writing.sync()


def _resize(directory: DurableDirectory, file: str, length: int) -> None:
    with directory.open(file) as writing:
        writing.truncate(length)
        writing.sync()


def _put(directory: DurableDirectory, journal: Journal, file: str, blob: dict[str, Any], mode: int) -> None:
    """Put a whole file in place with one rename."""
    draft = f"{file}{DRAFT}"
    _remove(directory, draft)
    with directory.open_new(draft) as writing:
        for at, piece in _pieces(journal, blob):
            writing.pwrite(at, piece)
        os.fchmod(writing.fileno(), mode)
        writing.sync()
    directory.rename(draft, file)
    directory.sync_directory(file.rpartition("/")[0])


def _rename(directory: DurableDirectory, file: str, to: str) -> None:
    """Give a file another name, unless that was done before."""
    if directory.exists(file) and not directory.exists(to):
        directory.rename(file, to)
    for above in dict.fromkeys(name.rpartition("/")[0] for name in (to, file)):
        directory.sync_directory(above)


def _remove(directory: DurableDirectory, file: str, *, tree: bool = False) -> None:
    if directory.exists(file):
        if tree:
            directory.remove_tree(file)
        else:
            directory.remove(file)
        directory.sync_directory(file.rpartition("/")[0])


def _make_directory(directory: DurableDirectory, file: str) -> None:
    directory.make_directory(file)
    directory.sync_directory(file.rpartition("/")[0])


# undo


def undo(root: Path, journal: Journal, locking: StoreLocking, *, recorder: Recorder | None = None, within: str = "") -> int:
    """Give back every byte and name, and remove the journal. Returns the number of changes. Raises TargetError with nothing changed."""
    _check_owner(root, journal)
    with DurableDirectory(root, recorder=recorder, within=within) as directory:
        lock = locking.take(directory)
        try:
            if journal.state == APPLIED:
                _check_unchanged(root, journal)
            for change in journal.changes:
                for side in ("old", "new"):
                    if side in change:
                        for _ in _pieces(journal, change[side]):
                            break
            _set_state(journal, UNDOING, recorder)
            for change in reversed(journal.changes):
                _revert(directory, journal, change)
            if not journal.lock_existed:
                directory.remove(locking.file)
                directory.sync_directory()
        finally:
            lock.close()
    with DurableDirectory(journal.path.parent, recorder=recorder) as above:
        above.discard(journal.path.name)
        above.sync_directory()
    return len(journal.changes)


def _revert(directory: DurableDirectory, journal: Journal, change: dict[str, Any]) -> None:
    op, file = change["op"], change["file"]
    if op in ("write", "resize") and not directory.exists(file):
        return  # of a file that the repair was yet to make
    if op == "write":
        if directory.path(file).stat().st_size >= change["offset"] + change["old"]["size"]:
            _write(directory, journal, file, change["offset"], change["old"])
    elif op == "resize":
        _resize(directory, file, change["old_length"])
        if change["old"]["size"]:
            _write(directory, journal, file, change["new_length"], change["old"])
    elif op == "rename":
        _rename(directory, change["to"], file)
    elif op == "mkdir":
        # steps may share it: it goes with the last of them, and stays if something else is in it
        if not change["existed"] and directory.exists(file) and not any(directory.path(file).iterdir()):
            _remove(directory, file, tree=True)
    elif op == "rmdir":
        if change["existed"]:
            _make_directory(directory, file)
    elif change["existed"]:
        _put(directory, journal, file, change["old"], change["mode"])
    else:
        _remove(directory, f"{file}{DRAFT}")
        _remove(directory, file)


def _check_unchanged(root: Path, journal: Journal) -> None:
    """Refuse if a file is not as the repair left it: a broker may have written since."""
    final: dict[str, dict[str, Any]] = {}
    lengths: dict[str, int] = {}
    for change in journal.changes:
        if change["op"] == "resize":
            lengths[change["file"]] = change["new_length"]
        elif change["op"] == "rename":
            if os.path.lexists(root / change["file"]) or not _holds(root / change["to"], 0, change["content"], whole=True):
                raise _changed(root / change["to"])
        elif change["op"] in ("put", "remove", "rmdir"):
            final[change["file"]] = change
    for file, length in lengths.items():
        if not os.path.isfile(root / file) or (root / file).stat().st_size != length:
            raise _changed(root / file)
    for file, change in final.items():
        if (change["op"] == "put") != os.path.lexists(root / file):
            raise _changed(root / file)
    by_file: dict[str, list[dict[str, Any]]] = {}
    for change in journal.changes:
        if change["op"] in ("write", "put"):
            by_file.setdefault(change["file"], []).append(change)
    for file, written in by_file.items():
        for number, change in enumerate(written):
            if any(_overlap(change, later) for later in written[number + 1 :]):
                continue
            offset = change["offset"] if change["op"] == "write" else 0
            if not _holds(root / file, offset, change["new"], whole=change["op"] == "put" and file not in lengths):
                raise _changed(root / file)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if "put" in (one["op"], other["op"]):
        return True
    return bool(one["offset"] < other["offset"] + other["new"]["size"] and other["offset"] < one["offset"] + one["new"]["size"])


def _holds(path: Path, offset: int, blob: dict[str, Any], *, whole: bool) -> bool:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as reading:
            reading.seek(offset)
            left = blob["size"]
            while left and (piece := reading.read(min(left, PIECE))):
                digest.update(piece)
                left -= len(piece)
            return digest.hexdigest() == blob["sha256"] and not (whole and reading.read(1))
    except OSError:
        return False


def _changed(path: Path) -> TargetError:
    return TargetError(f"{path} was changed after the repair, so that undoing it would mix two states; nothing was changed")
