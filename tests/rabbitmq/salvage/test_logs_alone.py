"""Salvage from parts of quorum queues and streams: every intact entry of a lone file comes out, as it is in the whole store."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import quorum, streams

import mqstore
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.quorum.commands import UserCommand, read_entry
from mqstore.rabbitmq.quorum.segment import read_segment
from mqstore.rabbitmq.quorum.wal import read_wal

Row = dict[str, Any]


def salvaged(path: Path, place: Path) -> list[Row]:
    target = place / "salvaged.jsonl"
    target.unlink(missing_ok=True)
    mqstore.salvage(path, target)
    return [json.loads(line) for line in target.read_text("utf-8").splitlines()]


def published(path: Path) -> set[tuple[str, int]]:
    """Return member and index of each entry of a lone log that holds a message that no later one replaces. `requeue` has a copy."""
    data = np.fromfile(path, np.uint8)
    if path.suffix == ".wal":
        found = read_wal(data, path.name)
        rows, uids = found.records, [found.uids[number].decode() for number in found.records["uid"].tolist()]
    else:
        rows = read_segment(data, path.name).entries
        uids = [path.parent.name] * len(rows)
    last: dict[tuple[str, int], bool] = {}
    for uid, row in zip(uids, rows, strict=True):
        if row["truncates"]:
            last = {key: kept for key, kept in last.items() if key[0] != uid or key[1] < row["index"]}
        try:
            command = read_entry(data[row["position"] : row["position"] + row["length"]].tobytes())
        except EtfError:
            command = None
        last[uid, int(row["index"])] = isinstance(command, UserCommand) and command.name in ("e", "enqueue", "requeue")
    return {key for key, is_message in last.items() if is_message}


def logs(case: str, ending: str) -> list[Path]:
    return [
        path for path in sorted((quorum.node(case) / "quorum").rglob(f"*.{ending}")) if path.stat().st_size > 5 and not path.is_symlink()
    ]


@pytest.mark.parametrize("ending", ["wal", "segment"])
@pytest.mark.parametrize("case", quorum.CASES)
def test_every_message_of_a_lone_raft_log_comes_out_once_and_none_is_damaged(case: str, ending: str, tmp_path: Path) -> None:
    for number, path in enumerate(logs(case, ending)):
        want = published(path)
        if not want:
            continue
        rows = salvaged(path, tmp_path)
        assert {row["verdict"] for row in rows} <= {"unindexed", "consumed"}, path
        assert Counter(row["raft_index"] for row in rows) == Counter(index for _, index in want), path
        if not number:  # a recovery program gave it another name
            shutil.copy(path, tmp_path / f"f0001.{ending}")
            again = salvaged(tmp_path / f"f0001.{ending}", tmp_path)
            assert sorted(row["payload_sha256"] for row in again) == sorted(row["payload_sha256"] for row in rows)


@pytest.mark.parametrize("case", streams.CASES)
def test_a_lone_stream_segment_has_the_rows_that_it_has_in_the_store(case: str, tmp_path: Path) -> None:
    whole: dict[str, list[tuple[int, str]]] = {}
    for row in salvaged(streams.node(case), tmp_path):
        if row["queue_type"] == "stream":
            whole.setdefault(row["store_file"], []).append((row["stream_offset"], row["payload_sha256"]))
    assert whole
    for name, want in whole.items():
        path = streams.node(case) / name
        for lone in (path, Path(shutil.copy(path, tmp_path / "piece.segment"))):
            rows = salvaged(lone, tmp_path)
            assert [(row["stream_offset"], row["payload_sha256"]) for row in rows] == want
            assert {row["store_file"] for row in rows} == {lone.name}


def test_logs_under_other_names_in_one_place_do_not_void_each_other(tmp_path: Path) -> None:
    wreck = tmp_path / "lost+found"
    wreck.mkdir()
    want: Counter[int] = Counter()
    for number, path in enumerate(path for ending in ("wal", "segment") for path in logs("4.0.5/b-quorum-long-clean", ending)):
        shutil.copy(path, wreck / f"f{number:04}{path.suffix}")
        want.update(index for _, index in published(path))
    assert want
    assert Counter(row["raft_index"] for row in salvaged(wreck, tmp_path)) == want
