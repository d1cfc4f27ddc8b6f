"""The pages on the broker: their examples run, and print what is shown."""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support import transcripts
from support.broker import Wire, records
from support.ports import free_port

from mqstore.broker.protocol.codes import RequestCode
from mqstore.rocketmq import MessageStore
from mqstore.testing.client import Client

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_the_examples_of_the_broker_page_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    outcome = doctest.testfile(str(GUIDE / "broker.md"), module_relative=False, optionflags=flags)
    assert outcome.attempted > 15
    assert outcome.failed == 0


def test_the_commands_of_the_broker_page_serve_and_tell_metrics(tmp_path: Path) -> None:
    start, ask = re.findall(r"^```sh serve\n(.*?)^```$", (GUIDE / "broker.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ports = {"9876": str(free_port()), "9877": str(free_port())}
    start, ask = (re.sub("9876|9877", lambda port: ports[port[0]], text) for text in (start, ask))
    words = start.removesuffix(" &\n").split()
    assert words[0] == "mqstore"
    serving = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("Serving orders as RocketMQ 4.9.3 on 127.0.0.1:")
        told = subprocess.run(
            ["bash", "-c", ask.replace("python ", f"{sys.executable} ")], capture_output=True, text=True, check=True, timeout=300
        )
        assert 'rocketmq_broker_tps{broker="broker-a"' in told.stdout
    finally:
        serving.send_signal(signal.SIGTERM)
        errors = serving.communicate(timeout=300)[1]
    assert serving.returncode == 0, errors
    assert not (tmp_path / "orders" / "abort").exists()


def shown(page: Path, kind: str) -> str:
    """Return the block of a kind; a page that has several of it fails."""
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(block)


PROGRAMS = {**ENVIRONMENT, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def test_the_ready_line_has_the_fields_that_the_page_shows(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mqstore", "serve", "orders", "--listen", "127.0.0.1:0", "--print-ready", "-q"]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        serving.terminate()
    example = json.loads(shown(GUIDE / "broker.md", "json ready"))
    found = json.loads(line)
    assert list(found) == list(example)
    assert found == example | {name: found[name] for name in ("address", "port", "pid")}
    assert list(map(type, found.values())) == list(map(type, example.values()))


def test_the_shell_lines_wait_for_the_broker_and_end_it(tmp_path: Path) -> None:
    script = shown(GUIDE / "broker.md", "sh ready")
    done = subprocess.run(["bash", "-uc", script], cwd=tmp_path, env=PROGRAMS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with MessageStore.open(tmp_path / "orders") as store:
        assert [record.body for record in store.query("orders", "o-17").records] == [b"paid"]
    (tmp_path / "ready").unlink()
    busy = script.replace("--listen 127.0.0.1:0", "--listen nowhere")
    failed = subprocess.run(["bash", "-uc", busy], cwd=tmp_path, env=PROGRAMS, capture_output=True, text=True, timeout=300, check=False)
    assert failed.returncode == 1
    assert "cannot listen on 'nowhere'" in (tmp_path / "broker.log").read_text()


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler")
def test_the_program_in_java_reads_the_address_and_ends_the_broker(tmp_path: Path) -> None:
    (tmp_path / "OrdersTest.java").write_text(shown(GUIDE / "broker.md", "java"), encoding="utf-8")
    command = ["java", "OrdersTest.java"]
    done = subprocess.run(command, cwd=tmp_path, env=PROGRAMS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r'producer\.setNamesrvAddr\("127\.0\.0\.1:\d+"\)\nstatus 0\n', done.stdout)


def python_blocks(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.long
@pytest.mark.parametrize(("page", "count"), [(GUIDE / "pytest.md", 5), (ROOT / "README.md", 1)], ids=["pytest.md", "README.md"])
def test_the_tests_that_the_pages_show_pass(page: Path, count: int, tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text(python_blocks(page), encoding="utf-8")
    installed = any(point.value == "mqstore.pytestplugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "mqstore.pytestplugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "test_shown.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout


def shown_serving() -> list[tuple[str, str, str]]:
    """(page, command, the line that it prints, or nothing) of all that pages show running."""
    pages = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
    found = []
    for page in pages:
        for block in re.findall(r"^```serving\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            found += [(page.name, *each) for each in re.findall(r"^\$ mqstore (.*)\n((?!\$).*)", block, re.MULTILINE)]
    return found


def _accounts_and_certificates(place: Path) -> None:
    """Make what the page on access has made before: its file of accounts, and its certificates."""
    text = (GUIDE / "who-may-connect.md").read_text(encoding="utf-8")
    (accounts,), (certificates,) = (
        re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for kind in ("yaml accounts", "sh certificates")
    )
    (place / "plain_acl.yml").write_text(accounts, encoding="utf-8")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    subprocess.run(["bash", "-ec", certificates], cwd=place, check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(("page", "command", "line"), shown_serving(), ids=lambda text: text.split()[0] if text else "none")
def test_what_a_page_shows_running_says_so(page: str, command: str, line: str) -> None:
    start = "import sys; sys.argv[0] = 'mqstore'; from mqstore.cli.main import main; sys.exit(main())"
    with transcripts.stores() as place:
        if page == "who-may-connect.md":
            _accounts_and_certificates(place)
        command = re.sub(r"--listen \S+", "", command)
        words = [sys.executable, "-c", start, *command.split(), "--listen", "127.0.0.1:0"]
        running = subprocess.Popen(words, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert running.stdout is not None
            told = running.stdout.readline().rstrip()
            if line:
                assert re.sub(r":\d+", ":N", told) == re.sub(r"(?:0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:N", line)
            asked = re.search(r"127\.0\.0\.1:\d+", told)
            assert asked is not None
            if "--acl" in command:
                with socket.create_connection(asked[0].split(":"), timeout=300):  # type: ignore[arg-type]
                    pass
            elif command.startswith("serve orders"):
                assert json.loads(told)["writable"] if "-o" in command else "read-only" not in told
            elif command.startswith("serve"):
                with Client(asked[0]) as client:
                    assert len(client.consume("late", 3, group="readers")) == 3
                with Wire(asked[0]) as wire:
                    times = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
                    found = wire.call(RequestCode.QUERY_MESSAGE, {"topic": "late", "key": "OrderID392", "maxNum": "64", **times})
                    assert len(records(found.body)) == 1
            else:
                with urllib.request.urlopen(f"http://{asked[0]}/stores/0/key?topic=late&key=OrderID390", timeout=300) as page:
                    assert b"OrderID390" in page.read()
        finally:
            running.send_signal(signal.SIGINT)
            errors = running.communicate(timeout=300)[1]
    assert running.returncode in (0, 130), errors
