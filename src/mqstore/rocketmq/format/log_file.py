"""One file of a commit log, or a directory with nothing but such files, in place of a store: one of which only its log is known.

A file's physical offsets say where in the log it belongs, whatever its name. A file without a valid record is taken for one of a log if it
is in a directory `commitlog`, or has a name of 20 digits and holds nothing but zeros. Queues, index, checkpoint and configuration of
the store are *unknown*, which is not the same as missing: `StoreFiles.log_only`.

    commitlog/00000000001073741824      by its name and its records
    copy.bin                            by its records
    COMMIT_LOG/cfcd2084000…             a log segment of tiered storage, by its records
    consumequeue/orders/0/000…          refused: it says where messages are, and holds none
    backup/{a.bin, b.bin, notes}        one log: each file with records is where they state; one without, or a copy, is a stray file

Tiered storage: messages that a 5.x broker has moved out of its log, queue by queue, into segments in another directory.

    tieredStoreFilePath/
      212d6b50_DefaultCluster/                    MD5 of the cluster's name, and the name
        broker-a/orders/0/                        broker, topic, queue
          COMMIT_LOG/cfcd208400000000000000000000 MD5 of the first byte's offset in decimal, and the offset in 20 digits
          CONSUME_QUEUE/cfcd2084…                 20-byte entries of a consume queue
        broker-a/rmq_sys_INDEX/0/INDEX/cfcd2084…  index of keys of all topics

Eight hexadecimal digits of each MD5 are in the name. A log segment is whole records, one after the other, without a gap and without zeros
at its end. It is not a piece of the broker's log: each queue has a separate log that begins at 0, and a record's physical offset is its
position there; all else of the record is as it was. 5.1.4 and 5.2.0 end a full segment with 16 bytes: i32 16, the magic of the end of a log
file, i64 time of the newest message; 5.5.0 does not.

    >>> segment_kind(PurePath("orders/0/COMMIT_LOG/cfcd208400000000000000000000"))
    'COMMIT_LOG'

The broker keeps `config/tieredStoreMetadata.json`: which segments there are, with their sizes. `tiered_index_file/` in its store is what
has not been moved yet of the index.

Format: docs/formats/rocketmq.md, section 12.4.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path, PurePath

from mqstore.errors import CannotOpenError, NotAStoreError, UnsupportedError
from mqstore.files import MappedFile, ReadOnlyDirectory
from mqstore.files.archive import added_by_mac, is_packed
from mqstore.files.directory_views import AliasDirectory, MountedDirectory, MountedPath, SingleFile
from mqstore.files.location import Location, Url, as_location
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import start_in, status_at
from mqstore.rocketmq.format.mapped_file_queue import NAME_DIGITS
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE, PHYSICAL_OFFSET_AT

LOG = "commitlog"
_DERIVED = {
    "consumequeue": "consume queue",
    "consumequeue_ext": "extended consume queue",
    "batchconsumequeue": "batch queue",
    "index": "key index",
    "timerlog": "timer log",
    "config": "configuration",
}
_LEDGER = bytes.fromhex("00000001")
_ABOVE = 4  # directories above a file that say what it is
_RABBITMQ = (".rdq", ".idx", ".jif", ".qi", ".qs")
SEGMENT_OF_LOG = "COMMIT_LOG"
DERIVED_KINDS = {"CONSUME_QUEUE": "consume queue", "INDEX": "key index"}

_HASH = 8
_DIGITS = 20


def segment_kind(path: PurePath) -> str | None:
    """Return which kind of segment a file is, by its directory and its name; None if it is not one."""
    kind, name = path.parent.name, path.name
    return kind if (kind == SEGMENT_OF_LOG or kind in DERIVED_KINDS) and _is_segment_name(name) else None


def is_tier(names: set[str]) -> bool:
    """Return whether a directory with these names in it is the root of tiered storage, that of a queue, or one of log segments."""
    return SEGMENT_OF_LOG in names or any(_is_segment_name(name) or _is_cluster_name(name) for name in names)


def _is_segment_name(name: str) -> bool:
    offset = name[_HASH:]
    return len(offset) == _DIGITS and offset.isascii() and offset.isdigit() and _digest(str(int(offset))) == name[:_HASH]


def _is_cluster_name(name: str) -> bool:
    digest, mark, cluster = name.partition("_")
    return mark == "_" and digest == _digest(cluster)


def _digest(text: str) -> str:
    import hashlib  # a broker starts without it

    return hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:_HASH]


def open_place(place: str | Location) -> ReadOnlyDirectory:
    """Open the directory of a store, or files of its commit log, one or all in a directory, as if they were alone in a store.

    Raises CannotOpenError; NotAStoreError or UnsupportedError for a file that is not of a commit log.
    """
    if isinstance(place, MountedPath):
        return MountedDirectory(place, place.mounts)
    path = as_location(place)
    if isinstance(path, Url):
        from mqstore.files.remote import open_directory  # a store on disk starts without it

        return open_directory(path)
    if not path.is_file():
        directory = ReadOnlyDirectory(path)
        return _nameless_log(directory) or directory
    alone = SingleFile(path, "file")
    return SingleFile(path, f"{LOG}/{_start_of(path, alone.map('file')):0{NAME_DIGITS}d}")


def _nameless_log(directory: ReadOnlyDirectory) -> AliasDirectory | None:
    """Return a directory with several files, of which one at least begins with a record, as a log; None for any other directory."""
    entries = [entry for entry in directory.entries() if not added_by_mac(entry.name)]
    names = [entry.name for entry in entries]
    if len(entries) < 2 or directory.root.name == LOG or is_tier(set(names)) or not all(entry.is_file for entry in entries):
        return None
    if any(name.lower().endswith(_RABBITMQ) or is_packed(directory.path(name)) for name in names):
        return None
    if not any(map(partial(_begins_with_record, directory), names)):
        return None
    files: dict[str, str] = {}
    stray = []
    for name in names:
        with contextlib.suppress(CannotOpenError):
            mapped = directory.map(name)
            start = None if _is_ledger(directory.root / name, mapped) else start_in(mapped)
            if start is not None and start >= 0 and files.setdefault(f"{LOG}/{start:0{NAME_DIGITS}d}", name) == name:
                continue
        stray.append(name)
    for name in stray:
        own = f"{LOG}/{name}"
        files[f"{own} (another one)" if own in files else own] = name
    return AliasDirectory(directory.root, files)


def _begins_with_record(directory: ReadOnlyDirectory, name: str) -> bool:
    """Return whether a file of a directory begins with a record of a log."""
    with contextlib.suppress(CannotOpenError):
        mapped = directory.map(name)
        if mapped.size >= MIN_RECORD_SIZE:
            start = int.from_bytes(mapped.bytes(PHYSICAL_OFFSET_AT, PHYSICAL_OFFSET_AT + 8), "big", signed=True)
            return start >= 0 and status_at(mapped, 0, start) == frames.STOP and not _is_ledger(directory.path(name), mapped)
    return False


def named_start(path: Path) -> int | None:
    """Return the position in the log that a file's name gives; None if it is not a name of a file of a log."""
    name = path.name
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) < 1 << 63 else None


def _start_of(path: Path, mapped: MappedFile) -> int:
    """Return the physical offset of a file's first byte. Raises NotAStoreError, UnsupportedError."""
    start = start_in(mapped)
    if start is not None and start >= 0 and not _is_ledger(path, mapped):
        return start
    named = named_start(path)
    in_place = Path(os.path.abspath(path)).parent.name == LOG
    if named is not None and start is None and (in_place or (_derived(path) is None and mapped.last_nonzero(0, mapped.size) < 0)):
        return named
    raise _not_a_log(path, mapped)


def _is_ledger(path: Path, mapped: MappedFile) -> bool:
    """Return whether a file begins as that of a DLedger log: an entry's header, and no record, which would have its size there."""
    return mapped.bytes(0, 4) == _LEDGER and any(name.startswith("dledger-") for name in _names_above(path))


def _names_above(path: Path) -> list[str]:
    return [parent.name for parent in list(Path(os.path.abspath(path)).parents)[:_ABOVE]]


def _derived(path: Path) -> str | None:
    """Return what a file is that is derived from a log, going by the directories above it; None if they do not say."""
    return next((_DERIVED[name] for name in _names_above(path) if name in _DERIVED), None)


def _not_a_log(path: Path, mapped: MappedFile) -> NotAStoreError | UnsupportedError:
    if path.name.lower().endswith(_RABBITMQ):
        return UnsupportedError(
            f"{path} is one file of a RabbitMQ message store, and only with the others does it say which messages are in a queue; "
            f"give the directory that contains msg_stores/, or `mqstore salvage {path} --to OUT` for what is in this file"
        )
    if _is_ledger(path, mapped):
        return UnsupportedError(f"{path} is a file of a DLedger log; give the store, the directory that contains dledger-…/")
    kind = segment_kind(path)
    if kind in DERIVED_KINDS:
        return NotAStoreError(
            f"{path} is a segment of the {DERIVED_KINDS[kind]} in tiered storage and holds no messages; give a segment in COMMIT_LOG/"
        )
    derived = _derived(path)
    if derived is not None:
        return NotAStoreError(
            f"{path} is a file of the {derived} and holds no messages; give the store, the directory that contains commitlog/"
        )
    if not mapped.size:
        return NotAStoreError(
            f"{path} is a file, not a directory, and it is empty; give a store's directory, an archive of it, or a file of its log"
        )
    return NotAStoreError(
        f"{path} is a file, not a directory, and no record of a commit log is in it; "
        "give a store's directory, an archive of it, or a file of its log"
    )
