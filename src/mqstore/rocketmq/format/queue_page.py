"""Queue pages: the part of one queue file that a read at a queue offset returns.

A broker reads a consume queue file by file. A read at an offset returns what is written from there on *in that file*, and
nothing if the offset is below the minimum or no file holds it:

    queue of 10 entries a file, 23 written, minimum 3

    page_from(queue, 8)     file 0, rows 8..9       the next file takes another read
    page_from(queue, 21)    file 2, rows 1..2
    page_from(queue, 2)     None
    page_from(queue, 23)    None

A batch queue is read at the unit whose batch holds the offset.

Format: docs/formats/rocketmq.md, sections 4.4 and 4.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.consume_queue import ENTRY_SIZE

Rows = NDArray[np.void]


class PagedFile(Protocol):
    """One queue file. start: byte of the run. written: bytes that count."""

    start: int
    written: int

    def part(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1 of the file."""
        ...


class PagedQueue(Protocol):
    """A queue as a broker holds it, such as `dispatch.consume_queue_image.QueueImage`."""

    @property
    def batch(self) -> bool: ...
    @property
    def file_size(self) -> int: ...
    @property
    def files(self) -> Sequence[PagedFile]: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...


class QueuePage(NamedTuple):
    """Written rows first..stop-1 of a file, first < stop."""

    file: PagedFile
    first: int
    stop: int

    def rows(self, max_rows: int | None = None) -> Rows:
        """Return the rows, at most max_rows of them."""
        return self.file.part(self.first, self.stop if max_rows is None else min(self.stop, self.first + max_rows))


def unit_size(queue: PagedQueue) -> int:
    """Return the bytes of a row."""
    return UNIT_SIZE if queue.batch else ENTRY_SIZE


def page_from(queue: PagedQueue, offset: int) -> QueuePage | None:
    """Return the page that a read at a queue offset gives, or None."""
    if queue.batch:
        return _batch_page(queue, offset)
    position = offset * ENTRY_SIZE
    files = queue.files  # retention may replace it by a shorter list meanwhile
    if offset < queue.min_offset or not files:
        return None
    size = queue.file_size
    number = position // size - files[0].start // size
    if not (0 <= number < len(files) and files[number].start <= position < files[number].start + size):
        number = next((k for k, file in enumerate(files) if file.start <= position < file.start + size), -1)
        if number < 0:
            return None
    file = files[number]
    first, stop = (position - file.start) // ENTRY_SIZE, file.written // ENTRY_SIZE
    return QueuePage(file, first, stop) if first < stop else None


def _batch_page(queue: PagedQueue, offset: int) -> QueuePage | None:
    """Return the page from the last unit that begins at or before the offset, in the last such file.

    Where units are not in order: in the last file, or else in that with the highest such begin, from where a search by halves ends.
    """
    if offset >= queue.max_offset:
        return None
    begins = {_base(file): file for file in queue.files[-1:]}
    if min(begins, default=offset + 1) > offset:
        begins = {base: file for base, file in ((_base(file), file) for file in queue.files) if base <= offset}
    if not begins:
        return None
    file = begins[max(begins)]
    stop = file.written // UNIT_SIZE
    first = _found_by_halves(file.part(0, stop)["base_offset"], offset)
    return None if first < 0 else QueuePage(file, first, stop)


def _found_by_halves(bases: NDArray[np.int64], offset: int) -> int:
    """Return where a broker's search for the last base at or before an offset ends; -1 if it finds none."""
    left, right = 0, len(bases) - 1
    while left <= right:
        middle = (left + right) // 2
        base = int(bases[middle])
        if base > offset:
            right = middle - 1
        elif base == offset:
            return middle
        elif middle == left:
            return middle + (middle + 1 < len(bases) and int(bases[middle + 1]) <= offset)
        else:
            left = middle
    return -1


def _base(file: PagedFile) -> int:
    """Return the queue offset at which a file begins; a file without rows sorts last."""
    return int(file.part(0, 1)["base_offset"][0]) if file.written else 1 << 63


def entry_at(queue: PagedQueue, offset: int) -> np.void | None:
    """Return the entry of a queue offset, or the unit that holds it; None if a read returns nothing."""
    page = page_from(queue, offset)
    return None if page is None else page.rows(1)[0]


def roll_next_file(queue: PagedQueue, offset: int) -> int:
    """Return the queue offset at which the next file begins; for a batch queue the broker answers 0."""
    per_file = queue.file_size // ENTRY_SIZE
    return 0 if queue.batch else offset + per_file - offset % per_file
