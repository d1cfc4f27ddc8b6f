"""Bulk lookup: every plan finds exactly the messages that have the asked keys, and says why a key has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from goldenkit import CASES, GoldenCase, case_id, case_named, opened, unchanged

import mqstore
from mqstore.messages import ROCKETMQ_COLUMNS
from mqstore.pipeline.lookup import lookup
from mqstore.rocketmq.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK

if TYPE_CHECKING:
    pass

Row = dict[str, Any]
Pair = tuple[str, str]
PLANS = ("probe", "sweep", "scan")
SOUND = case_named("4.9.3/a-clean-small")


@cache
def table(case: GoldenCase) -> list[Row]:
    return [row for batch in mqstore.open(opened(case), config=case.config).view().batches() for row in batch.to_pylist()]


def pairs_of(row: Row) -> Iterator[Pair]:
    if row["sys_flag"] & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        for key in dict.fromkeys([*([row["uniq_key"]] if row["uniq_key"] else []), *(row["keys"] or [])]):
            yield row["topic"], key


def truth(rows: list[Row], asked: list[Pair]) -> list[tuple[str, str, int]]:
    """(topic, key, physical offset) of every hit, in the order of an answer."""
    rank = {pair: number for number, pair in reversed(list(enumerate(asked)))}
    return [
        (*pair, row["physical_offset"])
        for row in rows
        for pair in sorted((pair for pair in pairs_of(row) if pair in rank), key=rank.__getitem__)
    ]


def answer(to: Path) -> list[Row]:
    if to.suffix == ".jsonl":
        return [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    paths = [to] if to.is_file() else sorted(to.glob("*.parquet"))
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def hits(rows: list[Row]) -> list[tuple[str, str, int]]:
    return [(row["key_topic"], row["key"], row["physical_offset"]) for row in rows if row["found"]]


def everything(case: GoldenCase) -> list[Pair]:
    """All keys of all messages, and some that nobody put."""
    pairs = dict.fromkeys(pair for row in table(case) for pair in pairs_of(row))
    absent = [
        (topic, f"absent-{number}") for number, topic in enumerate(dict.fromkeys([*(row["topic"] for row in table(case)), "no topic"]))
    ]
    crossed = [("no topic", key) for _, key in list(pairs)[:5]]
    return [pair for pair in dict.fromkeys([*pairs, *absent, *crossed]) if all(pair)]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_three_plans_find_what_the_message_table_holds(case: GoldenCase, tmp_path: Path) -> None:
    source, asked = opened(case), everything(case)
    wanted = truth(table(case), asked)
    by_offset = {row["physical_offset"]: row for row in table(case)}
    missed = sorted(set(asked) - {(topic, key) for topic, key, _ in wanted})
    with unchanged(source):
        for plan in PLANS:
            report = lookup(source, asked, tmp_path / plan, by=plan, in_process_threads=2, config=case.config)
            rows = answer(tmp_path / plan)
            assert hits(rows) == wanted, (plan, report.notes)
            assert sorted((row["key_topic"], row["key"]) for row in rows if not row["found"]) == missed
            assert (report.hits, report.found, report.keys) == (len(wanted), len(asked) - len(missed), len(asked))
            assert sum(report.misses.values()) == len(missed)
            for row in rows:
                assert (row["reason"] is None) is row["found"]
                wanted_row = by_offset[row["physical_offset"]] if row["found"] else dict.fromkeys(ROCKETMQ_COLUMNS)
                assert {name: row[name] for name in ROCKETMQ_COLUMNS} == wanted_row


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_number_of_splits_does_not_change_the_answer(case: GoldenCase, tmp_path: Path) -> None:
    asked = everything(case)
    answers = []
    for count in (1, 3, 7):
        to = tmp_path / f"{count}.jsonl"
        lookup(opened(case), asked, to, by="scan", splits=count, in_process_threads=2, config=case.config)
        answers.append(to.read_bytes())
    assert answers[0] == answers[1] == answers[2]
