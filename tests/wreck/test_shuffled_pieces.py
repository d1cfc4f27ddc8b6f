"""Carving of an image whose pieces of 4 KiB are in any order: every whole record is found, whatever claims its bytes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.golden import CASES, FURTHER, GoldenCase, case_id, opened

from mqstore.files.image import Image
from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.record import Record, encode
from mqstore.rocketmq.salvage import Piece, Stretch, assemble, rows_of
from mqstore.wreck.carving import Joined, carve_range

PIECE = 4096


def carved(path: Path, split: int = 1 << 40) -> dict[int, str]:
    """Return the positions of the records in an image, with their verdicts."""
    with Image(path) as image:
        joined = Joined(image)
        for start in range(0, image.size, split):
            joined.add(carve_range(image, start, start + split))
        rows: dict[int, str] = {}
        piece, runs = Piece("image", image), joined.finish().runs
        for each in assemble([Stretch(piece, run.base, run.positions, run.end, run.unproved) for run in runs]):
            words = [word for batch in rows_of([each], ("verdict",)) for word in batch.column("verdict").to_pylist()]
            rows |= dict(zip(each.stretch.positions.tolist(), words, strict=True))
        return rows


def shuffled(case: GoldenCase, seed: int) -> tuple[bytes, dict[int, bytes], set[bytes]]:
    """Return the log of a store in pieces in another order, its whole records by their position in that, and all of its records."""
    log = open_rocketmq(opened(case), config=case.config if case.config.exists() else None).log
    pieces: list[bytes] = []
    where: list[tuple[int, int, bytes]] = []  # first piece, position in it, record
    for file in log.files:
        data = np.asarray(log.mapped(file).data)
        first, reach = len(pieces), 0
        for event in log.scan_file(file):
            if isinstance(event, Records):
                for position in event.positions.tolist():
                    size = int.from_bytes(event.data[position : position + 4].tobytes(), "big")
                    raw = event.data[position : position + size].tobytes()
                    where.append((first, position, raw))
                    reach = max(reach, position + size)
        raw_file = data[:reach].tobytes()
        pieces += [raw_file[at : at + PIECE] for at in range(0, reach, PIECE)]
    order = list(range(len(pieces)))
    random.Random(seed).shuffle(order)
    to = {piece: number for number, piece in enumerate(order)}
    whole = {}
    for first, at, raw in where:
        low, high = first + at // PIECE, first + (at + len(raw) - 1) // PIECE
        if all(to[low + k] == to[low] + k for k in range(high - low + 1)):
            whole[to[low] * PIECE + at % PIECE] = raw
    return b"".join(pieces[piece].ljust(PIECE, b"\0") for piece in order), whole, {raw for _, _, raw in where}


PLAIN = tuple(case for case in (*CASES, *FURTHER) if case.kind == "plain" and "dledger" not in case.name)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_every_whole_record_of_shuffled_pieces_is_found_and_no_other_is_intact(case: GoldenCase, seed: int, tmp_path: Path) -> None:
    image, whole, every = shuffled(case, seed)
    (tmp_path / "disk.img").write_bytes(image)
    rows = carved(tmp_path / "disk.img")
    assert not whole.keys() - rows.keys()
    sizes = {at: int.from_bytes(image[at : at + 4], "big") for at in rows}
    assert not [at for at, word in rows.items() if word == "intact" and image[at : at + sizes[at]] not in every]
    assert carved(tmp_path / "disk.img", 50_001) == rows


def chimera(text: bytes) -> tuple[bytes, int]:
    """Return a record whose last bytes are others, one of a second record inside its properties, and where that one begins."""
    outer = encode(Record("orders", b"body", properties=b"KEYS\x01" + b"k" * 900 + b"\x02"))
    inner = encode(Record("orders", text, physical_offset=77_000))
    at = len(outer) - 500
    return outer[:at] + inner + bytes(4096 - at - len(inner)), at


def test_a_record_inside_the_properties_of_another_disproves_that_one(tmp_path: Path) -> None:
    image, at = chimera(b"the one that is whole")
    (tmp_path / "disk.img").write_bytes(image)
    assert carved(tmp_path / "disk.img") == {at: "intact"}


def test_a_damaged_record_inside_the_properties_of_another_disproves_nothing(tmp_path: Path) -> None:
    image, at = chimera(b"the one that is whole")
    (tmp_path / "disk.img").write_bytes(image[: at + 8] + b"\xff" + image[at + 9 :])
    assert carved(tmp_path / "disk.img").keys() == {0}
