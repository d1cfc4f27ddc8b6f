"""Every whole record out of wrecks made of golden stores: renamed and nameless files, pieces, a disk image, missing middles."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, run_cli
from support.rocketmq_states import record_starts

from mqstore.errors import NotAStoreError
from mqstore.jobs.runner import ThreadRunner
from mqstore.kernels.rocketmq import frames
from mqstore.places import open_rocketmq
from mqstore.rocketmq import Message, MessageStore
from mqstore.rocketmq.salvage import rows_of as rocketmq_rows
from mqstore.table.text import columns_for, python_rows
from mqstore.testing.running_broker import SMALL
from mqstore.wreck.search import Wreck, carve, source_files

KILLED = case_named("4.9.3/b-kill9")
ENDING = b"\0" * 8  # the last record may end in zeros, which are cut off with those after it
LINEAGE = {"store_file", "verdict"}


def log_files(case: GoldenCase) -> list[Path]:
    return sorted(path for path in (opened(case) / "commitlog").iterdir() if path.is_file())


def carve_wreck(source: Path) -> Wreck:
    return carve(source_files(source), ThreadRunner(1))


def rows_of(wreck: Wreck) -> list[dict[str, Any]]:
    names = columns_for("sha256")
    return [row for batch in rocketmq_rows(wreck.placed, names, milliseconds=True) for row in python_rows(batch, "sha256")]


def expected(case: GoldenCase) -> list[dict[str, Any]]:
    store = open_rocketmq(opened(case), config=case.config if case.config.exists() else None)
    return [row for batch in store.to_batches(columns_for("sha256"), milliseconds=True) for row in python_rows(batch, "sha256")]


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return [json.dumps({name: value for name, value in row.items() if name not in LINEAGE}, sort_keys=True) for row in rows]


PLAIN = [case for case in CASES if (opened(case) / "commitlog").is_dir() and case.kind == "plain"]


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_nameless_files_give_the_rows_of_the_store_in_the_order_of_the_log(case: GoldenCase, tmp_path: Path) -> None:
    wanted = expected(case)
    if not wanted:
        pytest.skip("the log of this store holds no record")
    order = log_files(case)
    random.Random(7).shuffle(order)
    for number, path in enumerate(order):
        (tmp_path / f"recovered-{number}.bin").write_bytes(path.read_bytes().rstrip(b"\0") + ENDING)
    wreck = carve_wreck(tmp_path)
    assert comparable(rows_of(wreck)) == comparable(wanted)
    assert wreck.logs == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_disk_image_gives_every_record_that_lies_whole_in_a_fragment(seed: int, tmp_path: Path) -> None:
    """Cut the log into fragments of disk blocks, scatter them in noise, and compare with the records that no cut goes through."""
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    image = bytearray()
    whole: set[int] = set()
    wanted = expected(KILLED)
    for path in sorted(log_files(KILLED), key=lambda _: rng.random()):
        raw, start = path.read_bytes().rstrip(b"\0") + ENDING, int(path.name)
        if raw == ENDING:
            continue
        cuts = sorted({0, len(raw), *(rng.randrange(0, len(raw), 4096) for _ in range(3))})
        fragments = list(pairwise(cuts))
        rng.shuffle(fragments)
        for low, high in fragments:
            image += noise.integers(0, 256, rng.randrange(4096), np.uint8).tobytes() + bytes(rng.randrange(4096)) + raw[low:high]
            whole |= {
                row["physical_offset"]
                for row in wanted
                if start + low <= row["physical_offset"] and row["physical_offset"] + row["size"] <= start + high
            }
            image += b"\xff"  # two fragments of one file beside each other would be one
    file = tmp_path / "disk.img"
    file.write_bytes(image)
    wreck = carve_wreck(file)
    found = rows_of(wreck)
    # a cut through the properties, the last part of a record, leaves its frame whole
    assert {row["verdict"] for row in found if row["physical_offset"] not in whole} <= {"damaged"}
    found = [row for row in found if row["physical_offset"] in whole]
    assert comparable(found) == comparable([row for row in wanted if row["physical_offset"] in whole])
    claimed = sum(row["size"] for row in found)
    assert wreck.bytes == len(image)
    assert wreck.gap_bytes + claimed <= len(image)


def test_copies_are_told_apart_and_a_damaged_copy_does_not_hide_the_intact_one(tmp_path: Path) -> None:
    first = log_files(KILLED)[0].read_bytes().rstrip(b"\0") + ENDING
    (tmp_path / "a").write_bytes(first)
    (tmp_path / "b").write_bytes(first)
    rows = rows_of(carve_wreck(tmp_path))
    assert Counter(row["verdict"] for row in rows) == {"intact": len(rows) // 2, "duplicate": len(rows) // 2}
    chosen = next(row for row in rows if row["body_len"] > 10 and row["sys_flag"] == 0)
    changed = bytearray(first)
    at = chosen["physical_offset"] + 88 + chosen["body_len"] // 2
    changed[at] ^= 0xFF
    (tmp_path / "a").write_bytes(changed)
    rows = rows_of(carve_wreck(tmp_path))
    of_it = sorted(row["verdict"] for row in rows if row["physical_offset"] == chosen["physical_offset"])
    assert of_it == ["damaged", "intact"]


def test_a_piece_that_begins_in_another_one_and_goes_on_after_it_is_of_the_same_log(tmp_path: Path) -> None:
    raw = log_files(KILLED)[0].read_bytes().rstrip(b"\0") + ENDING
    starts = record_starts(raw)
    (tmp_path / "first").write_bytes(raw[: starts[9]] + ENDING)
    (tmp_path / "second").write_bytes(raw[starts[6] :])
    wreck = carve_wreck(tmp_path)
    rows = rows_of(wreck)
    assert wreck.logs == 1
    assert [row["physical_offset"] for row in rows] == [*starts[:9], *starts[6:]]
    assert [row["verdict"] for row in rows] == ["intact"] * 9 + ["duplicate"] * 3 + ["intact"] * (len(starts) - 9)


def test_two_logs_on_one_disk_are_two_logs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with MessageStore.open(tmp_path / name, SMALL) as store:
            for number in range(20):
                store.put(Message("orders", f"{name} {number}".encode(), tags="new"))  # no zeros at its end
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for name in ("one", "two"):
        (pieces / name).write_bytes(next((tmp_path / name / "commitlog").iterdir()).read_bytes().rstrip(b"\0") + ENDING)
    wreck = carve_wreck(pieces)
    rows = rows_of(wreck)
    assert wreck.logs == 2
    assert [row["store_file"] for row in rows] == ["one"] * 20 + ["two"] * 20
    assert {row["verdict"] for row in rows} == {"intact"}


def test_ranges_that_belonged_to_nothing_are_reported(tmp_path: Path) -> None:
    raw = log_files(KILLED)[0].read_bytes().rstrip(b"\0") + ENDING
    (tmp_path / "piece").write_bytes(b"\0" * 100 + b"junk" + b"\0" * 50 + raw + b"\0" * 10)
    wreck = carve_wreck(tmp_path)
    assert (wreck.gaps[0].offset, wreck.gaps[0].length) == (100, 4)
    assert wreck.gap_bytes < 4 + 8192


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"no record" * 500, b"\xda\xa3\x20\xa7" * 2000, b"\xda\xa3\x20\xa8"])
def test_a_source_without_a_record_is_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(NotAStoreError, match="holds no whole record"):
        carve_wreck(tmp_path / "image")


@pytest.mark.parametrize("length", range(60))
def test_a_magic_at_the_end_of_a_buffer_is_not_read_past_it(length: int) -> None:
    data = np.frombuffer(b"\0\0\1\0\xda\xa3\x20\xa7" + b"\1" * length, np.uint8)
    assert frames.carve(data, 0, len(data)) == -1


Wrecking = Callable[[Path, Path], None]


def renamed(source: Path, to: Path) -> None:
    (to / "commitlog").mkdir(parents=True)
    for number, path in enumerate(sorted((source / "commitlog").iterdir())):
        (to / "commitlog" / f"file{number}").write_bytes(path.read_bytes())


def single(source: Path, to: Path) -> None:
    to.write_bytes(sorted((source / "commitlog").iterdir())[1].read_bytes())


@pytest.mark.parametrize("wrecking", [renamed, single])
def test_the_command_carves_what_is_not_a_store(wrecking: Wrecking, tmp_path: Path) -> None:
    wrecking(opened(KILLED), tmp_path / "wreck")
    done = run_cli("salvage", tmp_path / "wreck", "--to", tmp_path / "out.jsonl", "-o", "json")
    assert done.status in (0, 1), done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    wanted = expected(KILLED)
    if wrecking is single:
        wanted = [row for row in wanted if row["store_file"].endswith(sorted(log_files(KILLED))[1].name)]
    assert [row["physical_offset"] for row in rows] == [row["physical_offset"] for row in wanted]
    assert [row["body_sha256"] for row in rows] == [row["body_sha256"] for row in wanted]
    assert done.document["messages"] == len(rows) == done.document["records"]
    parquet = run_cli("salvage", tmp_path / "wreck", "--to", tmp_path / "out.parquet")
    assert parquet.status == done.status
    assert f"{len(rows):,} record" in parquet.stdout


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_fresh_store_has_the_intact_messages_of_a_wreck_with_a_missing_middle(version: str, tmp_path: Path) -> None:
    files = log_files(KILLED)
    wreck = tmp_path / "pieces"
    wreck.mkdir()
    for number, path in enumerate(files):
        if number != 2:
            (wreck / f"f{number}").write_bytes(path.read_bytes())
    done = run_cli("salvage", wreck, "--to", tmp_path / "fresh", "--as", "rocketmq", "--for", version, "-o", "json")
    assert done.status in (0, 1), done.stderr
    kept = [row for row in expected(KILLED) if not row["store_file"].endswith(files[2].name)]
    found = [
        row
        for batch in open_rocketmq(tmp_path / "fresh").to_batches(columns_for("sha256"), milliseconds=True)
        for row in python_rows(batch, "sha256")
    ]
    names = ("topic", "queue_id", "body_sha256", "keys", "tags", "uniq_key", "flag", "born_timestamp", "born_host", "properties")
    assert [[row[name] for name in names] for row in found] == [[row[name] for name in names] for row in kept]
    assert run_cli("verify", tmp_path / "fresh").status == 0
    assert run_cli("salvage", wreck, "--to", tmp_path / "fresh", "--as", "rocketmq").status == 2  # it exists


@pytest.mark.parametrize("name", ["4.9.3/a-clean-small", "5.3.3/g-clean-small"])
def test_a_new_store_is_for_the_version_that_the_files_of_the_old_one_suggest(name: str, tmp_path: Path) -> None:
    done = run_cli("salvage", opened(case_named(name)), "--to", tmp_path / "new", "--as", "rocketmq")
    assert f"A RocketMQ {name.partition('/')[0]} broker starts on {tmp_path / 'new'}; it keeps every message." in done.stdout
    permissions = re.findall(r'"perm": ?(\d+)', (tmp_path / "new" / "config" / "topics.json").read_text())
    assert set(permissions) == {"6"}  # to read and to write
