"""`help`, and completion as a real shell asks for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import run_cli

from mqstore.cli import main


@pytest.fixture
def path_with_command(tmp_path: Path) -> str:
    """A PATH on which `mqstore` is this package."""
    program = tmp_path / "bin" / "mqstore"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from mqstore.cli.entry import main; main()" "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_help_of_a_command_is_what_its_option_help_prints() -> None:
    asked = run_cli("help", "verify")
    assert asked.status == 0
    assert asked.stdout == run_cli("verify", "--help").stdout
    assert "Usage: mqstore verify" in asked.stdout


def test_help_without_a_command_lists_all_commands() -> None:
    assert run_cli("help").stdout == run_cli("--help").stdout


def test_help_of_what_is_not_a_command_is_one_sentence() -> None:
    outcome = run_cli("help", "checks")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr == "mqstore: there is no command 'checks'; `mqstore help` lists the commands\n"
    assert run_cli("help", "inspct").stderr == "mqstore: there is no command 'inspct'; did you mean 'inspect'?\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_names_the_command_and_the_shell(shell: str) -> None:
    outcome = run_cli("completion", shell)
    assert outcome.status == 0
    assert f"complete_{shell}" in outcome.stdout
    assert "mqstore" in outcome.stdout


def test_another_shell_is_refused_by_name() -> None:
    outcome = run_cli("completion", "tcsh")
    assert outcome.status == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in outcome.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [(["ver"], ["verify"]), (["verify", "--mas"], ["--master"]), (["completion", "b"], ["bash"])],
    ids=["command", "option", "value"],
)
def test_bash_completes_commands_options_and_values(words: list[str], completed: list[str], path_with_command: str) -> None:
    script = (
        'source <(mqstore completion bash); COMP_WORDS=(mqstore "$@"); COMP_CWORD=$#; _mqstore_completion mqstore; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": path_with_command}
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, env=environment, timeout=300, check=True)
    assert (done.stdout.split(), done.stderr) == (completed, "")


def test_brackets_in_the_help_of_an_option_are_shown_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    parser = main.parser()
    found = 0
    for name in parser.list_commands(None):
        command = parser.get_command(None, name)
        texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        for part in (part for text in texts for part in re.findall(r"\S*\[[^\]]*\]\S*", text)):
            found += 1
            assert part in run_cli(name, "--help").stdout
    assert found
