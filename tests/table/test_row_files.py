"""Part files: how rows are put into them, and when they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mqstore.files.durable import DurableDirectory
from mqstore.table import row_files
from mqstore.table.row_files import PartFiles

ROWS = pa.RecordBatch.from_pylist([{"topic": "a", "n": 1}, {"topic": "b", "n": 2}, {"topic": "a", "n": 3}])


def written(directory: Path, **options: Any) -> dict[str, tuple[int, bytes]]:
    """Return the rows and the bytes of each part that three times ROWS give."""
    with DurableDirectory(directory) as stage:
        parts = PartFiles(stage, 7, **options)
        for _ in range(3):
            parts.add(ROWS)
        made = parts.finish()
        for part in made:
            assert part.bytes == (directory / part.staged).stat().st_size
        return {part.name: (part.rows, (directory / part.staged).read_bytes()) for part in made}


@pytest.mark.parametrize("most", [1, 4, 1000])
def test_all_rows_are_in_the_one_file_whenever_they_are_written(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "GROUP_ROWS", most)
    [(name, (rows, content))] = written(tmp_path, format="jsonl").items()
    assert (name, rows) == ("part-00007.jsonl", 9)
    assert content.count(b"\n") == 9


@pytest.mark.parametrize(("most", "groups"), [(1, 3), (4, 2), (1000, 1)])
def test_rows_are_written_when_there_are_enough_for_a_group(
    most: int, groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "GROUP_ROWS", most)
    [(_, (rows, content))] = written(tmp_path, format="parquet").items()
    file = pq.ParquetFile(pa.BufferReader(content))
    assert (rows, file.metadata.num_rows, file.metadata.num_row_groups) == (9, 9, groups)


def test_each_value_of_a_partition_has_its_file(tmp_path: Path) -> None:
    parts = written(tmp_path, format="csv", partition_by=("topic",))
    assert {name: rows for name, (rows, _) in parts.items()} == {"topic=a/part-00007.csv": 6, "topic=b/part-00007.csv": 3}
    assert parts["topic=b/part-00007.csv"][1].split() == [b"n", b"2", b"2", b"2"]
