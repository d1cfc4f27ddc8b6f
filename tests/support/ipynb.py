"""The notebook of the guide: its cells run in order in one namespace, and have the outputs that are committed.

No Jupyter is needed: a cell is Python without magics. What it prints, the value of its last expression and the figures that it leaves
open are its outputs, as a kernel with inline plots gives them.

    python tests/support/ipynb.py        updates all outputs
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "guide" / "notebook.ipynb"

Output = dict[str, Any]


def load() -> dict[str, Any]:
    """Return the notebook, format 4.5."""
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(place: Path) -> list[list[Output]]:
    """Return the current outputs of each cell, run in a separate process that works in `place`."""
    plain = {"MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    done = subprocess.run(
        [sys.executable, __file__, "--run"],
        cwd=place,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Output]] = json.loads(done.stdout)
    return found


def texts(outputs: list[Output]) -> list[str]:
    """Return what outputs say as plain text; a figure has none."""
    return ["".join(each["text"] if "text" in each else each["data"].get("text/plain", [])) for each in outputs]


def pictures(outputs: list[Output]) -> list[bytes]:
    """Return the figures among outputs, as PNG."""
    return [base64.b64decode(each["data"]["image/png"]) for each in outputs if "image/png" in each.get("data", {})]


def _run_here() -> list[list[Output]]:
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_outputs("".join(cell["source"]), number, names) for number, cell in enumerate(code_cells(load()), 1)]


def _outputs(source: str, number: int, names: dict[str, Any]) -> list[Output]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    outputs: list[Output] = []
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs + [{"data": {"image/png": png}, "metadata": {}, "output_type": "display_data"} for png in _open_figures()]


def _open_figures() -> list[str]:
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", metadata={"Software": None})
        found.append(base64.b64encode(file.getvalue()).decode())
    plt.close("all")
    return found


def write() -> None:
    """Update the outputs of the notebook."""
    notebook = load()
    with TemporaryDirectory() as place:
        for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(Path(place)), strict=True), 1):
            cell["execution_count"], cell["outputs"] = number, outputs
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        json.dump(_run_here(), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # what native libraries do with their threads while the interpreter ends is not part of the notebook
    write()
