"""Sending this package to the executors of a cluster, so that nothing needs to be installed there but its dependencies.

    mqstore-0.1.0-3f2a9c1d04be.zip      in the user's cache, named by its content: modules, type stubs left out, compiled kernels

Spark hands the archive to every executor, which unpacks it in its own work directory; tasks import from there, before any copy that is
installed. An executor whose Python can load the compiled kernels (same version, system and processor) does; any other finds the same
kernels as plain `.py` files beside them and runs them uncompiled, slowly. NumPy, pyarrow and the other dependencies, and a Python of their
own, the executors must have.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import mqstore
from mqstore.errors import MqstoreError, PipelineError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.pipeline.spark.java import cache_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["package_archive", "ship"]

_SHIPPED_SUFFIXES = (".py", ".so", ".properties")
_NOT_SHIPPED = "cli/data/"  # stores that the command `demo` unpacks
_STREAM_DIRECTORY = "streaming_job"  # below Spark's directory of sent files
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same package makes the same bytes


def ship(spark: SparkSession) -> str:
    """Send the package to the executors of a session, once; tasks and data sources from now on import it. Returns its name there.

    Raises PipelineError where the package does not lie in files, or the archive cannot be written anywhere.
    """
    from pyspark import SparkFiles

    context = spark.sparkContext
    archive = package_archive()
    includes = context._python_includes
    assert includes is not None
    if archive.stem not in includes:
        context.addArchive(f"{archive}#{archive.stem}")
        # where workers look for modules: Spark's own list of what addPyFile sent, but unpacked, since no .so is imported out of a zip
        includes.append(archive.stem)
        unpacked = Path(SparkFiles.getRootDirectory(), archive.stem)
        assert unpacked.is_dir()
        # the Python that plans a stream runs beside the driver, and is told to look there for what was sent
        for_streams = unpacked.with_name(_STREAM_DIRECTORY)
        for_streams.mkdir(exist_ok=True)
        (for_streams / archive.stem).symlink_to(Path("..", archive.stem))
    return archive.stem


@cache
def package_archive() -> Path:
    """The archive of this very package, made unless it is there. Raises PipelineError."""
    content = _archive_bytes(Path(mqstore.__file__).parent)
    name = f"mqstore-{mqstore.__version__}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    for place in (cache_directory(), None):
        if place is None:
            place = Path(tempfile.mkdtemp(prefix="mqstore-package-"))
            atexit.register(shutil.rmtree, place, ignore_errors=True)
        try:
            place.mkdir(parents=True, exist_ok=True)
            if ReadOnlyDirectory(place).read(name) != content:
                with DurableDirectory(place) as directory:
                    directory.write_small(name, content)
        except (OSError, MqstoreError):
            continue
        return place / name
    raise PipelineError(
        "the package cannot be sent to the executors: no directory for its archive can be written; let XDG_CACHE_HOME name one"
    )


def _archive_bytes(package: Path) -> bytes:
    """A zip of the modules of a package."""
    if not package.is_dir():
        raise PipelineError(f"the package is imported from {package}, which is no directory: install it, or install it on every executor")
    source = ReadOnlyDirectory(package)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for relative, _ in source.walk():
            if not relative.endswith(_SHIPPED_SUFFIXES) or relative.startswith(_NOT_SHIPPED) or "__pycache__" in relative:
                continue
            content = source.read(relative)
            if content is not None:
                archive.writestr(zipfile.ZipInfo(f"{package.name}/{relative}", _EPOCH), content, zipfile.ZIP_DEFLATED, 1)
    return written.getvalue()
