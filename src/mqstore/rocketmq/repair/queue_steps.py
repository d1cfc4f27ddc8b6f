"""Steps for consume queues: entries that the log requires and that no broker adds by itself, written in place.

An entry that leads elsewhere is replaced, unless another message with its queue offset is there, which keeps the place. Entries that
are missing at the end, or of queues without files, are written unless the broker recovers as after a crash, and so adds them itself.

The place of a message whose record is lost gets the entry of the message before it, or after it if that is not in the log. Consumers then
receive that one twice. Where the message can only have expired, since no bytes of the log before the next one are unread, its place
gets the entry of the one before, or a blank if there is none. An unwritten entry would end the queue there, and one that leads to bytes
without a record makes clients drop the rest of what they pulled. For the first reason entries before the first one in its file become
blanks, which a broker passes over, where messages have expired.
Entries after the last message that a queue ever had are of no message, and become unwritten ones.

A unit of a batch queue whose record is lost leads to the record of the unit before it, or after it, and keeps its place: a broker hands
out the bytes that are there, and clients drop the rest of what they pulled with them.

Format: docs/formats/rocketmq.md, sections 4.1, 4.2 and 4.10.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.repair.change import Change, Step
from mqstore.repair.repair import ask_for_configuration
from mqstore.rocketmq.dispatch.dispatcher import QueueRun, dispatch_positions
from mqstore.rocketmq.format.batch_consume_queue import UNIT, UNIT_SIZE, valid_units
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY, MAX_GAP, ConsumeQueueReader, usable_topic
from mqstore.rocketmq.rebuild_steps import lines_that_decide, queue_file_size
from mqstore.rocketmq.repair.log_steps import FILLER_TOPIC
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.queue_proof import MisplacedFiles
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.formatting import count

Rows = NDArray[np.void]
ROW = ENTRY.itemsize
MOST_STAND_INS = 100_000  # of a queue; more are not a repair
TAIL = 4096  # entries looked at at once
FARTHEST = 1 << 20  # entries between two neighbours beyond which a queue offset is taken for damage


class RepairScan(Verification):
    """A verification that keeps the entries that queues lack or have otherwise. missing: by queue, (queue offsets, entries)."""

    def __init__(self, store: RocketMQStore) -> None:
        super().__init__(store)
        self.missing: dict[tuple[str, int], list[tuple[NDArray[np.int64], Rows]]] = defaultdict(list)
        self.left_out: dict[tuple[str, int], int] = {}  # messages without an entry whose queue offset cannot be theirs
        self._added: dict[tuple[str, int], int] = {}  # where queues end once the broker has added what the log has
        self._restored: dict[tuple[str, int], set[int]] = {}  # queue offsets of records that the plan restores

    def _take_run(self, run: QueueRun) -> None:
        super()._take_run(run)
        self._keep_missing(run)

    def _finish_queues(self) -> None:
        """Judge no entry: the steps follow from what the log has proved and lacks, and there may be millions of others."""

    def add_restored(self, record: Bytes) -> None:
        """Keep the entry of a record that the plan restores, unless its queue has it."""
        for run in dispatch_positions(record, np.zeros(1, np.int64), self.rules).runs:
            self._restored.setdefault((run.topic, run.queue_id), set()).update(run.offsets.tolist())
            self._keep_missing(run)

    def _keep_missing(self, run: QueueRun) -> None:
        if run.batch or self.store.unread_queues is not None or not usable_topic(run.topic):
            return
        if self.store.unclean:
            key = (run.topic, run.queue_id)
            end = self.queues[key].queue.max_offset if key in self.queues else 0
            near = run.offsets[run.offsets < max(end, self._added.get(key, 0)) + FARTHEST]
            self._added[key] = max(self._added.get(key, 0), int(near.max(initial=-1)) + 1)
        rows = run.entries.view(ENTRY)
        differs = np.ones(len(run), np.bool_)
        proof = self.queues.get((run.topic, run.queue_id))
        if proof is not None:
            low, high = proof.queue.min_offset, proof.queue.max_offset
            inside = (run.offsets >= low) & (run.offsets < high)
            begin, end = max(low, int(run.offsets.min())), min(high, int(run.offsets.max()) + 1)
            if inside.any() and end - begin <= 4 * len(run) + 1024:
                there = proof.queue.entries(begin, end)
                at = np.where(inside, run.offsets - begin, 0)
                same = (there["physical_offset"][at] == rows["physical_offset"]) & (there["size"][at] == rows["size"])
                differs &= ~(inside & same)
                for k in np.flatnonzero(inside & ~same).tolist():
                    # one that leads to this record has another size: clients would get what follows the record, too
                    own = there["physical_offset"][at[k]] == rows["physical_offset"][k]
                    differs[k] = own or not proof.is_place_of(self.log, there[at[k]], int(run.offsets[k]))
            if self.store.unclean:
                differs &= run.offsets < high  # the broker adds the rest
        elif self.store.unclean:
            return
        if differs.any():
            self.missing[run.topic, run.queue_id].append((run.offsets[differs].copy(), rows[differs].copy()))

    def settle(self) -> None:
        """Leave out messages whose queue offset is taken by another one, or far from all others of the queue. The scan must be complete."""
        for key, parts in self.missing.items():
            offsets = np.concatenate([part[0] for part in parts])
            rows = np.concatenate([part[1] for part in parts])
            known, first = np.unique(offsets, return_index=True)
            proof = self.queues.get(key)
            bounds = [proof.queue.min_offset, max(0, proof.queue.max_offset - 1)] if proof is not None and proof.queue.files else []
            numbers = np.unique(np.concatenate((known, np.array(bounds, np.int64))))
            # a file is not read that is farther from the others
            farthest = min(FARTHEST, (MAX_GAP - 1) * (proof.queue.file_size // ROW)) if proof is not None and bounds else FARTHEST
            groups = np.split(numbers, np.flatnonzero(np.diff(numbers) > farthest) + 1)
            largest = max(groups, key=lambda group: (bool(bounds) and group[0] <= bounds[0] <= group[-1], len(group)))
            near = first[(known >= max(0, largest[0])) & (known <= largest[-1])]
            others = np.setdiff1d(np.arange(len(offsets)), near)
            gaps, held = _between(offsets[near], rows[near]["physical_offset"], rows[others]["physical_offset"])
            self.left_out[key] = len(others) - len(held)
            chosen = np.concatenate((near, others[held]))
            parts[:] = [(np.concatenate((offsets[near], gaps)), rows[chosen])] if len(chosen) else []
        self.missing = defaultdict(list, {key: parts for key, parts in self.missing.items() if parts})

    @cached_property
    def _misplaced(self) -> MisplacedFiles:
        return MisplacedFiles(self.queues, self.log, self.log_end)

    def ends(self, log_end: int, only: tuple[str, int] | None = None) -> dict[tuple[str, int], int]:
        """Return where each queue ends after the repair: without the entries at its end that were never those of a message."""
        ends = {}
        for key, proof in self.queues.items() if only is None else [(only, self.queues[only])]:
            end = self.loaded_end(key, log_end)
            last = self._misplaced.end_of_messages(key)
            # what has expired comes before the messages that are left: 5.x takes a queue whose last entry has expired for one that has none
            all_expired = last == proof.queue.min_offset
            known = self._known(key) if end > last else {}
            while end > last:
                entry = proof.queue.entries(end - 1, end)[0]
                if self._serves(key, entry, expired=all_expired) and not self._repeats(key, end - 1, entry, known):
                    break
                end -= 1
            ends[key] = end
        for key, parts in self.missing.items() if only is None else ():
            ends[key] = max(ends.get(key, 0), *(int(offsets.max()) + 1 for offsets, _ in parts))
        for key, end in self._added.items() if only is None else ():
            ends[key] = max(ends.get(key, 0), end)
        return ends

    def loaded_end(self, key: tuple[str, int], log_end: int) -> int:
        """Return where a queue ends for a broker: without the entries at its end that lead past the end of the log."""
        queue = self.queues[key].queue
        end = queue.max_offset
        while end > queue.min_offset:
            entries = queue.entries(max(queue.min_offset, end - TAIL), end)
            inside = entries["physical_offset"].astype(np.int64) + entries["size"] <= log_end
            if inside.any():
                return end - (len(entries) - 1 - int(np.flatnonzero(inside)[-1]))
            end -= len(entries)
        return end

    def stand_ins(self, key: tuple[str, int], log_end: int) -> tuple[NDArray[np.int64], Rows]:
        """Return the places of a queue whose messages are lost, with the entries that shall be there. Places at its end are left out."""
        proof = self.queues[key]
        known = self._known(key)
        claimed = {int(offset) for part in proof.claimed for offset in part.tolist()} | known.keys() | self._restored.get(key, set())
        end = self.ends(log_end, only=key).get(key, 0)
        queue = proof.queue
        by_number = {} if self.log.start else _blanks(queue)
        begin = min(by_number, default=queue.min_offset)
        for low, high in proof.unproved():
            for start in range(low, min(high, end), TAIL):
                for number, entry in enumerate(proof.queue.entries(start, min(high, end, start + TAIL)), start):
                    if number not in claimed and not self._serves(key, entry):
                        by_number[number] = entry
                        if len(by_number) > MOST_STAND_INS:
                            return np.empty(0, np.int64), np.empty(0, ENTRY)
        offsets, rows = [], []
        before: np.void | None = None
        for number in sorted(by_number):
            if number - 1 not in by_number:
                place = number - 1
                before = self._entry(queue, place, known) if number > begin else None
                if before is None or int(before["physical_offset"]) < self.log.start:
                    next_ = next(place for place in itertools.count(number) if place not in by_number)
                    after = self._entry(queue, next_, known)
                    # a copy of what has expired, or a blank, would hide the loss, if there is any
                    if after is None or not self.log.start or self._has_gap_before(int(after["physical_offset"])):
                        place, before = next_, after
                    elif before is None:
                        before = np.full(1, np.array((0, BLANK_SIZE, 0), ENTRY))[0]
                if place > number and before is not None and not self._in_one_file(by_number[number], before):
                    before = None  # a pull that meets the place passes over nothing
            if before is not None:
                offsets.append(number)
                rows.append(before)
        return np.array(offsets, np.int64), np.array([row.item() for row in rows], ENTRY)

    def unit_stand_ins(self, key: tuple[str, int], log_end: int) -> Iterator[Change]:
        """Yield the write of each unit of a batch queue whose record is lost; none where units are out of order, as in another's file."""
        proof = self.batch_queues[key]
        if proof.proved.all() or not proof.proved.any():
            return
        written = [(file, number) for file, units in proof.queue.written for number in range(len(units))]
        units = np.concatenate([units for _, units in proof.queue.written], dtype=UNIT)
        physical, base = units["physical_offset"].astype(np.int64), units["base_offset"].astype(np.int64)
        proved = np.isin(physical, proof.units["physical_offset"][proof.proved])
        lost = ~proved & valid_units(units) & (self.log.start <= physical) & (physical < log_end)
        if (base[1:] != (base + units["count"])[:-1]).any():
            return
        donors = np.flatnonzero(proved)
        for number in np.flatnonzero(lost)[:MOST_STAND_INS].tolist():
            record = self.log.record(int(physical[number]))
            if int(base[number]) in self._restored.get(key, ()) or (record is not None and record.topic != FILLER_TOPIC):
                continue
            unit, beside = units[number].copy(), units[donors[max(0, int(np.searchsorted(donors, number)) - 1)]]
            for name in ("physical_offset", "size", "tags_code"):
                unit[name] = beside[name]
            file, place = written[number]
            yield Change("write", file.relative, place * UNIT_SIZE, unit.tobytes())

    def _known(self, key: tuple[str, int]) -> dict[int, np.void]:
        """Return the entries of a queue that another step writes, by queue offset."""
        parts = self.missing.get(key, ())
        return {int(offset): row for offsets, rows in parts for offset, row in zip(offsets.tolist(), rows, strict=True)}

    def _repeats(self, key: tuple[str, int], number: int, entry: np.void, known: Mapping[int, np.void]) -> bool:
        """Return whether an entry leads to a message that is listed at its own place of the queue, or will be. known: as for `_entry`."""
        record = self.log.record(int(entry["physical_offset"])) if entry["size"] > 0 else None
        if record is None or record.queue_offset == number:
            return False
        own = self._entry(self.queues[key].queue, record.queue_offset, known)
        return own is not None and own["physical_offset"] == entry["physical_offset"]

    @staticmethod
    def _entry(queue: ConsumeQueueReader, number: int, known: Mapping[int, np.void]) -> np.void | None:
        """Return the entry that a place has, or will have; None after the end. known: entries that other steps write, by number."""
        entries = queue.entries(number, number + 1)
        return known.get(number, entries[0] if len(entries) else None)

    def _has_gap_before(self, physical: int) -> bool:
        """Return whether bytes of the log before a physical offset were not read."""
        return any(
            item.kind.unread and int(name) + item.offset < physical
            for item in self.damage
            if item.file.startswith(f"{self.log.queue.relative}/") and (name := item.file.rpartition("/")[2]).isdecimal()
        )

    def _in_one_file(self, *entries: np.void) -> bool:
        """Return whether entries lead to the same file of the log."""
        return len({max(0, int(entry["physical_offset"])) // self.log.file_size for entry in entries}) == 1

    def _serves(self, key: tuple[str, int], entry: np.void, *, expired: bool = True) -> bool:
        """Return whether an entry leads to a message of its queue or a broker passes it over; with `expired`, also to one that is gone."""
        physical, size = int(entry["physical_offset"]), int(entry["size"])
        if size == BLANK_SIZE or (size > 0 and 0 <= physical < self.log.start):
            return expired
        record = self.log.record(physical) if size > 0 and physical >= 0 else None
        return record is not None and (record.topic, record.queue_id) == key


def _between(
    offsets: NDArray[np.int64], physical: NDArray[np.int64], others: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the only free places between two messages of a queue, and which other messages lie between the same two in the log.

    offsets, physical: of messages at their places, ascending; others: physical offsets of messages with a queue offset that is not theirs.
    """
    number = np.searchsorted(physical, others)
    inside = np.flatnonzero((number > 0) & (number < len(offsets)))
    after = number[inside]
    between = (physical[after - 1] < others[inside]) & (others[inside] < physical[after])
    inside = inside[between & (offsets[after] - offsets[after - 1] == 2)]
    places, first = np.unique(offsets[number[inside] - 1] + 1, return_index=True)
    return places, inside[first]


def queue_steps(store: RocketMQStore, scan: RepairScan, log_end: int) -> Iterator[Step]:
    """Yield one step for each queue that lacks entries. The scan must be complete. log_end: where the log will end."""
    for key in sorted(scan.queues):
        place = f"consumequeue/{key[0]}/{key[1]}"
        offsets, rows = scan.stand_ins(key, log_end)
        if len(offsets):
            why = f"{count(len(offsets), 'entry')} without a message: each becomes a copy of the one beside it"
            otherwise = "it ends the queue there, or clients drop what they pulled with it"
            loss = "nothing that is there; consumers receive the message beside each a second time"
            if (rows["size"] == BLANK_SIZE).all():
                why, loss = f"{count(len(offsets), 'entry')} whose messages have expired: each becomes one that a broker passes over", ""
            changes = tuple(_writes(scan, key, offsets, rows))
            yield Step("stand-in", place, int(offsets[0]) * ROW, len(offsets) * ROW, why, otherwise, loss, changes)
        unused = np.arange(scan.ends(log_end, only=key).get(key, 0), scan.loaded_end(key, log_end))
        if 0 < len(unused) <= MOST_STAND_INS:
            why = (
                f"{count(len(unused), 'entry')} after the last message of the queue, of no message: zeros are written, as before a message"
            )
            otherwise = "it continues the queue after them, and clients drop what they pull with them"
            changes = tuple(_writes(scan, key, unused, np.zeros(len(unused), ENTRY)))
            yield Step("queue-end", place, int(unused[0]) * ROW, len(unused) * ROW, why, otherwise, "", changes)
    yield from _batch_steps(scan, log_end)
    common, assumed = queue_file_size(store)
    decided = f"; {ask_for_configuration(assumed)}" if assumed else "".join(f"; {line}" for line in lines_that_decide(store, index=False))
    for (topic, queue_id), messages in sorted(scan.left_out.items()):
        if messages:
            why = f"{count(messages, 'message')} without an entry, with queue offsets that cannot be theirs: `mqstore rebuild` decides"
            yield Step("entries", f"consumequeue/{topic}/{queue_id}", 0, 0, why, "consumers do not get them", "", ())
    for (topic, queue_id), parts in sorted(scan.missing.items()):
        offsets = np.concatenate([part[0] for part in parts])
        rows = np.concatenate([part[1] for part in parts]).astype(ENTRY)  # joined rows have the byte order of this machine
        order = np.argsort(offsets, kind="stable")
        offsets, rows = offsets[order], rows[order]
        place = f"consumequeue/{topic}/{queue_id}"
        proof = scan.queues.get((topic, queue_id))
        size = (proof.queue.file_size if proof is not None else 0) or common
        before = 0 if proof is None else _unwritten_before(proof.queue, int(offsets[0]))
        if before:  # a broker that loads the file stops at the first of them
            filler = np.array((0, BLANK_SIZE, 0), ENTRY) if store.log.start else rows[0]
            offsets = np.concatenate((np.arange(offsets[0] - before, offsets[0]), offsets))
            rows = np.concatenate((np.full(before, filler, ENTRY), rows)).astype(ENTRY)
        changes = tuple(_changes(place, size, offsets, rows, proof is not None, _names(scan, topic, queue_id)))
        yield Step(
            "entries",
            place,
            int(offsets[0]) * ROW,
            len(rows) * ROW,
            f"{count(len(rows), 'message')} of the log without an entry here, or with one that leads elsewhere: the entries are written"
            + (decided if proof is None or not proof.queue.files else ""),
            "consumers do not get them",
            "",
            changes,
            assumes=assumed,
        )


def _batch_steps(scan: RepairScan, log_end: int) -> Iterator[Step]:
    """Yield one step for each batch queue with units of lost records, among units that follow each other."""
    for topic, queue_id in sorted(scan.batch_queues):
        changes = tuple(scan.unit_stand_ins((topic, queue_id), log_end))
        if changes:
            why = f"{count(len(changes), 'unit')} without a record: each leads to that of the one beside it, and keeps its place"
            otherwise = "clients drop what they pulled with it"
            loss = "nothing that is there; consumers receive the batch beside each a second time"
            place = f"batchconsumequeue/{topic}/{queue_id}"
            yield Step("stand-in", place, changes[0].offset, len(changes) * UNIT_SIZE, why, otherwise, loss, changes)


def _blanks(queue: ConsumeQueueReader) -> dict[int, np.void]:
    """Return the entries before the first message of a queue by place; a broker passes over them only where messages have expired."""
    if not queue.files:
        return {}
    first = queue.files[0].start // ROW
    rows = queue.rows(queue.files[0])[: max(0, min(queue.min_offset - first, MOST_STAND_INS))]
    return dict(enumerate(rows, first)) if (rows["size"] == BLANK_SIZE).all() else {}


def _unwritten_before(queue: ConsumeQueueReader, offset: int) -> int:
    """Return how many entries there are from the begin of a queue file to a place in it, if none of them is written."""
    for file in queue.files:
        place = offset - file.start // ROW
        if 0 < place <= file.size // ROW and not queue.rows(file)[:place].view(np.uint8).any():
            return place
    return 0


def _writes(scan: RepairScan, key: tuple[str, int], offsets: NDArray[np.int64], rows: Rows) -> Iterator[Change]:
    """Yield the writes of entries into the files of a queue that are there."""
    queue = scan.queues[key].queue
    names = {file.start // ROW: file.relative for file in queue.files}
    per_file = queue.file_size // ROW
    for offset, row in zip(offsets.tolist(), rows, strict=True):
        if (name := names.get(offset // per_file * per_file)) is not None:
            yield Change("write", name, offset % per_file * ROW, row.tobytes())


def _names(scan: RepairScan, topic: str, queue_id: int) -> set[str]:
    proof = scan.queues.get((topic, queue_id))
    return {file.name for file in proof.queue.files if file.size} if proof is not None else set()


def _changes(path: str, size: int, offsets: NDArray[np.int64], rows: Rows, exists: bool, names: set[str]) -> Iterator[Change]:
    """Yield the writes into files that exist, and whole files where there are none. Ascending offsets."""
    per_file = size // ROW
    if not exists:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            yield Change("mkdir", "/".join(parts[:depth]))
    begin, end = int(offsets[0]), int(offsets[-1]) + 1
    for number in range(begin // per_file, (end - 1) // per_file + 1) if not names else np.unique(offsets // per_file).tolist():
        start = number * per_file
        mine = offsets // per_file == number
        name = f"{start * ROW:020d}"
        if name in names:
            at = offsets[mine] - start
            breaks = np.flatnonzero(np.diff(at) != 1) + 1
            for part_at, part in zip(np.split(at, breaks), np.split(rows[mine], breaks), strict=True):
                yield Change("write", f"{path}/{name}", int(part_at[0]) * ROW, part.tobytes())
            continue
        low, high = (max(start, begin), min(start + per_file, end)) if not names else (int(offsets[mine][0]), int(offsets[mine][-1]) + 1)
        content = np.zeros(high - start, ENTRY)
        content[low - start :] = rows[np.searchsorted(offsets, np.arange(low, high), side="right") - 1]
        if start < low and name < min(names, default="A"):
            content["size"][: low - start] = BLANK_SIZE  # entries before the first message of the queue
        yield Change("put", f"{path}/{name}", content=content.tobytes())
        yield Change("resize", f"{path}/{name}", length=size)
