"""Compile the kernels; everything else is in pyproject.toml.

A kernel is a `.py` file of `mqstore.kernels` that imports `cython`. If it cannot be compiled (no C compiler, no
Cython) the install still succeeds, and the same file runs as plain Python, slowly.

The C code that Cython would put into every library is compiled once, as SHARED, and the kernels import it.

MQSTORE_BOUNDSCHECK=1 compiles every array access with a check: slower, for tests on damaged bytes.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("src/mqstore/kernels")
SHARED = "mqstore.kernels.common.shared_code"
CORES = os.cpu_count() or 1


class BuildKernels(build_ext):
    """Compiles the kernels in parallel."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def build_extensions(self) -> None:
        """Compile SHARED first: without it the kernels could not be imported, so none is compiled."""
        kernels = self.extensions
        self.extensions = [each for each in kernels if each.name == SHARED]
        super().build_extensions()
        if all(Path(self.get_ext_fullpath(each.name)).exists() for each in self.extensions):
            self.extensions = [each for each in kernels if each.name != SHARED]
            super().build_extensions()
        self.extensions = kernels


def kernels() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    checked = os.environ.get("MQSTORE_BOUNDSCHECK", "") not in ("", "0")
    paths = {
        ".".join(path.with_suffix("").parts[1:]): path
        for path in sorted(KERNELS.rglob("*.py"))
        if "\nimport cython\n" in path.read_text(encoding="utf-8")
    }
    paths[SHARED] = Path("src", *SHARED.split(".")).with_suffix(".c")  # generated, in the directory of the build
    arguments = [] if os.name == "nt" else ["-O3", "-g0"]
    compiled: list[Extension] = cythonize(
        [Extension(name, [path.as_posix()], extra_compile_args=arguments) for name, path in paths.items()],
        include_path=["src"],
        build_dir="build/cython-checked" if checked else "build/cython",
        force=checked,
        shared_utility_qualified_name=SHARED,
        compiler_directives={
            "language_level": 3,
            "boundscheck": checked,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
        },
    )
    for each in compiled:
        each.optional = True  # cythonize makes new extensions, without this
    return compiled


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels})
