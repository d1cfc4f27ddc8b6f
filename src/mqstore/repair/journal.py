"""The undo journal of a repair: a directory outside the store, complete and synced before the first byte of the store changes.

    DIR/
        manifest.json     the store, and the changes in order (`repair.manifest`)
        state             prepared, applied or undoing
        0000.old          bytes before the change
        0000.new          bytes after it

    apply   lock · journal appears by one rename · changes, each synced · state: applied
    undo    lock · state: undoing · changes reversed, each synced · journal removed

Every change can be repeated, so that after a crash the same command goes on: the journal holds both sides of each. Where nothing was
interrupted, the files must be as the repair left them; otherwise `undo` refuses and changes nothing.

A journal that is found is not trusted. Before the first change: it belongs to this user or to the owner of the store, and no other
user can write to it; the manifest is one that `encode` makes; every blob has its size and checksum, and is not a link; every file
that is named is in the store also when links are resolved, and is not a link itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, assert_never

from mqstore.errors import CannotOpenError, TargetError
from mqstore.files.durable import DurableDirectory, NewDirectory
from mqstore.files.recorder import Recorder
from mqstore.files.regular_file import open_regular, why_unreadable
from mqstore.repair.change import Change, Step
from mqstore.repair.manifest import LARGEST_MANIFEST, MODES, Blob, Manifest, ManifestError, Recorded, blob_name, decode, encode

MANIFEST, STATE = "manifest.json", "state"
PREPARED, APPLIED, UNDOING = "prepared", "applied", "undoing"
JournalState = str
DRAFT = ".mqstore-repair"
PIECE = 8 << 20

_OWN_FILES = re.compile(r"manifest\.json|state|\.state\.mqstore-[0-9a-f]{8}|[0-9]{4,}\.(?:old|new)")


class _Lock(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StoreLocking:
    """How a store is locked. take: raises TargetError if another process has it. file: what it leaves in the store, or empty."""

    take: Callable[[DurableDirectory], _Lock]
    file: str = ""


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal that was read and is one in form; `resume` and `undo` check the rest."""

    path: Path
    state: JournalState
    manifest: Manifest

    @property
    def changes(self) -> tuple[Recorded, ...]:
        return self.manifest.changes


def _identity(root: Path) -> tuple[int, int]:
    state = root.stat()
    return state.st_dev, state.st_ino


def read_journal(path: Path) -> Journal | None:
    """Read a journal; None if there is nothing at the path. Raises CannotOpenError for anything that is not a journal."""
    if not os.path.lexists(path):
        return None
    if path.is_symlink() or not path.is_dir():
        what = "a symbolic link" if path.is_symlink() else "not a directory"
        raise CannotOpenError(f"{path} is {what}, and so not the journal of a repair; give its directory with --journal")
    if not os.path.lexists(path / MANIFEST):
        raise CannotOpenError(f"{path} is not the journal of a repair: it has no {MANIFEST}; give another directory with --journal")
    try:
        manifest = decode(_small_file(path / MANIFEST, LARGEST_MANIFEST))
        state = _small_file(path / STATE, 64).decode("ascii", "replace")
        if state not in (PREPARED, APPLIED, UNDOING):
            raise ManifestError(f"the file {STATE} has none of the states {PREPARED}, {APPLIED} and {UNDOING}")
        for name in sorted(os.listdir(path)):
            if not _OWN_FILES.fullmatch(name):
                raise ManifestError(f"it holds {name!r}, which does not belong to one")
    except ManifestError as error:
        raise CannotOpenError(f"{path} is not the journal of a repair as mqstore wrote it: {error}; nothing was changed") from None
    return Journal(path, state, manifest)


def _small_file(path: Path, limit: int) -> bytes:
    """Return the content of a file that is not a link. Raises CannotOpenError, ManifestError if it is larger than the limit."""
    try:
        with os.fdopen(open_regular(path, follow=False), "rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CannotOpenError(f"{why_unreadable(path, error)}; nothing was changed") from None
    if len(content) > limit:
        raise ManifestError(f"{path.name} has more than {limit} bytes")
    return content


# what is checked before the first change


def _check_place(root: Path, path: Path) -> None:
    real = path.parent.resolve() / path.name
    if real == root.resolve() or real.is_relative_to(root.resolve()):
        raise TargetError(f"{path} is inside the store; give a directory outside it with --journal")


def _check_journal(root: Path, journal: Journal, *, shared: bool = False) -> None:
    """Raise if a journal is not to be followed: it is another store's, foreign, or damaged. Nothing is changed before this.

    shared: files may have got a second hard link since.
    """
    _check_place(root, journal.path)
    _check_trust(root, journal)
    manifest = journal.manifest
    moved_together = manifest.relative == os.path.relpath(root.resolve(), journal.path.resolve())
    if manifest.store != str(root.resolve()) and manifest.identity != _identity(root) and not moved_together:
        raise TargetError(
            f"the journal {journal.path} is that of another store, {manifest.store}; give the journal of {root} with --journal"
        )
    _check_files(root, ((change.op, name) for change in journal.changes for name in change.names), shared=shared)
    for change in journal.changes:
        for blob in change.blobs:
            os.close(_open_blob(journal, blob))


def _check_trust(root: Path, journal: Journal) -> None:
    trusted = {os.geteuid(), root.stat().st_uid}
    for path in (journal.path, journal.path / MANIFEST, journal.path / STATE):
        owner = path.lstat().st_uid
        if owner not in trusted:
            raise TargetError(f"{path} belongs to user {owner}, neither this user nor the owner of {root}; it is not followed")
    if journal.path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TargetError(f"{journal.path} can be written to by other users, and is not followed; check it, then `chmod go-w` it")


def _check_files(root: Path, files: Iterable[tuple[str, str]], *, shared: bool = False, in_copy: bool = False) -> None:
    """Raise TargetError unless each (operation, path) is in the store with links resolved, and is a file that may be changed.

    shared: also one with a second hard link. in_copy: as `check_changes` says.
    """
    real = root.resolve()
    for op, name in dict.fromkeys(files):
        path = root / name
        try:
            above = path.parent.resolve()
            state = None if not os.path.lexists(path) else path.stat() if in_copy and path.exists() else path.lstat()
        except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links
            raise TargetError(f"{path} cannot be reached ({error}); nothing was changed") from None
        if not above.is_relative_to(real) and not in_copy:
            raise TargetError(f"{path} lies outside of the store, in {above}, to which a symbolic link leads; repair changes nothing there")
        if state is None:
            continue
        if stat.S_ISLNK(state.st_mode):
            raise TargetError(f"{path} is a symbolic link, which repair does not change; put the file itself in its place")
        if op in ("write", "resize") and (not stat.S_ISREG(state.st_mode) or (state.st_nlink > 1 and not shared and not in_copy)):
            reason = "has a second hard link, whose bytes must not change" if stat.S_ISREG(state.st_mode) else "is not a regular file"
            raise TargetError(f"{path} {reason}; repair a real copy of the store")


# apply


def check_changes(root: Path, changes: Sequence[Change], locking: StoreLocking, *, in_copy: bool = False) -> None:
    """Raise TargetError if changes cannot be made: a file is a link, a pipe, or has a second name. Nothing is changed.

    in_copy: the changes are for a real copy of the store, in which each link is a separate file.
    """
    _check_files(root, [(change.op, name) for change in changes for name in (change.file, change.to) if name], in_copy=in_copy)
    real = root.resolve()
    for parent in set() if in_copy else {Path(change.file).parent for change in changes}:
        leads_to = (root / parent).resolve()
        if leads_to != real / parent and leads_to.is_relative_to(real):
            raise TargetError(f"{root / parent} leads to {leads_to}, which is in the same store; move it away first")
    removed: set[str] = set()
    for change in changes:
        path = root / change.file
        if change.file not in removed and os.path.lexists(path):
            if change.op in ("mkdir", "rmdir") and not path.is_dir():
                raise TargetError(f"{path} is in the place of a directory; move it away first")
            if change.op in ("put", "remove", "rename") and not path.is_file():
                raise TargetError(f"{path} is not a regular file; move it away first")
            if change.op == "rmdir" and any(f"{change.file}/{name}" not in removed for name in os.listdir(path)):
                raise TargetError(f"{path} holds something that is not a regular file; move it away first")
        if change.op in ("remove", "rmdir", "rename"):
            removed.add(change.file)
    _check_links(root, set() if in_copy else {real / name for name in removed})
    lock = root / locking.file
    if locking.file and os.path.lexists(lock) and (not lock.is_file() or (lock.is_symlink() and not in_copy)):
        raise TargetError(f"{lock} is not a regular file, and no broker can lock the store by it; move it away first")


def _check_links(root: Path, removed: Collection[Path]) -> None:
    """Raise TargetError if a link in the store leads to one of these paths, which are taken from their names: its bytes would be gone."""
    for folder, directories, files in os.walk(root) if removed else ():
        for link in (Path(folder, name) for name in (*directories, *files) if os.path.islink(Path(folder, name))):
            with suppress(OSError, RuntimeError):  # RuntimeError: a circle of links
                if (leads_to := link.resolve()) in removed:
                    raise TargetError(f"{link} leads to {leads_to}, which a repair would take away; put the file itself in its place")


def is_copied(root: Path) -> bool:
    """Return whether `cp -rL` copies all of a store: no link leads nowhere, or to a directory that the link is in."""
    links = [path for path in root.rglob("*") if path.is_symlink()]
    return all(path.exists() and not path.parent.resolve().is_relative_to(path.resolve()) for path in links)


def why_refused(root: Path, changes: Sequence[Change], locking: StoreLocking, *, in_copy: bool = False) -> str:
    """Return why changes cannot be made; empty if they can. Arguments as for `check_changes`."""
    try:
        check_changes(root, changes, locking, in_copy=in_copy)
    except TargetError as error:
        return str(error)
    return ""


def apply(
    root: Path, path: Path, steps: Sequence[Step], locking: StoreLocking, *, recorder: Recorder | None = None, within: str = ""
) -> Journal:
    """Apply steps to a store whose lock is free. path: the journal, which must not exist yet. Raises TargetError with nothing changed."""
    _check_place(root, path)
    changes = [change for step in steps for change in step.changes]
    check_changes(root, changes, locking)
    lock_existed = not locking.file or os.path.lexists(root / locking.file)
    with DurableDirectory(root, recorder=recorder, within=within) as directory, closing(locking.take(directory)):
        _write_journal(root, path, steps, lock_existed, recorder)
        journal = read_journal(path)
        assert journal is not None
        _redo(directory, journal, recorder)
    return journal


def resume(root: Path, journal: Journal, locking: StoreLocking, *, recorder: Recorder | None = None, within: str = "") -> None:
    """Finish an apply that was interrupted. Raises CannotOpenError or TargetError, with nothing changed if the journal is the reason."""
    _check_journal(root, journal)
    with DurableDirectory(root, recorder=recorder, within=within) as directory, closing(locking.take(directory)):
        _redo(directory, journal, recorder)


def _write_journal(root: Path, path: Path, steps: Iterable[Step], lock_existed: bool, recorder: Recorder | None) -> None:
    with NewDirectory(path, recorder=recorder) as new:
        os.chmod(new.directory.root, 0o700)  # it holds messages, and is followed only if no other user can write to it
        changes: list[Recorded] = []
        removed: set[str] = set()
        for step in steps:
            for change in step.changes:
                changes.append(_record(root, change, new.directory, len(changes), step.kind, gone=change.file in removed))
                (removed.add if change.op in ("remove", "rmdir") else removed.discard)(change.file)
        relative = os.path.relpath(root.resolve(), path.parent.resolve() / path.name)
        manifest = Manifest(str(root.resolve()), relative, _identity(root), lock_existed, tuple(changes))
        for name, content in ((MANIFEST, encode(manifest)), (STATE, PREPARED.encode())):
            with new.directory.open_new(name) as file:
                file.write(content)
        new.publish()


def _record(root: Path, change: Change, directory: DurableDirectory, number: int, kind: str, *, gone: bool) -> Recorded:
    """Save the old and the new state of one change. gone: an earlier change takes the file out."""
    source = root / change.file
    present = not gone and os.path.lexists(source)
    size = source.stat().st_size if present and source.is_file() else 0
    old_name, new_name = blob_name(number, "old"), blob_name(number, "new")
    match change.op:
        case "write":
            content = change.made
            replaced = max(0, min(len(content), size - change.offset))
            old, new = _keep(directory, old_name, source, change.offset, replaced), _keep_bytes(directory, new_name, content)
            return Recorded("write", change.file, kind, present, offset=change.offset, old_length=size, old=old, new=new)
        case "resize":
            old = _keep(directory, old_name, source, change.length, max(0, size - change.length))
            return Recorded("resize", change.file, kind, present, old_length=size, new_length=change.length, old=old)
        case "rename":
            if os.path.lexists(root / change.to):
                raise TargetError(f"{root / change.to} exists by now, and {change.file} cannot take its name; make the plan again")
            return Recorded("rename", change.file, kind, present, to=change.to, content=_checksum(source))
        case "put" | "remove":
            mode = source.stat().st_mode & MODES if present else None
            before = _keep(directory, old_name, source, 0, size) if present else None
            after = _keep_bytes(directory, new_name, change.made) if change.op == "put" else None
            return Recorded(change.op, change.file, kind, present, mode=mode, old=before, new=after)
        case "mkdir" | "rmdir":
            return Recorded(change.op, change.file, kind, present)
        case _:
            assert_never(change.op)


def _checksum(source: Path) -> Blob:
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reading:
        while piece := reading.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return Blob("", size, digest.hexdigest())


def _keep(directory: DurableDirectory, name: str, source: Path, offset: int, length: int) -> Blob:
    """Copy a range of a file into the journal."""
    digest = hashlib.sha256()
    with directory.open_new(name) as file:
        if length:
            with source.open("rb") as reading:
                reading.seek(offset)
                left = length
                while left:
                    piece = reading.read(min(left, PIECE))
                    if not piece:
                        raise TargetError(f"{source} became shorter while it was saved; nothing was changed")
                    digest.update(piece)
                    file.write(piece)
                    left -= len(piece)
    return Blob(name, length, digest.hexdigest())


def _keep_bytes(directory: DurableDirectory, name: str, content: bytes) -> Blob:
    with directory.open_new(name) as file:
        file.write(content)
    return Blob(name, len(content), hashlib.sha256(content).hexdigest())


def _redo(directory: DurableDirectory, journal: Journal, recorder: Recorder | None) -> None:
    for change in journal.changes:
        match change.op:
            case "write":
                _write(directory, journal, change, change.new)
            case "resize":
                _resize(directory, change.file, change.new_length)
            case "put":
                _put(directory, journal, change, change.new)
            case "rename":
                _rename(directory, change.file, change.to)
            case "remove":
                _remove(directory, change.file)
            case "mkdir":
                _make_directory(directory, change.file)
            case "rmdir":
                # a file is what a later change has put in its place, before a crash
                if not directory.path(change.file).is_file() and not _remove_empty(directory, change.file):
                    raise TargetError(f"{directory.path(change.file)} holds something that the repair did not put aside; move it away")
            case _:
                assert_never(change.op)
    _set_state(journal, APPLIED, recorder)


def _set_state(journal: Journal, state: JournalState, recorder: Recorder | None) -> None:
    with DurableDirectory(journal.path, recorder=recorder, within=journal.path.name if recorder is not None else "") as directory:
        directory.write_small(STATE, state.encode())


def _open_blob(journal: Journal, blob: Blob) -> int:
    """Return a descriptor of saved bytes that have their size and checksum. Raises CannotOpenError."""
    path = journal.path / blob.name
    try:
        descriptor = open_regular(path, follow=False)
    except OSError as error:
        raise CannotOpenError(f"{why_unreadable(path, error)}; nothing more is changed") from None
    try:
        digest, at = hashlib.sha256(), 0
        while at <= blob.size and (piece := os.pread(descriptor, PIECE, at)):
            digest.update(piece)
            at += len(piece)
        if (at, digest.hexdigest()) != (blob.size, blob.sha256):
            raise CannotOpenError(f"{path} does not match its checksum in the manifest; nothing more is changed")
    except OSError as error:  # pragma: no cover - a disk that fails while it is read
        os.close(descriptor)
        raise CannotOpenError(f"{why_unreadable(path, error)}; nothing more is changed") from None
    except CannotOpenError:
        os.close(descriptor)
        raise
    return descriptor


def _pieces(journal: Journal, blob: Blob) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of a saved range, checked against its checksum first."""
    descriptor = _open_blob(journal, blob)
    try:
        at = 0
        while at < blob.size and (piece := os.pread(descriptor, min(PIECE, blob.size - at), at)):
            yield at, piece
            at += len(piece)
    finally:
        os.close(descriptor)


def _write(directory: DurableDirectory, journal: Journal, change: Recorded, blob: Blob | None, *, longest: int | None = None) -> None:
    """Write saved bytes at the offset of a change. longest: what is longer is cut off there."""
    with directory.open(change.file) as writing:
        assert blob is not None  # as `decode` has checked
        start = change.offset if change.op == "write" else change.new_length
        for at, piece in _pieces(journal, blob):
            writing.pwrite(start + at, piece)
        if longest is not None and writing.size > longest:
            writing.truncate(longest)
        writing.sync()


def _resize(directory: DurableDirectory, file: str, length: int) -> None:
    with directory.open(file) as writing:
        writing.truncate(length)
        writing.sync()


def _put(directory: DurableDirectory, journal: Journal, change: Recorded, blob: Blob | None) -> None:
    """Put a whole file in place with one rename."""
    assert blob is not None  # as `decode` has checked
    draft = f"{change.file}{DRAFT}"
    _remove(directory, draft)
    with directory.open_new(draft) as writing:
        for at, piece in _pieces(journal, blob):
            writing.pwrite(at, piece)
        if change.mode is not None:
            os.fchmod(writing.fileno(), change.mode & MODES)
        writing.sync()
    directory.rename(draft, change.file)
    directory.sync_directory(change.file.rpartition("/")[0])


def _rename(directory: DurableDirectory, file: str, to: str) -> None:
    """Give a file another name, unless that was done before."""
    if directory.exists(file) and not directory.exists(to):
        directory.rename(file, to)
    for above in dict.fromkeys(name.rpartition("/")[0] for name in (to, file)):
        directory.sync_directory(above)


def _remove(directory: DurableDirectory, file: str) -> None:
    """Remove a file, unless that was done before. A directory is never removed by this."""
    if directory.exists(file):
        directory.remove(file)
        directory.sync_directory(file.rpartition("/")[0])


def _remove_empty(directory: DurableDirectory, file: str) -> bool:
    """Remove a directory if nothing is in it; return whether it is gone."""
    if directory.exists(file):
        if not directory.remove_empty(file):
            return False
        directory.sync_directory(file.rpartition("/")[0])
    return True


def _make_directory(directory: DurableDirectory, file: str) -> None:
    directory.make_directory(file)
    directory.sync_directory(file.rpartition("/")[0])


# undo


def unshare(directory: DurableDirectory, file: str) -> None:
    """Give a file that has a second name its own bytes, so that the other one, such as that of a rebuilt store, keeps what it has."""
    path = directory.path(file)
    if not path.is_file() or path.is_symlink() or path.stat().st_nlink == 1:
        return
    draft = f"{file}{DRAFT}"
    _remove(directory, draft)
    directory.link_or_copy(path, draft, copy=True)
    shutil.copymode(path, directory.path(draft))
    directory.sync(draft)
    directory.rename(draft, file)
    directory.sync_directory(file.rpartition("/")[0])


def undo(root: Path, journal: Journal, locking: StoreLocking, *, recorder: Recorder | None = None, within: str = "") -> int:
    """Give back every byte and name, and remove the journal. Returns the number of changes.

    Raises CannotOpenError or TargetError, with nothing changed if the journal, or what a broker wrote since, is the reason.
    """
    _check_journal(root, journal, shared=True)
    with DurableDirectory(root, recorder=recorder, within=within) as directory:
        lock = locking.take(directory)
        try:
            if journal.state == APPLIED:
                _check_unchanged(root, journal)
            _set_state(journal, UNDOING, recorder)
            written = {change.file for change in journal.changes if change.op in ("write", "resize")}
            for file in (*sorted(written), *(change.to for change in journal.changes if change.op == "rename" and change.file in written)):
                unshare(directory, file)
            for change in reversed(journal.changes):
                _revert(directory, journal, change)
            if locking.file and not journal.manifest.lock_existed:
                _remove(directory, locking.file)
        finally:
            lock.close()
    with DurableDirectory(journal.path.parent, recorder=recorder) as above:
        above.discard(journal.path.name)
        above.sync_directory()
    return len(journal.changes)


def _revert(directory: DurableDirectory, journal: Journal, change: Recorded) -> None:
    """Bring one file back to what it was before the whole repair, as far as this change has touched it."""
    match change.op:
        case "write":
            if directory.exists(change.file):  # not, if the repair was yet to make it
                _write(directory, journal, change, change.old, longest=change.old_length)
        case "resize":
            if directory.exists(change.file):
                _resize(directory, change.file, change.old_length)
                _write(directory, journal, change, change.old)
        case "put" | "remove":
            if change.existed:
                _put(directory, journal, change, change.old)
            elif change.op == "put":
                _remove(directory, f"{change.file}{DRAFT}")
                if not directory.path(change.file).is_dir():  # which an earlier change was yet to take out
                    _remove(directory, change.file)
        case "rename":
            _rename(directory, change.to, change.file)
        case "mkdir":
            # steps may share it: it goes with the last of them, and stays if something else is in it
            if not change.existed:
                _remove_empty(directory, change.file)
        case "rmdir":
            if change.existed:
                _make_directory(directory, change.file)
        case _:
            assert_never(change.op)


def _check_unchanged(root: Path, journal: Journal) -> None:
    """Refuse if a file is not as the repair left it: a broker may have written since."""
    lengths: dict[str, int | None] = {}  # of the files afterwards; None: there is none
    by_file: dict[str, list[Recorded]] = {}
    for change in journal.changes:
        file, new = change.file, change.new.size if change.new is not None else 0
        match change.op:
            case "write":
                lengths[file] = max(lengths.get(file, change.old_length) or 0, change.offset + new)
            case "put":
                lengths[file] = new
            case "resize":
                lengths[file] = change.new_length
            case "rename":
                assert change.content is not None
                if os.path.lexists(root / file) or not _holds(root / change.to, change.content):
                    raise _changed(root / change.to)
            case "remove" | "rmdir":
                lengths[file] = None
            case "mkdir":
                lengths.pop(file, None)
            case _:
                assert_never(change.op)
        by_file.setdefault(file, []).append(change)
    for file, length in lengths.items():
        path = root / file
        if os.path.lexists(path) if length is None else not path.is_file() or path.stat().st_size != length:
            raise _changed(path)
        for change, start, stop in _left_over(by_file[file]) if length is not None else ():
            if not _has_bytes(journal, path, change, start, stop):
                raise _changed(path)


def _left_over(changes: Sequence[Recorded]) -> Iterator[tuple[Recorded, int, int]]:
    """Yield (change, from, to) for bytes of one file that were written and then neither replaced nor cut off by a later change."""
    end = max((change.old_length + change.new_length + change.offset + _new_size(change) for change in changes), default=0)
    later: list[tuple[int, int]] = []  # disjoint ranges, ascending
    for change in reversed(changes):
        if change.op == "resize":
            end = min(end, change.new_length)
        if change.op not in ("write", "put"):
            continue
        start, stop = change.offset, min(change.offset + _new_size(change), end)
        low = bisect_left(later, start, key=lambda each: each[1])
        high = bisect_left(later, stop, key=lambda each: each[0])
        at = start
        for begin, after in later[low:high]:
            if at < begin:
                yield change, at, begin
            at = max(at, after)
        if at < stop:
            yield change, at, stop
        if change.op == "put":
            return
        if start < stop:
            touched = [(start, stop), *later[low:high]]
            later[low:high] = [(min(each[0] for each in touched), max(each[1] for each in touched))]


def _new_size(change: Recorded) -> int:
    return change.new.size if change.new is not None else 0


def _has_bytes(journal: Journal, path: Path, change: Recorded, start: int, stop: int) -> bool:
    """Return whether a file has the new bytes of a change from one position to another."""
    assert change.new is not None
    saved = _open_blob(journal, change.new)
    try:
        with path.open("rb", buffering=0) as file:
            while start < stop:
                piece = os.pread(saved, min(PIECE, stop - start), start - change.offset)
                if not piece or os.pread(file.fileno(), len(piece), start) != piece:
                    return False
                start += len(piece)
    except OSError:  # pragma: no cover - a disk that fails while it is read
        return False
    finally:
        os.close(saved)
    return True


def _holds(path: Path, blob: Blob) -> bool:
    """Return whether a file has this content."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as reading:
            while piece := reading.read(PIECE):
                digest.update(piece)
                size += len(piece)
    except OSError:
        return False
    return (size, digest.hexdigest()) == (blob.size, blob.sha256)


def _changed(path: Path) -> TargetError:
    return TargetError(f"{path} was changed after the repair, so that undoing it would mix two states; nothing was changed")
