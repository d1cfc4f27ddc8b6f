"""Compiled loops over byte buffers, and nothing else.

Each module is Cython in pure-Python mode: a plain `.py` file that also runs uncompiled, slowly. The exceptions are `loads`
(big-endian loads and stores) and the layouts (`…_layout`: sizes, positions and codes), which are written twice: in Python for
the uncompiled modules, and in C (`.pxd`) for the compiled ones.
Buffers come in as NumPy arrays, results go out through arrays that the caller allocates; no Python object is touched
inside a loop, so the loops release the GIL.
"""

from __future__ import annotations

import functools
import warnings

__all__ = ["is_compiled", "warn_if_uncompiled"]


def is_compiled() -> bool:
    """Whether the kernels run as machine code."""
    from mqstore.kernels.rocketmq import frames

    return not frames.__file__.endswith(".py")


@functools.cache
def warn_if_uncompiled() -> None:
    """Warn once in a process if the kernels run as plain Python."""
    if not is_compiled():
        warnings.warn(
            "mqstore was installed without a C compiler and runs some hundred times slower; install one (Debian: apt install gcc), "
            "then: pip install --force-reinstall --no-deps --no-cache-dir mqstore",
            RuntimeWarning,
            stacklevel=3,
        )
