"""File queue (draft)."""
from __future__ import annotations
from dataclasses import dataclass
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
@dataclass(frozen=True, slots=True)
class QueueFile:
    name: str
    start: int
    size: int
    relative: str
@dataclass(frozen=True, slots=True)
class FileQueue:
    files: tuple[QueueFile, ...]
    file_size: int
    findings: tuple[Damage, ...] = ()
def load(directory: ReadOnlyDirectory, relative: str, *, size: int | None = None) -> FileQueue:
    fs = [QueueFile(e.name, int(e.name), e.size, f"{relative}/{e.name}") for e in directory.entries(relative) if e.is_file and e.name.isdigit()]
    return FileQueue(tuple(fs), size or max((f.size for f in fs), default=0))
