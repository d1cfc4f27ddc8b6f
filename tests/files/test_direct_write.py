"""Writes past the page cache hold the same bytes as usual ones, wherever they are possible and where they are not."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mqstore.errors import TargetError
from mqstore.files import durable_file
from mqstore.files.durable import DurableDirectory
from mqstore.files.durable_file import BLOCK, write_past_cache
from mqstore.files.recorder import RecordedWrites, Write


@pytest.fixture
def blocks() -> Iterator[memoryview]:
    """Five blocks of memory that begin at a page boundary, and 100 bytes."""
    with mmap.mmap(-1, 6 * BLOCK) as memory:
        memory[:] = np.random.default_rng(1).integers(0, 256, 6 * BLOCK, np.uint8).tobytes()
        with memoryview(memory) as view, view[: 5 * BLOCK + 100] as part:
            yield part


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DurableDirectory]:
    with DurableDirectory(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("offset", [0, BLOCK, 7])
@pytest.mark.parametrize("first", [0, 1])
def test_every_byte_arrives_whatever_the_alignment(directory: DurableDirectory, blocks: memoryview, offset: int, first: int) -> None:
    with directory.open_new("file") as file:
        file.pwrite_past_cache(offset, blocks[first:])
    assert directory.path("file").read_bytes() == bytes(offset) + bytes(blocks[first:])


def test_a_later_usual_write_and_a_cut_see_the_blocks(directory: DurableDirectory, blocks: memoryview) -> None:
    with directory.open_new("file") as file:
        file.pwrite_past_cache(0, blocks)
        file.pwrite(10, b"usual")
        file.truncate(2 * BLOCK + 5)
        file.truncate(3 * BLOCK)
    expected = bytearray(blocks[: 2 * BLOCK + 5]) + bytes(BLOCK - 5)
    expected[10:15] = b"usual"
    assert directory.path("file").read_bytes() == expected


def test_the_descriptor_is_an_ordinary_one_afterwards(tmp_path: Path, blocks: memoryview) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        assert write_past_cache(descriptor, blocks, 0) in (0, 5 * BLOCK)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) == before
    finally:
        os.close(descriptor)


def test_a_file_system_that_refuses_gets_a_usual_write(
    directory: DurableDirectory, blocks: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def refuse(descriptor: int, view: memoryview, offset: int) -> int:
        refused.append(offset)
        raise OSError(errno.EINVAL, "not aligned as this disk wants it")

    monkeypatch.setattr(durable_file.os, "pwrite", refuse)
    with directory.open_new("file") as file:
        assert write_past_cache(file.fileno(), blocks, 0) == 0
        monkeypatch.undo()
        file.pwrite_past_cache(0, blocks)
    assert refused == [0]
    assert directory.path("file").read_bytes() == bytes(blocks)


def test_a_full_disk_is_one_sentence(directory: DurableDirectory, blocks: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, view: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(durable_file.os, "pwrite", full)
    with directory.open_new("file") as file, pytest.raises(TargetError, match="the disk is full"):
        file.pwrite_past_cache(0, blocks)


def test_it_is_recorded_like_any_write(tmp_path: Path, blocks: memoryview) -> None:
    recorded = RecordedWrites()
    with DurableDirectory(tmp_path, recorder=recorded) as directory, directory.open_new("file") as file:
        file.pwrite_past_cache(BLOCK, blocks)
    assert recorded.operations[-1] == Write("file", BLOCK, bytes(blocks))
