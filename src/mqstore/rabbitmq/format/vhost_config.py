r"""`.config` of a vhost: the number of entries in a segment of its queues.

    %% This file is auto-generated! Edit at your own risk!
    {segment_entry_count, 2048}.

The number is fixed for the life of the vhost: by default 2048 for vhosts created by 3.8.17 or newer. If the file is missing or unreadable
it is 16384, the most that the bits of a segment entry allow. It does not apply to queues of version 2. A file that can be read and does
not state a number, such as an empty one, is worse than none: the broker fails when it starts the vhost.

    >>> segment_entry_count(config_file(2048))
    2048
    >>> segment_entry_count(b"{segment_entry_count, }")
    16384

For a vhost whose `.config` is lost, the segments and journals show the number (`inferred_entry_count`).

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
from mqstore.rabbitmq.erlang.terms import Atom, ErlangTextError, Term, read_text
from mqstore.rabbitmq.format.index_v1 import QueueIndexV1
from mqstore.rabbitmq.format.layout import bytes_of
from mqstore.rabbitmq.format.segment import MAX_ENTRIES, read_segment

ENTRIES_WITHOUT_CONFIG = 16384
DEFAULT_ENTRIES = 2048
LONGEST = 1 << 16  # bytes; what is longer was damaged, and as text would take many times its size

_COMMENT = b"%% This file is auto-generated! Edit at your own risk!\n"


def stated_entry_count(content: bytes) -> int | str:
    """Return the number in the file, or why there is none."""
    terms = _terms(content)
    if isinstance(terms, str):
        return terms
    count = _stated(terms)
    if isinstance(count, int) and 1 <= count <= MAX_ENTRIES:
        return count
    return (
        "it has no segment_entry_count"
        if count is None
        else f"segment_entry_count must be a number from 1 to {MAX_ENTRIES}, not {count!r:.40}"
    )


def lacks_number(content: bytes) -> bool:
    """Return whether the file can be read and states no number: the broker fails on it.

    >>> lacks_number(b""), lacks_number(b"{segment_entry_count, many}."), lacks_number(b"{segment_entry_count, }"), lacks_number(b"{a, 1}.")
    (True, True, False, True)
    """
    terms = _terms(content)
    return not isinstance(terms, str) and not isinstance(_stated(terms), int)


def _terms(content: bytes) -> list[Term] | str:
    """Return the terms of the file, or why it has none."""
    if len(content) > LONGEST:
        return f"it has {len(content)} bytes: it is not a sequence of Erlang terms that a broker wrote"
    try:
        return read_text(content)
    except ErlangTextError as error:
        return f"it is not a sequence of Erlang terms: {error}"


def _stated(terms: list[Term]) -> Term | None:
    """Return the value that the broker takes, which makes a map of the terms: the last one."""
    pairs = [term for term in terms if isinstance(term, tuple) and len(term) == 2]
    return next((value for name, value in reversed(pairs) if name == Atom("segment_entry_count")), None)


def segment_entry_count(content: bytes | None) -> int:
    """Return the number of entries in a segment. content: the bytes of `.config`, None if there is no such file."""
    stated = stated_entry_count(content) if content is not None else ENTRIES_WITHOUT_CONFIG
    return stated if isinstance(stated, int) else ENTRIES_WITHOUT_CONFIG


def config_file(entries: int) -> bytes:
    """Return the bytes of a `.config` as a broker writes it."""
    if not 1 <= entries <= MAX_ENTRIES:
        raise ValueError(f"a segment has 1 to {MAX_ENTRIES} entries, not {entries}")
    return _COMMENT + b"{segment_entry_count, %d}." % entries


class InferredCount(NamedTuple):
    """N. proved: the files show it; else they are the same with any number, because every sequence id is low."""

    entries: int
    proved: bool


def inferred_entry_count(directory: ReadOnlyDirectory, queues: Iterable[str]) -> InferredCount | None:
    """Return N, None if the files do not show it. queues: queue directories, relative to the root."""
    filled: set[int] = set()
    least, last = 1, 0
    usual = [DEFAULT_ENTRIES, ENTRIES_WITHOUT_CONFIG]
    for path in queues:
        index = QueueIndexV1(directory, path, MAX_ENTRIES)
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
