"""Ship this package to the executors of a cluster, so that only its dependencies need to be installed there.

    mqstore-0.1.0-3f2a9c1d04be.zip      in the user's cache, named by its content: modules and compiled kernels, no type stubs

Spark copies the archive to every executor, which unpacks it in its work directory. Tasks import the package from there, in
preference to an installed copy. An executor whose Python cannot load the compiled kernels (another version, system or processor) fails
with a sentence; there the package has to be installed, and is not sent. Executors need Python with NumPy, pyarrow and the other
dependencies.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.errors import MqstoreError, PipelineError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import remove_own_tree
from mqstore.pipeline.spark.connect import is_connect
from mqstore.pipeline.spark.java import cache_directory
from mqstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIPPED_SUFFIXES = (".py", ".so", ".properties")
_NOT_SHIPPED = "cli/data/"  # stores for the command `demo`
_STREAM_DIRECTORY = "streaming_job"  # below Spark's directory of distributed files
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same package gives the same bytes


def ship(spark: SparkSession) -> str:
    """Ship the package to the executors of a session, once; later tasks and data sources import it. Return its name there.

    Raises PipelineError if the package is not imported from files, or the archive cannot be written anywhere.
    """
    from pyspark import SparkFiles

    if is_connect(spark):
        raise UnsupportedError("the package cannot be shipped to a Spark Connect server: install it in the Python that the server runs")
    context = spark.sparkContext
    archive = package_archive()
    includes = context._python_includes
    assert includes is not None
    if archive.stem not in includes:
        context.addArchive(f"{archive}#{archive.stem}")
        # workers' module search path: Spark's list for addPyFile, with an unpacked directory, as a .so cannot be imported from a zip
        includes.append(archive.stem)
        unpacked = Path(SparkFiles.getRootDirectory(), archive.stem)
        assert unpacked.is_dir()
        # the Python process that plans a stream runs on the driver's host and searches this directory
        for_streams = unpacked.with_name(_STREAM_DIRECTORY)
        for_streams.mkdir(exist_ok=True)
        (for_streams / archive.stem).symlink_to(Path("..", archive.stem))
    return archive.stem


@cache
def package_archive() -> Path:
    """Return the archive of the running package, created if necessary. Raises PipelineError."""
    content = _archive_bytes(Path(__file__).parents[2])
    name = f"mqstore-{__version__}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    for directory in (cache_directory(), None):
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="mqstore-package-"))
            atexit.register(remove_own_tree, directory, os.getpid())
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if ReadOnlyDirectory(directory).read(name) != content:
                with DurableDirectory(directory) as target:
                    target.write_small(name, content)
        except (OSError, MqstoreError):
            continue
        return directory / name
    raise PipelineError(
        "the package cannot be shipped to the executors: no directory for its archive is writable; set XDG_CACHE_HOME to one that is"
    )


def _archive_bytes(package: Path) -> bytes:
    """Return a zip of the modules of a package."""
    if not package.is_dir():
        raise PipelineError(f"the package is imported from {package}, which is not a directory: install it here, or on every executor")
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
