"""The directories of a store: vhosts below the given directory, queues below vhosts, and their names.

    <node data dir>/msg_stores/vhosts/<VH>/     .vhost .config recovery.dets
                                                msg_store_persistent/ msg_store_transient/
                                                queues/<QH>/            .queue_name journal.jif 0.idx 0.qi 0.qs …

The given directory may be any of these levels: the node's data directory, `msg_stores`, `vhosts`, one vhost.

A queue's name comes from its `.queue_name`, if that matches the directory's name, else from the caller's names, by hashing them; without
either the name of the directory is used. Links that point out of the store are not followed.

`unread_entries` names what is not read although it is in the place of a store's files.

Directories that cannot be listed are empty for their readers. Links that point out of the store, FIFOs, sockets and devices are never
opened (`ConfinedDirectory`); a directory in the place of a file cannot be. Whatever they stand for is missing from every answer,
so every answer about the store has to name them.

Format: docs/formats/rabbitmq.md, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes, DirectoryEntry, ReadOnlyDirectory
from mqstore.files.directory_views import ConfinedDirectory
from mqstore.files.location import Location
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.format.names import parse_queue_name_file, priority_name, queue_directory, split_priority, vhost_directory
from mqstore.table.formatting import count

NODE_NAME = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+")
NAME_FILE = ".queue_name"
LONGEST_NAME = 255  # bytes of the name of a vhost, in AMQP
STREAM_FILE = re.compile(r"([0-9]{20})\.(segment|index)")
MNESIA = ("schema.DAT", "LATEST.LOG")
_MOST_SCHEMA = 64 << 20
_VHOST_MARKS = ("queues", "msg_store_persistent", "msg_store_transient")
NOT_FOLLOWED = "a link that points out of the store, or not a regular file; it is skipped: replace it with a copy of its target"
NOT_A_FILE = "a directory in the place of a file; it is skipped: move it away"
REQUIRED = ("", "msg_stores", "msg_stores/vhosts", "vhosts")  # without these there is no store to speak of
# what a node makes of a name that it takes for one of its files
STUMBLES = {
    "wal": "it does not start",
    "idx": "it does not start",
    "store": "the vhost does not start",
    "qi": "the queue does not start",
}
IGNORED = "it ignores them"
_ORDER = [*STUMBLES.values(), IGNORED]
_OF_MAC = b"\x00\x05\x16\x07"  # AppleDouble
_DIRECTORIES = frozenset({"queues", "msg_store_persistent", "msg_store_transient"})
# what a node reads in the directory of a vhost
_OF_VHOST = re.compile(
    r"\.vhost|\.config|recovery\.dets|queues(/[^/]+(/(\.queue_name|journal\.jif|\d+\.(idx|qi|qs)))?)?"
    r"|msg_store_(persistent|transient)(/(\d+\.rd[qt]|\w+\.ets|clean\.dot))?"
)


@dataclass(frozen=True, slots=True)
class VhostDirectory:
    """One vhost. place: relative to the root, empty if the root is the vhost. name: None if it is unknown."""

    place: str
    directory: str
    name: str | None
    findings: tuple[Damage, ...] = ()

    def below(self, relative: str) -> str:
        return f"{self.place}/{relative}" if self.place else relative


@dataclass(frozen=True, slots=True)
class QueueDirectory:
    """One queue, or one level of a priority queue. queue: its name, or that of its directory if `named` is False.

    declares_v2: whether `.queue_name` says version 2.
    """

    place: str
    directory: str
    vhost: str | None
    queue: str
    priority_level: int | None
    named: bool
    declares_v2: bool
    findings: tuple[Damage, ...] = ()


def own_entries(directory: ReadOnlyDirectory, place: str) -> list[DirectoryEntry]:
    """Return the entries of a directory, without links that point out of the store."""
    return [
        entry
        for entry in directory.entries(place)
        if not entry.is_link or not _leads_out(directory, f"{place}/{entry.name}" if place else entry.name)
    ]


def _leads_out(directory: ReadOnlyDirectory, relative: str) -> bool:
    try:
        return not directory.path(relative).resolve().is_relative_to(directory.root.resolve())
    except (OSError, RuntimeError):
        return True


def bytes_of(directory: ReadOnlyDirectory, name: str) -> tuple[Bytes, tuple[Damage, ...]]:
    """Return a file's bytes as a map; if the operating system refuses, no bytes and the finding."""
    try:
        return directory.map(name).data, ()
    except CannotOpenError as error:
        return np.empty(0, np.uint8), (Damage(name, 0, 0, Kind.UNREADABLE, str(error)),)


def mapped_bytes(directory: ReadOnlyDirectory, name: str) -> Bytes | None:
    """Return a file's bytes as a map that the directory keeps; None if the operating system refuses."""
    try:
        return directory.mapped(name).data
    except CannotOpenError:
        return None


def small_file(directory: ReadOnlyDirectory, name: str, limit: int = 64 << 20) -> bytes | None:
    """Return the bytes of a small file; None if it does not exist, or the operating system refuses."""
    try:
        return directory.read(name, limit)
    except CannotOpenError:
        return None


def _is_vhost(directory: ReadOnlyDirectory, place: str) -> bool:
    return any(directory.is_directory(f"{place}/{mark}" if place else mark) for mark in _VHOST_MARKS)


def cluster_nodes(node: ReadOnlyDirectory) -> tuple[str, ...]:
    """Return the members of the cluster that a data directory was in, by name: {[Node, …], [Node with a disk, …]} in a file."""
    text = (small_file(node, "cluster_nodes.config", 1 << 20) or b"").decode("latin-1")
    return tuple(sorted(set(NODE_NAME.findall(text))))


def find_vhosts(directory: ReadOnlyDirectory) -> list[str]:
    """Return the places of the vhost directories, relative to the root."""
    for base in ("msg_stores/vhosts", "vhosts"):
        if directory.is_directory(base):
            return [
                f"{base}/{entry.name}"
                for entry in own_entries(directory, base)
                if entry.is_directory and (_is_vhost(directory, f"{base}/{entry.name}") or directory.exists(f"{base}/{entry.name}/.vhost"))
            ]
    if _is_vhost(directory, ""):
        return [""]
    return [entry.name for entry in own_entries(directory, "") if entry.is_directory and _is_vhost(directory, entry.name)]


def looks_like_rabbitmq(directory: ReadOnlyDirectory) -> bool:
    """Return whether the directory holds message stores of RabbitMQ: one vhost, several, or an empty `msg_stores/vhosts`; or what else a
    node has."""
    return (
        directory.is_directory("msg_stores/vhosts")
        or directory.is_directory("vhosts")
        or has_other_queues(directory)
        or bool(find_vhosts(directory))
        or has_metadata(directory)
    )


def is_node(directory: ReadOnlyDirectory) -> bool:
    """Return whether it is the data directory of a node, of which parts may be absent."""
    return directory.is_directory("msg_stores") or has_metadata(directory) or has_other_queues(directory)


def has_metadata(directory: ReadOnlyDirectory) -> bool:
    """Return whether it has metadata of a node: the log of Khepri, `coordination/NAME@HOST`, or files of Mnesia that are a node's.

    Other programs have a Mnesia too. That of a node has tables `rabbit_…`, also named in schema.DAT, or is in a directory `NAME@HOST`.
    """
    names = {entry.name for entry in directory.entries()}
    if "cluster_nodes.config" in names or any(name.startswith("rabbit_") and name.endswith((".DCD", ".DCL")) for name in names):
        return True
    if "coordination" in names and any(NODE_NAME.fullmatch(entry.name) for entry in directory.entries("coordination")):
        return True
    if not names & set(MNESIA):
        return False
    return NODE_NAME.fullmatch(node_name(directory.root)) is not None or any(
        b"rabbit_" in (small_file(directory, name, _MOST_SCHEMA) or b"") for name in MNESIA
    )


def node_beside(directory: ReadOnlyDirectory) -> str | None:
    """Return the directory of a node without its message stores, where these are in the same directory as it; None if there is none."""
    if not directory.is_directory("msg_stores") or has_metadata(directory):
        return None
    for entry in directory.entries():
        if entry.is_directory and NODE_NAME.fullmatch(entry.name.removesuffix("-mnesia")):
            node = ReadOnlyDirectory(directory.path(entry.name))
            if has_metadata(node) and not node.is_directory("msg_stores"):
                return entry.name
    return None


def node_name(root: Location) -> str:
    """Return the name that a data directory has from its node; on Windows it is NAME@HOST-mnesia."""
    return root.name.removesuffix("-mnesia")


def has_other_queues(directory: ReadOnlyDirectory) -> bool:
    """Return whether it is a node's data directory with quorum queues, `quorum/NAME@HOST`, or with streams, `stream/NAME/*.segment`."""
    if directory.is_directory("quorum") and any("@" in entry.name and entry.is_directory for entry in directory.entries("quorum")):
        return True
    streams = [entry.name for entry in directory.entries("stream") if entry.is_directory] if directory.is_directory("stream") else []
    return any(
        STREAM_FILE.fullmatch(entry.name) is not None and entry.is_file for name in streams for entry in directory.entries(f"stream/{name}")
    )


def read_vhost(directory: ReadOnlyDirectory, place: str) -> VhostDirectory:
    """Return the vhost at a place, with its name."""
    own = place.rpartition("/")[2] or directory.root.name
    file = f"{place}/.vhost" if place else ".vhost"
    raw = small_file(directory, file, 4096)
    if raw is None:
        return VhostDirectory(place, own, None)
    findings: tuple[Damage, ...] = ()
    if place and vhost_directory(raw) != own:
        detail = f"the name in .vhost is that of directory {vhost_directory(raw)}, not of {own}"
        findings = (Damage(file, 0, len(raw), Kind.BAD_QUEUE_NAME, detail),)
    # every row repeats the name, and no client can give one of this length
    name = None if findings and len(raw) > LONGEST_NAME else text_of(raw)
    return VhostDirectory(place, own, name, findings)


def read_queues(directory: ReadOnlyDirectory, vhost: VhostDirectory, known: Iterable[tuple[str, str]] = ()) -> list[QueueDirectory]:
    """Return the queues of a vhost by name, the highest priority level first. known: pairs of vhost and queue that may be here."""
    by_directory = names_by_directory(known, vhost)
    queues = [
        _read_queue(directory, vhost, entry.name, by_directory)
        for entry in own_entries(directory, vhost.below("queues"))
        if entry.is_directory
    ]
    return sorted(queues, key=lambda queue: (queue.queue, -1 if queue.priority_level is None else -queue.priority_level, queue.directory))


def names_by_directory(known: Iterable[tuple[str, str]], vhost: VhostDirectory) -> Mapping[str, tuple[str, bytes]]:
    """Return vhost and name of queues, with those of priority levels, by the names of their directories."""
    names: dict[str, tuple[str, bytes]] = {}
    for of, queue in known:
        if vhost.name is not None and of != vhost.name:
            continue
        names[queue_directory(of, queue)] = (of, queue.encode("utf-8", "surrogateescape"))
        for level in range(256):
            name = priority_name(queue, level)
            names[queue_directory(of, name)] = (of, name)
    return names


def _read_queue(directory: ReadOnlyDirectory, vhost: VhostDirectory, own: str, known: Mapping[str, tuple[str, bytes]]) -> QueueDirectory:
    place = vhost.below(f"queues/{own}")
    file = f"{place}/{NAME_FILE}"
    raw = small_file(directory, file, 8192)
    parsed = None if raw is None else parse_queue_name_file(raw, own)
    if parsed is not None:
        name, level = split_priority(parsed.name)
        return QueueDirectory(place, own, text_of(parsed.vhost), text_of(name), level, True, parsed.v2)
    says_v2 = raw is not None and raw.endswith(b"\nINDEX: v2\n")
    if own in known:
        of, stored = known[own]
        name, level = split_priority(stored)
        return QueueDirectory(place, own, of, text_of(name), level, True, says_v2)
    findings: tuple[Damage, ...] = ()
    if raw is not None:
        detail = f"the name in .queue_name does not belong to directory {own}; the queue is named after its directory"
        findings = (Damage(file, 0, len(raw), Kind.BAD_QUEUE_NAME, detail),)
    return QueueDirectory(place, own, vhost.name, own, None, False, says_v2, findings)


@dataclass(frozen=True, slots=True)
class MacFiles:
    """Files `._…` that a Mac adds for itself to archives and to disks that are not its own. worst: that which a node stumbles on the most.

    otherwise: what a node makes of it.
    """

    files: tuple[str, ...]
    worst: str
    otherwise: str

    @property
    def sentence(self) -> str:
        does = "does" if len(self.files) == 1 else "do"
        return f"{count(len(self.files), 'file')} ._… of a Mac, which {does} not belong here"


def files_of_mac(directory: ReadOnlyDirectory) -> MacFiles | None:
    """Return what a Mac has added, known by name and content; None without any."""
    files = tuple(
        path
        for path, entry in directory.walk()
        if entry.name.startswith("._") and entry.is_file and not entry.is_link and _starts_with(directory, path, _OF_MAC)
    )
    if not files:
        return None
    worst = min(files, key=lambda file: _ORDER.index(_stumbles(file)))
    return MacFiles(files, worst, _stumbles(worst))


def _stumbles(file: str) -> str:
    """Return what a node makes of a file that a Mac has put beside another."""
    ending = file.rpartition(".")[2]
    if ending == "wal":
        return STUMBLES["wal"]
    if ending in ("rdq", "rdt") and "/msg_store_persistent/" in f"/{file}":
        return STUMBLES["store"]
    return STUMBLES[ending] if ending in ("idx", "qi") and "/queues/" in f"/{file}" else IGNORED


def _starts_with(directory: ReadOnlyDirectory, path: str, start: bytes) -> bool:
    try:
        return directory.map(path).bytes(0, len(start)) == start
    except CannotOpenError:
        return False


def unread_entries(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each entry that is not read: directories that cannot be listed first, then by path."""
    yield from _unlisted(directory)
    if not isinstance(directory, ConfinedDirectory):
        return
    for name in directory.foreign_entries():
        yield Damage(name, 0, 0, Kind.UNREADABLE, NOT_FOLLOWED)
    for vhost in find_vhosts(directory):
        for path in directory.directories(vhost):
            if _is_misplaced(path.removeprefix(f"{vhost}/" if vhost else "")):
                yield Damage(path, 0, 0, Kind.UNREADABLE, NOT_A_FILE)


def leads_elsewhere(directory: ReadOnlyDirectory, item: Damage) -> bool:
    """Return whether an entry that a node reads is a link out of the store, to something that is there."""
    path = directory.root / item.file
    if item.detail != NOT_FOLLOWED or not path.is_symlink() or not path.exists():
        return False
    above = next((vhost for vhost in find_vhosts(directory) if not vhost or item.file.startswith(f"{vhost}/")), None)
    return above is None or _OF_VHOST.fullmatch(item.file[len(above) :].removeprefix("/")) is not None


def is_away(directory: ReadOnlyDirectory, path: str) -> bool:
    """Return whether a directory is not read because it, or one above it, is a link out of the store."""
    return not directory.is_directory(path) and (directory.root / path).is_dir()


def _unlisted(directory: ReadOnlyDirectory) -> Iterator[Damage]:
    """Yield a finding for each directory that cannot be listed."""
    for _ in directory.walk():
        pass
    for path, why in sorted(directory.unlisted.items()):
        yield Damage(path, 0, 0, Kind.UNREADABLE, why)


def _is_misplaced(path: str) -> bool:
    """Return whether a directory of a vhost is where only files are. path: relative to the vhost."""
    parts = path.split("/")
    if len(parts) == 1:
        return path.startswith(".") or path.endswith((".dets", ".dcd"))
    return parts[0] in _DIRECTORIES and len(parts) == (3 if parts[0] == "queues" else 2)
