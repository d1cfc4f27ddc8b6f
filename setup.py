"""Compiles the kernels; everything else is in pyproject.toml.

A kernel is a `.py` file of `mqstore.kernels` that imports `cython`. Where it cannot be compiled (no C compiler, no
Cython) the install still succeeds, and the same file runs as plain Python, slowly.

MQSTORE_BOUNDSCHECK=1 compiles every array access with a check: slower, for tests on damaged bytes.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

KERNELS = Path("src/mqstore/kernels")


def kernels() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    checked = os.environ.get("MQSTORE_BOUNDSCHECK", "") not in ("", "0")
    sources = [path for path in sorted(KERNELS.rglob("*.py")) if "\nimport cython\n" in path.read_text(encoding="utf-8")]
    extensions = [
        Extension(
            ".".join(path.with_suffix("").parts[1:]),
            [path.as_posix()],
            extra_compile_args=[] if os.name == "nt" else ["-O3", "-g0"],
            optional=True,
        )
        for path in sources
    ]
    compiled: list[Extension] = cythonize(
        extensions,
        include_path=["src"],
        build_dir="build/cython-checked" if checked else "build/cython",
        force=checked,
        compiler_directives={
            "language_level": 3,
            "boundscheck": checked,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
        },
    )
    return compiled


setup(ext_modules=kernels())
