"""The golden case of tiered storage: what a real 5.5.0 store moved there, and what it read back. tests/golden/rocketmq-tiered/README.md."""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path

from support.archives import extract_all
from support.golden import GOLDEN, Row

CASE = GOLDEN / "rocketmq-tiered"


def unpack(target: Path) -> tuple[Path, Path]:
    """Return the store and its tiered storage, unpacked into target."""
    with tarfile.open(CASE / "directories.tar.xz", "r:xz") as archive:
        extract_all(archive, target, "tar")
    return target / "store", target / "tiered"


def expected() -> list[Row]:
    """Return the messages by topic, queue and queue offset."""
    with lzma.open(CASE / "expected.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
