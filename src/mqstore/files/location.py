"""The location of a store: a local path, or a URL of an object store or a distributed file system.

    file:/backup/store  file:///backup/store         a path
    s3://bucket/broker-a/store  s3a://…              a `Url`
    hdfs://namenode:8020/backup/store                a `Url`

A `Url` carries the options needed to reach it, credentials among them. It prints as the URL alone, so that no credentials get into
a log line, a report or a plan.

    >>> Url("s3://bucket/store", {"key": "k", "secret": "s"})
    Url('s3://bucket/store')
    >>> as_location("file:///backup/store"), as_location("C:store")
    (PosixPath('/backup/store'), PosixPath('C:store'))
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from mqstore.errors import CannotOpenError, NotAStoreError, TargetError, UnsupportedError, UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
# HOST:PORT, with a user or a path or more of them, and names of schemes without `//`; a path has a slash before any colon
_HOST = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f:]*|[\w.-]+)"
_ADDRESS = re.compile(rf"(?:[^/]*@)?{_HOST}:\d{{1,5}}(?:[;,/?].*)?", re.ASCII)
_SCHEME = re.compile(r"(?:rocketmq|amqps?|https?|mqtts?|tcp|tls|ssl)(?::|://).*", re.ASCII | re.IGNORECASE)
_FILE = re.compile(r"^file:(?://(?:localhost)?)?(?=/)")


class Url:
    """A directory or file reached over a network. options: named as in `mqstore.files.remote_fs`. Immutable and picklable."""

    __slots__ = ("options", "url")

    def __init__(self, url: str, options: Mapping[str, str] | tuple[tuple[str, str], ...] = ()) -> None:
        match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(//[^/]*)?(/.*)?$", url)
        if match is None:
            raise UsageError(f"{url!r} is not a URL: give one such as s3://bucket/directory")
        scheme, authority, path = match.group(1), match.group(2) or "", match.group(3) or ""
        if ":" in authority.rpartition("@")[0]:
            raise UsageError(f"a URL must not contain a password; give the credentials for {scheme} as options, by --fs-option or fs.NAME")
        self.url = f"{scheme}:{authority}{re.sub('/+', '/', path).rstrip('/')}"
        self.options = tuple(sorted(dict(options).items()))

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0].lower()

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.url.rpartition("/")[2]

    def resolve(self) -> Url:
        """Return itself: a URL has no symbolic links."""
        return self

    def with_options(self, options: Mapping[str, str] | tuple[tuple[str, str], ...]) -> Url:
        """Return the same location with these options in addition to its own."""
        return Url(self.url, {**dict(self.options), **dict(options)})

    def __truediv__(self, relative: str) -> Url:
        return Url(f"{self.url}/{relative}", self.options)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"Url({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and (self.url, self.options) == (other.url, other.options)

    def __hash__(self) -> int:
        return hash((self.url, self.options))

    def __reduce__(self) -> tuple[type[Url], tuple[str, tuple[tuple[str, str], ...]]]:
        return Url, (self.url, self.options)


Location = Path | Url


def without_file(text: str) -> str:
    """Return a local path without a `file:` prefix."""
    return _FILE.sub("", text)


def is_url(text: str) -> bool:
    """Return whether a text is a location reached over a network. A drive letter or `file:` is not."""
    return _URL.match(text) is not None and not text.lower().startswith("file:")


def as_location(path: str | os.PathLike[str], options: Mapping[str, str] | tuple[tuple[str, str], ...] = ()) -> Location:
    """Return a path or a URL as a value; `.` and `..` as absolute paths, whose names others follow. options: of a URL, added to its own."""
    if isinstance(path, Url):
        return path.with_options(options) if options else path
    if isinstance(path, str) and is_url(path):
        return Url(path, options)
    local = Path(without_file(path)) if isinstance(path, str) else Path(path)
    return local.resolve() if local.name in ("", "..") else local


def local_target(to: str | os.PathLike[str]) -> None:
    """Refuse a URL or the address of a server as a target. Raises TargetError, UsageError."""
    text = os.fspath(to)
    refuse_address(text, "give a directory; `mqstore replay` sends messages to rocketmq:// and amqp:// addresses")
    if isinstance(to, Url) or is_url(text):
        url = text if "://" in text else text.replace(":/", "://", 1)  # a URL turned into a Path has lost one of its slashes
        raise TargetError(
            f"{url}: results are written to a directory of a local or shared file system; write there, then copy them to the URL"
        )


def refuse_address(text: str, instead: str) -> None:
    """Refuse what looks like the address of a server where a file or directory is meant. Raises UsageError.

    instead: what to give, such as `rocketmq://localhost:9876`. A directory of such a name is given with a path.

    >>> refuse_address("localhost:5672", "give rocketmq://, amqp:// or amqps:// with it")
    Traceback (most recent call last):
        ...
    mqstore.errors.UsageError: localhost:5672 is an address without a scheme; give rocketmq://, amqp:// or amqps:// with it, or \
the full path of a directory of that name
    >>> refuse_address("./localhost:5672", "-"), refuse_address("C:store", "-"), refuse_address("backup:old", "-")
    (None, None, None)
    """
    if _SCHEME.fullmatch(text):
        raise UsageError(f"{without_password(text)} is not a file or directory; {instead}")
    if _ADDRESS.fullmatch(text):
        shown = without_password(text)
        raise UsageError(f"{shown} is an address without a scheme; {instead}, or the full path of a directory of that name")


def without_password(address: str) -> str:
    """Return an address without its password.

    >>> without_password("amqp://user:secret@host/"), without_password("user:secret@host:5672")
    ('amqp://user:***@host/', 'user:***@host:5672')
    """
    return re.sub(r"((?://|^(?![\w+.-]+://))[^:@/]*):[^@]*@", r"\1:***@", address)


def check_creation(path: Path, create: bool) -> bool:
    """Return whether there is no store at a path yet, so that one is made there. Raises CannotOpenError, NotAStoreError without `create`.

    A directory that is empty, or holds only what an interrupted creation leaves, is not a store yet.
    """
    if not os.path.lexists(path):
        if not create:
            raise CannotOpenError(f"{path} does not exist; --create creates a store there")
        return True
    try:
        unused = path.is_dir() and {entry.name for entry in os.scandir(path)} <= {"lock"}
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {error.strerror}") from None
    if unused and not create:
        raise NotAStoreError(f"{path} is empty; --create creates a store in it")
    return unused


def local_store(place: Location, what: str) -> Path:
    """Return the location as a path. Raises UnsupportedError for a URL; what: the operation that needs a local store."""
    if isinstance(place, Url):
        raise UnsupportedError(f"{what} works on a store of a local or shared file system; copy {place} there first")
    return place


def check_outside(target: str | os.PathLike[str], store: Location) -> None:
    """Refuse a target that is the store or inside it. Raises TargetError."""
    if isinstance(store, Url):
        return
    inside, resolved = store.resolve(), Path(os.path.abspath(target)).resolve()
    if inside == resolved or inside in resolved.parents:
        raise TargetError(f"{target} is inside the store, which is never changed; choose a directory outside it")


def exists_already(target: str | os.PathLike[str]) -> TargetError:
    """Return the error for a target that exists."""
    return TargetError(f"{target} exists already; choose another name or remove it first, nothing is ever overwritten")


def check_parent(target: Path) -> None:
    """Refuse a target whose parent directory does not exist. Raises TargetError."""
    if not target.parent.is_dir():
        raise TargetError(f"cannot create {target}: {target.parent} is not a directory; create it first")
