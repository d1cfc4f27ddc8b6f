"""Steps for consume queues: entries that the log requires and that no broker adds by itself, written in place.

An entry that leads elsewhere is replaced; entries that are missing at the end, or of queues without files, are written unless the broker
recovers as after a crash, and so adds them itself.

The place of a message whose record is lost gets the entry of the message before it. Consumers then receive that one twice. An unwritten
entry would end the queue there, and one that leads to bytes without a record makes clients drop the rest of what they pulled.

Format: docs/formats/rocketmq.md, sections 4.1 and 4.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.repair.change import Change, Step
from mqstore.rocketmq.dispatch.dispatcher import QueueRun, dispatch_positions
from mqstore.rocketmq.format import consume_queue
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.formatting import count

Rows = NDArray[np.void]
ROW = ENTRY.itemsize
MOST_STAND_INS = 100_000  # of a queue; more are not a repair
DEFAULT_FILE = 300_000 * ROW
TAIL = 4096  # entries looked at at once
FARTHEST = 1 << 20  # entries between two neighbours beyond which a queue offset is taken for damage


class RepairScan(Verification):
    """A verification that keeps the entries that queues lack or have otherwise. missing: by queue, (queue offsets, entries)."""

    def __init__(self, store: RocketMQStore) -> None:
        super().__init__(store)
        self.missing: dict[tuple[str, int], list[tuple[NDArray[np.int64], Rows]]] = defaultdict(list)
        self._restored: dict[tuple[str, int], set[int]] = {}  # queue offsets of records that the plan restores

    def _take_run(self, run: QueueRun) -> None:
        super()._take_run(run)
        self._keep_missing(run)

    def add_restored(self, record: Bytes) -> None:
        """Keep the entry of a record that the plan restores, unless its queue has it."""
        for run in dispatch_positions(record, np.zeros(1, np.int64), self.rules).runs:
            self._restored.setdefault((run.topic, run.queue_id), set()).update(run.offsets.tolist())
            self._keep_missing(run)

    def _keep_missing(self, run: QueueRun) -> None:
        if run.batch or self.store.unread_queues is not None:
            return
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
            if self.store.unclean:
                differs &= run.offsets < high  # the broker adds the rest
            differs &= run.offsets >= low  # below it, entries have expired
        elif self.store.unclean:
            return
        if differs.any():
            self.missing[run.topic, run.queue_id].append((run.offsets[differs].copy(), rows[differs].copy()))

    def ends(self, log_end: int, only: tuple[str, int] | None = None) -> dict[tuple[str, int], int]:
        """Return where each queue ends for a broker: without the entries at its end that lead past the end of the log."""
        found = {}
        for key, proof in self.queues.items() if only is None else [(only, self.queues[only])]:
            end = proof.queue.max_offset
            while end > proof.queue.min_offset:
                entries = proof.queue.entries(max(proof.queue.min_offset, end - TAIL), end)
                inside = entries["physical_offset"].astype(np.int64) + entries["size"] <= log_end
                if inside.any():
                    end -= len(entries) - 1 - int(np.flatnonzero(inside)[-1])
                    break
                end -= len(entries)
            found[key] = end
        for key, parts in self.missing.items() if only is None else ():
            found[key] = max(found.get(key, 0), *(int(offsets.max()) + 1 for offsets, _ in parts))
        return found

    def stand_ins(self, key: tuple[str, int], log_end: int) -> tuple[NDArray[np.int64], Rows]:
        """Return the places of a queue whose messages are lost, with the entries that shall be there. Places at its end are left out."""
        proof = self.queues[key]
        known = {
            int(offset): row for offsets, rows in self.missing.get(key, ()) for offset, row in zip(offsets.tolist(), rows, strict=True)
        }
        claimed = {int(offset) for part in proof.claimed for offset in part.tolist()} | known.keys() | self._restored.get(key, set())
        end = self.ends(log_end, only=key).get(key, 0)
        found: dict[int, np.void] = {}
        for low, high in proof.unproved():
            for start in range(low, min(high, end), TAIL):
                for number, entry in enumerate(proof.queue.entries(start, min(high, end, start + TAIL)), start):
                    if number not in claimed and not self._serves(key, entry):
                        found[number] = entry
                        if len(found) > MOST_STAND_INS:
                            return np.empty(0, np.int64), np.empty(0, ENTRY)
        offsets, rows = [], []
        before: np.void | None = None
        for number in sorted(found):
            if number - 1 not in found or before is None:
                entries = proof.queue.entries(number - 1, number)
                before = known.get(number - 1, entries[0] if len(entries) else None)
            if before is not None:
                offsets.append(number)
                rows.append(before)
        return np.array(offsets, np.int64), np.array([row.item() for row in rows], ENTRY)

    def _serves(self, key: tuple[str, int], entry: np.void) -> bool:
        """Return whether an entry leads to a message of its queue, or is one that a broker passes over."""
        physical, size = int(entry["physical_offset"]), int(entry["size"])
        if size == BLANK_SIZE or (size > 0 and 0 <= physical < self.log.start):
            return True
        record = self.log.record(physical) if size > 0 and physical >= 0 else None
        return record is not None and (record.topic, record.queue_id) == key


def queue_steps(store: RocketMQStore, scan: RepairScan, log_end: int) -> Iterator[Step]:
    """Yield one step for each queue that lacks entries. The scan must be complete. log_end: where the log will end."""
    for key in sorted(scan.queues):
        offsets, rows = scan.stand_ins(key, log_end)
        if len(offsets):
            place = f"consumequeue/{key[0]}/{key[1]}"
            names = {file.start // ROW: file.name for file in scan.queues[key].queue.files}
            per_file = scan.queues[key].queue.file_size // ROW
            changes = tuple(
                Change("write", f"{place}/{names[offset // per_file * per_file]}", offset % per_file * ROW, row.tobytes())
                for offset, row in zip(offsets.tolist(), rows, strict=True)
                if offset // per_file * per_file in names
            )
            why = f"{count(len(offsets), 'entry')} without a message: each becomes a copy of the entry before it"
            otherwise = "it ends the queue there, or clients drop what they pulled with it"
            loss = "nothing that is there; consumers receive the message before each a second time"
            yield Step("stand-in", place, int(offsets[0]) * ROW, len(offsets) * ROW, why, otherwise, loss, changes)
    common = store.config.consume_queue_file_size or consume_queue.common_file_size(store.directory)
    for (topic, queue_id), parts in sorted(scan.missing.items()):
        offsets = np.concatenate([part[0] for part in parts])
        rows = np.concatenate([part[1] for part in parts]).astype(ENTRY)  # joined rows have the byte order of this machine
        order = np.argsort(offsets, kind="stable")
        offsets, rows = offsets[order], rows[order]
        place = f"consumequeue/{topic}/{queue_id}"
        if len(np.unique(offsets)) != len(offsets) or (len(offsets) > 1 and int(np.diff(offsets).max()) > FARTHEST) or int(offsets[0]) < 0:
            why = (
                f"{count(len(offsets), 'message')} have no entry, and their queue offsets contradict each other: `mqstore rebuild` decides"
            )
            yield Step("entries", place, 0, 0, why, "consumers do not get them", "", ())
            continue
        proof = scan.queues.get((topic, queue_id))
        size = (proof.queue.file_size if proof is not None else 0) or common or DEFAULT_FILE
        changes = tuple(_changes(place, size, offsets, rows, proof is not None, _names(scan, topic, queue_id)))
        yield Step(
            "entries",
            place,
            int(offsets[0]) * ROW,
            len(rows) * ROW,
            f"{count(len(rows), 'message')} of the log have no entry here, or one that leads elsewhere: the entries are written",
            "consumers do not get them",
            "",
            changes,
        )


def _names(scan: RepairScan, topic: str, queue_id: int) -> set[str]:
    proof = scan.queues.get((topic, queue_id))
    return {file.name for file in proof.queue.files if file.size} if proof is not None else set()


def _changes(place: str, size: int, offsets: NDArray[np.int64], rows: Rows, exists: bool, names: set[str]) -> Iterator[Change]:
    """Yield the writes into files that exist, and whole files where there are none. Ascending offsets."""
    per_file = size // ROW
    if not exists:
        parts = place.split("/")
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
                yield Change("write", f"{place}/{name}", int(part_at[0]) * ROW, part.tobytes())
            continue
        low, high = (max(start, begin), min(start + per_file, end)) if not names else (int(offsets[mine][0]), int(offsets[mine][-1]) + 1)
        content = np.zeros(high - start, ENTRY)
        content[low - start :] = rows[np.searchsorted(offsets, np.arange(low, high), side="right") - 1]
        if not names and start < begin:
            content["size"][: begin - start] = BLANK_SIZE  # entries before the first message of the queue
        yield Change("put", f"{place}/{name}", content=content.tobytes())
        yield Change("resize", f"{place}/{name}", length=size)
