"""Compiled loops over byte buffers, and the objects of the paths that make no Python call for a message.

Each module is Cython in pure Python mode: a `.py` file with annotations, and a `.pxd` that holds its constants and what it takes
from C. It runs compiled only. Three things have no `.py` file, because no Python object is made of them: `loads.pxd` and
`pointer_loads.pxd` (big-endian loads and stores) and the layouts (`…_layout.pxd`: sizes, positions and codes). The modules of
`rocketmq.format` and `rabbitmq.format` state the same for Python, and `tests/kernels/test_constants.py` holds both against each other.

Loops: buffers come in as NumPy arrays, results go out through arrays that the caller allocates; no Python object is touched inside a
loop, so the loops release the GIL.

Objects: between an engine and its log there is no Python call for an ordinary message, so what such a call makes and takes is here.

    rocketmq.put            Message, PutResult, Topic, LogEnd; PutPath: a message into the log; SinglePut: `put` of a MessageStore
    rocketmq.encode         LogFileWriter: records into a mapped file
    rocketmq.pull           PullResult, MappedBytes, Limits; PullPath: entries of a queue to slices of the log
    rocketmq.pull_batch     Scratch, BatchHead: such slices as one Arrow batch
    rocketmq.key_query      QueryPath: a key to slices of the log
    rocketmq.record_decode  Decoder: records to the objects of `rocketmq.format.record`
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES


def _check() -> None:
    """Raise ImportError, a sentence, if this Python has no compiled kernels."""
    try:
        import_module("mqstore.kernels.common.shared_code")  # what all kernels share; it has no `.py` file
    except ImportError as error:
        raise ImportError(
            f"mqstore has no compiled kernels for this Python ({EXTENSION_SUFFIXES[0]}): install it here with "
            f"`pip install --force-reinstall --no-deps mqstore`, or in a checkout of its sources with `pip install --editable .` ({error})"
        ) from None


_check()
