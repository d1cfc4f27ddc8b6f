"""The log files of a task as they were when it was planned, in a few bytes however many files the log has.

    token = token_of(log)                            planning: the state of the whole log
    seen = files_seen(log, split.start, split.stop)  the files that one task reads
    require_seen(log, seen)                          in the task, on any host

A task opens the log itself, once per process and token, and lists its files again. It compares the part of the listing that it reads: the
names of the files, and that each still reaches as far as was planned. What is appended meanwhile, or removed elsewhere by retention, does
not concern it. A file by URL must have the same ETag as well; the inode of a local one may differ from host to host.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from mqstore.errors import FileLostError
from mqstore.rocketmq.format.commit_log import CommitLog

_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """The log files that hold physical offsets start..stop-1. first: path of the first one in the store; digest: of them all."""

    start: int
    stop: int
    first: str
    digest: bytes


def token_of(log: CommitLog) -> str:
    """Return a token of the current files of the log, which a process may keep open between jobs: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for file, identity in zip(log.files, log.identities(log.files), strict=True):
        digest.update(f"{file.relative} {file.size} {identity}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def files_seen(log: CommitLog, start: int, stop: int) -> FilesSeen | None:
    """Return the files that hold physical offsets start..stop-1; None without any."""
    files = log.files_between(start, stop)
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    identities = log.identities(files) if log.remote else [""] * len(files)
    for file, identity in zip(files, identities, strict=True):
        reach = min(file.size, stop - file.start)
        digest.update(f"{file.relative} {reach} {identity}\n".encode("utf-8", "surrogateescape"))
    return FilesSeen(start, stop, files[0].relative, digest.digest())


def require_seen(log: CommitLog, seen: FilesSeen | None) -> None:
    """Raise FileLostError if log files are no longer those that planning saw. seen: None to read whatever is there."""
    if seen is None or files_seen(log, seen.start, seen.stop) == seen:
        return
    where = log.shown_path(seen.first)
    if (gone := missing_file(log, seen)) is not None:
        raise FileLostError(f"{log.shown_path(gone)} no longer exists: it was removed after the store was listed")
    if seen.stop > int(PurePosixPath(seen.first).name) + log.file_size:
        raise FileLostError(
            f"{where}, or a file after it up to physical offset {seen.stop}, changed or was removed since the store was listed; "
            "run the job again"
        )
    raise FileLostError(f"{where}: the file changed since the store was listed; run the job again")


def missing_file(log: CommitLog, seen: FilesSeen) -> str | None:
    """Return the path of the first of the files that is missing now; None if none is."""
    there = {file.relative for file in log.files_between(seen.start, seen.stop)}
    if seen.first not in there:
        return seen.first
    first = PurePosixPath(seen.first)
    starts = range(int(first.name), seen.stop, log.file_size)
    return next((path for start in starts if (path := str(first.with_name(f"{start:0{len(first.name)}d}"))) not in there), None)
