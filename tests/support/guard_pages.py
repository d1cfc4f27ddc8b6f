"""Kernels between guard pages: every buffer that a kernel gets lies against a page that cannot be accessed.

A kernel that reads or writes outside a buffer then ends the process (SIGSEGV) instead of reading what happens to be there. With
`MQSTORE_GUARD_PAGES=end` buffers end at such a page, with `start` they begin right after one. `install` replaces the functions of the
kernels by ones that copy their buffers to guarded memory, call the kernel, and copy back what it has written. Read-only buffers cannot
be written there either. The classes of kernels that put and pull work on maps of files: every map of a file gets such a page before and
after it, with either setting. Uncompiled kernels, whose accesses Python checks, gain nothing.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
import os
import pkgutil
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "MQSTORE_GUARD_PAGES"
PLACES = ("end", "start")
PAGE = mmap.PAGESIZE
_NONE, _READ = 0, mmap.PROT_READ

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_ANYWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_ATTEMPTS = 1000  # runs of the engine need up to 9: as many as the process has gaps of about the map's size

calls: Counter[str] = Counter()  # of each kernel, with a guarded buffer


def _protect(address: int, size: int, protection: int) -> None:
    if _libc.mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


def guarded(array: NDArray[Any], place: str) -> NDArray[Any]:
    """Return a copy of an array that ends, or starts, at a page that cannot be accessed. It is writable if the array is."""
    size = array.nbytes
    pages = max(1, -(-size // PAGE))
    room = mmap.mmap(-1, (pages + 2) * PAGE)
    first = PAGE + (pages * PAGE - size if place == "end" else 0)
    copy = np.frombuffer(room, np.uint8, size, first)
    base = copy.__array_interface__["data"][0] - first
    copy[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    _protect(base, PAGE, _NONE)
    _protect(base + (pages + 1) * PAGE, PAGE, _NONE)
    if not array.flags.writeable:
        _protect(base + PAGE, pages * PAGE, _READ)
        copy.flags.writeable = False
    return copy.view(array.dtype).reshape(array.shape)


def _free(*pages: int) -> None:
    for page in pages:
        _libc.munmap(page, PAGE)


class FencedMap(mmap.mmap):
    """A map of a file between two pages that cannot be accessed. Between its last byte and the page are zeros up to a whole page."""

    fenced = 0  # maps made so
    unfenced = 0  # maps that never got into a gap between two such pages

    def __new__(cls, fileno: int, length: int, *given: Any, **named: Any) -> FencedMap:
        elsewhere: list[FencedMap] = []
        size = -(-length // PAGE) * PAGE
        while True:
            # a gap of the map's size between two such pages. The system places a map in the highest gap that has room for it: what
            # goes into another gap stays there until the map is where it is wanted, so each attempt has one gap less above its own
            below = _libc.mmap(None, size + 2 * PAGE, _NONE, _ANYWHERE, -1, 0)
            above = below + PAGE + size
            _libc.munmap(below + PAGE, size)
            made = super().__new__(cls, fileno, length, *given, **named)
            found = np.frombuffer(made, np.uint8).__array_interface__["data"][0] == below + PAGE
            if found or len(elsewhere) == _ATTEMPTS:
                break
            _free(below, above)
            elsewhere.append(made)
        for each in elsewhere:
            each.close()
        if found:
            cls.fenced += 1
            weakref.finalize(made, _free, below, above)
        else:
            cls.unfenced += 1
            _free(below, above)
        return made


class _Call:
    """The buffers of one call of a kernel."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.written: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.count = 0

    def taken(self, value: Any) -> Any:
        """Return a guarded copy of an argument that is a buffer, or the argument."""
        if isinstance(value, memoryview | mmap.mmap | bytearray):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            return value
        copy = guarded(value, self.place)
        self.count += 1
        if value.flags.writeable:
            self.written.append((value, copy))
        return copy

    def give_back(self) -> None:
        """Copy what the kernel has written to where its caller reads it."""
        for original, copy in self.written:
            if original.tobytes() != copy.tobytes():
                original[...] = copy


def _guarding(kernel: Callable[..., Any], name: str, place: str) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def called(*given: Any, **named: Any) -> Any:
        call = _Call(place)
        result = kernel(*map(call.taken, given), **{key: call.taken(value) for key, value in named.items()})
        call.give_back()
        calls[name] += call.count > 0
        return result

    return called


class _Guarded:
    """An object of a kernel's class; its methods get guarded buffers."""

    def __init__(self, held: Any, name: str, place: str) -> None:
        self._held, self._name, self._place = held, name, place

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._held, name)
        return _guarding(found, f"{self._name}.{name}", self._place) if callable(found) else found


def _kernel_modules() -> list[ModuleType]:
    import mqstore.kernels as package

    names = [each.name for each in pkgutil.walk_packages(package.__path__, "mqstore.kernels.") if not each.ispkg]
    return [importlib.import_module(name) for name in names if not name.endswith(".loads")]


def install(place: str) -> None:
    """Guard the buffers of all kernels in this process."""
    assert place in PLACES, place
    from mqstore.rocketmq.format import record

    replaced: dict[int, Callable[..., Any]] = {}
    for module in _kernel_modules():
        for name, found in list(vars(module).items()):
            own = getattr(found, "__module__", None) == module.__name__
            if own and callable(found) and not isinstance(found, type):
                replaced[id(found)] = _guarding(found, f"{module.__name__.removeprefix('mqstore.kernels.')}.{name}", place)
    for module_name, importer in list(sys.modules.items()):
        if module_name.startswith("mqstore."):
            for name, found in list(vars(importer).items()):
                if id(found) in replaced:
                    setattr(importer, name, replaced[id(found)])
    vars(mmap)["mmap"] = FencedMap
    if record._DECODER is not None:
        vars(record)["_DECODER"] = _Guarded(record._DECODER, "rocketmq.record_decode.Decoder", place)


def pytest_configure() -> None:
    """Guard the kernels of a test run that has this module as a plug-in (`-p support.guard_pages`)."""
    install_if_asked()


def install_if_asked() -> None:
    """Guard the buffers of all kernels if the environment asks for it."""
    place = os.environ.get(VARIABLE)
    if place:
        install(place)
