"""The notebook pages of the guide: each cell prints what stands below it and draws the picture that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import notebook
from support.spark_api import needs_streams

from mqstore.pipeline.spark.session import CATALOG_JAR

CELLS = {"analysis.md": 6, "rabbitmq.md": 1, "spark.md": 15}  # cells with an output, at least
LETTERS = 0.01  # versions of matplotlib and its font library move letters by parts of a pixel; another curve makes 0.03 and more


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.name, marks=[needs_streams] if page.name == "spark.md" else []) for page in notebook.PAGES]
)
def test_every_cell_prints_and_draws_what_the_page_shows(page: Path) -> None:
    if page.name == "spark.md" and not CATALOG_JAR.exists():
        pytest.skip("catalog.jar was not built: the installation found no JDK, or no pyspark")
    with notebook.stores(page) as place:
        shown_below = [cell["told"] or "" for cell in notebook.cells(page)]
        assert notebook.run(page, place) == shown_below
        assert len([told for told in shown_below if told]) >= CELLS[page.name]
        shown = notebook.pictures(page) if page.name == "analysis.md" else {}
        assert {path.name for path in place.glob("*.png")} == set(shown)
        assert len(shown) == (3 if page.name == "analysis.md" else 0)
        for name, path in shown.items():
            assert notebook.difference(place / name, path) < LETTERS
            assert path.stat().st_size < 100_000


def test_another_curve_is_another_picture(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    for name, end in (("one.png", 4), ("other.png", 9)):
        figure, axes = plt.subplots()
        axes.bar(range(10), range(1, 11))
        axes.bar(range(10), [end] * 10)
        figure.savefig(tmp_path / name)
        plt.close(figure)
    assert notebook.difference(tmp_path / "one.png", tmp_path / "other.png") > LETTERS
    assert notebook.difference(tmp_path / "one.png", tmp_path / "one.png") == 0
