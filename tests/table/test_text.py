"""Rows in machine formats: valid whatever a store holds, and the same values in each."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import run_cli
from support.stores import Store, message

from mqstore.table.text import columns_for, csv_rows, json_rows

TEXT = st.one_of(st.none(), st.text())
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": TEXT,
            "physical_offset": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            "body_crc_ok": st.one_of(st.none(), st.booleans()),
            "body": st.one_of(st.none(), st.binary()),
            "properties": st.one_of(st.none(), st.dictionaries(st.text(), st.text())),
        }
    ),
    max_size=8,
)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("physical_offset", pa.int64()),
        ("body_crc_ok", pa.bool_()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    plain = [row | {"properties": None if row["properties"] is None else list(row["properties"].items())} for row in rows]
    return pa.RecordBatch.from_pylist(plain, schema=SCHEMA)


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"body": None if row["body"] is None else row["body"].decode("utf-8", "replace")}


@settings(deadline=None)  # the first call imports pyarrow
@given(ROWS)
def test_every_row_is_valid_json_with_the_values_of_the_batch(rows: list[dict[str, Any]]) -> None:
    assert [json.loads(line) for line in json_rows(batch(rows), "text")] == [wanted(row) for row in rows]


@settings(deadline=None)  # the first call imports pyarrow
@given(ROWS)
def test_a_row_is_one_line(rows: list[dict[str, Any]]) -> None:
    assert all("\n" not in line and "\r" not in line for line in json_rows(batch(rows), "base64"))


def test_a_slice_of_a_batch_keeps_its_own_properties() -> None:
    whole = batch([{"topic": t, "physical_offset": 1, "body_crc_ok": True, "body": b"", "properties": {"KEYS": t}} for t in "abc"])
    assert [json.loads(line)["properties"] for line in json_rows(whole.slice(1), "text")] == [{"KEYS": "b"}, {"KEYS": "c"}]


def test_csv_cells_are_empty_for_null_and_json_for_properties() -> None:
    made = batch([{"topic": None, "physical_offset": 7, "body_crc_ok": False, "body": b"\xff", "properties": {"a": "b"}}])
    assert csv_rows(made, "base64") == [(None, 7, "false", "/w==", '{"a":"b"}')]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with everything that text formats stumble over."""
    made = Store(tmp_path / "store")
    made.put(message("orders", b'line one\nline two,"quoted"\r\n', keys="k1 k2", tags='a,"b"'))
    made.put(message("orders", bytes(range(256))))
    made.put(message("空 |%", "żółć 😀".encode(), keys="ключ"))
    return made.write()


@pytest.mark.parametrize("body", ["none", "sha256", "base64", "text"])
def test_json_json_lines_and_csv_tell_the_same(store: Path, body: str) -> None:
    lines = run_cli("messages", store, "-o", "jsonl", "--body", body).rows
    assert run_cli("messages", store, "-o", "json", "--body", body).document == lines
    sheet = list(csv.DictReader(io.StringIO(run_cli("messages", store, "-o", "csv", "--body", body).stdout, newline="")))
    assert len(lines) == len(sheet) == 3
    for line, cells in zip(lines, sheet, strict=True):
        assert tuple(line) == tuple(cells) == columns_for(body)
        for name, value in line.items():
            cell = cells[name]
            if value is None:
                assert cell == ""
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, dict):
                assert json.loads(cell) == value
            else:
                assert cell == str(value)


def test_a_body_as_text_replaces_what_is_no_text(store: Path) -> None:
    bodies = [row["body"] for row in run_cli("messages", store, "-o", "jsonl", "--body", "text").rows]
    assert bodies[0] == 'line one\nline two,"quoted"\r\n'
    assert "\ufffd" in bodies[1]
    assert bodies[2] == "żółć 😀"


def test_an_empty_answer_is_still_a_document(store: Path) -> None:
    assert run_cli("messages", store, "-o", "json", "--topic", "nope").document == []
    assert run_cli("messages", store, "-o", "jsonl", "--topic", "nope").stdout == ""
    assert run_cli("messages", store, "-o", "csv", "--topic", "nope").stdout.count("\n") == 1


@pytest.mark.parametrize("place", ["before", "behind"])
def test_options_of_every_verb_stand_before_it_or_behind_it(store: Path, place: str) -> None:
    options = ("-o", "json", "--no-color", "-q")
    argv = (*options, "topics", store) if place == "before" else ("topics", store, *options)
    assert [row["topic"] for row in run_cli(*argv).document] == ["orders", "空 |%"]


def test_what_stands_behind_the_verb_is_stronger(store: Path) -> None:
    assert run_cli("-o", "csv", "topics", store, "-o", "json").document


@pytest.mark.parametrize("command", ["inspect", "topics", "groups", "verify", "messages"])
@pytest.mark.parametrize("output", ["json", "jsonl", "csv"])
def test_machine_formats_put_nothing_else_on_standard_output(store: Path, command: str, output: str) -> None:
    outcome = run_cli(command, store, "-o", output, "-v")
    assert outcome.status == 0, outcome.stderr
    if output == "json":
        assert outcome.document is not None
    elif output == "jsonl":
        assert all(isinstance(row, dict) for row in outcome.rows)
    else:
        sheet = list(csv.reader(io.StringIO(outcome.stdout, newline="")))
        assert len({len(row) for row in sheet}) == 1
