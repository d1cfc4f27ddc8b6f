"""What the lists of a clean stop name, and what of it is not there: message files and directories of queues.

    file_summary.ets, else msg_store_index.ets    each file of a message store, with its size, or the bytes that it has at least
    recovery.dets                                 each queue directory, with the number of its persistent messages

    the indexes                                   messages in a message store, which has at least one file

A node deletes the lists when it starts; as long as they are there, nothing has removed a file since. So a file that they name and that
is not there was left behind: by a partial copy, or on another disk.

Format: docs/formats/rabbitmq.md, sections 8.2 and 8.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.terms import Term
from mqstore.rabbitmq.format.layout import bytes_of, is_away, small_file
from mqstore.rabbitmq.format.names import split_priority
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.table.formatting import count

GET_IT = "get it before anything else"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A message file that is not there, or is shorter than stated. path: relative to the root; there: its bytes, None without the file.

    beside: the name of another file of just that size in the same directory. swapped: the message file that has its name instead, and that
    all its messages are in.
    """

    path: str
    size: int
    there: int | None
    known_from: str
    exact: bool = True
    beside: str | None = None
    swapped: str | None = None

    @property
    def damage(self) -> Damage:
        stated = f"{'' if self.exact else 'at least '}{self.size:,} bytes"
        name = "/".join(self.path.split("/")[-2:])
        if self.swapped is not None:
            other = self.swapped.rpartition("/")[2]
            sentence = f"{name} and {other} have each other's names, as their messages and {self.known_from} show: exchange these names"
        elif self.there is None:
            beside = "" if self.beside is None else f"; {self.beside} beside it has that size: is it this file, under another name?"
            sentence = f"{name} ({stated}) is missing: {GET_IT}; {self.known_from} names it{beside}"
        else:
            sentence = f"{name} has {self.there:,} of {stated}, which {self.known_from} states: get the whole file before anything else"
        return Damage(self.path, self.there or 0, self.size - (self.there or 0), Kind.MISSING_PART, sentence)


@dataclass(frozen=True, slots=True)
class MissingStore:
    """A message store without a file, which no node leaves: it makes one when it starts. messages: that the indexes name in it."""

    path: str
    messages: int
    there: None = None
    known_from: str = "the indexes"

    @property
    def damage(self) -> Damage:
        named = f"the indexes name {count(self.messages, 'message')} in it"
        return Damage(self.path, 0, 0, Kind.MISSING_PART, f"every file of the message store is missing: {GET_IT}; {named}")


@dataclass(frozen=True, slots=True)
class MissingQueue:
    """A queue directory that is not there. path: relative to the root; queue: its name, or that of its directory if nothing names it.

    segment: the file of its index that is not there; empty if the whole directory is not.
    """

    path: str
    queue: str
    level: int | None
    messages: int
    version: int
    segment: str = ""

    @property
    def damage(self) -> Damage:
        part = f"the segment {self.segment}" if self.segment else "the directory"
        sentence = f"{part} of queue {self.queue!r} is missing, and recovery.dets counts {count(self.messages, 'message')} in it"
        return Damage(self.path, 0, 0, Kind.MISSING_PART, f"{sentence}: {GET_IT}", self.messages)


def missing_files(directory: ReadOnlyDirectory, store: str) -> Iterator[MissingFile]:
    """Yield the files of a message store that was closed in order, and that are not all there. store: its directory."""
    for source, read, exact in (("file_summary.ets", _summarized, True), ("msg_store_index.ets", _indexed, False)):
        stated = read(_objects(directory, f"{store}/{source}"))
        if stated is None:
            continue
        sizes = {entry.name: entry.size for entry in directory.entries(store)}
        for number, size in sorted(stated.items()):
            name = f"{number}.rdq"
            if sizes.get(name, 0) < size and (name in sizes or not directory.has_entry(f"{store}/{name}")):
                others = (other for other, length in sorted(sizes.items()) if exact and length == size > 0 and not other.endswith(".rdq"))
                of_its_size = (each for each, length in stated.items() if (sizes.get(f"{each}.rdq"), length) == (size, sizes.get(name)))
                exchanged = (f"{store}/{each}.rdq" for each in of_its_size if _are_exchanged(directory, store, number, each))
                yield MissingFile(f"{store}/{name}", size, sizes.get(name), source, exact, next(others, None), next(exchanged, None))
        return


def _are_exchanged(directory: ReadOnlyDirectory, store: str, one: int, other: int) -> bool:
    """Return whether each of two message files has all messages that the table of a clean stop has in the other, at their places."""
    table = _objects(directory, f"{store}/msg_store_index.ets") or ()
    rows = [(row, each[1]) for each in table if isinstance(each, tuple) and (row := _numbers(each, "msg_location", 3, 4)) is not None]
    for number, holder in ((one, other), (other, one)):
        named = [(offset + 8, message_id) for (file, offset), message_id in rows if file == number]
        data = bytes_of(directory, f"{store}/{holder}.rdq")[0]
        if not named or any(data[at : at + 16].tobytes() != message_id for at, message_id in named):
            return False
    return True


def missing_queues(
    directory: ReadOnlyDirectory, queues: str, terms: Mapping[str, QueueTerms], names: Mapping[str, tuple[str, bytes]]
) -> Iterator[MissingQueue]:
    """Yield the queues with messages whose directory, or a segment of whose index, is not there, a segment each.

    queues: the directory of all; names: vhost and name by directory.
    """
    for own, noted in sorted(terms.items()):
        missing = _missing_of(directory, f"{queues}/{own}", noted)
        if not missing:
            continue
        name, level = split_priority(names[own][1]) if own in names else (own.encode(), None)
        version = 1 if noted.v2_segments is None else 2
        for segment, messages in missing:
            path = f"{queues}/{own}/{segment}" if segment else f"{queues}/{own}"
            yield MissingQueue(path, name.decode("utf-8", "replace"), level, messages, version, segment)


def lacks_messages(directory: ReadOnlyDirectory, queue: str, noted: QueueTerms) -> bool:
    """Return whether files with messages that a clean stop counted are not in the directory of a queue."""
    return bool(_missing_of(directory, queue, noted))


def _missing_of(directory: ReadOnlyDirectory, queue: str, noted: QueueTerms) -> list[tuple[str, int]]:
    """Return the segments of a queue that are not there, each with the messages counted in it; an empty name for all of the directory."""
    if not noted.count or is_away(directory, queue):
        return []
    if not directory.has_entry(queue):
        return [("", noted.count)]
    if any(entry.name == "journal.jif" and entry.size for entry in directory.entries(queue)):
        return []  # what a segment counts may be in the journal
    stated = [(f"{number}.idx", messages) for number, messages in (noted.segments or {}).items()]
    stated += [(f"{number}.qi", messages) for number, messages in (noted.v2_segments or {}).items()]
    return [(name, messages) for name, messages in sorted(stated) if messages and not directory.has_entry(f"{queue}/{name}")]


def _objects(directory: ReadOnlyDirectory, name: str) -> tuple[Term, ...] | None:
    """Return the objects of a saved table; None if it is not whole."""
    table = disk_log.read_table(small_file(directory, name, _MOST_BYTES) or b"")
    return table.objects if table.whole else None


def _numbers(record: Term, tag: str, *places: int) -> list[int] | None:
    """Return the whole numbers in these places of a record; None if it is not such a record."""
    if not isinstance(record, tuple) or len(record) <= max(places) or record[0] != tag:
        return None
    numbers = [record[position] for position in places]
    return numbers if all(type(number) is int and 0 <= number < 1 << 62 for number in numbers) else None


def _summarized(objects: tuple[Term, ...] | None) -> dict[int, int] | None:
    rows = [_numbers(each, "file_summary", 1, 5) for each in objects or ()]
    return None if objects is None or None in rows else {row[0]: row[1] for row in rows if row is not None}


def _indexed(objects: tuple[Term, ...] | None) -> dict[int, int] | None:
    if objects is None:
        return None
    ends: dict[int, int] = {}
    for each in objects:
        row = _numbers(each, "msg_location", 3, 4, 5)
        if row is None:
            return None
        ends[row[0]] = max(ends.get(row[0], 0), row[1] + row[2])
    return ends
