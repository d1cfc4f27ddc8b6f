"""Machine formats: byte for byte in files and pipes, harmless on a terminal, and without formulas if asked for."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import run_cli
from support.stores import Store, message

HOSTILE = "k\x1b]0;title\x07\x9b2J\u202egnp"
FORMULAS = ("=1+2", "+1", "-1", "@A1", "\uff1d1", "plain", "1=2")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = Store(tmp_path / "store")
    made.put(message("orders", b"b", keys=HOSTILE), *(message("orders", b"b", keys=key) for key in FORMULAS))
    return made.write()


def on_terminal(*words: object) -> str:
    """Run a command whose standard output is a terminal, and return what the terminal gets."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "mqstore", *map(str, words)], stdout=theirs, env=os.environ | {"TERM": "xterm"})
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "text"])
def test_no_control_character_of_a_store_reaches_a_terminal(kind: str, store: Path) -> None:
    shown = on_terminal("messages", store, "-o", kind, "--no-color")
    assert not [letter for letter in shown if letter != "\n" and not letter.isprintable()]
    assert "title" in shown
    if kind == "jsonl":
        rows = [json.loads(line) for line in shown.splitlines()]
        assert rows[0]["keys"] == HOSTILE


def test_a_pipe_gets_the_values_as_they_are(store: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run_cli("messages", store, "-o", "csv").stdout)))
    assert [row["keys"] for row in rows] == [HOSTILE, *FORMULAS]
    assert json.loads(run_cli("messages", store, "-o", "jsonl").stdout.splitlines()[0])["keys"] == HOSTILE


@pytest.mark.parametrize(
    "words", [("messages", "STORE", "-o", "csv", "--escape-formulas"), ("-o", "csv", "--escape-formulas", "messages", "STORE")]
)
def test_formulas_are_escaped_if_asked_for_and_numbers_stay(words: tuple[str, ...], store: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run_cli(*(str(store) if word == "STORE" else word for word in words)).stdout)))
    assert [row["keys"] for row in rows[1:]] == ["'=1+2", "'+1", "'-1", "'@A1", "'\uff1d1", "plain", "1=2"]
    assert {row["queue_id"] for row in rows} == {"0"}


def test_formulas_of_another_format_are_a_usage_error(store: Path) -> None:
    outcome = run_cli("messages", store, "-o", "jsonl", "--escape-formulas")
    assert (outcome.status, outcome.stderr) == (2, "mqstore: --escape-formulas is for cells of CSV; give it with -o csv\n")
