"""Files that this package writes and reads back: resume files, manifests, commits in progress. They are read as hostile input.

Between two runs another user may have changed such a file, or put a different one there, and what it says decides what is skipped,
renamed and removed. So it is used only if

* it is a regular file, not a link, of at most a given size,
* it belongs to this user or to root, and other users may neither write to it nor replace it (a directory that everybody may write to,
  such as /tmp, must have its sticky bit),
* it is one JSON object whose fields have the expected types and ranges, and no others,
* its checksum fits, if it has one: files of earlier versions have none,
* names in it are plain: they lead to nothing but a file in the directory that they belong to, which is not reached by a link.

Fields are read by the functions below, which raise ValueError; its text names the field. The reader of each kind of file says what to do.

    >>> document = parse(b'{"format": 1, "stage": "../../etc"}')
    >>> whole(document, "format", 1, 1), plain_name(document, "stage")
    Traceback (most recent call last):
        ...
    ValueError: its stage is '../../etc', which is not the name of a file
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from mqstore.errors import TargetError
from mqstore.files.regular_file import open_regular, why_unreadable

LARGEST = 64 << 20
LARGEST_NUMBER = (1 << 63) - 1
LONGEST_TEXT = 1 << 16
SHOWN = 60
SUM = "sum"


class ForeignStateError(TargetError):
    """The file, or the directory around it, may belong to another user."""


def open_state(path: str | os.PathLike[str], *, owners: Collection[int] = ()) -> IO[bytes]:
    """Open a state file for reading. owners: users, besides this one and root, to whom it may belong.

    Raises FileNotFoundError, ForeignStateError, and TargetError for what is not a regular file or cannot be read.
    """
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise ForeignStateError(f"{path} is a symbolic link, which is not followed; remove it, or give another name")
        descriptor = open_regular(path, follow=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TargetError(why_unreadable(path, error)) from None
    try:
        _require_own(path, os.fstat(descriptor), owners)
        _require_own(Path(path).parent, os.stat(Path(path).parent), None)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def require_own_directory(path: Path) -> None:
    """Refuse a directory of state files that may belong to another user. Raises ForeignStateError, FileNotFoundError."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ForeignStateError(f"{path} is a symbolic link, which is not followed; remove it, or give another name")
    _require_own(path, status, ())


def _require_own(path: str | os.PathLike[str], status: os.stat_result, owners: Collection[int] | None) -> None:
    """Refuse what another user owns, or everybody may write to. owners: None for a directory above, of which only the second counts."""
    if owners is not None and status.st_uid not in (os.geteuid(), 0, *owners):
        raise ForeignStateError(
            f"{path} belongs to user {status.st_uid}, and is not used by user {os.geteuid()}; run as its owner, or remove it"
        )
    shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & stat.S_IWOTH and not shared:
        raise ForeignStateError(f"{path} can be written to by everybody, so that what it holds is not trusted; chmod o-w it, or move it")


def read_state(path: str | os.PathLike[str], limit: int = LARGEST, *, owners: Collection[int] = ()) -> bytes | None:
    """Return the contents of a state file; None if there is none. Raises what `open_state` raises, and TargetError over the limit."""
    try:
        with open_state(path, owners=owners) as file:
            raw = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TargetError(why_unreadable(path, error)) from None
    if len(raw) > limit:
        raise TargetError(f"{path} has more than the {limit} bytes that such a file can have; remove it, or give another name")
    return raw


def seal(document: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return the bytes of a document with its checksum, which `parse` compares.

    >>> seal({"stop": 7})
    b'{"stop": 7, "sum": 3872926065}'
    >>> parse(b'{"stop": 6, "sum": 3872926065}')
    Traceback (most recent call last):
        ...
    ValueError: it does not fit its checksum
    """
    return json.dumps({**document, SUM: _sum_of(document)}, indent=indent).encode()


def _sum_of(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def parse(raw: bytes, *, fields: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the object of a JSON document, without its checksum. fields: those that it may have. Raises ValueError."""
    try:
        values = fields_of(json.loads(raw, parse_constant=_refuse), None if fields is None else (*fields, SUM))
        if SUM in values and values.pop(SUM) != _sum_of(values):
            raise ValueError("it does not fit its checksum")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return values


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def fields_of(value: object, fields: Iterable[str] | None = None) -> dict[str, Any]:
    """Return an object. fields: those that it may have. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"it has {_shown(value)} instead of an object")
    unknown = set() if fields is None else value.keys() - set(fields)
    if unknown:
        raise ValueError(f"it has the unknown field {min(unknown)!r}")
    return value


def whole(document: Mapping[str, Any], name: str, low: int = 0, high: int = LARGEST_NUMBER) -> int:
    """Return a field that is a whole number from low to high. Raises ValueError."""
    value = document.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"its {name} is {_shown(value)}, not a number from {low} to {high}")
    return value


def flag(document: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false. Raises ValueError."""
    value = document.get(name)
    if type(value) is not bool:
        raise ValueError(f"its {name} is {_shown(value)}, not true or false")
    return value


def text(document: Mapping[str, Any], name: str, longest: int = LONGEST_TEXT) -> str:
    """Return a field that is a text. Raises ValueError."""
    value = document.get(name)
    if type(value) is not str or len(value) > longest:
        raise ValueError(f"its {name} is {_shown(value)}, not a text of at most {longest} characters")
    return value


def one_of(document: Mapping[str, Any], name: str, values: Collection[str]) -> str:
    """Return a field that is one of these texts. Raises ValueError: an unknown value is never taken for one that is known."""
    value = text(document, name)
    if value not in values:
        raise ValueError(f"its {name} is {_shown(value)}, not one of {', '.join(values)}")
    return value


def rows(document: Mapping[str, Any], name: str, most: int = 10_000_000) -> list[Any]:
    """Return a field that is a list. Raises ValueError."""
    value = document.get(name)
    if type(value) is not list or len(value) > most:
        raise ValueError(f"its {name} is {_shown(value)}, not a list of at most {most}")
    return value


def plain_name(document: Mapping[str, Any], name: str) -> str:
    """Return a field that is the name of a file, without a directory. Raises ValueError."""
    value = document.get(name)
    if type(value) is not str or value in ("", ".", "..") or "/" in value or "\0" in value or len(value) > 255:
        raise ValueError(f"its {name} is {_shown(value)}, which is not the name of a file")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
