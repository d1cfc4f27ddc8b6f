"""Writers of queue files: in any number of pieces, in whatever order the files come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mqstore.files.durable import DurableDirectory
from mqstore.rabbitmq.format import queue_writer
from mqstore.rabbitmq.format.index_v1 import ENTRY, IN_SEGMENT
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.format.queue_writer import Version1Writer, Version2Writer

MESSAGE = np.frombuffer(b"\x83j", np.uint8)


def entries(*numbers: int) -> NDArray[np.void]:
    found = np.zeros(len(numbers), ENTRY)
    found["seq"], found["length"], found["size"], found["place"] = numbers, 2, 5, IN_SEGMENT
    return found


def written(root: Path, *parts: tuple[int, ...]) -> dict[str, bytes]:
    with DurableDirectory(root) as directory:
        writer = Version2Writer(directory, "Q", ENTRY_COUNT)
        for part in parts:
            writer.add(entries(*part), (MESSAGE,))
        counts = writer.close()
    assert sum(counts.values()) == sum(map(len, parts))
    return {path.name: path.read_bytes() for path in (root / "Q").iterdir()}


def test_a_file_that_comes_again_keeps_what_it_has(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    once = written(tmp_path / "a", (0, 2, 4), (ENTRY_COUNT + 1,))
    again = written(tmp_path / "b", (0, 4), (), (ENTRY_COUNT + 1,), (2,))
    assert once.keys() == again.keys() == {"0.qi", "0.qs", "1.qi", "1.qs"}
    assert {name: len(content) for name, content in once.items()} == {name: len(content) for name, content in again.items()}
    statuses = [[content[at] for at in range(64, len(content), 32)] for content in (once["0.qi"], again["0.qi"])]
    assert statuses == [[1, 0, 1, 0, 1]] * 2


def test_a_run_that_is_too_large_for_memory_is_written_in_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for piece in (queue_writer.PIECE, 1):
        monkeypatch.setattr(queue_writer, "PIECE", piece)
        root = tmp_path / str(piece)
        root.mkdir()
        with DurableDirectory(root) as directory:
            writer = Version1Writer(directory, "Q", 2048)
            writer.add(entries(1, 2), (MESSAGE,))
            assert writer.close() == {0: 2}
        files.append((root / "Q" / "0.idx").read_bytes())
    half = len(files[0]) // 2
    assert files[1] == files[0][half:] + files[0][:half]  # the first entry is written before the second one
