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
