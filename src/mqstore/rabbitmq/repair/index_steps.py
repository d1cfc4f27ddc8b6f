"""Steps for indexes: those of queues of either version, and of streams.

Version 1, journal and segments:

    a torn end of the journal                 cut off
    damage in the journal or in a segment,    all that can be read is written to segments as they would be after a flush, and the
    or a state on which a node crashes        journal is emptied

Both kinds of damage make a node crash before it listens, or pass over what follows. Segments that neither the damage nor the journal
touches stay as they are.

Version 2, file by file, written in place:

    a header that is not one                       the header that the file's number demands
    an incomplete entry at the end                 completed from the .qs if it says where its message is; else cut off
    a status that is neither 0 nor 1               1, if the entry leads to a message
    an entry of a .qs whose frame is damaged       size and checksum are written again, if the message and the index agree
    an entry of a message that cannot be read      cleared; so are the entries of messages in a .qs that is missing
    a .qs without its .qi                          an index of all its persistent messages, of which some may have been acknowledged

Stream, file by file, made of the chunks of its segment; after that a node keeps every segment, and every chunk in it:

    a segment without its index         the node deletes it
    the last index short or wrong       the node cuts its segment after the last chunk that the index knows
    another index that is wrong         readers who ask for an offset or a time begin at the wrong chunk

A segment is not changed, so that a damaged chunk stays damaged; at the end of the last segment a node cuts it off, with or without an
index.

Format: docs/formats/rabbitmq.md, sections 3 to 5, 7 and 12.1 to 12.4; docs/formats/rabbitmq-streams.md, sections 5, 8 and 9.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind, Subject
from mqstore.rabbitmq.convert.convert_queue import UNREADABLE
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format import index_v2, segment
from mqstore.rabbitmq.format.index_v1 import DELIVERED, IN_STORE, PERSISTENT
from mqstore.rabbitmq.format.index_v2 import ENTRY_HEADER, ENTRY_SIZE, HEADER_SIZE, QUEUE_STORE, IndexFile
from mqstore.rabbitmq.format.layout import bytes_of
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message
from mqstore.rabbitmq.repair.queue_step import QueueContent, QueueStep, segment_content
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.rabbitmq.streams.examination import Change as NodeDoes
from mqstore.rabbitmq.streams.examination import Examination
from mqstore.rabbitmq.streams.index import build_index
from mqstore.rabbitmq.streams.segment import Chunks
from mqstore.rabbitmq.streams.stream import Stream
from mqstore.repair.change import Change
from mqstore.table.formatting import agreeing, count

_LOCATED = 16  # bytes of an entry up to the end of the place of its message

_STREAM_VERBS = {
    NodeDoes.DELETES_SEGMENT: "deletes the segment",
    NodeDoes.CUTS_SEGMENT: "cuts the segment",
    NodeDoes.DOES_NOT_START: "does not start the stream",
}


def index_v1_step(queue: Queue, vhost: Vhost, content: QueueContent) -> QueueStep | None:
    """Return the step for a queue with files of version 1; None if a node reads all of them. Adds the queue's messages to content."""
    index = queue.index
    bad: set[int] = set()
    crashes: list[str] = []
    damaged: list[Damage] = []
    for version, number in queue.segments():
        if version != 1:
            continue
        table = queue.entry_table(version, number)
        mine = content.take(number, table, vhost)
        crashes += table.crashes
        faults = [item for item in table.findings if item.kind.subject is Subject.BYTES and item.file == index.segment_file(number)]
        damaged += faults
        if table.crashes or faults or mine.gained.any() or mine.returned or len(mine.fatal):
            bad.add(number)
    in_journal = [item for item in index.journal.findings if item.kind.subject is Subject.BYTES]
    if not bad and not in_journal:
        return None
    end = index.journal.end
    size = len(index.journal.data)
    if not bad and index.journal.seen == len(index.journal.seq):
        why = f"{in_journal[0].detail}, and nothing that can be read follows: the bytes are cut off"
        change = Change("resize", index.journal_file, length=end)
        otherwise = "it passes over them, and what it appends after them is lost at its next start"
        return QueueStep("torn-end", index.journal_file, end, size - end, why, otherwise, "", (change,), vhost.place.place)
    base = index.count
    touched = bad | set(np.unique(index.journal_all.seq // base).tolist())
    changes = [
        Change("put", index.segment_file(number), content=_segment_maker(queue, vhost, number))
        if content.kept.get(number)
        else Change("remove", index.segment_file(number))
        for number in sorted(touched)
        if content.kept.get(number) or number in index.segment_numbers
    ]
    if size:
        changes.append(Change("resize", index.journal_file, length=0))
    damaged = [*in_journal, *damaged]
    reason = damaged[0].detail if damaged else crashes[0] if crashes else _reason(content)
    more = f" (and {count(len(damaged) - 1, 'further range')})" if len(damaged) > 1 else ""
    where = damaged[0].file if damaged else index.journal_file if size else index.segment_file(min(bad))
    why = f"{reason}{more}; what can be read, {count(content.messages, 'message')}, is written to segments"
    return QueueStep(
        "index",
        where,
        damaged[0].offset if damaged else 0,
        damaged[0].length if damaged else 0,
        why,
        _otherwise(queue, content, crashes),
        content.loss,
        tuple(changes),
        vhost.place.place,
    )


def _reason(content: QueueContent) -> str:
    if not content.fatal:  # pragma: no cover - no damage is known that only moves messages
        return f"{count(content.gained, 'message')} of the queue {'is' if content.gained == 1 else 'are'} not where a node looks"
    return f"{count(content.fatal, 'message')} cannot be decoded"


def _otherwise(queue: Queue, content: QueueContent, crashes: list[str]) -> str:
    if crashes and not queue.start.clean:
        return "it crashes here, the vhost does not start, and the node waits for it"
    parts = []
    if content.gained:
        parts.append(f"{agreeing(content.gained, 'message', 'is', 'are')} lost")
    if content.returned:
        parts.append(f"{agreeing(content.returned, 'consumed message', 'is', 'are')} delivered again")
    if content.fatal or crashes:
        parts.append("the queue process crashes when it comes to them, at every attempt")
    return ", ".join(parts) or "it passes over the bytes"


def _segment_maker(queue: Queue, vhost: Vhost, number: int) -> Callable[[], bytes]:
    def make() -> bytes:
        table = queue.entry_table(1, number)
        content = segment_content(table, vhost, dict.fromkeys(QueueContent().left_out, 0))
        base = number * queue.index.count
        parts = []
        for row, entry in zip(content.rows[::-1].tolist(), content.entries[::-1], strict=True):
            embedded = b""
            if entry["place"] != IN_STORE:
                data = table.sources[int(table.source[row])][1]
                assert data is not None
                embedded = data[int(entry["at"]) : int(entry["at"]) + int(entry["length"])].tobytes()
            message_id = int(entry["hi"]).to_bytes(8, "big", signed=True) + int(entry["lo"]).to_bytes(8, "big", signed=True)
            rel = int(entry["seq"]) - base
            fields = {"size": int(entry["size"]), "expiry": int(entry["expiry"])}
            parts.append(segment.publish(rel, message_id, embedded, **fields, persistent=bool(entry["flags"] & PERSISTENT)))
            if entry["state"] & DELIVERED:
                parts.append(segment.mark(rel))
        return b"".join(parts)

    return make


def index_v2_steps(queue: Queue, vhost: Vhost, content: QueueContent) -> Iterator[QueueStep]:
    """Yield the steps for the files of version 2 of a queue. Adds the queue's messages to content."""
    for version, number in queue.segments():
        if version == 2:
            yield from _File(queue, vhost, number).steps(content)
    yield from lost_index_steps(queue, vhost, content)


def lost_index_steps(queue: Queue, vhost: Vhost, content: QueueContent) -> Iterator[QueueStep]:
    """Yield the steps for each `.qs` without its `.qi`. Adds their messages to content."""
    for number in queue.index_v2.orphan_stores:
        yield from _lost_index(queue, vhost, number, content)


def _lost_index(queue: Queue, vhost: Vhost, number: int, content: QueueContent) -> Iterator[QueueStep]:
    """Yield the step that makes the index of a `.qs` from its messages, in their order."""
    name, data = queue.index_v2.store_file(number), queue.index_v2.store_data(number)
    first, width = queue.index_v2.store_range(number)
    at, size = queue.index_v2.orphans(number)
    valid = index_v2.valid_entries(data, at, size)
    rows: list[bytes] = []
    bodies = 0
    for place, length in zip(at[valid].tolist(), size[valid].tolist(), strict=True):
        try:
            message = read_message(data[place + ENTRY_HEADER : place + ENTRY_HEADER + length].tobytes())
        except EtfError:
            continue
        if message.persistent and len(rows) < width:
            rows.append(index_v2.stored_entry(place, length, size=message.stated_size or 0))
            bodies += message.stated_size or 0
    if not rows:
        return
    content.add(number, len(rows), bodies, first + len(rows) - 1)
    index = queue.index_v2.index_file(number)
    why = f"its index {number}.qi is missing: one is made of its {count(len(rows), 'persistent message')}"
    loss = (
        "what only the index knew: which of them were acknowledged, so that these come back, and larger messages, which are in "
        "msg_store_persistent: `mqstore salvage` saves them"
    )
    change = Change("put", index, content=index_v2.header(first, width) + b"".join(rows))
    otherwise = "it does not look at the file, and delivers none of its messages"
    noted = queue.start.terms
    unread = len(rows) if noted is None or noted.count is None else min(len(rows), noted.count)
    yield QueueStep("lost-index", name, 0, len(data), why, otherwise, loss, (change,), vhost.place.place, messages=unread)


_AMQP10 = b"\x07mc_amqp"  # the module of a message container that holds the sections of AMQP 1.0


class _File:
    """One `.qi` and its `.qs`."""

    def __init__(self, queue: Queue, vhost: Vhost, number: int) -> None:
        self.queue = queue
        self.vhost = vhost
        self.number = number
        self.name = queue.index_v2.index_file(number)
        self.store_name = queue.index_v2.store_file(number)
        self.data: Bytes = bytes_of(vhost.root, self.name)[0]
        self.stored = queue.index_v2.store_data(number)
        self.index: IndexFile = index_v2.read_index(self.data, number, self.name, queue.index_v2.count)

    def _step(self, kind: str, offset: int, length: int, why: str, otherwise: str, loss: str, *changes: Change) -> QueueStep:
        return QueueStep(kind, changes[0].file, offset, length, why, otherwise, loss, changes, self.vhost.place.place)

    def steps(self, content: QueueContent) -> Iterator[QueueStep]:
        table = self.queue.entry_table(2, self.number)
        mine = content.take(self.number, table, self.vhost)
        yield from self._header(len(mine.entries))
        yield from self._torn(content, ends=bool(table.crashes))
        strange = np.flatnonzero(self.index.rows["status"] > 1)
        records = set(mine.entries["record"].tolist())
        known = [row for row in strange.tolist() if HEADER_SIZE + row * ENTRY_SIZE in records]
        if known:
            changes = [Change("write", self.name, HEADER_SIZE + row * ENTRY_SIZE, b"\x01") for row in known]
            why = f"{count(len(known), 'entry')} with a status that there is not; each leads to a message, and becomes 1"
            yield self._step("status", changes[0].offset, 1, why, "it does not deliver these messages", "", *changes)
        yield from self._frames(content)
        lost = self._without_store()
        yield from self._cleared_without_store(lost)
        entries = self.queue.entry_table(2, self.number).entries if len(mine.fatal) else mine.entries
        places = sorted({int(entries["record"][row]) for row in mine.fatal} - set(lost))
        if places:
            changes = [Change("write", self.name, place, bytes(ENTRY_SIZE)) for place in places]
            why = f"{count(len(places), 'message')} cannot be decoded: the entries are cleared"
            otherwise = "the queue process crashes when it comes to them, at every attempt"
            yield self._step("unreadable", places[0], ENTRY_SIZE, why, otherwise, "nothing that is readable", *changes)

    def _without_store(self) -> list[int]:
        """Return the places of the entries of messages that were in a `.qs` that is missing."""
        rows = self.index.rows
        if not self.queue.index_v2.lacks_store(self.number):
            return []
        lost = np.flatnonzero((rows["status"] == 1) & (rows["location"] == QUEUE_STORE))
        return [HEADER_SIZE + row * ENTRY_SIZE for row in lost.tolist()]

    def _cleared_without_store(self, places: list[int]) -> Iterator[QueueStep]:
        if places:
            changes = [Change("write", self.name, place, bytes(ENTRY_SIZE)) for place in places]
            why = f"{self.number}.qs is missing, and had {count(len(places), 'message')}: their entries are cleared"
            otherwise = "the queue process crashes when it comes to them, after an unclean stop at every start"
            loss = "nothing that is readable; if the file is anywhere, put it back instead"
            yield self._step("unreadable", places[0], ENTRY_SIZE, why, otherwise, loss, *changes)

    def _header(self, messages: int) -> Iterator[QueueStep]:
        width = self.queue.index_v2.count
        for name, data, store in ((self.name, self.data, False), (self.store_name, self.stored, True)):
            header = index_v2.header(self.number * width, width, store=store)
            if len(data) < HEADER_SIZE or data[:21].tobytes() == header[:21]:
                continue
            lost = not store and not self.index.valid_header
            otherwise = (
                f"after an unclean stop it deletes the file and its .qs, with {count(messages, 'message')}"
                if lost
                else "it does not look at it; other programs refuse the file"
            )
            why = "the header is not one of version 2 for a file of this number: it is written again"
            yield self._step("header", 0, HEADER_SIZE, why, otherwise, "", Change("write", name, 0, header))

    def _torn(self, content: QueueContent, *, ends: bool) -> Iterator[QueueStep]:
        """Yield the step for a part of an entry. ends: the queue ends there, or at something else in the segment."""
        if not self.index.partial:
            return
        at = HEADER_SIZE + len(self.index.rows) * ENTRY_SIZE
        left = self.data[at:].tobytes()
        reads_on = "the queue process crashes on it whenever it reads on" if ends else "it passes over it"
        otherwise = "the queue process crashes on it at every start" if self.index.crash else reads_on
        made = self._completed(left)
        if made is not None:
            content.add(self.number, 1, int.from_bytes(made[20:24], "big"), self.index.first + len(self.index.rows))
            why = "the last entry is incomplete: it is completed from its message in the .qs"
            changes = (Change("resize", self.name, length=at + ENTRY_SIZE), Change("write", self.name, at, made))
            yield self._step("torn-entry", at, len(left), why, otherwise, "the time at which the message expires, if it does", *changes)
            return
        loss = "the message of that entry, which cannot be found without the rest of it" if left[0] else ""
        why = "the last entry is incomplete: it is cut off"
        yield self._step("torn-entry", at, len(left), why, otherwise, loss, Change("resize", self.name, length=at))

    def _completed(self, left: bytes) -> bytes | None:
        """Return the entry that begins with these bytes, if they say where its message is, and it is there."""
        if len(left) < _LOCATED or left[0] != 1 or not left[1] & 1 or left[3] != QUEUE_STORE:
            return None
        at, size = int.from_bytes(left[4:12], "big"), int.from_bytes(left[12:16], "big")
        message = self._message(at, size)
        if message is None or not index_v2.valid_entries(self.stored, np.array([at]), np.array([size]))[0]:
            return None
        made = index_v2.stored_entry(at, size, size=message.stated_size or 0)
        return made if made[: min(len(left), 24)] == left[:24] else None

    def _message(self, at: int, size: int) -> MessageTerm | None:
        """Return the persistent message of an entry of the .qs whose place and size the index states."""
        start = at + ENTRY_HEADER
        if at < HEADER_SIZE or not size or start + size > len(self.stored):
            return None
        try:
            message = read_message(self.stored[start : start + size].tobytes())
        except EtfError:
            return None
        return message if message.persistent else None

    def _frames(self, content: QueueContent) -> Iterator[QueueStep]:
        """Yield the step for entries of the `.qs` whose message agrees with the index, and whose frame does not."""
        rows = self.index.rows
        mine = np.flatnonzero((rows["status"] == 1) & ((rows["flags"] & 1) != 0) & (rows["location"] == QUEUE_STORE))
        at, size = rows["hi"][mine].astype(np.int64), (rows["lo"][mine].astype(np.int64) >> 32) & 0xFFFF_FFFF
        bad = np.flatnonzero(~index_v2.valid_entries(self.stored, at, size))
        changes, cleared, proved, bodies = [], list[Change](), 0, 0
        for k in bad.tolist():
            message = self._message(int(at[k]), int(size[k]))
            if message is None or message.stated_size != int(rows["size"][mine[k]]):
                continue
            place = int(at[k])
            term = self.stored[place + ENTRY_HEADER : place + ENTRY_HEADER + int(size[k])].tobytes()
            head = index_v2.queue_store_entry(term)[:ENTRY_HEADER]
            fits = self.stored[place + 5 : place + 7].tobytes() == (zlib.crc32(term) & 0xFFFF).to_bytes(2, "big")
            if not fits and _AMQP10 in term:
                cleared.append(Change("write", self.name, HEADER_SIZE + int(mine[k]) * ENTRY_SIZE, bytes(ENTRY_SIZE)))
                continue
            proved += fits
            bodies += message.stated_size or 0
            changes.append(Change("write", self.store_name, place, head))
        if cleared:
            why = f"the checksum of {count(len(cleared), 'message')} of AMQP 1.0 is wrong: the entries are cleared"
            otherwise = "the queue process crashes when it comes to them; with a new checksum it would at every attempt"
            yield self._step("unreadable", cleared[0].offset, ENTRY_SIZE, why, otherwise, "these messages, as before", *cleared)
        if not changes:
            return
        content.add(self.number, len(changes), bodies, self.index.first + int(mine[bad].max()))
        content.left_out[UNREADABLE] -= len(changes)
        why = f"the frame of {count(len(changes), 'message')} is damaged, and the message agrees with the index: the frame is written again"
        rest = len(changes) - proved
        loss = f"{count(rest, 'message')} of these had another checksum, and nothing shows the damage any more" if rest else ""
        otherwise = "it does not deliver these messages"
        yield self._step("frame", changes[0].offset, ENTRY_HEADER, why, otherwise, loss, *changes)


def stream_steps(store: RabbitMQStore) -> Iterator[QueueStep]:
    """Yield a step for each index that is made of the chunks of its segment."""
    for _, examined in store.examined_streams:
        yield from _of_stream(examined)


def _of_stream(examined: Examination) -> Iterator[QueueStep]:
    stream = examined.stream
    wrong = {item.file: item.detail for item in examined.damage if item.kind is Kind.BAD_STREAM_INDEX}
    start = examined.node_start()
    does = {change.file: change for change in start.changes}
    for number, chunks in enumerate(examined.segments):
        segment_file, file = stream.segment_file(number), stream.index_file(number)
        change = next(iter(start.refused), does.get(segment_file))
        missing = bool(stream.index_size[number] < 0)
        if not (missing or file in wrong) or chunks.end == int(stream.first[number]):
            continue
        why = "it is missing, and is made of the chunks of its segment" if missing else f"{wrong[file]}: it is made of the chunks again"
        otherwise = "readers who ask for an offset or a time may begin at the wrong chunk"
        if change is not None and change.messages:
            otherwise = f"it {_STREAM_VERBS[change.change]}, with {count(change.messages, 'message')} from offset {change.first} on"
        made = Change("put", file, content=partial(_stream_index, stream, number))
        messages = 0 if change is None else change.messages
        yield QueueStep("stream-index", file, 0, max(0, int(stream.index_size[number])), why, otherwise, "", (made,), messages=messages)


def _stream_index(stream: Stream, number: int) -> bytes:
    """Return the index of a segment: a record for each of its chunks, the damaged ones too, for a node has them there as well."""
    data, _ = stream.open(number)
    parts = [piece.columns.copy() for piece, _ in stream.walk(number, data)]
    return build_index(Chunks(np.concatenate(parts, axis=1)))
