"""Data directories that nodes of 3.8.9 and 3.10.8 left (golden/rabbitmq-nodes), whole and damaged, and what those nodes delivered."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

from support.archives import extract_all
from support.golden import GOLDEN

NODES = GOLDEN / "rabbitmq-nodes"


def unpacked(name: str, target: Path) -> Path:
    """Unpack a node's data directory into target, which is created."""
    with tarfile.open(NODES / name / "node.tar.xz", "r:xz") as archive:
        extract_all(archive, target, "tar")
    return target


def delivered_by_the_old_node(name: str) -> list[dict[str, Any]]:
    """Return what a node of the same version delivered from a copy."""
    text = lzma.decompress((NODES / name / "expected.jsonl.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.split("\n") if line]


def damaged(data: Path, *, segment: bool) -> Path:
    """Tear the last message file, and overwrite bytes in the middle of a journal and of a segment, of three queues of the vhost `/`."""
    vhost = next(path.parent for path in data.glob("msg_stores/vhosts/*/.vhost") if path.read_bytes() == b"/")
    last = max((vhost / "msg_store_persistent").glob("*.rdq"), key=lambda path: int(path.stem))
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size * 2 // 3)
    queues = {
        path.read_text().rpartition("QUEUE: ")[2].strip().partition("/")[2]: path.parent for path in vhost.glob("queues/*/.queue_name")
    }
    _overwrite(queues["small"] / "journal.jif")
    if segment:
        _overwrite(queues["ttl"] / "0.idx")
    return data


def _overwrite(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 48] = bytes(range(48))
    file.write_bytes(raw)
