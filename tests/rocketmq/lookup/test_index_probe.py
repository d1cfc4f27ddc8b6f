"""Candidates from one index file: probing and sweeping find the same, and damage is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.stores import Store, store_with_random_keys

import mqstore
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.lookup.index_probe import probe, sweep, why_unusable
from mqstore.rocketmq.lookup.key_set import KeySet


def with_index_files(root: Path, count: int, slots: int, positions: int, seed: int = 1) -> tuple[Store, tuple[IndexFile, ...]]:
    store = store_with_random_keys(root, count, slots, positions, seed)
    return store, tuple(mqstore.open(root).index_files())


@pytest.mark.parametrize(("slots", "positions"), [(1, 4000), (7, 300), (100, 400), (5000, 20_000)])
def test_probe_and_sweep_find_the_entries_of_the_asked_hashes(slots: int, positions: int, tmp_path: Path) -> None:
    store, files = with_index_files(tmp_path / "store", 600, slots, positions)
    asked = KeySet.of([(f"t{number % 4}", f"k{number}") for number in range(0, 600, 3)])
    hashes = set(asked.hash.tolist())
    wanted = sorted((key_hash, put.offset) for key_hash, put in store.keys() if key_hash in hashes)  # noqa: SIM118
    for way in (probe, sweep):
        found = [way(file, number, asked) for number, file in enumerate(files)]
        assert [each.fault for each in found] == [""] * len(files)
        assert sorted((row["hash"], row["physical_offset"]) for each in found for row in each.candidates) == wanted
        assert all((each.candidates["file"] == number).all() for number, each in enumerate(found))


def test_a_header_that_contradicts_its_entries_is_not_trusted(tmp_path: Path) -> None:
    store, files = with_index_files(tmp_path / "store", 50, 100, 400)
    assert [why_unusable(file) for file in files] == [""]
    for place, raw, wrong in (
        (16, (7).to_bytes(8, "big"), "different physical offsets"),
        (36, (401).to_bytes(4, "big"), "room for 399"),
        (36, (1).to_bytes(4, "big"), "no entries"),
    ):
        store.write()
        store.patch(files[0].relative, place, raw)
        (file,) = mqstore.open(store.root).index_files()
        assert wrong in why_unusable(file)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_file_loses_no_entry_if_a_sweep_finds_it_valid(seed: int, tmp_path: Path) -> None:
    # no change of one byte is a multiple of 257 (or of a broker's 5,000,000 slots), so a changed hash has another slot
    store, files = with_index_files(tmp_path / "store", 80, 257, 400, seed)
    asked = KeySet.of([(f"t{number % 3}", f"k{number}") for number in range(80)])
    whole = sorted((row["hash"], row["physical_offset"]) for row in sweep(files[0], 0, asked).candidates)
    chosen = random.Random(seed)
    base = 40 + 4 * 257
    place = base + 20 * chosen.randrange(1, files[0].index_count) + chosen.choice([0, 1, 2, 3, 16, 17, 18, 19])
    store.patch(files[0].relative, place, bytes([chosen.randrange(256)]))
    (file,) = mqstore.open(store.root).index_files()
    found = sweep(file, 0, asked)
    assert found.fault or sorted((row["hash"], row["physical_offset"]) for row in found.candidates) == whole
