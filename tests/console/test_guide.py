"""The guide's page is correct: its command, its addresses, its example."""

from __future__ import annotations

import doctest
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.console import golden, visiting
from support.golden import run_cli

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide" / "console.md"
STORES = ("4.9.3/b-kill9", "4.9.3/m-damaged/16-everything", "3.10.8/f-mixed-features")
NOTES = ("its page says so until it does", "--tls-cert and --tls-key encrypt them")
START = "import sys; sys.argv[0] = 'mqstore'; from mqstore.cli.main import main; sys.exit(main())"


def test_every_address_of_the_guide_is_answered() -> None:
    told = re.findall(r"^\| `(/[^`]*)` \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(told) > 15
    with visiting(*map(golden, STORES)) as visitor:
        assert {path: visitor.get(path).status_code for path in told} == dict.fromkeys(told, 200)


def test_the_example_of_the_guide_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, case in zip(("store", "damaged"), STORES, strict=False):
        (tmp_path / name).symlink_to(golden(case))
    outcome = doctest.testfile(str(GUIDE), module_relative=False)
    assert (outcome.attempted, outcome.failed) == (3, 0)


def started(*argv: str) -> tuple[subprocess.Popen[str], str]:
    """Start the command and return it with the line that it has printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, "console", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=None
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_interrupted(number: signal.Signals) -> None:
    process, line = started(golden(STORES[0]), "--listen", "127.0.0.1:0")
    found = re.fullmatch(r"The console answers at (http://127\.0\.0\.1:\d+)\n", line)
    assert found is not None, line
    with urllib.request.urlopen(found[1]) as answer:
        assert "b-kill9" in answer.read().decode()
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_missing_path_is_reported_at_the_start(tmp_path: Path) -> None:
    process, line = started(golden(STORES[0]), str(tmp_path / "typo"), "--listen", "127.0.0.1:0")
    assert line.startswith("The console answers at ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    words = " ".join(errors.split())
    assert f"{tmp_path / 'typo'} does not exist yet" in words
    assert words.count("does not exist yet") == 1


def test_listening_on_all_addresses_prints_an_address_with_a_token() -> None:
    process, line = started(golden(STORES[0]), "--listen", "0.0.0.0:0")
    found = re.fullmatch(r"The console answers at http://0\.0\.0\.0:(\d+)/enter\?token=([\w-]{20,})\n", line)
    try:
        assert found is not None, line
        asked = urllib.request.Request(f"http://127.0.0.1:{found[1]}/stores/0", headers={"Authorization": f"Bearer {found[2]}"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("store", "--listen", "nowhere"), "HOST:PORT"),
        (("store", "--replay-to", "x"), "--allow-writes"),
        (("store", "--allow-writes", "--replay-to", "http://x"), "is not a replay target"),
        (("store", "--allow-writes", "--replay-to", "localhost:5672"), "give amqp://user:password@host:port/vhost"),
        (("store", "--allow-writes", "--replay-to", "missing"), "is not a directory; create it first"),
        (("store", "--allow-writes", "--replay-to", "store"), "one of the stores that are shown"),
        (("store", "--listen", "192.0.2.1:1"), "cannot listen on"),
    ],
)
def test_what_cannot_be_served_is_reported_in_one_sentence(argv: tuple[str, ...], sentence: str) -> None:
    done = run_cli("console", *argv)
    assert done.status == 2
    (error,) = [line for line in done.stderr.splitlines() if not line.endswith(NOTES)]
    assert error.startswith("mqstore: ")
    assert sentence in error
