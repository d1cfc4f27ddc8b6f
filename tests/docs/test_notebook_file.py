"""The notebook of the guide: every cell runs, and its outputs and figures are the committed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ipynb, notebook

LETTERS = 0.01  # versions of matplotlib and its font library move letters by parts of a pixel; another curve makes 0.03 and more


def test_it_is_small_and_has_ten_cells_that_all_have_outputs() -> None:
    found = ipynb.load()
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    cells = ipynb.code_cells(found)
    assert len(cells) == 10
    assert [cell["execution_count"] for cell in cells] == list(range(1, 11))
    assert all(cell["outputs"] for cell in cells)
    assert sum(len(ipynb.pictures(cell["outputs"])) for cell in cells) == 3
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert ipynb.NOTEBOOK.stat().st_size < 200_000
    assert str(Path.home()) not in json.dumps(found)


@pytest.mark.long
@pytest.mark.spark
def test_every_cell_runs_and_has_the_outputs_that_are_committed(tmp_path: Path) -> None:
    committed = [cell["outputs"] for cell in ipynb.code_cells(ipynb.load())]
    found = ipynb.run(tmp_path)
    assert [ipynb.texts(outputs) for outputs in found] == [ipynb.texts(outputs) for outputs in committed]
    for number, (drawn, shown) in enumerate(zip(found, committed, strict=True), 1):
        assert len(ipynb.pictures(drawn)) == len(ipynb.pictures(shown))
        for one, other in zip(ipynb.pictures(drawn), ipynb.pictures(shown), strict=True):
            (tmp_path / "drawn.png").write_bytes(one)
            (tmp_path / "shown.png").write_bytes(other)
            assert notebook.difference(tmp_path / "drawn.png", tmp_path / "shown.png") < LETTERS, f"cell {number}"
