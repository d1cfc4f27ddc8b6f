"""The files of a store, with their damage maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from mqstore.console import bodies
from mqstore.console.drawing import DamageMap, map_of
from mqstore.console.jobs import result_of
from mqstore.console.page import PageRequest, PageRoute
from mqstore.console.stores import OpenStore
from mqstore.errors import NotFoundError
from mqstore.findings import Damage
from mqstore.rocketmq.store.store import RocketMQStore

SHOWN = 200
LISTED = 200


@dataclass(frozen=True, slots=True)
class File:
    """One file. changed: modification time, ms."""

    name: str
    size: int
    changed: int
    findings: int
    map: DamageMap


def damage_of(request: PageRequest, opened: OpenStore) -> tuple[Sequence[Damage], bool]:
    """Return the known damage, and whether it comes from a verify of every byte."""
    report = result_of(request.console.jobs, opened, "verify")
    if report is not None:
        return report.damage, True
    return opened.cached("findings", lambda: tuple(opened.store.findings)), False


def log_end(opened: OpenStore) -> int | None:
    """Return the physical offset after the last record of a RocketMQ store."""
    return opened.view("disk").log_range()[1] if isinstance(opened.store, RocketMQStore) else None


def written_bytes(name: str, size: int, log_end: int | None) -> int:
    """Return how many bytes of a file are written: for a log file those before the end of the log, for other files all."""
    start = name.rpartition("/")[2]
    if log_end is None or not name.startswith("commitlog/") or not start.isdigit():
        return size
    return min(size, max(0, log_end - int(start)))


def files(request: PageRequest) -> Response:
    opened = request.store
    damage, proved = damage_of(request, opened)
    counts: dict[str, list[Damage]] = {}
    for item in damage:
        counts.setdefault(item.file, []).append(item)
    substring, start, only = request.text("name").lower(), request.number("from") or 0, request.text("only") == "damaged"
    end = log_end(opened)
    entries = [(name, entry) for name, entry in opened.store.directory.walk() if substring in name.lower() and (not only or name in counts)]
    # a missing file has a finding but no directory entry
    there = {name for name, _ in entries}
    missing = sorted(name for name in counts if name not in there and substring in name.lower() and not opened.store.directory.exists(name))
    rows = [
        File(
            name,
            entry.size,
            entry.mtime_ms,
            len(mine := counts.get(name, [])),
            map_of(name, entry.size, written_bytes(name, entry.size, end), mine),
        )
        for name, entry in entries[start : start + SHOWN]
    ]
    return request.show(
        "files.html",
        store=opened,
        section="files",
        rows=rows,
        start=start,
        total=len(entries),
        size=SHOWN,
        proved=proved,
        missing=missing[:LISTED],
        only=only,
        wide=True,
    )


def file(request: PageRequest) -> Response:
    opened = request.store
    directory = opened.store.directory
    name = request.text("name", longest=8192)
    # the name is looked up among the store's files; it is never turned into a path
    entry = next((entry for each, entry in directory.walk() if each == name), None)
    damage, proved = damage_of(request, opened)
    mine = [item for item in damage if item.file == name]
    if entry is None:
        if not mine:
            raise NotFoundError(f"the store has no file {name}; see the list of files")
        return request.show("file.html", store=opened, section="files", name=name, size=None, damage=mine, proved=proved, map=None)
    at = request.number("at")
    start = max(0, min(request.number("bytes") or at or 0, entry.size))
    if directory.leads_out(name):
        raise NotFoundError(f"{name} is a link that leads out of the store; its target is not shown")
    mapped = directory.map(name)  # not cached: each map holds a file descriptor
    written = mapped.last_nonzero(0, mapped.size) + 1 if mapped.size else 0
    shown = map_of(name, entry.size, written, mine)
    line = start - start % 16
    raw = mapped.bytes(line, min(mapped.size, line + bodies.HEX_SHOWN // 4)) if mapped.size else b""
    return request.show(
        "file.html",
        store=opened,
        section="files",
        name=name,
        size=entry.size,
        changed=entry.mtime_ms,
        damage=mine,
        proved=proved,
        map=shown,
        at=at,
        here_x=shown.scaled(at) if at is not None else None,
        lines=bodies.hex_lines(raw),
        first=line,
    )


ROUTES = (
    PageRoute("/stores/{number:int}/files", files),
    PageRoute("/stores/{number:int}/file", file),
)
