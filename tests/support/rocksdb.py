"""RocksDB databases for tests: those of golden stores, changed; and new ones."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

COMPARATOR = b"leveldb.BytewiseComparator"


def new_database(place: Path) -> Any:
    """Return a new database, open for writing, with bytes as keys and values."""
    from rocksdict import Options, Rdict

    return Rdict(str(place), Options(raw_mode=True))


def copied(place: Path, target: Path) -> Path:
    """Copy a directory, writable."""
    shutil.copytree(place, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def flip(path: Path, at: int) -> None:
    """Change one byte of a file. at: from the end, if negative."""
    found = bytearray(path.read_bytes())
    found[at] ^= 0x55
    path.write_bytes(found)


def tables(place: Path) -> list[Path]:
    """Return the table files of a database, the largest last."""
    return sorted(place.glob("*.sst"), key=lambda path: path.stat().st_size)


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def rename_comparator(place: Path) -> None:
    """Make the manifest name another comparator, with a valid checksum."""
    manifest = next(place.glob("MANIFEST-*"))
    found = bytearray(manifest.read_bytes())
    at = 0
    while at < len(found):
        length = struct.unpack_from("<H", found, at + 4)[0]
        body = at + 7
        if COMPARATOR in found[body : body + length]:
            start = found.index(COMPARATOR, body)
            found[start : start + len(COMPARATOR)] = b"leveldb.BackwiseComparator"
            crc = _crc32c(bytes(found[at + 6 : body + length]))
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            struct.pack_into("<I", found, at, masked)
        at = body + length
    manifest.write_bytes(found)
