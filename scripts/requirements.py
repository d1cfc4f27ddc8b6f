#!/usr/bin/env python3
"""Print the packages that pyproject.toml names, one a line, as requirements for pip.

scripts/requirements.py EXTRA...     those of the package and of these extras
scripts/requirements.py --lowest     the lowest version of each that is allowed, as constraints
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
TOOLS = ("dev", "bench", "build")  # extras of the development scripts, of which the newest will do


def requirements(*extras: str) -> list[str]:
    return [*PYPROJECT["project"]["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]


def lowest() -> list[str]:
    lines = requirements(*(extra for extra in EXTRAS if extra not in TOOLS)) + PYPROJECT["build-system"]["requires"]
    bounds = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", line) for line in lines)
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound})


if __name__ == "__main__":
    print("\n".join(lowest() if sys.argv[1:] == ["--lowest"] else requirements(*sys.argv[1:])))
