"""The golden stores of quorum queues: data directories of real nodes, with the states that the nodes had in memory.

A case has `data.tar.xz` (`node/` is the data directory), `state-before.json` (just before the stop; not everywhere), `state-after.json`
(after the restart, before anything was consumed), `expected.jsonl` (what was delivered, in order) and `counts.json`.
"""

from __future__ import annotations

import json
import lzma
import struct
import tarfile
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from support.archives import extract_all
from support.golden import GOLDEN

from mqstore.rabbitmq.erlang.terms import Atom, Term, encode

ROOT = GOLDEN / "rabbitmq-quorum"
CASES = tuple(sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/data.tar.xz")))


def unpack(case: str, target: Path) -> Path:
    """Unpack the data directory of a case and return it."""
    with tarfile.open(ROOT / case / "data.tar.xz", "r:xz") as archive:
        extract_all(archive, target, "tar")
    return target / "node"


@cache
def node(case: str) -> Path:
    """Return the data directory of a case, unpacked once per process. Tests that change one unpack their own."""
    kept = tempfile.TemporaryDirectory(prefix="mqstore-quorum-")
    _KEPT.append(kept)
    return unpack(case, Path(kept.name))


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _text(case: str, name: str) -> str | None:
    for path in (ROOT / case / name, ROOT / case / f"{name}.xz"):
        if path.exists():
            return (lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()).decode("utf-8")
    return None


@cache
def states(case: str, when: str) -> dict[str, Any]:
    """Return the states of the machines by UID. when: `before` or `after`. Empty if they were not taken."""
    text = _text(case, f"state-{when}.json")
    return {state["uid"]: state for state in json.loads(text).values()} if text else {}


@cache
def delivered(case: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return what the restarted node delivered, by vhost and queue, in order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in (_text(case, "expected.jsonl") or "").splitlines():
        row = json.loads(line)
        if "vhost" in row:  # rows of the stream protocol have none
            found.setdefault((row["vhost"], row["queue"]), []).append(row)
    return found


def counts(case: str) -> dict[str, Any]:
    """Return the counts of the restarted node, and `read_at_ms`, when it delivered."""
    text = _text(case, "counts.json")
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


# logs that a test writes


def command(term: Term, mode: Term = Atom("noreply"), *, ts: int = 5) -> bytes:  # noqa: B008
    """Return an entry of the log with a command."""
    return encode((Atom("$usr"), {Atom("ts"): ts}, term, mode))


def wal(*entries: bytes, after: int = 0, term: int = 1, uid: bytes = b"U", number: int = 0) -> bytes:
    """Return a write-ahead log with the entries of a member, from the one after `after` on, of the same term."""
    records = (record(index, entry, term=term, uid=uid, number=number) for index, entry in enumerate(entries, after + 1))
    return b"RAWA\x01" + b"".join(records)


def record(index: int, entry: bytes, *, term: int = 1, uid: bytes = b"U", number: int = 0, known: bool = False) -> bytes:
    """Return a record: with the UID of its member, or of a number that is known."""
    body = struct.pack(">QQ", index, term) + entry
    head = (known << 22 | number).to_bytes(3, "big") + (b"" if known else len(uid).to_bytes(2, "big") + uid)
    return head + struct.pack(">II", zlib.adler32(body), len(entry)) + body


def segment(*entries: tuple[int, int, bytes], places: int = 16, computed: bool = True) -> bytes:
    """Return a segment of version 2. entries: index, term and bytes."""
    at = 8 + 32 * places
    head, data = b"", b""
    for index, term, entry in entries:
        head += struct.pack(">QQQII", index, term, at + len(data), len(entry), zlib.crc32(entry) if computed else 0)
        data += entry
    return b"RASG" + struct.pack(">HH", 2, places) + head.ljust(32 * places, b"\0") + data


def snapshot(index: int, state: Term, *, version: int = 8) -> bytes:
    meta = encode({Atom("index"): index, Atom("term"): 1, Atom("machine_version"): version, Atom("cluster"): {}})
    rest = len(meta).to_bytes(4, "big") + meta + encode(state)
    return b"RASN\x01" + zlib.crc32(rest).to_bytes(4, "big") + rest
