"""A plain installation: this package and what its `dependencies` bring, without any extra, as directories for PYTHONPATH.

The packages are links to those that are installed here. With `python -S` nothing else can be imported: no pyspark, py4j, DuckDB, Lark,
Cython or pytest.
"""

from __future__ import annotations

import os
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def plain_packages(*further: str) -> set[str]:
    """Return the names of the distributions that `pip install mqstore FURTHER…` brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(each) for each in (*project["dependencies"], *further)]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(requirement.name)
        waiting += [Requirement(each) for each in metadata.requires(requirement.name) or ()]
    return found


def make_plain_install(place: Path, *further: str) -> dict[str, str]:
    """Link the packages, and further ones, into a new directory. Returns the environment in which `sys.executable -S` has them."""
    place.mkdir()
    for name in plain_packages(*further):
        files = metadata.files(name)
        assert files is not None, name
        tops = {file.parts[0]: file.locate() for file in files if file.parts[0] not in ("..", "__pycache__")}
        for top, file in tops.items():
            above = Path(str(file)).resolve()
            while above.name != top:
                above = above.parent
            (place / top).symlink_to(above)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    return environment | {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT / "src")])}


INTERPRETER = (sys.executable, "-S")
