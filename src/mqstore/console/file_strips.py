"""All files of a store as a few strips, one for each part of the store, with what is written and what is damaged drawn to scale.

>>> part_of("commitlog/00000000000000000000"), part_of("config/topics.json"), part_of("abort")
('commitlog', 'config', 'other files')
>>> part_of("msg_stores/vhosts/6/queues/1/0.idx"), part_of("vhosts/6/msg_store_persistent/0.rdq")
('queues', 'msg_store_persistent')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mqstore.console.damage_map import DamageMap, Extent
from mqstore.findings import Damage

_RABBITMQ_PARTS = ("msg_store_persistent", "msg_store_transient", "queues")
_OTHER = "other files"
MAX_WRITTEN = 500  # rectangles of written bytes; more could not be distinguished


@dataclass(frozen=True, slots=True)
class FileStrip:
    """The files of one part, side by side. missing: files that should be there; spans: (start, length) of what is written, to scale."""

    name: str
    files: int
    missing: int
    findings: int
    map: DamageMap
    spans: tuple[tuple[float, float], ...]

    @property
    def summary(self) -> str:
        """The strip as a sentence, without the size."""
        files = f"{self.files:,} file{'' if self.files == 1 else 's'}"
        missing = f", {self.missing:,} missing" if self.missing else ""
        found = f"{self.findings:,} finding{'' if self.findings == 1 else 's'}" if self.findings else "no findings"
        return f"{files}{missing}, {found}"


def part_of(name: str) -> str:
    """Return the part of a store that a file belongs to: its top directory, or the kind of RabbitMQ's directories."""
    parts = name.split("/")[:-1]
    for part in _RABBITMQ_PARTS:
        if part in parts:
            return part
    return _OTHER if not parts or "vhosts" in parts else parts[0]


def file_strips(files: Sequence[tuple[str, int]], damage: Iterable[Damage], written: Callable[[str, int], int]) -> tuple[FileStrip, ...]:
    """Return the strips, the largest part first. files: names and sizes; written: of a name and a size, the bytes before the end."""
    by_file: dict[str, list[Damage]] = {}
    for item in damage:
        by_file.setdefault(item.file, []).append(item)
    parts: dict[str, list[tuple[str, int]]] = {}
    for name, size in files:
        parts.setdefault(part_of(name), []).append((name, size))
    there = {name for name, _ in files}
    missing: dict[str, list[str]] = {}
    for name in by_file:
        if name not in there:
            missing.setdefault(part_of(name), []).append(name)
    names = dict.fromkeys((*parts, *missing))
    found = [_strip(part, parts.get(part, []), missing.get(part, []), by_file, written) for part in names]
    return tuple(sorted(found, key=lambda strip: (strip.name == _OTHER, -strip.map.size, strip.name)))


def _strip(
    part: str,
    files: Sequence[tuple[str, int]],
    missing: Sequence[str],
    by_file: Mapping[str, Sequence[Damage]],
    written: Callable[[str, int], int],
) -> FileStrip:
    extents: list[Extent] = []
    spans: list[tuple[int, int]] = []
    at = findings = full = 0
    for name, size in files:
        mine = by_file.get(name, ())
        findings += len(mine)
        extents += (Extent(at + min(item.offset, size), min(item.length, size), str(item.kind)) for item in mine)
        length = written(name, size)
        full += length
        if spans and spans[-1][0] + spans[-1][1] == at:
            spans[-1] = (spans[-1][0], spans[-1][1] + length)
        elif length:
            spans.append((at, length))
        at += size
    findings += sum(len(by_file[name]) for name in missing)
    drawn = DamageMap(at, full, tuple(sorted(extents, key=lambda each: (each.at, each.length))))
    scaled = tuple((drawn.scaled(start), drawn.scaled(length)) for start, length in spans[:MAX_WRITTEN])
    return FileStrip(part, len(files), len(missing), findings, drawn, scaled)
