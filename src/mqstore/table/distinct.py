"""The distinct values of an array of integers, and cuts of an ascending one that keep equal values together.

`numpy.unique` of NumPy 2.3 and later collects them in a hash table, which takes some twenty times as long as sorting for millions of
different values, and more memory.

    >>> distinct(np.array([5, 3, 5, 4])).tolist(), distinct_of_sorted(np.array([3, 3, 7])).tolist()
    ([3, 4, 5], [3, 7])
    >>> list(whole_runs(np.array([3, 3, 3, 7, 8, 8]), 2))
    [(0, 3), (3, 6)]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

I = TypeVar("I", bound=np.integer)  # noqa: E741


def distinct(values: NDArray[I]) -> NDArray[I]:
    """Return the values in ascending order, each once. Runs that ascend are merged faster than others are sorted."""
    return distinct_of_sorted(np.sort(values, axis=None, kind="stable"))


def distinct_of_sorted(values: NDArray[I]) -> NDArray[I]:
    """Return the values, which ascend, each once."""
    if not len(values):
        return values
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values if first.all() else values[first]


def whole_runs(values: NDArray[I], least: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of ascending values, in order: `least` values, and those that equal the last of them.

    What belongs together because its values are equal is therefore never cut apart. Only the last range may be shorter.
    """
    low = 0
    while low < len(values):
        last = min(low + least, len(values)) - 1
        high = int(np.searchsorted(values, values[last], "right"))
        yield low, high
        low = high
