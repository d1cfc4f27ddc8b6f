"""The golden stores: directories left by real brokers, with what those brokers themselves read from them.

`CASES` lists those of RocketMQ, `RABBITMQ` those of RabbitMQ 3.10.8, `OTHER_RABBITMQ` those of its other versions. `opened(case)` gives
the unpacked directory, once per test process and without write permission. The expectations are described in golden/README.md.
`run_cli` runs the command as a user would.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import io
import ipaddress
import json
import lzma
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from support.archives import extract_all

GOLDEN = Path(__file__).parent.parent / "golden"
VERSIONS = ("4.9.3", "5.3.3")
FURTHER_VERSIONS = ("4.3.0", "4.7.1", "5.1.4", "5.5.0")  # read, and checked by `verify`; their rules are those of the nearer of VERSIONS
RABBITMQ_VERSION = "3.10.8"
OTHER_RABBITMQ_VERSIONS = ("3.8.9", "4.0.5", "4.3.6")

Row = dict[str, Any]


@dataclass(frozen=True)
class GoldenCase:
    """One store. kind: `plain` (as a broker left it) or `damaged` (bytes changed afterwards).

    properties: the store options that are not the defaults.
    """

    version: str
    name: str
    path: Path
    kind: str
    properties: dict[str, str] = field(hash=False)

    @property
    def id(self) -> str:
        return f"{self.version}/{self.name}"

    @property
    def config(self) -> Path:
        return self.path / "store.properties"

    @property
    def archive(self) -> Path:
        return self.path / ("msg_stores.tar.xz" if self.version in (RABBITMQ_VERSION, *OTHER_RABBITMQ_VERSIONS) else "store.tar.xz")


def properties(path: Path) -> dict[str, str]:
    """Return the lines `name=value` of a file."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line)


def _cases(versions: Iterable[str]) -> Iterator[GoldenCase]:
    for version in versions:
        root = GOLDEN / f"rocketmq-{version}"
        for packed in sorted(root.rglob("store.tar.xz")):
            path = packed.parent
            kind = "damaged" if (path / "damage.json").exists() else "plain"
            options = path / "store.properties"
            yield GoldenCase(version, path.relative_to(root).as_posix(), path, kind, properties(options) if options.exists() else {})


CASES: tuple[GoldenCase, ...] = tuple(_cases(VERSIONS))
FURTHER: tuple[GoldenCase, ...] = tuple(_cases(FURTHER_VERSIONS))  # they have `queries` and `boot` alone
PLAIN: tuple[GoldenCase, ...] = tuple(case for case in CASES if case.kind == "plain")
DAMAGED: tuple[GoldenCase, ...] = tuple(case for case in CASES if case.kind == "damaged")


def _rabbitmq_cases(*versions: str) -> tuple[GoldenCase, ...]:
    return tuple(
        GoldenCase(version, packed.parent.name, packed.parent, "plain", {})
        for version in versions
        for packed in sorted((GOLDEN / f"rabbitmq-{version}").glob("*/msg_stores.tar.xz"))
    )


RABBITMQ: tuple[GoldenCase, ...] = _rabbitmq_cases(RABBITMQ_VERSION)
OTHER_RABBITMQ: tuple[GoldenCase, ...] = _rabbitmq_cases(*OTHER_RABBITMQ_VERSIONS)
"""They have `metadata.tar.xz` as well: with it, the directory is a node's data directory."""


def case_named(identity: str) -> GoldenCase:
    """Return the case with an id such as `4.9.3/b-kill9` or `3.10.8/a-small-clean`."""
    return next(case for case in (*CASES, *FURTHER, *RABBITMQ, *OTHER_RABBITMQ) if case.id == identity)


def case_id(case: object) -> str | None:
    """Return the id of a case, for `pytest.mark.parametrize(..., ids=case_id)`."""
    return case.id if isinstance(case, GoldenCase) else None


# stores


def unpack(case: GoldenCase, target: Path) -> Path:
    """Unpack the store into target, which is created; holes and file times are kept. RabbitMQ: target gets `msg_stores`."""
    with tarfile.open(case.archive, "r:xz") as archive:
        extract_all(archive, target, "tar")
    return target


def unpack_site(name: str, target: Path) -> Path:
    """Unpack a store of `golden/rocketmq-sites`, and name its place in its configuration. Returns the store."""
    with tarfile.open(GOLDEN / "rocketmq-sites" / f"{name}.tar.xz") as archive:
        extract_all(archive, target)
    configuration = target / "broker.conf"
    if configuration.exists():
        configuration.write_text(configuration.read_text().replace("CASE", str(target)))
    return target / "store"


def unpack_node_site(name: str, target: Path) -> Path:
    """Unpack a data directory of `golden/rabbitmq-sites`, with what is beside it. Returns the data directory."""
    with tarfile.open(GOLDEN / "rabbitmq-sites" / f"{name}.tar.xz") as archive:
        extract_all(archive, target)
    return next(path for path in target.iterdir() if path.is_dir())


@cache
def _scratch() -> Path:
    root = Path(tempfile.mkdtemp(prefix="mqstore-golden-"))

    def remove() -> None:
        for directory, names, _ in os.walk(root):
            for name in (".", *names):
                (Path(directory) / name).chmod(0o755)
        shutil.rmtree(root)

    atexit.register(remove)
    return root


def opened(case: GoldenCase) -> Path:
    """Return the unpacked store, made once per process, without write permission. Tests that change a store unpack their own."""
    target = _unpacked_once(case)
    for file in (*target.glob("commitlog/*"), *target.glob("msg_stores/vhosts/*/*/*.rdq")):
        if file.lstat().st_nlink > 1:  # another test has linked it, and a repair writes to no file with a second name
            file.parent.chmod(0o755)
            subprocess.run(["cp", "-p", "--sparse=always", file, file.with_name("copy")], check=True)
            file.with_name("copy").replace(file)
            file.parent.chmod(0o555)
    return target


@cache
def _unpacked_once(case: GoldenCase) -> Path:
    target = unpack(case, _scratch() / case.id)
    _protect(target)
    return target


@cache
def opened_node(case: GoldenCase) -> Path:
    """Return the data directory of a RabbitMQ node: the store with the node's metadata beside it. Otherwise as `opened`."""
    target = unpack_node(case, _scratch() / "nodes" / case.id)
    _protect(target)
    return target


def unpack_node(case: GoldenCase, target: Path) -> Path:
    """Unpack the data directory of a RabbitMQ node into target, which is created."""
    unpack(case, target)
    with tarfile.open(case.path / "metadata.tar.xz", "r:xz") as archive:
        extract_all(archive, target, "tar")
    return target


def _protect(target: Path) -> None:
    for directory, _, files in os.walk(target, topdown=False):
        for name in files:
            (Path(directory) / name).chmod(0o444)
        Path(directory).chmod(0o555)


_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


def _written(path: Path) -> Iterator[tuple[int, bytes]]:
    """Return the blocks of a file that are not all zeros; holes are not read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            try:
                start = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:
                return
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            position = start - start % _BLOCK
            while position < stop:
                file.seek(position)
                block = file.read(_BLOCK)
                if block != _ZEROS[: len(block)]:
                    yield position, block
                position += _BLOCK


def tree_checksum(root: Path, *, times: bool = True) -> str:
    """Return one digest of a directory: names, kinds, permissions, sizes, modification times and contents of everything in it."""
    digest = hashlib.sha256()
    for path in sorted((root, *root.rglob("*"))):
        found = path.lstat()
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        time = found.st_mtime_ns if times else 0
        digest.update(f"{path.relative_to(root)}\0{found.st_mode}\0{size}\0{time}\0".encode("utf-8", "surrogateescape"))
        if stat.S_ISREG(found.st_mode):
            for position, block in _written(path):
                digest.update(position.to_bytes(8, "big"))
                digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """Fail if anything in the directory is different afterwards."""
    before = tree_checksum(root)
    yield
    assert tree_checksum(root) == before, f"{root} was changed"


# expectations


def _text(case: GoldenCase, name: str) -> str | None:
    plain = case.path / name
    if plain.exists():
        return plain.read_text(encoding="utf-8")
    packed = case.path / f"{name}.xz"
    return lzma.decompress(packed.read_bytes()).decode("utf-8") if packed.exists() else None


def _rows(name: str) -> Callable[[GoldenCase], list[Row]]:
    @cache
    def load(case: GoldenCase) -> list[Row]:
        text = _text(case, name)
        assert text is not None, f"{case.id} has no {name}"
        return [json.loads(line) for line in text.split("\n") if line]

    return load


def _document(name: str) -> Callable[[GoldenCase], Any]:
    @cache
    def load(case: GoldenCase) -> Any:
        text = _text(case, name)
        assert text is not None, f"{case.id} has no {name}"
        return json.loads(text)

    return load


expected = _rows("expected.jsonl")
queues = _rows("queues.jsonl")
queries = _rows("queries.jsonl")
queries_clean = _rows("queries_clean.jsonl")
reads = _rows("reads.jsonl")
bytime = _rows("bytime.jsonl")
groups = _document("groups.json")
boot = _document("boot.json")
boot_abort = _document("boot_abort.json")
damage = _document("damage.json")
rdq_oracle = _document("rdq_oracle.json")


def has(case: GoldenCase, name: str) -> bool:
    """Return whether the case has that file of expectations, such as `queries.jsonl`."""
    return (case.path / name).exists() or (case.path / f"{name}.xz").exists()


# comparing

HOSTS = frozenset({"born_host", "store_host"})


def address(text: str | None) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int] | None:
    """Parse `ip:port` or `[ipv6]:port`, since one IPv6 address can be written in many ways."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")), int(port)


def same_fields(found: Row, wanted: Row, names: Iterable[str]) -> list[str]:
    """Return the names of the fields that differ, each with both values; addresses are compared as addresses."""
    differences = []
    for name in names:
        if name not in found:
            differences.append(f"{name}: missing")
            continue
        a, b = found[name], wanted[name]
        if (address(a) != address(b)) if name in HOSTS else (a != b or type(a) is not type(b)):
            differences.append(f"{name}: found {a!r}, wanted {b!r}")
    return differences


def keys_of(message: Row) -> set[str]:
    """Return the keys by which a message of expected.jsonl can be queried."""
    found = set((message["keys"] or "").split(" ")) - {""}
    return found | ({message["uniq_key"]} if message["uniq_key"] else set())


# the command


class Outcome(NamedTuple):
    """The result of a command: exit status and both outputs."""

    status: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[Row]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.stdout.split("\n") if line]

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.stdout)


def run_cli(*args: object, subprocess_: bool = False) -> Outcome:
    """Run `mqstore` with these arguments, in this process unless a separate one is requested."""
    argv = [str(arg) for arg in args]
    if not subprocess_ and importlib.util.find_spec("mqstore.cli.main") is not None:
        from mqstore.cli.main import run

        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run(argv)
        texts = []
        for stream in (out, err):
            assert isinstance(stream.buffer, io.BytesIO)
            texts.append(stream.buffer.getvalue().decode("utf-8"))
        return Outcome(status, *texts)
    done = subprocess.run([sys.executable, "-m", "mqstore", *argv], capture_output=True, check=False, timeout=300)
    return Outcome(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))
