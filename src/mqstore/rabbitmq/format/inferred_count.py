"""The number of entries of a segment, as the segments and journals of a vhost show it, for a vhost whose `.config` is lost.

A segment after which there is another one was filled, so that its highest number is the last one that a segment can have:

    0.idx  0 … 2047      1.idx  3 … 2047      2.idx  0 … 311          2048 entries
    3.idx  5 … 1700      journal: 6149 … 7850                         2048 entries: with 16384 these numbers were in 0.idx

Format: docs/formats/rabbitmq.md, section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.format.index_v1 import QueueIndexV1
from mqstore.rabbitmq.format.layout import bytes_of
from mqstore.rabbitmq.format.segment import MAX_ENTRIES, read_segment
from mqstore.rabbitmq.format.vhost_config import DEFAULT_ENTRIES, ENTRIES_WITHOUT_CONFIG

__all__ = ["InferredCount", "inferred_entry_count"]


class InferredCount(NamedTuple):
    """N. proved: the files show it; else they are the same with any number, because every sequence id is low."""

    entries: int
    proved: bool


def inferred_entry_count(directory: ReadOnlyDirectory, queues: Iterable[str]) -> InferredCount | None:
    """Return N, None if the files do not show it. queues: queue directories, relative to the root."""
    filled: set[int] = set()
    least, last = 1, 0
    usual = [DEFAULT_ENTRIES, ENTRIES_WITHOUT_CONFIG]
    for place in queues:
        index = QueueIndexV1(directory, place, MAX_ENTRIES)
        numbers = index.segment_numbers
        seqs = index.journal.seq
        for number in numbers:
            state = read_segment(bytes_of(directory, index.segment_file(number))[0], MAX_ENTRIES).state
            used = int(np.flatnonzero(state).max(initial=-1)) + 1
            least = max(least, used)
            if number < numbers[-1] or (number == 0 and len(seqs) and int(seqs.max()) >= used):
                filled.add(used)
        last = max(last, *numbers[-1:], int(seqs.max(initial=0)) // DEFAULT_ENTRIES)
        if numbers and len(seqs):  # a journal names no message of a segment before the first one
            usual = [count for count in usual if int(seqs.min()) // count >= numbers[0]]
    fitting = [count for count in usual if count >= least]
    if not last and fitting[:1] == [DEFAULT_ENTRIES]:
        return InferredCount(DEFAULT_ENTRIES, proved=False)
    for proved in ([count for count in fitting if count in filled], fitting):
        if len(proved) == 1:
            return InferredCount(proved[0], proved=True)
    return None
