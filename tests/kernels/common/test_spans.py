"""Spans copied one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from mqstore.kernels.common import spans


def test_spans_outside_the_buffer_are_refused() -> None:
    data = np.arange(10, dtype=np.uint8)
    out, offsets = np.empty(20, np.uint8), np.empty(3, np.int32)
    assert not spans.copy_spans(data, np.array([2, 5]), np.array([3, -1]), offsets, out)
    assert (offsets.tolist(), out[:3].tolist()) == ([0, 3, 3], [2, 3, 4])
    for start, length in ((8, 3), (-1, 2), (0, 2**40)):
        with pytest.raises(ValueError, match="outside its buffer"):
            spans.copy_spans(data, np.array([start]), np.array([length]), offsets, out)
    assert spans.copy_spans(np.array([200], np.uint8), np.array([0]), np.array([1]), offsets, out)
