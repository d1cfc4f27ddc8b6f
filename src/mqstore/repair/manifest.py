"""The manifest of a repair journal: the changes in order, with what was there before and what is there afterwards.

    {
     "format": 2,
     "sha256": "…",         of the whole file, with 64 zeros in this place
     "store": …             path of the store when the journal was written; "relative": from the journal to it
     "device", "inode": …   of the store's directory
     "lock_existed": …      whether the store had its lock file before
     "changes": [{"op": …, "file": …, "step": …, "existed": …, …}, …]
    }

    op        further fields of a change
    write     offset, old_length, old, new     old: the bytes of the range that the file had; old_length: of the whole file
    resize    old_length, new_length, old      old: the bytes after new_length
    put       mode, old, new                   mode and old are null if the file did not exist
    rename    to, content                      content: size and sha256 of the file
    remove    mode, old
    mkdir, rmdir

Saved bytes are {"blob": name, "size": …, "sha256": …}; the blob of change 7 is called `0007.old` or `0007.new`.

A manifest is read as input from an enemy: `decode` refuses every byte that `encode` would not have written, and whatever could do more
than give names and bytes inside the store: unknown operations and fields, other types, numbers out of range, names with `..`, blobs
elsewhere, modes with more than read and write permission.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from mqstore.errors import TargetError
from mqstore.repair.change import Operation

FORMAT = 2
LARGEST_MANIFEST = 256 << 20
MODES = 0o666  # permission bits that are kept
_LARGEST = (1 << 62) - 1  # offsets and lengths
_NO_DIGEST = "0" * 64
_HEAD = re.compile(rb'\{\n "format": 2,\n "sha256": "([0-9a-f]{64})",\n')
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OPERATIONS: tuple[str, ...] = get_args(Operation)

_FIELDS: dict[str, tuple[str, ...]] = {
    "write": ("offset", "old_length", "old", "new"),
    "resize": ("old_length", "new_length", "old"),
    "put": ("mode", "old", "new"),
    "rename": ("to", "content"),
    "remove": ("mode", "old"),
    "mkdir": (),
    "rmdir": (),
}


class ManifestError(Exception):
    """The bytes are not a manifest that may be followed. `str(error)` is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Saved bytes. name: of the file in the journal; empty for the content of a renamed file, which is not saved. size in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """One change as the journal has it. existed: before the repair. Lengths in bytes, of the whole file. mode: permission bits."""

    op: Operation
    file: str
    step: str
    existed: bool
    offset: int = 0
    old_length: int = 0
    new_length: int = 0
    to: str = ""
    mode: int | None = None
    content: Blob | None = None
    old: Blob | None = None
    new: Blob | None = None

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """What is saved for it."""
        return tuple(blob for blob in (self.old, self.new) if blob is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The paths that it changes."""
        return (self.file, self.to) if self.to else (self.file,)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says. store: the store's path when it was written; relative: from the journal to it; identity: its inode."""

    store: str
    relative: str
    identity: tuple[int, int]
    lock_existed: bool
    changes: tuple[Recorded, ...]


def blob_name(number: int, side: str) -> str:
    """Return the name of the bytes before (`old`) or after (`new`) a change."""
    return f"{number:04d}.{side}"


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the file. Raises TargetError if it would be larger than one that is read back."""
    document = {
        "format": FORMAT,
        "sha256": _NO_DIGEST,
        "store": manifest.store,
        "relative": manifest.relative,
        "device": manifest.identity[0],
        "inode": manifest.identity[1],
        "lock_existed": manifest.lock_existed,
        "changes": [_as_json(change) for change in manifest.changes],
    }
    raw = json.dumps(document, indent=1).encode()
    if len(raw) > LARGEST_MANIFEST:
        raise TargetError(f"{len(manifest.changes)} changes are more than one journal holds; choose some of the steps with --only")
    return raw.replace(_NO_DIGEST.encode(), _digest_of(raw).encode(), 1)


def _digest_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _as_json(change: Recorded) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": change.op, "file": change.file, "step": change.step, "existed": change.existed}
    for name in _FIELDS[change.op]:
        value = getattr(change, name)
        if isinstance(value, Blob):
            value = {"blob": value.name, "size": value.size, "sha256": value.sha256}
            if name == "content":
                del value["blob"]
        fields[name] = value
    return fields


# reading


def decode(raw: bytes) -> Manifest:
    """Check the bytes of a manifest, all of them, and return what they say. Raises ManifestError."""
    head = _HEAD.match(raw)
    if head is None:
        if raw.startswith(b'{\n "format": 1,\n'):
            raise ManifestError("it has format 1, without a checksum, of an earlier version of mqstore, which can still undo or finish it")
        raise ManifestError("manifest.json does not begin as one with a checksum does")
    start, stop = head.span(1)
    if _digest_of(raw[:start] + _NO_DIGEST.encode() + raw[stop:]) != head[1].decode():
        raise ManifestError("manifest.json does not match its checksum")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise ManifestError("manifest.json is not JSON") from None
    fields = _fields(document, ("format", "sha256", "store", "relative", "device", "inode", "lock_existed", "changes"), "the manifest")
    if not isinstance(fields["changes"], list):
        raise ManifestError("the changes are not a list")
    changes = tuple(_change(number, each) for number, each in enumerate(fields["changes"]))
    # Refuse a renamed file that another change names, too: the bytes saved for that are not those under the other name.
    renamed = [name for change in changes if change.op == "rename" for name in change.names]
    others = {change.file for change in changes if change.op != "rename"}
    if len(set(renamed)) != len(renamed) or others & set(renamed):
        raise ManifestError("a file that is renamed is changed as well")
    return Manifest(
        _text(fields["store"], "store"),
        _text(fields["relative"], "relative"),
        (_number(fields["device"], "device", (1 << 64) - 1), _number(fields["inode"], "inode", (1 << 64) - 1)),
        _truth(fields["lock_existed"], "lock_existed"),
        changes,
    )


def _fields(value: object, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return a JSON object that has exactly these fields."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise ManifestError(f"{what} does not have the fields {', '.join(names)}, and no others")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ManifestError(f"{what} is not a text")
    return value


def _number(value: object, what: str, largest: int = _LARGEST) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise ManifestError(f"{what} is not a number from 0 to {largest}")
    return value


def _truth(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise ManifestError(f"{what} is neither true nor false")
    return value


def _name(value: object, what: str) -> str:
    """Return a path below the store."""
    name = _text(value, what)
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ManifestError(f"{what} is {name!r}, which is not the name of a file below the store")
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ManifestError(f"{what} cannot be the name of a file") from None
    return name


def _mode(value: object, what: str) -> int | None:
    if value is not None and _number(value, what) & ~MODES:
        raise ManifestError(f"{what} has more than permission to read and write")
    return value  # type: ignore[return-value]


def _saved(value: object, what: str, name: str) -> Blob:
    """Return saved bytes. name: of their file, which the manifest must give; empty for a checksum alone."""
    fields = _fields(value, (*(("blob",) if name else ()), "size", "sha256"), what)
    if fields.get("blob", "") != name:
        raise ManifestError(f"{what} is in a file {fields['blob']!r}, and not in {name}")
    digest = _text(fields["sha256"], f"the checksum of {what}")
    if _DIGEST.fullmatch(digest) is None:
        raise ManifestError(f"the checksum of {what} is not one")
    return Blob(name, _number(fields["size"], f"the size of {what}"), digest)


def _change(number: int, given: object) -> Recorded:
    what = f"change {number}"
    op = given.get("op") if isinstance(given, dict) else None
    if not isinstance(op, str) or op not in _OPERATIONS:
        raise ManifestError(f"{what} is an unknown operation")
    fields = _fields(given, ("op", "file", "step", "existed", *_FIELDS[op]), f"{what}, {op},")
    read: dict[str, Callable[[Any], Any]] = {
        "op": lambda value: value,
        "file": lambda value: _name(value, f"the file of {what}"),
        "step": lambda value: _text(value, f"the step of {what}"),
        "existed": lambda value: _truth(value, f"existed of {what}"),
        "offset": lambda value: _number(value, f"the offset of {what}"),
        "old_length": lambda value: _number(value, f"the old length of {what}"),
        "new_length": lambda value: _number(value, f"the new length of {what}"),
        "to": lambda value: _name(value, f"the new name of {what}"),
        "mode": lambda value: _mode(value, f"the mode of {what}"),
        "content": lambda value: _saved(value, f"the content of {what}", ""),
        "old": lambda value: None if value is None else _saved(value, f"the old side of {what}", blob_name(number, "old")),
        "new": lambda value: _saved(value, f"the new side of {what}", blob_name(number, "new")),
    }
    change = Recorded(**{name: read[name](value) for name, value in fields.items()})
    if not _agrees(change):
        raise ManifestError(f"the fields of {what}, {op}, contradict each other")
    return change


def _agrees(change: Recorded) -> bool:
    """Return whether lengths, saved bytes and `existed` of a change fit together."""
    if change.op in ("put", "remove"):
        return change.existed == (change.old is not None) == (change.mode is not None)
    if change.op == "rename":
        return change.existed and change.file != change.to
    if change.op in ("write", "resize"):
        written = change.new.size if change.new is not None else 0
        end = change.offset + written if change.op == "write" else change.old_length
        start = change.offset if change.op == "write" else change.new_length
        replaced = max(0, min(end, change.old_length) - start)
        return change.old is not None and change.old.size == replaced and end <= _LARGEST and (change.existed or not change.old_length)
    return True
