"""An option means the same in every command, and what a command refuses is not offered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened, run_cli

from mqstore.cli import main, verbs

LOG = case_named("4.9.3/a-clean-small")
OWN = [verb.name for verb in verbs.VERBS if verb.panel]


def flags(name: str) -> dict[str, list[str]]:
    """Return the spellings of each option of a command, by its longest one."""
    command: Any = main.parser().commands[name]
    return {max(each.opts, key=len): each.opts for each in command.params if each.param_type_name == "option"}


@pytest.mark.parametrize("name", OWN)
def test_a_short_option_means_one_thing(name: str) -> None:
    found = flags(name)
    short = {letter: option for option, opts in found.items() for letter in opts if len(letter) == 2}
    assert short.get("-q", "--quiet") == "--quiet"
    assert short.get("-t", "--topic") == "--topic"
    assert "--topic" not in found or "-t" in found["--topic"]
    assert "--as-version" not in found or "--for" in found["--as-version"]


def test_a_version_without_its_last_number_is_its_newest_release() -> None:
    short, full = (run_cli("diagnose", opened(LOG), "--for", version, "-o", "json") for version in ("4.9", "4.9.8"))
    assert (short.status, short.stdout) == (full.status, full.stdout)
    assert "there are no rules of version '5'" in run_cli("diagnose", opened(LOG), "--for", "5").stderr


def test_a_version_whose_rules_are_shown_is_named_by_for_or_as() -> None:
    told = [run_cli("topics", opened(LOG), "--view", "recovered", option, "5.3.3").stdout for option in ("--for", "--as")]
    assert told[0] == told[1] != ""


def test_what_is_refused_is_not_offered() -> None:
    assert "permissive" not in run_cli("console", "--help").stdout
    assert "s3://" not in run_cli("repair", "--help").stdout
    assert "--fs-option" not in run_cli("repair", "--help").stdout


def test_steps_are_chosen_for_apply_only() -> None:
    outcome = run_cli("repair", opened(LOG), "--only", "1")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "add --apply" in outcome.stderr


@pytest.mark.parametrize("words", [["convert", "--to", "out"], ["rescue"]])
def test_the_wrong_broker_is_said_before_anything_else(words: list[str]) -> None:
    outcome = run_cli(words[0], opened(LOG), *words[1:])
    assert outcome.status == 2
    assert "is a RocketMQ store, and this command is for the queues of RabbitMQ" in outcome.stderr


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip", "xztar"])
def test_an_archive_is_read_from_standard_input(kind: str, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), kind, opened(LOG))
    command = [sys.executable, "-m", "mqstore", "topics", "-", "-o", "jsonl"]
    with open(packed, "rb") as archive:
        done = subprocess.run(
            command, stdin=archive, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}, check=True
        )
    assert done.stdout == run_cli("topics", opened(LOG), "-o", "jsonl").stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == [Path(packed).name]  # nothing is left


def test_an_empty_standard_input_is_one_sentence() -> None:
    command = [sys.executable, "-m", "mqstore", "inspect", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "standard input is empty" in done.stderr
