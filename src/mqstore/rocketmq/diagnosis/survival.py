"""Survival: which messages of a log a broker still delivers after it has loaded the store, in one pass of `verify`.

The log is read as `verify` reads it, so that intact records count wherever they are. Each message that a queue should list is looked
up in the queues that the simulated recovery ends with:

    kept      its entry is at its queue offset, and the log is not cut before its end
    moved     its entry is in its queue, at another queue offset
    lost      neither
    missing   its queue has or had an entry for it, and no record of the log has that queue offset; where a queue has no file, the
              records before and after it are there
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.dispatch.targets import AnyQueueImage
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.consume_queue import BLANK_SIZE, ENTRY
from mqstore.rocketmq.format.record import MIN_RECORD_SIZE
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.log_proof import SplitCheck
from mqstore.rocketmq.verify.queue_proof import QueueProof
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.arrow_spans import distinct

Longs = NDArray[np.int64]

SLOTS = 65536  # queue entries that are looked at at once
LARGEST_LOG = 1 << 42  # no entry leads further past the end of the log than a log can be large
FAR = 1024  # queue offsets that may be missing in a queue of a few records


@dataclass(slots=True)
class QueueLoss:
    """Messages of one queue that are lost or moved. first: physical offset of the first; before_end: lost ones that the cut spares."""

    lost: int = 0
    moved: int = 0
    first: int = -1
    before_end: int = 0


@dataclass(slots=True)
class _Listed:
    """The physical offsets that one recovered queue lists, sorted; made for a queue in which something is not where it should be."""

    image: AnyQueueImage
    offsets: Longs = field(init=False)

    def __post_init__(self) -> None:
        rows = self.image.entries(self.image.min_offset, self.image.max_offset)
        self.offsets = np.sort(rows["physical_offset"].astype(np.int64))

    def has(self, physical: Longs) -> NDArray[np.bool_]:
        at = np.searchsorted(self.offsets, physical)
        found = np.zeros(len(physical), np.bool_)
        inside = at < len(self.offsets)
        found[inside] = self.offsets[at[inside]] == physical[inside]
        return found


class SurvivalCheck(Verification):
    """A verification that also counts what a recovery keeps. recovery: None if the broker does not start; then nothing is counted."""

    def __init__(self, store: RocketMQStore, recovery: Recovery | None) -> None:
        super().__init__(store)
        self.recovery = recovery
        self.by_queue: dict[tuple[str, int], QueueLoss] = {}
        self.lost = 0
        self.moved = 0
        self._listed: _Listed | None = None  # of the queue that was looked at last
        self.uncounted: list[tuple[str, int]] = []  # queues without files, of which `count_missing` cannot know how many are missing
        # records without a place in the files of their queue: lowest and highest queue offset, number
        self._unlisted: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._places: list[Longs] = []  # physical offsets of missing messages, if a message can be in several queues

    def count_missing(self) -> int:
        """Count the messages of which only a place in a queue is left. To be called once the report is made."""
        total = 0
        for key, (low, high, records) in self._unlisted.items():
            if high - low > 4 * records + FAR:  # the queue offset of a damaged record may be any number
                self.uncounted.append(key)
            else:
                total += max(0, high - low + 1 - records)
        total += sum(self._missing_of(proof) for proof in self.queues.values())
        places = np.concatenate(self._places) if self._places else np.empty(0, np.int64)
        return total - (len(places) - len(distinct(places)))

    def _missing_of(self, proof: QueueProof) -> int:
        """Count the queue offsets below the end of a queue that no record has. Offsets are given out one after the other."""
        left = list(proof.unproved())
        claimed = np.concatenate(proof.claimed) if proof.claimed else np.empty(0, np.int64)
        known = max((high for _, high in proof.proved), default=proof.queue.min_offset)
        end = self._end_of(proof, left, max(known, int(claimed.max()) + 1 if len(claimed) else 0))
        oldest = min([*(low for low, _ in proof.proved), *claimed[:1].tolist()], default=end) if self.log.start else 0
        total = 0
        for low, high in left:
            for start in range(low, min(high, end), SLOTS):
                entries = proof.queue.entries(start, min(high, end, start + SLOTS))
                physical, size = entries["physical_offset"].astype(np.int64), entries["size"]
                blank = (physical == 0) & (size == BLANK_SIZE)
                # the message of an unwritten entry below those that the log begins with has expired, too
                expired = (physical < self.log.start) & ((size > 0) | (np.arange(start, start + len(entries)) < oldest))
                gone = np.setdiff1d(start + np.flatnonzero(~blank & ~expired), claimed)
                lost = [offset for offset in gone.tolist() if not self._is_there(int(physical[offset - start]), offset)]
                total += len(lost)
                if self.rules.multi_dispatch:
                    places = physical[np.array(lost, np.int64) - start]
                    self._places.append(places[size[np.array(lost, np.int64) - start] > 0])
        return total

    def _end_of(self, proof: QueueProof, left: list[tuple[int, int]], known: int) -> int:
        """Return the queue offset after the last message that a queue ever had, as far as its entries can be trusted.

        An entry is trusted if it could be that of a record of the log and does not lead to another one, as in a misplaced file.
        """
        last = self.log_end + LARGEST_LOG
        for low, high in reversed(left):
            for start in reversed(range(max(low, known), high, SLOTS)):
                entries = proof.queue.entries(start, min(high, start + SLOTS))
                physical, size = entries["physical_offset"].astype(np.int64), entries["size"]
                trusted = (physical >= self.log.start) & (physical < last) & (size >= MIN_RECORD_SIZE) & (size != BLANK_SIZE)
                for k in np.flatnonzero(trusted)[::-1].tolist():
                    if self.log.record(int(physical[k])) is None:
                        return int(start + k + 1)
        return known

    def _is_there(self, physical: int, queue_offset: int) -> bool:
        """Return whether an entry leads to a record that has its queue offset, although its topic or queue id is another one."""
        record = self.log.record(physical)
        return record is not None and int(record.queue_offset) == queue_offset

    def _take_run(self, run: QueueRun) -> None:
        super()._take_run(run)
        if run.batch:
            return
        key = (run.topic, run.queue_id)
        offsets, proof = run.offsets, self.queues.get(key)
        if proof is not None:
            offsets = offsets[offsets >= proof.queue.max_offset]
        if len(offsets):
            low, high = (int(offsets.min()) if proof is None else proof.queue.max_offset), int(offsets.max())
            before = self._unlisted.get(key, (low, high, 0))
            self._unlisted[key] = (min(low, before[0]), max(high, before[1]), before[2] + len(offsets))

    def take(self, check: SplitCheck) -> None:
        """Check a split, and count the messages in it that the recovery does not keep."""
        super().take(check)
        if self.recovery is None or check.dispatched is None:
            return
        lost: list[Longs] = []
        moved: list[Longs] = []
        for run in check.dispatched.runs:
            self._take_survivors(run, lost, moved)
        # a message that several queues list counts once
        gone = distinct(np.concatenate(lost)) if lost else np.empty(0, np.int64)
        self.lost += len(gone)
        if moved:
            self.moved += len(np.setdiff1d(np.concatenate(moved), gone))

    def _take_survivors(self, run: QueueRun, lost: list[Longs], moved: list[Longs]) -> None:
        assert self.recovery is not None
        rows = run.entries.view(UNIT if run.batch else ENTRY)
        physical = rows["physical_offset"].astype(np.int64)
        ends = physical + rows["size"]
        image = self._image(run)
        whole = ends <= self.recovery.log_max
        if image is None:
            self._count(run, physical, np.zeros(len(run), np.bool_), whole, lost, moved)
            return
        placed = whole & (self._at_their_place(image, run) == physical)
        if placed.all():
            return
        if self._listed is None or self._listed.image is not image:
            self._listed = _Listed(image)
        self._count(run, physical[~placed], self._listed.has(physical[~placed]) & whole[~placed], whole[~placed], lost, moved)

    def _image(self, run: QueueRun) -> AnyQueueImage | None:
        assert self.recovery is not None
        queues = self.recovery.queues
        return queues.get((run.topic, run.queue_id, run.batch)) or queues.get((run.topic, run.queue_id, False))

    def _at_their_place(self, image: AnyQueueImage, run: QueueRun) -> Longs:
        """Return the physical offsets that the recovered queue has at the queue offsets of a run; -1 where it has none."""
        found = np.full(len(run), -1, np.int64)
        if image.batch or run.batch:
            return found  # units are looked up by physical offset
        offsets = run.offsets
        low, high = int(offsets.min()), int(offsets.max()) + 1
        if high - low > 4 * len(run) + 1024:  # queue offsets of damaged records may be anywhere
            return found
        begin = max(low, image.min_offset)
        rows = image.entries(begin, min(high, image.max_offset))
        inside = (offsets >= begin) & (offsets < begin + len(rows))
        found[inside] = rows["physical_offset"].astype(np.int64)[offsets[inside] - begin]
        return found

    def _count(
        self, run: QueueRun, physical: Longs, there: NDArray[np.bool_], whole: NDArray[np.bool_], lost: list[Longs], moved: list[Longs]
    ) -> None:
        if not run.batch:
            moved.append(physical[there])
        lost.append(physical[~there])
        loss = self.by_queue.setdefault((run.topic, run.queue_id), QueueLoss())
        if not run.batch:
            loss.moved += int(there.sum())
        loss.lost += int((~there).sum())
        loss.before_end += int((~there & whole).sum())
        if loss.first < 0 and len(physical[~there]):
            loss.first = int(physical[~there][0])
