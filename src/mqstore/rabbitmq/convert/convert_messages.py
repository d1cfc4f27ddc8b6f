"""Transfer of message files to a new directory: each file with a needed message is copied, or rewritten if it is damaged.

A file whose records are contiguous from its first to its last byte is copied unchanged, garbage included, or hard-linked on request. (A
broker truncates and merges its files in place, so never link to a store that is still needed.) From other files, and from left-overs
of a merge, only the needed records are written: a broker's scan would stop at the damage and lose the records after it.

Messages are rewritten for versions up to 3.13, which do not read the message containers of 4.x.

Each container becomes a `basic_message` with the properties and the body that a consumer of AMQP 0-9-1 receives; a message that already is
one keeps its bytes. Of AMQP 1.0 the index states the size of all sections, of a `basic_message` that of the body.

A message cannot be rewritten if its properties do not fit into those of AMQP 0-9-1, or if the name of its vhost, which a `basic_message`
contains, is not known. Nothing is dropped for that: the conversion is refused, with the names of the queues.

Format: docs/formats/rabbitmq.md, sections 6, 10 and 15.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError
from mqstore.files import Bytes
from mqstore.files.durable import DurableDirectory
from mqstore.kernels.rabbitmq import terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format.index_v1 import IN_SEGMENT, IN_STORE
from mqstore.rabbitmq.format.message_file import HEADER, OVERHEAD, record
from mqstore.rabbitmq.message.message_term import MessageTerm, as_basic_message, read_message, write_message
from mqstore.rabbitmq.message.properties import PropertiesError
from mqstore.rabbitmq.store.message_store import MessageStore
from mqstore.rabbitmq.store.queue import EntryTable
from mqstore.rabbitmq.store.vhost import Vhost

END = 255
MARK_AND_SIZE = 9  # what the size field does not count
_BASIC = b"\x83h\x06"  # how a basic_message begins: a tuple of six
PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """Counts of a transfer. files: in the new directory; linked: of these, hard links; written: of these, rewritten.

    bytes: of all files; left: bytes left out.
    """

    files: int = 0
    linked: int = 0
    written: int = 0
    bytes: int = 0
    left: int = 0

    def __add__(self, other: CopiedFiles) -> CopiedFiles:
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return CopiedFiles(*(mine + its for mine, its in pairs))


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of one file by position."""

    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    total: NDArray[np.int64]


def copy_store(store: MessageStore, needed: NDArray[np.int64], stage: DurableDirectory, path: str, *, link: bool = False) -> CopiedFiles:
    """Transfer the message files with the needed rows of a store to a directory of the stage."""
    stage.make_directory(path)
    needs = np.zeros(len(store), np.bool_)
    needs[needed] = True
    by_file = _by_file(store)
    copied = CopiedFiles()
    numbers = sorted({file.number for file in store.files})
    for number in numbers:
        members = [k for k, file in enumerate(store.files) if file.number == number]
        taken = [k for k in members if needs[by_file[k].rows].any()]
        size = sum(store.files[k].size for k in members)
        if not taken:
            copied += CopiedFiles(left=size)
            continue
        name = f"{path}/{number}.rdq"
        if len(taken) == 1 and not store.files[taken[0]].leftover and _is_whole(store, taken[0], by_file[taken[0]], needs):
            file = store.files[taken[0]]
            linked = stage.link_or_copy(store.directory.path(file.name), name, copy=not link)
            copied += CopiedFiles(1, int(linked), 0, file.size, size - file.size)
            continue
        written = sum(_copy_chosen(store, k, by_file[k], needs, stage, name) for k in taken)
        copied += CopiedFiles(1, 0, 1, written, size - written)
    return copied


def _by_file(store: MessageStore) -> list[_Records]:
    rows = store.by_place()
    file, at, length = store.locations(rows)
    borders = np.searchsorted(file, np.arange(len(store.files) + 1))
    return [
        _Records(rows[low:high], at[low:high] - HEADER, length[low:high] + OVERHEAD)
        for low, high in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    ]


def _is_whole(store: MessageStore, number: int, records: _Records, needs: NDArray[np.bool_]) -> bool:
    """Return whether the scan of any broker finds all records of the file, and no copy that would replace a better one."""
    file = store.files[number]
    ends = records.at + records.total
    if not len(ends) or records.at[0] or ends[-1] != file.size or (records.at[1:] != ends[:-1]).any():
        return False
    data = store.directory.map(file.name).data
    if (data[ends - 1] != END).any() or not _has_heads(store, data, records).all():
        return False
    copies = np.flatnonzero(store.copies[records.rows] & store.spread(needs)[records.rows])
    if not len(copies):
        return True
    hi, lo = store.halves(records.rows[copies])
    shape = np.zeros(len(copies), np.uint8)
    terms.shapes(data, records.at[copies] + HEADER, records.total[copies] - OVERHEAD, hi, lo, shape)
    return bool((shape & terms.SAME_ID != 0).all())


def _has_heads(store: MessageStore, data: Bytes, records: _Records) -> NDArray[np.bool_]:
    """Return which records start with their size and their id."""
    words = [np.ascontiguousarray(data[records.at[:, None] + np.arange(k, k + 8)]).view(">i8")[:, 0] for k in (0, 8, 16)]
    hi, lo = store.halves(records.rows)
    result: NDArray[np.bool_] = (words[0] == records.total - MARK_AND_SIZE) & (words[1] == hi) & (words[2] == lo)
    return result


def _copy_chosen(store: MessageStore, number: int, records: _Records, needs: NDArray[np.bool_], stage: DurableDirectory, name: str) -> int:
    """Append the needed records of a file; return their size in bytes. A record with a damaged head or mark gets valid ones."""
    chosen = np.flatnonzero(needs[records.rows])
    records = _Records(records.rows[chosen], records.at[chosen], records.total[chosen])
    at, ends = records.at, records.at + records.total
    data = store.directory.map(store.files[number].name).data
    sound = _has_heads(store, data, records)
    sound &= data[np.minimum(ends, len(data)) - 1] == END
    sound &= ends <= len(data)
    written = 0
    for run in np.split(np.arange(len(chosen)), np.flatnonzero((at[1:] != ends[:-1]) | ~sound[1:] | ~sound[:-1]) + 1):
        low, high = int(at[run[0]]), int(ends[run[-1]])
        part = data[low:high]
        if not sound[run[0]]:
            part = np.frombuffer(record(store.id(int(records.rows[run[0]])), part[HEADER : high - low - 1].tobytes()), np.uint8)
        stage.append(name, part)
        written += len(part)
    return written


class Refusal(NamedTuple):
    """A message that cannot be a `basic_message`."""

    seq: int
    why: str


@dataclass(frozen=True, slots=True)
class RewrittenEntries:
    """Entries of a queue whose messages are `basic_message` terms. data: the bytes of those in the index; count: that were containers."""

    entries: NDArray[np.void]
    data: Bytes
    count: int
    refused: tuple[Refusal, ...]


def _is_basic(stored: Bytes) -> bool:
    return stored[:3].tobytes() == _BASIC


def _rewritten(stored: bytes, vhost: str | None, queue_addresses: bool) -> tuple[MessageTerm, bytes]:
    """Return a message as `basic_message`, and its term. Raises EtfError, PropertiesError."""
    message = read_message(stored)
    if vhost is None and message.vhost is None:
        raise PropertiesError("the name of its vhost is not known")
    basic = as_basic_message(message, (vhost or "").encode("utf-8", "surrogateescape"), queue_addresses=queue_addresses)
    return basic, write_message(basic)


def rewrite_entries(
    table: EntryTable, rows: NDArray[np.intp], entries: NDArray[np.void], vhost: Vhost, name: str | None
) -> RewrittenEntries:
    """Return the entries of these rows with rewritten messages; those in a message store only get the size of their new form."""
    entries = entries.copy()
    buffer = bytearray()
    count, refused = 0, []
    for k, row in enumerate(rows.tolist()):
        file, data = table.sources[int(table.source[row])]
        data = vhost.root.mapped(file).data if data is None else data
        at, length = int(entries["at"][k]), int(entries["length"][k])
        stored = data[at : at + length]
        embedded = entries["place"][k] != IN_STORE
        term = b""
        if _is_basic(stored):
            term = stored.tobytes() if embedded else b""
        else:
            try:
                message, term = _rewritten(stored.tobytes(), name, table.queue_addresses)
            except (EtfError, PropertiesError) as error:
                refused.append(Refusal(int(entries["seq"][k]), str(error)))
                if embedded:
                    entries["at"][k], entries["length"][k], entries["place"][k] = 0, 0, IN_SEGMENT
                continue
            entries["size"][k] = len(message.body)
            count += 1
        if embedded:
            entries["at"][k], entries["length"][k], entries["place"][k] = len(buffer), len(term), IN_SEGMENT
            buffer += term
    return RewrittenEntries(entries, np.frombuffer(bytes(buffer), np.uint8), count, tuple(refused))


def rewrite_store(vhost: Vhost, needed: NDArray[np.int64], stage: DurableDirectory, place: str) -> CopiedFiles:
    """Write the needed rows of the persistent store to a directory of the stage, in files of the same numbers."""
    store = vhost.persistent
    stage.make_directory(place)
    files, at, length = store.locations(needed)
    order = np.lexsort((at, files))
    written: dict[int, int] = {}
    buffer = bytearray()
    number = -1

    def flush() -> None:
        if buffer:
            stage.append(f"{place}/{number}.rdq", np.frombuffer(bytes(buffer), np.uint8))
            written[number] = written.get(number, 0) + len(buffer)
            buffer.clear()

    for k in order.tolist():
        file = store.files[int(files[k])]
        if file.number != number or len(buffer) > PIECE:
            flush()
            number = file.number
        stored = _stored(store, file.name, int(at[k]), int(length[k]))
        if _is_basic(stored):
            buffer += record(store.id(int(needed[k])), stored.tobytes())
        else:
            buffer += record(store.id(int(needed[k])), _rewritten(stored.tobytes(), vhost.name, vhost.queue_addresses)[1])
    flush()
    total = sum(written.values())
    size = sum(file.size for file in store.files)
    return CopiedFiles(len(written), 0, len(written), total, max(0, size - total))


def _stored(store: MessageStore, file: str, at: int, length: int) -> Bytes:
    data = store.directory.map(file).data
    if at < HEADER or at + length > len(data):
        raise CannotOpenError(f"{file} has changed while it was read; stop the node and convert again")
    return data[at : at + length]
