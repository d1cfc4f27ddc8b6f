"""Messages put into queue files: the same bytes as the plain encoders of the formats write, and no byte outside a buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqstore.kernels.rabbitmq import queue_files
from mqstore.rabbitmq.format import index_v2, segment

ONCE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MESSAGES = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=8)


def laid(messages: list[bytes], overhead: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a buffer with these messages, their positions and lengths, and the positions of their entries."""
    lengths = np.array([len(item) for item in messages], np.int64)
    at = np.cumsum(lengths) - lengths
    to = np.cumsum(lengths + overhead) - lengths - overhead
    return np.frombuffer(b"".join(messages), np.uint8), at, lengths, to


@given(messages=MESSAGES)
@ONCE
def test_entries_of_a_queue_store_are_those_of_the_format(messages: list[bytes]) -> None:
    source, at, lengths, to = laid(messages, 8)
    page = np.zeros(int(to[-1] + lengths[-1] + 8), np.uint8)
    queue_files.store_entries(source, at, lengths, page, to)
    assert page.tobytes() == b"".join(map(index_v2.queue_store_entry, messages))


@given(messages=MESSAGES, where=st.integers(0, 10_000), bit=st.integers(0, 7))
@ONCE
def test_a_changed_entry_is_not_valid(messages: list[bytes], where: int, bit: int) -> None:
    raw = np.frombuffer(b"".join(map(index_v2.queue_store_entry, messages)), np.uint8).copy()
    _, _, lengths, to = laid(messages, 8)
    sound = np.zeros(len(messages), np.uint8)
    queue_files.sound_entries(raw, to, lengths, sound)
    assert sound.all()
    raw[where % len(raw)] ^= 1 << bit
    queue_files.sound_entries(raw, to, lengths, sound)
    # without the flag there is no checksum, and the other bits of its byte have no meaning
    hit = int(np.searchsorted(to, where % len(raw), "right")) - 1
    inside = where % len(raw) - int(to[hit])
    assert [k for k in range(len(messages)) if not sound[k]] == ([] if inside in (4, 7) else [hit])


@given(messages=MESSAGES, first=st.integers(0, 16000))
@ONCE
def test_publishes_of_a_segment_are_those_of_the_format(messages: list[bytes], first: int) -> None:
    source, at, lengths, to = laid(messages, 36)
    page = np.zeros(int(to[-1] + lengths[-1] + 36), np.uint8)
    rel = np.arange(first, first + len(messages), dtype=np.int64)
    ids = [bytes([k + 1] * 16) for k in range(len(messages))]
    halves = np.frombuffer(b"".join(ids), ">i8").astype(np.int64).reshape(-1, 2)
    expiry, size = rel * 1_000_003, lengths + 5
    queue_files.publishes(source, at, lengths, rel, halves[:, 0].copy(), halves[:, 1].copy(), expiry, size, page, to)
    assert page.tobytes() == b"".join(
        segment.publish(first + k, ids[k], item, size=len(item) + 5, expiry=int(expiry[k])) + segment.mark(first + k)
        for k, item in enumerate(messages)
    )


@pytest.mark.parametrize(("at", "length", "to"), [(-1, 4, 0), (0, 11, 0), (8, 4, 0), (0, 4, -1), (0, 4, 30), (0, -1, 0), (1 << 62, 4, 0)])
def test_a_position_outside_a_buffer_is_refused(at: int, length: int, to: int) -> None:
    source, page = np.zeros(10, np.uint8), np.zeros(40, np.uint8)
    places = [np.array([value], np.int64) for value in (at, length, to)]
    with pytest.raises(ValueError, match="outside its buffer"):
        queue_files.store_entries(source, places[0], places[1], page, places[2])
    zero = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="outside its buffer"):
        queue_files.publishes(source, places[0], places[1], zero, zero, zero, zero, zero, page, places[2])
    sound = np.ones(1, np.uint8)
    queue_files.sound_entries(source, np.array([at if at else 7]), np.array([length]), sound)
    assert not sound[0]
