"""File systems behind a URL: listing, the state of a file, and ranges of bytes. Everything that depends on the scheme is here.

    scheme            implementation           options, and what they mean
    s3, s3a, s3n      pyarrow.fs.S3FileSystem  endpoint_url, key, secret, token, region; anon=true: unsigned requests
    hdfs, viewfs      pyarrow.fs, libhdfs      user, kerb_ticket, replication
    any other         fsspec, if installed     those of its fsspec file system, as text

Two options apply to all: `window`, maximum bytes of a request; and `timeout`, seconds to wait for a server. Options that are not
given come from the client's usual sources: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, a profile, the role of the
machine; CLASSPATH and HADOOP_HOME for HDFS. Hadoop's `fs.s3a.*` settings are not used.

A file's identity is its size and its ETag; its modification time if the file system has no ETags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from mqstore.errors import CannotOpenError, MqstoreError, UnsupportedError, UsageError
from mqstore.files.location import Url

WINDOW = 16 << 20
SMALLEST_WINDOW = 4 << 10
TIMEOUT = 20.0

S3 = ("s3", "s3a", "s3n")
HDFS = ("hdfs", "viewfs")
_S3_OPTIONS = {
    "key": "access_key",
    "secret": "secret_key",
    "token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint_override",
}
_HDFS_OPTIONS = ("user", "kerb_ticket", "replication")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_COMMON = ("window", "timeout")
# fields by which the file systems of fsspec identify the version of a file
_IDENTITY = (
    "ETag",
    "etag",
    "e_tag",
    "md5Hash",
    "content_md5",
    "version_id",
    "mtime",
    "modificationTime",
    "LastModified",
    "updated",
    "modified",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """One entry of a listing. relative: path below the listed directory. mtime_ms: since 1970, 0 if unknown."""

    relative: str
    size: int
    is_directory: bool
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class OpenFile:
    """The state of a file when it was opened. identity: changes with the file. read(start, stop): bytes start..stop-1, in one request."""

    size: int
    identity: str
    read: Callable[[int, int], Any]


class RemoteFiles(Protocol):
    """A remote file system. Paths are those of the URL. Methods raise the errors of the client; `attempt` translates them."""

    def listing(self, path: str, *, recursive: bool) -> list[ListingEntry] | None:
        """Return all entries below a directory; None if it does not exist."""
        ...

    def open(self, path: str) -> OpenFile | None:
        """Return the current state of a file; None if it does not exist."""
        ...


def option_names(scheme: str) -> tuple[str, ...] | None:
    """Return the options of a scheme; None if fsspec's file system checks them."""
    if scheme in S3:
        return (*_S3_OPTIONS, "anon", *_COMMON)
    return (*_HDFS_OPTIONS, *_COMMON) if scheme in HDFS else None


def window_of(url: Url) -> int:
    """Return the maximum bytes of one request. Raises UsageError."""
    text = dict(url.options).get("window", str(WINDOW))
    if not text.isdigit() or int(text) < SMALLEST_WINDOW:
        raise UsageError(f"option window is {text!r}: give a number of bytes, {SMALLEST_WINDOW} or more")
    return int(text)


def connect(url: Url) -> tuple[RemoteFiles, str]:
    """Return the file system of a URL, and the path in it. Raises UsageError, UnsupportedError, CannotOpenError."""
    options = dict(url.options)
    known = option_names(url.scheme)
    unknown = [] if known is None else [name for name in options if name not in known]
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r} for {url.scheme}: URLs; the options are {', '.join(known or ())}")
    window_of(url)
    text = options.pop("timeout", str(TIMEOUT))
    options.pop("window", None)
    try:
        timeout = float(text)
    except ValueError:
        raise UsageError(f"option timeout is {text!r}: give seconds") from None
    if url.scheme in S3:
        return attempt(url, lambda: _s3(url, options, timeout))
    if url.scheme in HDFS:
        return attempt(url, lambda: _hdfs(url, options))
    return _fsspec(url, options)


def attempt(url: Url, ask: Callable[[], T]) -> T:
    """Return ask(); translate errors of the client into one sentence. Raises CannotOpenError."""
    try:
        return ask()
    except MqstoreError:
        raise
    except FileNotFoundError:
        raise CannotOpenError(f"{url} does not exist; check its bucket or host, and the path after it") from None
    except PermissionError:
        raise CannotOpenError(_refusal_text(url)) from None
    except (OSError, RuntimeError, ValueError) as error:
        raise CannotOpenError(_error_text(url, str(error))) from None
    except Exception as error:
        # the file systems of fsspec raise what their clients raise
        raise CannotOpenError(_error_text(url, f"{type(error).__name__}: {error}")) from None


def _refusal_text(url: Url) -> str:
    return f"{url} cannot be read: access denied; give a key and secret (or a role) with permission to list and read it"


def _error_text(url: Url, text: str) -> str:
    upper = text.upper()
    if "NO_SUCH_BUCKET" in upper or "NOSUCHBUCKET" in upper:
        return f"{url} does not exist: there is no bucket of that name; check the bucket and the endpoint"
    if any(
        word in upper.replace("_", "").replace(" ", "")
        for word in ("ACCESSDENIED", "INVALIDACCESSKEYID", "SIGNATUREDOESNOTMATCH", "INVALIDCLIENTTOKENID", "STATUS403", "STATUS401")
    ):
        return _refusal_text(url)
    if "LIBHDFS" in upper or "LIBJVM" in upper or "JNI" in upper:
        return (
            f"{url} needs Hadoop's native client: set HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath --glob), or give webhdfs://"
        )
    # only the first line: it names the cause, the rest repeats the request
    first = text.splitlines()[0] if text else "no answer"
    for name, value in url.options:
        if name not in ("region", "endpoint_url", "window", "timeout", "user") and len(value) > 3:
            first = first.replace(value, "…")
    return f"{url} cannot be reached or read: {first[:300]}; check the endpoint, the network and the credentials"


def _authority_and_path(url: Url) -> tuple[str, str]:
    """Return (authority, path with its leading slash)."""
    rest = url.url.partition(":")[2]
    if not rest.startswith("//"):
        return "", rest
    authority, slash, path = rest[2:].partition("/")
    return authority, slash + path


# pyarrow


class ArrowFiles:
    """A file system of `pyarrow.fs`."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def listing(self, path: str, *, recursive: bool) -> list[ListingEntry] | None:
        from pyarrow.fs import FileSelector, FileType

        base = path.rstrip("/")
        try:
            infos = self._system.get_file_info(FileSelector(base, recursive=recursive))
        except FileNotFoundError:
            return None
        entries = []
        for entry in infos:
            relative = entry.path[len(base) :].strip("/")
            mtime = 0 if entry.mtime_ns is None else entry.mtime_ns // 1_000_000
            entries.append(ListingEntry(relative, entry.size or 0, entry.type == FileType.Directory, mtime))
        return entries

    def open(self, path: str) -> OpenFile | None:
        try:
            file = self._system.open_input_file(path)
        except FileNotFoundError:
            return None
        metadata = {_as_text(name): _as_text(value) for name, value in (file.metadata() or {}).items()}
        identity = metadata.get("ETag") or metadata.get("Last-Modified")
        if identity is None:
            identity = str(self._system.get_file_info(path).mtime_ns)
        return OpenFile(file.size(), identity, lambda start, stop: file.read_at(stop - start, start))


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _s3(url: Url, options: Mapping[str, str], timeout: float) -> tuple[RemoteFiles, str]:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    given: dict[str, Any] = {_S3_OPTIONS[name]: value for name, value in options.items() if name in _S3_OPTIONS}
    if ("key" in options) != ("secret" in options):
        raise UsageError("key and secret belong together: give both options or neither")
    bucket, path = _authority_and_path(url)
    if not bucket:
        raise UsageError(f"{url} names no bucket: give s3://bucket/directory")
    if options.get("anon", "false").lower() == "true":
        given["anonymous"] = True
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is not None:
        given.setdefault("endpoint_override", endpoint)  # the client itself does not read these variables
    if not given.keys() & {"region", "endpoint_override"} and not any(os.environ.get(name) for name in _REGIONS):
        try:
            given["region"] = resolve_s3_region(bucket)
        except OSError as error:
            raise CannotOpenError(_error_text(url, str(error))) from None
    strategy = AwsStandardS3RetryStrategy(max_attempts=4)
    system = S3FileSystem(connect_timeout=timeout, request_timeout=timeout, retry_strategy=strategy, **given)
    return ArrowFiles(system), bucket + path


def _hdfs(url: Url, options: Mapping[str, str]) -> tuple[RemoteFiles, str]:
    from pyarrow.fs import HadoopFileSystem

    authority, path = _authority_and_path(url)
    user, _, place = authority.rpartition("@")
    host, _, port = place.partition(":")
    given: dict[str, Any] = {name: options[name] for name in ("user", "kerb_ticket") if name in options}
    if user:
        given.setdefault("user", user)
    if "replication" in options:
        given["replication"] = int(options["replication"])
    name = f"viewfs://{host}" if url.scheme == "viewfs" else host or "default"
    return ArrowFiles(HadoopFileSystem(name, int(port or 8020 if host else 0), **given)), path


# fsspec


class FsspecFiles:
    """A file system of fsspec."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def listing(self, path: str, *, recursive: bool) -> list[ListingEntry] | None:
        base = path.rstrip("/")
        self._system.invalidate_cache()
        try:
            entries = self._system.find(base, withdirs=True, detail=True, maxdepth=None if recursive else 1)
        except FileNotFoundError:
            return None
        strip = len(self._system._strip_protocol(base).rstrip("/"))
        return [
            ListingEntry(str(name)[strip:].strip("/"), int(info.get("size") or 0), info.get("type") == "directory", _milliseconds(info))
            for name, info in entries.items()
            if str(name)[strip:].strip("/")
        ]

    def open(self, path: str) -> OpenFile | None:
        self._system.invalidate_cache()
        try:
            info = self._system.info(path)
        except FileNotFoundError:
            return None
        if info.get("type") == "directory":
            return None
        identity = " ".join(f"{name}={info[name]}" for name in _IDENTITY if info.get(name) is not None)
        return OpenFile(int(info.get("size") or 0), identity, lambda start, stop: self._system.cat_file(path, start=start, end=stop))


def _milliseconds(info: Mapping[str, Any]) -> int:
    for name in ("mtime", "LastModified", "modificationTime", "updated", "modified"):
        value: Any = info.get(name)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1000)
        if isinstance(value, int | float):
            # WebHDFS counts milliseconds, a local file system seconds
            return int(value if value > 1e11 else value * 1000)
    return 0


def _fsspec(url: Url, options: Mapping[str, str]) -> tuple[RemoteFiles, str]:
    try:
        import fsspec
    except ImportError:
        raise UnsupportedError(f"{url.scheme}: URLs need fsspec: `pip install mqstore[url]`; s3: and hdfs: need nothing more") from None
    try:
        system, path = fsspec.core.url_to_fs(url.url, **options)
    except ImportError as error:
        raise UnsupportedError(f"{url.scheme}: URLs need one more package ({error}); install it beside mqstore[url]") from None
    except ValueError as error:
        if "not known" in str(error).lower():
            raise UnsupportedError(f"no file system is known for {url.scheme}: URLs; give a path, or an s3: or hdfs: URL") from None
        raise CannotOpenError(_error_text(url, str(error))) from None
    except TypeError as error:
        raise UsageError(f"{url.scheme}: URLs do not take these options: {error}") from None
    except OSError as error:
        raise CannotOpenError(_error_text(url, str(error))) from None
    return FsspecFiles(system), path
