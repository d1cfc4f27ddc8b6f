"""Files that are mostly holes: mapping and reading them brings only their blocks into memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from mqstore.files.readonly import MappedFile

SIZE = 6 << 20
LEAD = 3 * mmap.PAGESIZE


def cached_pages(path: Path, length: int = 0) -> int:
    """Return how many pages of a file, or of its first bytes, are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), length) as mapped:
        count = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * count)()
        begin = ctypes.c_ubyte.from_buffer(mapped)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(len(mapped)), found) == 0
        del begin
        return sum(each & 1 for each in found)


@pytest.mark.skipif(sys.platform != "linux", reason="mincore and the page cache of Linux")
def test_the_first_access_to_a_sparse_file_does_not_read_the_zeros_around_it(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(os.urandom(LEAD))
    os.truncate(path, SIZE)
    stored = max(LEAD, path.stat().st_blocks * 512)  # all of it on a file system that has no holes
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    mapped = MappedFile(path)
    assert mapped.data[:LEAD].any()
    assert mapped.last_nonzero(0, SIZE) < LEAD
    assert cached_pages(path) <= stored // mmap.PAGESIZE + 1


@pytest.mark.parametrize("size", [mmap.PAGESIZE, mmap.PAGESIZE + 100])
def test_a_pattern_is_found_up_to_the_last_byte_of_a_file_and_not_beyond_a_limit(size: int, tmp_path: Path) -> None:
    """A file of whole pages, too: `mmap.find` of Python 3.11.0 to 3.11.4 reads the byte after it, and ended the process."""
    content = bytes(range(1, 9)) * (size // 8) + b"\0" * (size % 8)
    content = b"ing" + content[3:-6] + b"ending"
    (tmp_path / "file").write_bytes(content)
    file = MappedFile(tmp_path / "file")
    for pattern in (b"ending", b"ing", b"absent", content[:8], content):
        for start in (0, 1, 3, size - 6, size - 5, size):
            for stop in (0, 7, 8, size - 1, size, size + 1):
                assert file.find(pattern, start, stop) == content.find(pattern, start, stop)


@pytest.mark.parametrize("size", [1, 4097, (1 << 20) + 70_000])
def test_the_last_byte_that_is_not_zero_is_found_wherever_it_is(size: int, tmp_path: Path) -> None:
    places = {0, 1, 4095, 4096, 4097, 65535, 65536, size - 65537, size - 4097, size - 4096, size - 1} & set(range(size))
    for place in sorted(places):
        content = bytearray(size)
        content[place] = 1
        content[place // 2] = 255
        (tmp_path / "file").write_bytes(content)
        mapped = MappedFile(tmp_path / "file")
        assert mapped.last_nonzero(0, size + 9) == place
        assert mapped.last_nonzero(place, place + 1) == place
        assert mapped.last_nonzero(place + 1, size) == -1
        assert mapped.last_nonzero(0, place) == (place // 2 if place else -1)
