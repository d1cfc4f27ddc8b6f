"""Arrangement of the parts of a damaged store as a store: single files, one queue's directory, message files alone, lost+found.

    lost+found/#1/12.idx          -->   queues/#1/12.idx
    lost+found/#1/journal.jif     -->   queues/#1/journal.jif
    copies/3.rdq  copies/3.rdt    -->   msg_store_persistent/3.rdq, 3.rdt

All parts become one vhost: index files are grouped by their directory, and all message files form one store (an entry finds its message
by id, wherever it is). A file whose name is not a number gets one. `.queue_name`, `.config` and `.vhost` are included.

For a queue directory without a valid `.queue_name`, the routing keys of its messages are tried as names: they are queue names where the
default exchange was used, and a name is right if its digest is the directory's name.

Format: docs/formats/rabbitmq.md, sections 2.1 and 14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from mqstore.errors import CannotOpenError, NotAStoreError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import AliasDirectory, ConfinedDirectory
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.layout import looks_like_rabbitmq, mapped_bytes
from mqstore.rabbitmq.format.names import priority_name, queue_directory
from mqstore.rabbitmq.format.queue_store import ENTRY_HEADER
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rabbitmq.store.vhost import Vhost

INDEX = ("idx", "jif", "qi", "qs")
STORE = ("rdq", "rdt")
BESIDE = (".config", ".vhost", "recovery.dets")
ASKED = 200  # messages of a queue whose routing keys are tried as its name
MOST_FILES = 1_000_000


def is_part(name: str) -> bool:
    """Return whether a file's name is that of a part of a message store."""
    return name.rpartition(".")[2] in (*INDEX, *STORE)


def open_parts(path: Path) -> ReadOnlyDirectory:
    """Return the store at path, or an arrangement of the parts at and below it. Raises CannotOpenError, NotAStoreError."""
    unlisted: Mapping[str, str] = {}
    if path.is_dir():
        directory = ConfinedDirectory(path)
        if looks_like_rabbitmq(directory):
            return directory
        directory.tolerate_unlisted("")
        names = [name for name, entry in islice(directory.walk(), MOST_FILES) if entry.is_file]
        unlisted = directory.unlisted
    elif path.exists():
        names, path = [path.name], path.parent
    else:
        raise CannotOpenError(f"{path} does not exist; give a directory of message stores, or any file of one")
    files = dict(_arrange_files(names, path.absolute().name))
    if not any(is_part(name) for name in files):
        raise NotAStoreError(f"{path} has no part of a RabbitMQ message store: no .idx, .jif, .qi, .qs or .rdq file")
    arranged = AliasDirectory(path, files)
    arranged.tolerate_unlisted("", known=unlisted)
    return arranged


def unread_files(directory: ReadOnlyDirectory) -> list[str]:
    """Return the files at the place of an arrangement that are not in it, because their names are not those of parts; empty ones aside."""
    if not isinstance(directory, AliasDirectory):
        return []
    known = set(directory.files.values())
    place = ConfinedDirectory(directory.root)
    place.tolerate_unlisted("")
    return [name for name, entry in islice(place.walk(), MOST_FILES) if entry.is_file and entry.size and name not in known]


def _arrange_files(names: Iterable[str], root: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each file in the arrangement, with its real name."""
    taken: set[str] = set()
    stems: dict[tuple[str, str], int] = {}
    names = sorted(names)
    for name in names:
        above, _, own = name.rpartition("/")
        stem, _, ending = own.rpartition(".")
        if ending in STORE:
            # an .rdt and the .rdq of its number keep the same number
            number = stems.get((above, stem), int(stem) if _is_number(stem) else 0)
            while f"msg_store_persistent/{number}.{ending}" in taken:
                number += 1
            stems[above, stem] = number
            placed = f"msg_store_persistent/{number}.{ending}"
        elif ending in INDEX or own == ".queue_name":
            if ending == "jif":
                own = "journal.jif"
            elif ending in INDEX and not _is_number(stem):
                own = f"0.{ending}"
            placed = f"queues/{_directory(above, root)}/{own}"
            while placed in taken and ending in INDEX:
                placed = f"queues/{placed.split('/')[1]}'/{own}"
        elif own in BESIDE:
            placed = own
        else:
            continue
        if placed not in taken:
            taken.add(placed)
            yield placed, name


def _directory(above: str, root: str) -> str:
    """Return the name of a queue's directory: that of the directory of the file."""
    return above.rpartition("/")[2] or root or "queue"


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdigit() and len(stem) <= 18


def guess_names(vhosts: Iterable[Vhost]) -> list[tuple[str, str]]:
    """Return names of queues, from the routing keys of their messages, for directories without a known name."""
    found = set()
    for vhost in vhosts:
        for queue in vhost.queues:
            if not queue.place.named:
                found |= _guess(queue, vhost)
    return sorted(found)


def _guess(queue: Queue, vhost: Vhost) -> set[tuple[str, str]]:
    tried: set[tuple[bytes, bytes]] = set()
    for message in islice(chain(_messages(queue, vhost), _from_stores(queue)), ASKED):
        for key in message.routing_keys:
            of = message.vhost or (vhost.name or "/").encode("utf-8", "surrogateescape")
            if (of, key) in tried:
                continue
            tried.add((of, key))
            candidates = (key, *(priority_name(key, level) for level in range(256)))
            if any(queue_directory(of, name) == queue.directory for name in candidates):
                return {(of.decode("utf-8", "surrogateescape"), key.decode("utf-8", "surrogateescape"))}
    return set()


def _messages(queue: Queue, vhost: Vhost) -> Iterator[MessageTerm]:
    for found in queue.entry_tables():
        for source, at, length in zip(found.source.tolist(), found.at.tolist(), found.length.tolist(), strict=True):
            if source < 0:
                continue
            name, data = found.sources[source]
            if data is None:
                data = mapped_bytes(vhost.root, name)
            try:
                if data is not None and length > 0:
                    yield read_message(data[at : at + length].tobytes())
            except EtfError:
                continue


def _from_stores(queue: Queue) -> Iterator[MessageTerm]:
    """Yield messages of `.qs` files without an index."""
    for number in queue.index_v2.orphan_stores:
        data = queue.index_v2.store_data(number)
        at, size = queue.index_v2.orphans(number)
        for start, length in zip((at + ENTRY_HEADER).tolist(), size.tolist(), strict=True):
            try:
                yield read_message(data[start : start + length].tobytes())
            except EtfError:
                continue
