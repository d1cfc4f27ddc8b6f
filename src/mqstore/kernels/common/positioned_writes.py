"""Positioned writes of many buffers in one call, without the interpreter's lock in between.

Between two system calls made from Python a thread has to wait for the lock again, up to five milliseconds while another one computes.

>>> import os, tempfile
>>> import numpy as np
>>> with tempfile.TemporaryFile() as file:
...     write_all([file.fileno()] * 2, [2, 0], [np.frombuffer(b"cd", np.uint8), np.frombuffer(b"ab", np.uint8)])
...     os.pread(file.fileno(), 9, 0)
(2, 0)
b'abcd'
"""

import cython
import numpy as np


def write_all(descriptors: list, offsets: list, buffers: list):
    """Write each buffer, a uint8 array, at an offset of a file; stop at the first that fails.

    Returns how many are written completely, and the error number of the one after them; 0 if there is none.
    """
    n: cython.Py_ssize_t = len(buffers)
    k: cython.Py_ssize_t
    written: cython.longlong
    code: cython.int = 0
    view: cython.const[cython.uchar][::1]
    if len(descriptors) != n or len(offsets) != n:
        raise ValueError("every buffer needs a descriptor and an offset")
    numbers: cython.longlong[:, ::1] = np.empty((4, n), np.int64)
    for k in range(n):
        view = buffers[k]
        numbers[DESCRIPTOR, k] = descriptors[k]
        numbers[OFFSET, k] = offsets[k]
        numbers[ADDRESS, k] = address_of(view)
        numbers[LENGTH, k] = view.shape[0]
    k = 0
    with cython.nogil:
        while k < n:
            if numbers[LENGTH, k] == 0:
                k += 1
                continue
            written = write_some(numbers[DESCRIPTOR, k], numbers[ADDRESS, k], numbers[LENGTH, k], numbers[OFFSET, k])
            if written < 0:
                code = -written
                break
            numbers[OFFSET, k] += written
            numbers[ADDRESS, k] += written
            numbers[LENGTH, k] -= written
    return k, code
