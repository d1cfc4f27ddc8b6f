"""The kernels twice: as installed, and the same source files run uncompiled."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import mqstore
from mqstore.kernels import is_compiled
from mqstore.kernels.common import crc_spans, spans
from mqstore.kernels.rabbitmq import queue_files
from mqstore.kernels.rocketmq import dispatch, encode, frames, hashing, index_chains, property_spans, property_text

COMPILED = is_compiled()
# hashing and property_spans before dispatch, crc_spans before encode and queue_files, which import them
MODULES = (frames, hashing, property_spans, dispatch, index_chains, crc_spans, encode, property_text, queue_files, spans)


@dataclass(frozen=True)
class Kernels:
    """One set of kernels."""

    frames: Any
    hashing: Any
    property_spans: Any
    dispatch: Any
    index_chains: Any
    crc_spans: Any
    encode: Any
    property_text: Any
    queue_files: Any
    spans: Any


INSTALLED = Kernels(*MODULES)


def sources(*kernels: ModuleType, given: Mapping[str, ModuleType] | None = None) -> tuple[Any, ...]:
    """Load the modules again from their `.py` files, even if compiled ones exist.

    Each sees those loaded before it. given: further modules, by full name, that replace the installed ones.
    """
    given = {} if given is None else given
    names = [kernel.__name__ for kernel in kernels]
    kept = {name: sys.modules[name] for name in (*names, *given)}
    sys.modules.update(given)
    found = []
    try:
        for name in names:
            path = Path(*Path(str(mqstore.__file__)).parent.parts, *name.split(".")[1:]).with_suffix(".py")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found.append(module)
    finally:
        sys.modules.update(kept)
    return tuple(found)


@cache
def uncompiled() -> Kernels:
    """Return the kernels loaded from their `.py` files."""
    return Kernels(*sources(*MODULES))


def both() -> list[tuple[str, Kernels]]:
    """Return the available sets, by name."""
    return [("compiled", INSTALLED), ("uncompiled", uncompiled())] if COMPILED else [("uncompiled", uncompiled())]
