"""Guide pages that are notebooks: their cells run in order in one namespace, and the output of a cell is shown below it.

    ```python
    print(1 + 1)
    ```

    ```text
    2
    ```

`sql` cells are statements for the page's session `spark`, separated by `;`; what a query answers is shown. `sh` cells are commands; their
output counts only where the page shows one.

Cells run in a separate process, in a directory that holds golden stores under plain names. Pictures that they save are compared with
those beside the page, in the directory of its name, with a tolerance: other versions of matplotlib render text slightly
differently.

    python tests/support/notebook.py [PAGE]        updates outputs and pictures of all pages
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support import golden as goldenkit

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
# the stores that a page names
STORES = {
    "analysis.md": {"rolled": "4.9.3/d-rolled", "killed": "4.9.3/b-kill9", "broker": "4.9.3/f-broker-offsets"},
    "rabbitmq.md": {"node": "3.10.8/f-mixed-features"},
    "spark.md": {
        "store": "4.9.3/b-kill9",
        "backup/broker-a/store": "4.9.3/a-clean-small",
        "backup/broker-b/store": "4.9.3/d-rolled",
        "live/store": "4.9.3/a-clean-small",
    },
}
PAGES = tuple(GUIDE / name for name in STORES)
WRITTEN = ("live/store",)  # a copy, as the page writes into it

CELLS = ("python", "sql", "sh")
_CELL = re.compile(rf"^```(?P<kind>{'|'.join(CELLS)})\n(?P<code>.*?)^```\n(?:\n```text\n(?P<told>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def stores(page: Path) -> Iterator[Path]:
    """Yield a directory with the golden stores of a page."""
    with TemporaryDirectory() as name:
        place = Path(name).resolve()
        for store, case in STORES[page.name].items():
            (place / store).parent.mkdir(parents=True, exist_ok=True)
            found = goldenkit.case_named(case)
            if store in WRITTEN:
                goldenkit.unpack(found, place / store)
            else:
                (place / store).symlink_to(goldenkit.opened(found))
        yield place


def cells(page: Path) -> list[re.Match[str]]:
    """Return the cells of a page, each with `code` and the output shown below it, `told`."""
    return list(_CELL.finditer(page.read_text(encoding="utf-8")))


def run(page: Path, place: Path) -> list[str]:
    """Return the current output of each cell of a page, run in a separate process that works in `place`."""
    plain = {
        "MPLBACKEND": "agg",
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }
    argv = [sys.executable, __file__, "--run", str(page)]
    done = subprocess.run(argv, cwd=place, env={**os.environ, **plain}, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    told: list[str] = json.loads(done.stdout)
    return told


def _run_here(page: Path) -> list[str]:
    names: dict[str, Any] = {"__name__": "__main__"}
    told = []
    for cell in cells(page):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if cell["kind"] == "python":
                exec(compile(cell["code"], page.name, "exec"), names)
            elif cell["kind"] == "sql":
                _answer(cell["code"], names["spark"])
            else:
                done = subprocess.run(["bash", "-ec", cell["code"]], capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{cell['code']}{done.stdout}{done.stderr}"
                print("" if cell["told"] is None else done.stdout)
        text = printed.getvalue().replace(f"{os.getcwd()}/", "")
        told.append("".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines()))
    return told


def _answer(statements: str, spark: Any) -> None:
    for statement in statements.split(";"):
        answer = spark.sql(statement)
        if answer.columns:
            answer.show()


def pictures(page: Path) -> dict[str, Path]:
    """Return the pictures that a page shows."""
    shown = re.findall(r"^!\[[^\]]+\]\(([^)]+\.png)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {Path(name).name: page.parent / name for name in shown}


def difference(one: Path, other: Path) -> float:
    """Return the mean difference of two pictures, 0 to 1; 1 if their sizes differ."""
    from matplotlib.image import imread

    a, b = (np.asarray(imread(path), np.float64)[..., :3] for path in (one, other))
    return float(np.abs(a - b).mean()) if a.shape == b.shape else 1.0


def write(page: Path) -> None:
    """Update the outputs of the cells of a page, and the pictures they draw."""
    text = page.read_text(encoding="utf-8")
    with stores(page) as place:
        for cell, told in zip(cells(page), run(page, place), strict=True):
            output = f"\n```text\n{told}```\n" if told else ""
            text = text.replace(cell[0], f"```{cell['kind']}\n{cell['code']}```\n{output}")
        for name, path in pictures(page).items():
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(place / name, path)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        json.dump(_run_here(Path(sys.argv[2])), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # what native libraries do with their threads while the interpreter ends is not what the page shows
    else:
        for each in PAGES:
            if each.name in (sys.argv[1:] or STORES):
                write(each)
