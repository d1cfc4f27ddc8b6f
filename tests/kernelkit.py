"""The kernels twice: as installed, and the same source files run uncompiled."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import mqstore.kernels
from mqstore.kernels import chains, checksums, dispatching, encode, frames, hashing, is_compiled, propertytext, queuefiles

COMPILED = is_compiled()
# hashing before dispatching, checksums before encode and queuefiles, which import them
MODULES = ("frames", "hashing", "dispatching", "chains", "checksums", "encode", "propertytext", "queuefiles")


@dataclass(frozen=True)
class Kernels:
    """One set of kernels."""

    frames: Any
    hashing: Any
    dispatching: Any
    chains: Any
    checksums: Any
    encode: Any
    propertytext: Any
    queuefiles: Any


INSTALLED = Kernels(frames, hashing, dispatching, chains, checksums, encode, propertytext, queuefiles)


@cache
def uncompiled() -> Kernels:
    """The kernels loaded from their `.py` files, whatever was compiled from them."""
    directory = Path(mqstore.kernels.__file__).parent
    kept = {f"mqstore.kernels.{name}": sys.modules[f"mqstore.kernels.{name}"] for name in MODULES}
    found: dict[str, ModuleType] = {}
    try:
        for name in MODULES:
            full = f"mqstore.kernels.{name}"
            spec = importlib.util.spec_from_file_location(full, directory / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            module = found[name] = importlib.util.module_from_spec(spec)
            sys.modules[full] = module
            spec.loader.exec_module(module)
    finally:
        sys.modules.update(kept)
    return Kernels(**found)


def both() -> list[tuple[str, Kernels]]:
    """The sets there are, by name."""
    return [("compiled", INSTALLED), ("uncompiled", uncompiled())] if COMPILED else [("uncompiled", uncompiled())]
