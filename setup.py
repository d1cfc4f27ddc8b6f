"""Compile the kernels, and the catalog for Spark where a JDK and pyspark are at hand; everything else is in pyproject.toml.

A kernel is a `.py` file of `mqstore.kernels` that imports `cython`. They run compiled only, so without a C compiler the build fails,
with one sentence. The compiler of the package ziglang will do, which `build_backend.py` has installed where there is no other one.

The C code that Cython would put into every library is compiled once, as SHARED, and the kernels import it.

MQSTORE_BOUNDSCHECK=1 compiles every array access with a check: slower, for tests on damaged bytes.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError

from build_backend import c_compiler

KERNELS = Path("src/mqstore/kernels")
CATALOG = Path("src/mqstore/pipeline/spark/StoreCatalog.java")
SHARED = "mqstore.kernels.common.shared_code"
CORES = os.cpu_count() or 1
NEXT_STEP = (
    "mqstore was not built: install a C compiler and the headers of this Python (Debian: apt install gcc python3-dev), "
    "or let pip fetch a compiler (without --no-build-isolation), or install a wheel"
)


class BuildKernels(build_ext):
    """Compiles the kernels in parallel, with the compiler of ziglang if there is no other one."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def run(self) -> None:
        if c_compiler():
            os.environ["CC"] = c_compiler()
        elif importlib.util.find_spec("ziglang"):
            os.environ["CC"] = f"{shlex.quote(sys.executable)} -m ziglang cc -fno-sanitize=undefined"
            os.environ["LDSHARED"] = f"{os.environ['CC']} -shared"
        else:
            raise SystemExit(f"{NEXT_STEP}; there is no C compiler here")
        try:
            super().run()
        except CCompilerError as error:
            raise SystemExit(f"{NEXT_STEP}; the compiler says above what it lacks ({error})") from None


class BuildCatalog(build_py):
    """Compiles the catalog for Spark into a jar among the data of the package; without it, all but the catalog works."""

    def run(self) -> None:
        jar, javac, pyspark = CATALOG.with_name("catalog.jar"), java_compiler(), importlib.util.find_spec("pyspark")
        is_new = jar.exists() and jar.stat().st_mtime >= CATALOG.stat().st_mtime
        if javac and pyspark and pyspark.origin and not is_new:
            self.make(jar, javac, Path(pyspark.origin).with_name("jars"))
        super().run()

    def make(self, jar: Path, javac: str, library: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            command = [javac, "--release", "17", "-nowarn", "-cp", f"{library}/*", "-d", place, str(CATALOG)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.warn(f"the catalog for Spark was not built: {done.stderr.strip()}")
                return
            with zipfile.ZipFile(jar, "w") as written:
                for each in sorted(Path(place).rglob("*.class")):
                    written.writestr(zipfile.ZipInfo(each.relative_to(place).as_posix()), each.read_bytes())


def java_compiler() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("javac", path=os.path.join(home, "bin") if home else None) or shutil.which("javac")


def kernels() -> list[Extension]:
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
    return compiled


MANUAL = [("share/man/man1", ["mqstore.1"])] if Path("mqstore.1").exists() else []  # scripts/wheels writes it from the commands

setup(ext_modules=kernels(), data_files=MANUAL, cmdclass={"build_ext": BuildKernels, "build_py": BuildCatalog})
