"""Joining of the findings of splits into those of a whole image, equal to those of one pass from its start to its end.

A message that begins in one split may end in the next, whose carver did not know it and may have found messages in its body. What the next
split found before that end is dropped; if something it found is across that end, the range up to there is carved again. So is the range
around the seam if a message begins right after it, whose frame may be before it.
"""

from __future__ import annotations

import numpy as np

from mqstore.carving.carver import MARGIN, carve_range, nonzero_bounds
from mqstore.carving.findings import FROM, KIND, TERM, TO, Found, Gap, Run
from mqstore.files.image import Image
from mqstore.kernels.rabbitmq import message_store
from mqstore.kernels.rocketmq import frames

BLOCK = 1 << 20


class Joined:
    """The findings of an image, split after split. found: those so far."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.found = Found(0, 0)
        self._messages = [self.found.messages]

    def add(self, following: Found) -> None:
        """Add the findings of the next split."""
        self._frame_before(following)
        while following.start < self.found.end:
            end = self.found.end
            across = _across(following, end)
            if across and across < following.end:
                self._append(carve_range(self.image, end, across))
                end = across
            following = self._cut(following, end) if end < following.end else Found(self.found.end, self.found.end)
        self._append(following)

    def finish(self) -> Found:
        """Return the findings of the image."""
        self.found.messages = np.concatenate(self._messages, axis=1)
        return self.found

    def _frame_before(self, following: Found) -> None:
        """Carve the seam again if the first message after it has no frame, and may have one that begins before it."""
        gaps, seam = self.found.gaps, following.start
        if not following.messages.shape[1] or not gaps or not gaps[-1].stop == seam == self.found.end:
            return
        start, term = int(following.messages[FROM, 0]), int(following.messages[TERM, 0])
        if start - seam >= MARGIN or following.messages[KIND, 0] == message_store.RECORD:
            return
        last = gaps.pop()
        back = max(last.start, seam - MARGIN)
        if back > last.start:
            gaps.append(self._without_end(last, back))
        self.found.end = back
        self._append(carve_range(self.image, back, term + 1))

    def _without_end(self, gap: Gap, stop: int) -> Gap:
        """Return the part of a gap before a position."""
        if gap.low < 0 or gap.low >= stop:
            return Gap(gap.start, -1, -1, stop)
        at = stop
        while gap.high > stop and at > gap.low:
            start = max(gap.low, at - BLOCK)
            low, high = nonzero_bounds(self.image.read(start, at))
            if low >= 0:
                return Gap(gap.start, gap.low, start + high, stop)
            at = start
        return Gap(gap.start, gap.low, gap.high, stop)

    def _append(self, following: Found) -> None:
        found = self.found
        runs, gaps, unreadable = following.runs, following.gaps, following.unreadable
        if found.runs and runs:
            last, first = found.runs[-1], runs[0]
            entry = self._is_entry(last, first)
            if entry:  # its header is not a gap, on either side of the seam
                gaps = [gap for gap in gaps if gap.stop > first.start]
                while found.gaps and found.gaps[-1].start >= last.end:
                    found.gaps.pop()
            if entry or (last.filled == last.end == first.start and last.base == first.base):
                found.runs[-1] = Run(last.base, np.concatenate([last.positions, first.positions]), first.end, first.filled)
                runs = runs[1:]
        if found.gaps and gaps and found.gaps[-1].stop == gaps[0].start:
            one, two = found.gaps[-1], gaps[0]
            found.gaps[-1] = Gap(one.start, two.low if one.low < 0 else one.low, one.high if two.low < 0 else two.high, two.stop)
            gaps = gaps[1:]
        if found.unreadable and unreadable and found.unreadable[-1][1] == unreadable[0][0]:
            found.unreadable[-1] = (found.unreadable[-1][0], unreadable[0][1])
            unreadable = unreadable[1:]
        found.runs.extend(runs)
        found.gaps.extend(gaps)
        found.unreadable.extend(unreadable)
        found.untried |= following.untried
        self._messages.append(following.messages)
        found.end = max(found.end, following.end)

    def _is_entry(self, last: Run, first: Run) -> bool:
        """Return whether a run goes on after the seam with an entry of DLedger, whose header was not known as such."""
        if last.base != first.base or last.filled != last.end or first.start - last.end != frames.ENTRY_HEADER_SIZE:
            return False
        stop = int(first.positions[1]) if len(first.positions) > 1 else first.end
        return frames.entry_status_at(self.image.read(last.end, stop), 0, last.base + last.end) == frames.VALID

    def _cut(self, found: Found, at: int) -> Found:
        """Return the findings at and after a position, which nothing found spans."""
        runs = []
        for run in found.runs:
            if run.start >= at:
                runs.append(run)
            elif run.end > at:
                runs.append(Run(run.base, run.positions[np.searchsorted(run.positions, at) :], run.end, run.filled))
        gaps = [self._shorten(gap, at) for gap in found.gaps if gap.stop > at]
        unreadable = [(max(low, at), high) for low, high in found.unreadable if high > at]
        messages = found.messages[:, found.messages[FROM] >= at]
        return Found(at, found.end, runs, messages, gaps, unreadable, found.untried)

    def _shorten(self, gap: Gap, at: int) -> Gap:
        if gap.start >= at:
            return gap
        low = gap.low
        position = at
        while 0 <= low < at:
            if position >= gap.high:
                return Gap(at, -1, -1, gap.stop)
            part = self.image.read(position, min(position + BLOCK, gap.high))
            first, _ = nonzero_bounds(part)
            low = position + first if first >= 0 else low
            position += max(1, len(part))
        return Gap(at, low, gap.high if low >= 0 else -1, gap.stop)


def _across(found: Found, at: int) -> int:
    """Return the end of a record or message that spans a position, 0 if there is none."""
    for run in found.runs:
        if run.start < at < run.filled:
            place = int(np.searchsorted(run.positions, at))
            if at < run.end and place < len(run.positions) and run.positions[place] == at:
                return 0
            following = run.positions[place:]
            return int(following[0]) if len(following) else run.filled
    spanning = (found.messages[FROM] < at) & (found.messages[TO] > at)
    return int(found.messages[TO][spanning].max()) if spanning.any() else 0
