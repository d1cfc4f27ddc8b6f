"""The golden streams: data directories of real nodes, and what those nodes delivered of each stream."""

from __future__ import annotations

import json
import lzma
import tarfile
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.archives import extract_all

from mqstore.files import Bytes
from mqstore.rabbitmq.erlang.terms import read_text

GOLDEN = Path(__file__).parent.parent / "golden" / "rabbitmq-streams"
CASES = {"3.10.8-clean": "3.10", "4.0.5-killed": "4.0", "4.3.6-killed": "4.3"}  # and whose rules apply at delivery
NAMES_CASE = "4.3.6-names"
Row = dict[str, Any]


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mqstore-streams-")


def unpack(case: str, target: Path) -> Path:
    """Unpack the data directory of a case below target, and return it."""
    with tarfile.open(GOLDEN / case / "data.tar.xz") as archive:
        extract_all(archive, target)
    return target / "node"


@cache
def node(case: str) -> Path:
    """Return the data directory of a case, unpacked once; not to be changed."""
    return unpack(case, Path(_scratch().name) / case)


def directories(case: str) -> dict[str, Path]:
    """Return the directory of each stream by the name of its queue. The names of these cases have dots where directories have `_`."""
    return {path.name[2:].rpartition("_")[0].replace("_", "."): path for path in sorted((node(case) / "stream").iterdir())}


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the first offset and the path of each segment."""
    return [(int(path.stem), path) for path in sorted(directory.glob("*.segment"))]


def read(path: Path) -> Bytes:
    return np.frombuffer(path.read_bytes(), np.uint8)


@cache
def delivered(case: str, via: str) -> dict[str, list[Row]]:
    """Return what the node delivered, by queue. via: `amqp091` or `stream`."""
    found: dict[str, list[Row]] = defaultdict(list)
    for line in lzma.decompress((GOLDEN / case / "expected.jsonl.xz").read_bytes()).decode("utf-8").splitlines():
        row = json.loads(line)
        if row.get("via") == via:
            found[row["queue"]].append(row)
    return found


def offset_of(row: Row) -> int:
    """Return the offset of a row that a consumer of AMQP 0-9-1 received."""
    return next(value for name, _, value in row["properties"]["headers"] if name == "x-stream-offset")


def counts(case: str) -> dict[str, Any]:
    return json.loads((GOLDEN / case / "counts.json").read_text(encoding="utf-8"))


def tracking(case: str) -> dict[str, dict[str, dict[bytes, Any]]]:
    """Return what the writer of each stream knew of its clients, by the name of the queue."""
    [pairs] = read_text((counts(case)["tracking"] + ".").encode())
    return {queue.decode(): {str(name): dict(known) for name, known in state.items()} for queue, state in pairs}
