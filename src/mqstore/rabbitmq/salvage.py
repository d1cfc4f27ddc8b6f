"""Salvage of RabbitMQ stores: all messages of a store, a damaged store or single files of one, or of an image, each with its verdict.

    verdict       meaning                                                                       written
    intact        valid, and an index entry references it                                       yes
    consumed      acknowledged, and not yet reclaimed                                           yes
    unindexed     valid, but in no queue: acknowledged and not reclaimed, or its index is lost  yes
    duplicate     a further copy, or a second publish of a sequence id                          yes
    damaged       some of its bytes are invalid                                                 yes
    unreachable   its index entry is valid, its bytes are missing                               counted

An acknowledged message is never `intact`, unless the acknowledgement itself is lost: then the files do not distinguish it from a ready
message. Only bodies in `.qs` files have checksums: a changed byte in any other body cannot be detected.

The parts of a damaged store are arranged as a store: single files, one queue's directory, message files alone, lost+found.

    lost+found/#1/12.idx          -->   queues/#1/12.idx
    lost+found/#1/journal.jif     -->   queues/#1/journal.jif
    copies/3.rdq  copies/3.rdt    -->   msg_store_persistent/3.rdq, 3.rdt
    lost+found/00000007.wal       -->   quorum/parts@salvage/00000007.wal        RAWA, RASG, OSIL at its start: names alone do not decide
    lost+found/#2/00000003.segment -->  quorum/parts@salvage/#2/00000003.segment, or stream/#2/<first offset>.segment
    lost+found/f0012.wal          -->   quorum/parts@salvage@f0012.wal/00000001.wal

A message that the log of a quorum queue has and nothing there acknowledges is `unindexed`: the acknowledgement may be in a missing part.

All parts become one vhost: index files are grouped by their directory, and all message files form one store (an entry finds its message
by id, wherever it is). A file whose name is not a number gets one. `.queue_name`, `.config` and `.vhost` are included.

For a queue directory without a valid `.queue_name`, the routing keys of its messages are tried as names: they are queue names where the
default exchange was used, and a name is right if its digest is the directory's name.

The rows of carved messages, which were found in an image, are read from the image itself:

    found     |message message|message message message|message|      in the order of files and positions
    batches   |               |                       |       |      BATCH_ROWS or about BATCH_BYTES, the same in any division into tasks

The messages are in no queue: only the index of a queue knows which messages were in it. What a message holds itself, its exchange and
routing keys, is in its row. A row names the file and position where the message was found. The row of a further copy of an id is a
`duplicate`; the one that is not is the copy that a store of these messages (`CarvedStore`) would deliver.

In a store of carved messages every message is written into message files that the rest of the package reads:

    image    |...|id term ff|.....|size flags crc term|....|term|        a record, an entry of a queue's own store, a message alone
    0.rdq    |size id term ff|size id term ff|size id term ff|

It lives beside the target while that is written, and has no queues: only the index of a queue knows which messages were in it.

Format: docs/formats/rabbitmq.md, sections 2.1 and 14.
"""

from __future__ import annotations

import hashlib
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, NotAStoreError, UsageError
from mqstore.files import Bytes, ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, is_archive
from mqstore.files.directory_views import AliasDirectory, ConfinedDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.image import Image
from mqstore.findings import Damage, SalvageReport, Verdict
from mqstore.kernels.rabbitmq import message_store, message_terms
from mqstore.rabbitmq.broker_version import target_version
from mqstore.rabbitmq.convert.convert_vhost import ConvertOptions, ConvertReport, write_stores
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import VERSION
from mqstore.rabbitmq.format.index_v1 import ENTRY
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT, ENTRY_HEADER
from mqstore.rabbitmq.format.layout import STREAM_FILE, looks_like_rabbitmq
from mqstore.rabbitmq.format.message_file import OVERHEAD, record
from mqstore.rabbitmq.format.names import priority_name, queue_directory, vhost_directory
from mqstore.rabbitmq.message.message_term import ID_SIZE, MessageTerm, read_message
from mqstore.rabbitmq.quorum import raft_log, segment, wal
from mqstore.rabbitmq.site import AbsentQueue, absent_queues
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.fate import UNLISTED
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.queue import DAMAGED, DUPLICATE, PERSISTENT_STORE, UNINDEXED, EntryTable, Queue
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.rabbitmq.streams.segment import HEADER as STREAM_HEADER
from mqstore.table.arrow_spans import pieces
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection, rabbitmq_schema
from mqstore.table.row_files import format_of, write_rows
from mqstore.table.text import rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

INDEX = ("idx", "jif", "qi", "qs")
STORE = ("rdq", "rdt")
BESIDE = (".config", ".vhost", "recovery.dets")
PARTS = "quorum/parts@salvage"  # of all Raft logs
CHUNK_ID = slice(32, 40)  # of a stream segment: the offset of its first record
ASKED = 200  # messages of a queue whose routing keys are tried as its name
MOST_FILES = 1_000_000


def is_part(name: str) -> bool:
    """Return whether a file's name is that of a part of a message store."""
    return name.rpartition(".")[2] in (*INDEX, *STORE)


def open_parts(path: Path) -> ReadOnlyDirectory:
    """Return the store at path, the one below it that has all parts, or an arrangement of the parts at and below it.

    Raises CannotOpenError, NotAStoreError.
    """
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
    logs = dict(_arrange_logs(path, names))
    if not logs and not any(is_part(name) for name in files):
        raise NotAStoreError(f"{path} has no part of a RabbitMQ message store: no .idx, .jif, .qi, .qs, .rdq, .wal or .segment file")
    files |= logs
    if (store := _store_of_all(path, list(files.values()))) is not None:
        return store
    arranged = AliasDirectory(path, files)
    arranged.tolerate_unlisted("", known=unlisted)
    return arranged


def _store_of_all(path: Path, parts: Sequence[str]) -> ReadOnlyDirectory | None:
    """Return the directory below path that is a store and holds all these files; the innermost, if several do."""
    above = posixpath.commonpath([posixpath.dirname(part) for part in parts])
    while above:
        if looks_like_rabbitmq(store := ConfinedDirectory(path / above)):
            return store
        above = posixpath.dirname(above)
    return None


def unread_files(directory: ReadOnlyDirectory) -> list[str]:
    """Return the files at the place of an arrangement that are not in it, because their names are not those of parts; empty ones aside."""
    if not isinstance(directory, AliasDirectory):
        return []
    known = set(directory.files.values())
    confined = ConfinedDirectory(directory.root)
    confined.tolerate_unlisted("")
    return [name for name, entry in islice(confined.walk(), MOST_FILES) if entry.is_file and entry.size and name not in known]


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


def _arrange_logs(path: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each file of quorum queues and streams in the arrangement, with its real name; none if no log is among them."""
    logs: dict[str, str] = {}
    beside: dict[str, str] = {}
    root = path.absolute().name
    for name in sorted(names):
        above, _, own = name.rpartition("/")
        place = _directory(above, root)
        if own.endswith((".wal", ".segment")):
            placed = _place_of_log(_start_of(path / name), own, place)
            if placed is not None:
                logs[placed if placed not in logs else _place_apart(placed, name)] = name
        elif own == "config":
            beside[f"{PARTS}/{place}/config"] = name
        elif own in ("names.dets", "meta.dets"):
            beside.setdefault(f"{PARTS}/{own}", name)
        elif own == "snapshot.dat":
            parents = [root, *above.split("/")][-3:]
            beside["/".join((PARTS, *parents, own))] = name
        elif STREAM_FILE.fullmatch(own):
            beside[f"stream/{place}/{own}"] = name
    if logs:
        yield from {**beside, **logs}.items()


def _place_of_log(start: bytes, own: str, place: str) -> str | None:
    """Return where a file with this start belongs; None if it is not a log. A Raft log without its name stays separate."""
    if start.startswith(wal.MAGIC):
        placed = f"{PARTS}/{own}"
        return placed if raft_log.WAL_NAME.fullmatch(own) else _place_apart(f"{PARTS}/00000001.wal", own)
    if start.startswith(segment.MAGIC):
        placed = f"{PARTS}/{place}/{own}"
        return placed if raft_log.SEGMENT_NAME.fullmatch(own) else _place_apart(f"{PARTS}/{place}/00000001.segment", own)
    if start.startswith(STREAM_HEADER[:4]):
        first = int.from_bytes(start[CHUNK_ID], "big")
        return f"stream/{place}/{own if STREAM_FILE.fullmatch(own) else f'{first:020}.segment'}"
    return None


def _place_apart(placed: str, name: str) -> str:
    """Return a place like this one that no other file has: files whose order is not known must not void each other's entries."""
    above, _, own = placed.rpartition("/")
    return f"{above}@{name.replace('/', '_')}/{own}"


def _start_of(path: Path) -> bytes:
    """Return the first bytes of a file, none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(CHUNK_ID.stop)
    except OSError:
        return b""


def _directory(above: str, root: str) -> str:
    """Return the name of a queue's directory: that of the directory of the file."""
    return above.rpartition("/")[2] or root or "queue"


def _is_number(stem: str) -> bool:
    return stem.isascii() and stem.isdigit() and len(stem) <= 18


def guess_names(vhosts: Iterable[Vhost]) -> list[tuple[str, str]]:
    """Return names of queues, from the routing keys of their messages, for directories without a known name."""
    names = set()
    for vhost in vhosts:
        for queue in vhost.queues:
            if not queue.place.named:
                names |= _guess(queue, vhost)
    return sorted(names)


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
    for table in queue.entry_tables():
        for row in range(len(table.source)):
            message = table.message(row, vhost.root)
            if message is not None:
                yield message


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


WRITTEN = frozenset({Verdict.INTACT, Verdict.CONSUMED, Verdict.UNINDEXED, Verdict.DUPLICATE, Verdict.DAMAGED})


def open_wreck(path: Path, *, names: Iterable[tuple[str, str]] = ()) -> RabbitMQStore:
    """Return the store at path, or the parts of one: a directory, any single file, an archive. It is read carefully.

    Raises CannotOpenError, NotAStoreError.
    """
    keep = UnpackedArchive(path) if is_archive(path) and path.is_file() else None
    directory = open_parts(path if keep is None else keep.store_root())
    return as_wreck(RabbitMQStore(path, names=names, keep=keep, directory=directory, careful=True))


def as_wreck(store: RabbitMQStore) -> RabbitMQStore:
    """Return a store read carefully, with the names of its queues as far as they can be guessed."""
    careful = store.carefully()
    guessed = guess_names(careful.vhosts)
    if not guessed:
        return careful
    return RabbitMQStore(store.path, names=(*store.names, *guessed), now=store.now, keep=store, directory=store.directory, careful=True)


def messages_of(
    store: RabbitMQStore, columns: tuple[str, ...], vhosts: frozenset[str] | None = None, queues: frozenset[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield every message in any state; its lineage has the real names of the files.

    Those of a quorum queue without its directory are those of its records in the write-ahead logs.
    """
    selection = QueueSelection(vhosts=vhosts, queues=queues, everything=True)
    directory = store.directory
    for batch in store.to_batches(columns, selection):
        yield _originals(batch, directory) if isinstance(directory, AliasDirectory) else batch
    for queue in absent_queues(store):
        if (vhosts is None or queue.vhost in vhosts) and (queues is None or queue.queue in queues):
            for log in queue.logs:
                yield from _from_log(directory, log, queue, columns)


def _from_log(directory: ReadOnlyDirectory, log: str, queue: AbsentQueue, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the messages that a write-ahead log has of a queue without a directory."""
    member = frozenset({posixpath.basename(queue.path or "")})
    for batch in open_wreck(Path(directory.path(log))).to_batches(columns, QueueSelection(queues=member, everything=True)):
        for name, value in (("vhost", queue.vhost), ("queue", queue.queue), ("store_file", log)):
            batch = _with(batch, name, [value] * len(batch))
        yield batch


def _originals(batch: pa.RecordBatch, directory: AliasDirectory) -> pa.RecordBatch:
    if "store_file" not in batch.schema.names:
        return batch
    real = {_shown(name): _shown(directory.original(name)) for name in directory.files}
    names = batch.column("store_file").to_pylist()
    return _with(batch, "store_file", [None if name is None else real.get(name, name) for name in names])


def _with(batch: pa.RecordBatch, name: str, values: Sequence[str | None]) -> pa.RecordBatch:
    """Return a batch with other values in a column of texts, if it has that column."""
    import pyarrow as pa

    column = batch.schema.get_field_index(name)
    return batch if column < 0 else batch.set_column(column, batch.schema.field(column), pa.array(values, pa.string()))


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def salvage(
    store: RabbitMQStore,
    to: Path,
    *,
    format: str | None = None,  # noqa: A002
    verdicts: Iterable[str] = WRITTEN,
    vhosts: frozenset[str] | None = None,
    queues: frozenset[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SalvageReport:
    """Write every message with these verdicts to a new file. format: `jsonl` or `parquet`; None: by the suffix.

    Raises TargetError, UsageError.
    """
    started = time.monotonic()
    chosen = format_of(to, format)
    if chosen == "jsonl":
        rows = messages_of(store, rabbitmq_columns_for("base64"), vhosts, queues)
        batches: Iterator[pa.RecordBatch] = (rename_properties_json(batch) for batch in rows)
    else:
        batches = messages_of(store, RABBITMQ_COLUMNS, vhosts, queues)
    written = write_rows(batches, rabbitmq_schema(RABBITMQ_COLUMNS), to, chosen, frozenset(verdicts), progress=progress)
    seconds = time.monotonic() - started
    return SalvageReport(str(store.path), str(to), chosen, written.rows, written.bytes, written.verdicts, originals(store), seconds)


def salvage_store(
    store: RabbitMQStore,
    to: Path,
    version: int | None,
    *,
    target: str | None = None,
    into: str | None = None,
    vhost: str = "/",
    entries_v2: int = ENTRY_COUNT,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write the valid, unacknowledged messages of all queues to a new `msg_stores` directory, from which a broker starts.

    Messages in no queue, and those in files of an unknown queue, are included only if `into` names a queue for them in `vhost`. `vhost` is
    also the name of a vhost directory without one. target: the version of RabbitMQ that will read the new directory, for example "3.10":
    it determines the queue version unless one is given, and up to 3.13 the form of messages. Raises TargetError, UsageError.
    """
    broker = None if target is None else target_version(target, version)
    if version is None:
        version = 2 if broker is None else broker.queue_version
    if version not in (1, 2):
        raise UsageError(f"queue version must be 1 or 2, not {version}")
    names = {each.place.place: each.name or vhost for each in store.vhosts}
    places = {place: f"vhosts/{vhost_directory(name)}" for place, name in names.items()}
    if len(set(places.values())) < len(places):
        raise UsageError("two vhosts of the store would have the same name; salvage their directories one by one")
    place = None if into is None else (vhost, into)
    options = ConvertOptions(version, entries_v2, names=store.names, progress=progress, into=place, broker=broker)
    return write_stores(store.directory, places, to, options)


def originals(store: RabbitMQStore) -> tuple[Damage, ...]:
    """Return the findings of a store, with the real names of the files."""
    directory = store.directory
    if not isinstance(directory, AliasDirectory):
        return store.findings
    return tuple(
        Damage(directory.original(item.file), item.offset, item.length, item.kind, item.detail, item.messages) for item in store.findings
    )


FILE_BYTES = 64 << 20  # a message file of a carved store is ended by the first message after this many bytes
BATCH_ROWS = 2048
BATCH_BYTES = 32 << 20
BLOCK = 1 << 14  # rows; a batch does not span two blocks
READ_BYTES = 16 << 20  # read at once, or one message
READ_MESSAGES = 1 << 14
NEAR = 16 << 10  # bytes between two messages that are read along with them
# rows of the array of messages of `mqstore.wreck.carving`
FROM, TERM, TERM_END, KIND = 0, 2, 3, 4

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Messages found in a file. name: its path relative to the source; messages: the array of `mqstore.wreck.carving`.

    hi, lo, duplicate: of each message its id, as two big-endian halves, and whether it is a further copy; None until they are known.
    """

    name: str
    image: Image
    messages: Longs
    hi: Longs | None = None
    lo: Longs | None = None
    duplicate: Mask | None = None

    @property
    def lengths(self) -> Longs:
        """Bytes of the terms."""
        return np.asarray(self.messages[TERM_END] - self.messages[TERM])


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms in a buffer, some messages of a file in order. hi, lo: their ids; persistent: as the messages say."""

    first: int
    buffer: Bytes
    at: Longs
    length: Longs
    hi: Longs
    lo: Longs
    persistent: Mask


def terms_of(source: FoundMessages) -> Iterator[Terms]:
    """Yield the terms of messages, read from the image in pieces, with their ids. Raises CannotOpenError if the image has changed."""
    for first, buffer, at, length in _read(source):
        fields = np.zeros((len(at), message_terms.FIELD_COUNT), np.int64)
        message_terms.fields(buffer, at, length, fields)
        known = fields[:, message_terms.STATUS] == message_terms.FAST
        persistent = fields[:, message_terms.PERSISTENT] != 0
        hi, lo = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        rows = np.flatnonzero(known)
        high, low = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        # the kernel reads the id of a store record, which is 8 bytes after its start
        message_store.record_ids(buffer, fields[rows, message_terms.ID_START] - 8, high, low)
        hi[rows], lo[rows] = high, low
        for row in np.flatnonzero(~known).tolist():
            own, persistent[row] = _decoded(buffer[at[row] : at[row] + length[row]].tobytes())
            hi[row], lo[row] = int.from_bytes(own[:8], "big", signed=True), int.from_bytes(own[8:], "big", signed=True)
        yield Terms(first, buffer, at, length, hi, lo, persistent)


def _read(source: FoundMessages) -> Iterator[tuple[int, Bytes, Longs, Longs]]:
    """Yield pieces of the image: number of the first message, bytes, and where in them the terms are."""
    rows = source.messages
    far = np.flatnonzero(rows[TERM, 1:] - rows[TERM_END, :-1] > NEAR) + 1  # the first messages after a distance
    first, count = 0, rows.shape[1]
    while first < count:
        start = int(rows[TERM, first])
        last = max(first + 1, int(np.searchsorted(rows[TERM_END], start + READ_BYTES, side="right")))
        last = min(last, first + READ_MESSAGES)
        after = int(np.searchsorted(far, first, side="right"))
        last = min(last, int(far[after])) if after < len(far) else last
        end = int(rows[TERM_END, last - 1])
        data = source.image.read(start, end)
        if len(data) < end - start:
            raise _changed(source, start + len(data))
        at = np.ascontiguousarray(rows[TERM, first:last] - start)
        other = np.flatnonzero(data[at] != VERSION)
        if len(other):
            raise _changed(source, start + int(at[other[0]]))
        yield first, data, at, np.ascontiguousarray(rows[TERM_END, first:last] - rows[TERM, first:last])
        first = last


def _changed(source: FoundMessages, at: int) -> CannotOpenError:
    return CannotOpenError(
        f"{source.image.path} has changed since it was searched, or cannot be read any more at byte {at}; salvage a copy of it"
    )


def _decoded(term: bytes) -> tuple[bytes, bool]:
    """Return the id that a message holds, or one made of its bytes if it has none, and whether it is persistent."""
    try:
        message = read_message(term)
    except EtfError:
        return hashlib.sha256(term).digest()[:ID_SIZE], True
    return message.id if len(message.id) == ID_SIZE else hashlib.sha256(term).digest()[:ID_SIZE], message.persistent


def duplicates(hi: Longs, lo: Longs, length: Longs) -> Mask:
    """Return which messages, in the order of finding, are further copies. length: of their terms in bytes.

    Of copies in one message file of a carved store, the last one is not a duplicate; of copies in several files, one in the first of them.
    """
    count = len(hi)
    number = np.zeros(count, np.int32)
    ends = np.cumsum(length + OVERHEAD)
    base, file = 0, 0
    while True:
        start = int(np.searchsorted(ends, base + FILE_BYTES)) + 1
        if start >= count:
            break
        file += 1
        number[start:] = file
        base = int(ends[start - 1])
    order = np.lexsort((-np.arange(count), number, lo, hi))
    copy = np.zeros(count, np.bool_)
    copy[order[1:]] = (hi[order[1:]] == hi[order[:-1]]) & (lo[order[1:]] == lo[order[:-1]])
    return copy


def batch_ends(length: Longs) -> Longs:
    """Return after which messages, in the order of finding, a batch of rows ends. length: of all their terms in bytes."""
    result = [
        start + stop for start in range(0, len(length), BLOCK) for _, stop in pieces(length[start : start + BLOCK], BATCH_BYTES, BATCH_ROWS)
    ]
    return np.array(result, np.int64)


def rows_of(sources: Sequence[FoundMessages], columns: tuple[str, ...], ends: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the message table, a batch up to each of these numbers of messages. sources: with ids and copies."""
    first = 0
    starts = np.cumsum([0] + [each.messages.shape[1] for each in sources])
    for end in ends:
        parts = []
        low = int(np.searchsorted(starts, first, side="right")) - 1
        while low < len(sources) and starts[low] < end:
            each, start = sources[low], int(starts[low])
            chosen = slice(max(0, first - start), end - start)
            assert each.hi is not None
            assert each.lo is not None
            assert each.duplicate is not None
            if each.messages[:, chosen].shape[1]:
                parts.append(
                    FoundMessages(each.name, each.image, each.messages[:, chosen], each.hi[chosen], each.lo[chosen], each.duplicate[chosen])
                )
            low += 1
        rows = _rows(parts)
        yield message_table.build_batch(rows, columns, message_table.decode_terms(rows, lambda name: None))
        first = end


def _rows(parts: Sequence[FoundMessages]) -> MessageRows:
    """Return the rows of a batch, with their terms."""
    sources: list[tuple[str, Bytes]] = []
    source, at, length = [], [], []
    for each in parts:
        for _, data, places, sizes in _read(each):
            source.append(np.full(len(places), len(sources), np.int32))
            sources.append((each.name, data))
            at.append(places)
            length.append(sizes)
        each.image.close()
    number = np.concatenate(source)
    count = len(number)
    entries = np.zeros(count, ENTRY)
    entries["hi"] = np.concatenate([each.hi for each in parts])
    entries["lo"] = np.concatenate([each.lo for each in parts])
    known = np.full(count, UNINDEXED, np.uint8)
    known[np.concatenate([each.duplicate for each in parts])] = DUPLICATE
    known[np.concatenate([each.messages[KIND] for each in parts]) == message_store.DAMAGED_ENTRY] = DAMAGED
    nothing = np.zeros(count, np.bool_)
    table = EntryTable(
        0,
        entries,
        tuple(sources),
        number,
        np.concatenate(at),
        np.concatenate(length),
        np.concatenate([each.messages[FROM] for each in parts]),
        number,
        nothing,
        nothing,
        known,
        np.full(count, PERSISTENT_STORE, np.uint8),
        np.full(count, UNLISTED, np.uint8),
    )
    return MessageRows(None, None, None, table, np.full(count, -1, np.int64), None, indexed=False)


@dataclass(slots=True)
class CarvedStore:
    """The store that was written. damaged, transient, unproved, copies: messages that were left out; the last two, of logs only."""

    path: Path
    count: int = 0
    damaged: int = 0
    transient: int = 0
    unproved: int = 0
    copies: int = 0

    def open(self) -> RabbitMQStore:
        """Open the store as what is left of one."""

        return open_wreck(self.path)


def write_carved(
    sources: Iterable[FoundMessages],
    to: DurableDirectory,
    *,
    logs: Iterable[tuple[str, bytes, bytes, bool]] = (),
    damaged: bool = True,
    transient: bool = True,
) -> CarvedStore:
    """Write messages into message files below a directory.

    logs: those of quorum queues and streams, as `carved_logs.stored_terms` has them. damaged: also those whose checksum does not fit.
    transient: also those that are not persistent, which a broker drops at its start.
    Raises CannotOpenError if a message cannot be read any more, TargetError if there is no room.
    """
    store = CarvedStore(to.path(""))
    number = size = 0
    sink = to.open_new("0.rdq")

    def write(id: bytes, term: bytes) -> None:  # noqa: A002
        nonlocal number, size, sink
        if size >= FILE_BYTES:
            sink.close()
            number, size = number + 1, 0
            sink = to.open_new(f"{number}.rdq")
        size += sink.write(record(id, term))
        store.count += 1

    try:
        for source in sources:
            for terms in terms_of(source):
                raw = terms.buffer.data
                ids = np.stack([terms.hi, terms.lo], axis=1).astype(">i8").tobytes()
                bad = source.messages[KIND, terms.first : terms.first + len(terms.at)] == message_store.DAMAGED_ENTRY
                for k, (start, length) in enumerate(zip(terms.at.tolist(), terms.length.tolist(), strict=True)):
                    if bad[k] and not damaged:
                        store.damaged += 1
                        continue
                    if not terms.persistent[k] and not transient:
                        store.transient += 1
                        continue
                    write(ids[16 * k : 16 * k + 16], bytes(raw[start : start + length]))
            source.image.close()
        for verdict, id, term, persistent in logs:  # noqa: A001
            if verdict != Verdict.UNINDEXED:
                store.damaged += verdict == Verdict.DAMAGED
                store.unproved += verdict == Verdict.UNPROVED
                store.copies += verdict == Verdict.DUPLICATE
            elif not persistent and not transient:
                store.transient += 1
            else:
                write(id, term)
    finally:
        sink.close()
    return store
