"""Merge of journal and segments of a version 1 queue: the broker's tables, applied to columns.

The journal holds the actions since the last flush, the segments those before it; after a crash between writing the segments and
truncating the journal, the same actions are in both. For each sequence id, with J from the journal and S from the segment:

    minus   removes from J what S already has (a dirty start does this first)    J' = minus(J, S)
    plus    is the resulting state of the entry                                  state = plus(S, J')

    >>> MergedState(*minus_plus(JD, SP, dirty=True))
    MergedState(state=3, crash=False)
    >>> MergedState(*minus_plus(JA, SP, dirty=True))
    MergedState(state=7, crash=True)

J is one of nothing, P, PD, D, A, DA (published, delivered, acknowledged), S one of nothing, P, PD, PDA. The tables below are the broker's.
In some cells it crashes; there the actions are combined (an acknowledgement in either counts), and the crash is reported. Since
3.10.24, 3.11.18 and 3.12.1 an acknowledgement without a delivery does not crash (`lenient`).

Format: docs/formats/rabbitmq.md, sections 5.2, 5.6 and 7.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mqstore.kernels.rabbitmq import queue_index
from mqstore.rabbitmq.format.journal import PUBLISH_TRANSIENT

# states of an entry: bits
PUBLISHED, DELIVERED, ACKED = queue_index.P, queue_index.D, queue_index.A
NOTHING, SP, SPD, SPDA = 0, 1, 3, 7
JP, JPD, JPDA, JD, JA, JDA = 1, 3, 7, 2, 4, 6

_CRASH = 16
# J after "minus": rows by the bits of J, columns by the bits of S
_MINUS = np.full((8, 8), _CRASH, np.uint8)
for _j, _row in {
    NOTHING: {NOTHING: 0, SP: 0, SPD: 0, SPDA: 0},
    JP: {NOTHING: JP, SP: 0},  # SP: only if both publishes are identical
    JPD: {NOTHING: JPD, SP: JD, SPD: 0},
    JPDA: {NOTHING: JPDA, SP: JDA, SPD: JA, SPDA: 0},
    JD: {SP: JD, SPD: 0},
    JA: {NOTHING: 0, SPD: JA, SPDA: 0},
    JDA: {NOTHING: 0, SP: JDA, SPD: JA, SPDA: 0},
}.items():
    for _s, _out in _row.items():
        _MINUS[_j, _s] = _out
# state after "plus": rows by the bits of S, columns by the bits of J; an entry acknowledged in the file counts as nothing here
_PLUS = np.full((8, 8), _CRASH, np.uint8)
for _s, _row in {
    NOTHING: {NOTHING: 0, JP: SP, JPD: SPD, JPDA: SPDA},
    SP: {NOTHING: SP, JD: SPD, JDA: SPDA},
    SPD: {NOTHING: SPD, JA: SPDA},
}.items():
    for _j, _out in _row.items():
        _PLUS[_s, _j] = _out
_PLUS[SPDA] = _PLUS[NOTHING]


class MergedState(NamedTuple):
    """The state of one sequence id as bits (7: acknowledged), and whether the broker would crash on it."""

    state: int
    crash: bool


class MergedStates(NamedTuple):
    """The same for many sequence ids."""

    state: NDArray[np.uint8]
    crash: NDArray[np.bool_]


def merge(j: NDArray[np.uint8], s: NDArray[np.uint8], same: NDArray[np.bool_], *, dirty: bool, lenient: bool = False) -> MergedStates:
    """Return the state of each sequence id from the bits of its journal part j and its segment part s.

    same: whether the publishes are identical, if both have one. dirty: "minus" first, as after a crash.
    """
    crash = np.zeros(len(j), np.bool_)
    left = j
    if dirty:
        left = _MINUS[j, s]
        crash |= left == _CRASH
        crash |= (j == JP) & (s == SP) & ~same
        if lenient:
            accepted = (j == JA) & (s == SP)
            left = np.where(accepted, np.uint8(JDA), left)
            crash &= ~accepted
        left = np.where(crash, np.uint8(0), left)
    state = _PLUS[s, left]
    if lenient:
        accepted = (s == SP) & (left == JA)
        state = np.where(accepted, np.uint8(SPDA), state)
    crash |= state == _CRASH
    # acknowledged in the file, and not published again in the journal: still acknowledged
    state = np.where((s == SPDA) & (state == 0), np.uint8(SPDA), state)
    added = j | s
    added = np.where(added & queue_index.P == 0, np.uint8(0), np.where(added & queue_index.A != 0, np.uint8(7), added))
    return MergedStates(np.where(crash, added, state).astype(np.uint8), crash)


@cache
def without_journal(*, dirty: bool, lenient: bool) -> MergedStates:
    """Return the result of `merge` for each of the eight segment parts, with nothing in the journal."""
    return merge(np.zeros(8, np.uint8), np.arange(8, dtype=np.uint8), np.ones(8, np.bool_), dirty=dirty, lenient=lenient)


def minus_plus(j: int, s: int, *, dirty: bool, lenient: bool = False, same: bool = True) -> tuple[int, bool]:
    """Merge one sequence id; return (state, crash)."""
    found = merge(np.array([j], np.uint8), np.array([s], np.uint8), np.array([same]), dirty=dirty, lenient=lenient)
    return int(found.state[0]), bool(found.crash[0])


@dataclass(frozen=True, slots=True)
class JournalMap:
    """The journal's actions combined, one row per sequence id, ascending.

    state: bits P, D, A in the broker's map. publish: the action that publishes, or -1. removed: published, delivered and acknowledged
    within the journal, and therefore no longer in the map. other: all other actions that publish one of these ids, by id and in file
    order; what is before `publish` of its id was acknowledged before that. bad: the action at which the broker would crash, or -1.
    dirty_count: number of actions.
    """

    seq: NDArray[np.int64]
    state: NDArray[np.uint8]
    publish: NDArray[np.int64]
    removed: NDArray[np.bool_]
    other: NDArray[np.int64]
    bad: NDArray[np.int64]
    dirty_count: int


def journal_map(kind: NDArray[np.uint8], seq: NDArray[np.int64], *, lenient: bool = False) -> JournalMap:
    """Combine actions as the broker does when it reads a journal. lenient: an acknowledgement without a delivery does not crash."""
    count = len(seq)
    order = np.argsort(seq, kind="stable").astype(np.int64, copy=False)
    first, publish, repeat, bad = (np.empty(count, np.int64) for _ in range(4))
    state = np.empty(count, np.uint8)
    ids = queue_index.fold(order, kind, seq, first, state, publish, repeat, bad)
    bits = state[:ids]
    bad = bad[:ids].copy()
    if lenient:
        # only the crash of an acknowledgement after a bare publish has left an entry removed
        bad[(bits & queue_index.REMOVED != 0) & (repeat[:ids] < 0)] = -1
    other = kind <= PUBLISH_TRANSIENT
    other[publish[:ids][publish[:ids] >= 0]] = False
    return JournalMap(
        seq[first[:ids]],
        (bits & 7).astype(np.uint8),
        publish[:ids].copy(),
        bits & queue_index.REMOVED != 0,
        order[other[order]],
        bad,
        count,
    )
