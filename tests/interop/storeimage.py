"""What two store directories must have in common, byte for byte, whichever implementation wrote them.

Excluded is everything without meaning or specific to the writer: bytes past the end of the log, a BLANK after its first eight
bytes, preallocated log files, the names of index files (their creation times), process ids.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from mqstore.rocketmq.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

QUEUE_FOLDERS = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
CHECKPOINT = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp", "master_flushed_offset", "confirm_phy_offset")


def log_image(folder: Path) -> dict[str, bytes]:
    """Return the used part of each log file, by name; a BLANK is followed by zeros."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        raw = path.read_bytes()
        at = 0
        while at + 8 <= len(raw):
            size, magic = struct.unpack_from(">ii", raw, at)
            if magic == MAGIC_BLANK:
                at += 8
                break
            if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0 or at + size > len(raw):
                break
            at += size
        if at:
            found[path.name] = raw[:at]
    return found


def folder_image(root: Path, folder: str) -> dict[str, bytes]:
    """Return all files of a folder by their path below the root."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / folder).rglob("*")) if path.is_file()}


def index_image(root: Path) -> dict[str, bytes]:
    """Return the index files in order, by number."""
    return {f"index/{number}": raw for number, raw in enumerate(folder_image(root, "index").values())}


def checkpoint_image(root: Path) -> dict[str, int]:
    """Return the fields of the checkpoint."""
    path = root / "checkpoint"
    return dict(zip(CHECKPOINT, struct.unpack(">5q", path.read_bytes()[:40]), strict=True)) if path.exists() else {}


def _end_and_count(raw: bytes) -> tuple[int, int]:
    """Return an index file's end timestamp and index count."""
    _, end, _, _, _, count = struct.unpack_from(">qqqqii", raw)
    return end, count


def full_index_times(root: Path, positions: int) -> list[int]:
    """Return the end timestamps of the full index files."""
    return [end for end, count in map(_end_and_count, index_image(root).values()) if count >= positions]


def partial_index_survives(root: Path, positions: int) -> bool:
    """Return whether the real store keeps the partial index file of a killed one, its end being no newer than the checkpoint.

    With a monotonic clock that does not happen. Such a file was never synced, so our engine rebuilds it.
    """
    files = list(index_image(root).values())
    if not files:
        return False
    end, count = _end_and_count(files[-1])
    return bool(count < positions and end <= checkpoint_image(root).get("index_msg_timestamp", 0))


def differences(ours: Path, theirs: Path, *, index: bool = True) -> list[str]:
    """Return the differences of two directories, one line each; none if they are the same store."""
    pairs = [(log_image(ours / "commitlog"), log_image(theirs / "commitlog"))]
    pairs += [(folder_image(ours, folder), folder_image(theirs, folder)) for folder in QUEUE_FOLDERS]
    if index:
        pairs.append((index_image(ours), index_image(theirs)))
    found = []
    for our_files, their_files in pairs:
        found += [f"{name}: only ours" for name in our_files if name not in their_files]
        found += [f"{name}: only theirs" for name in their_files if name not in our_files]
        for name in our_files.keys() & their_files.keys():
            if our_files[name] != their_files[name]:
                found.append(f"{name}: {first_difference(our_files[name], their_files[name])}")
    return sorted(found)


def first_difference(ours: bytes, theirs: bytes) -> str:
    """Describe the first difference of two files."""
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, at - at % 4 - 8)
    both = " and ".join(raw[start : at + 24].hex(" ", 4) for raw in (ours, theirs))
    return f"{len(ours)} and {len(theirs)} bytes, first differ at {at}: {both}"


def copied(store: Path, target: Path) -> Path:
    """Copy a store, with file times."""
    shutil.copytree(store, target)
    return target
