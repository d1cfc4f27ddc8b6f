"""Positioned writes of many buffers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.kernels.common import positioned_writes


def octets(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.binary(max_size=20)), max_size=12))
@settings(deadline=None, max_examples=60)
def test_the_bytes_are_those_of_single_writes(tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int, bytes]]) -> None:
    place = tmp_path_factory.mktemp("files")
    expected = [bytearray(), bytearray(), bytearray()]
    for number, offset, raw in writes:
        if raw:
            whole = expected[number]
            whole.extend(bytes(max(0, offset + len(raw) - len(whole))))
            whole[offset : offset + len(raw)] = raw
    descriptors = [os.open(place / str(number), os.O_RDWR | os.O_CREAT) for number in range(3)]
    found = positioned_writes.write_all(
        [descriptors[number] for number, _, _ in writes], [offset for _, offset, _ in writes], [octets(raw) for _, _, raw in writes]
    )
    assert found == (len(writes), 0)
    assert [os.pread(descriptor, 999, 0) for descriptor in descriptors] == expected
    for descriptor in descriptors:
        os.close(descriptor)


def test_the_first_failure_ends_it_with_its_error_number(tmp_path: Path) -> None:
    writable = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    readable = os.open(tmp_path / "file", os.O_RDONLY)
    buffers = [octets(b"one"), octets(b"two"), octets(b"three")]
    assert positioned_writes.write_all([writable, readable, writable], [0, 3, 6], buffers) == (1, errno.EBADF)
    assert os.pread(writable, 99, 0) == b"one"
    os.close(readable)
    os.close(writable)


def test_a_full_device_is_an_error_number() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        assert positioned_writes.write_all([full.fileno()], [0], [octets(b"one")]) == (0, errno.ENOSPC)


def test_every_buffer_needs_a_descriptor_and_an_offset() -> None:
    with pytest.raises(ValueError, match="descriptor"):
        positioned_writes.write_all([1], [0, 1], [octets(b"one")])
