"""`Containerfile`: what it copies and installs exists, and its command line serves clients. Images are not built by the tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.broker import Wire
from support.ports import free_port

from mqstore.broker.protocol.codes import RequestCode
from mqstore.rocketmq import MessageStore
from mqstore.testing.client import Client

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the file with their arguments, lines joined."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def words(instruction: str) -> list[str]:
    (found,) = [json.loads(rest) for word, rest in instructions() if word == instruction]
    assert all(isinstance(each, str) for each in found)
    return list(found)


def docker_lines() -> list[list[str]]:
    page = (ROOT / "docs" / "guide" / "broker.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh container\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def run_lines() -> list[list[str]]:
    """Return the lines of the page that run the image."""
    return [line for line in docker_lines() if line[:2] == ["docker", "run"]]


def test_what_is_copied_and_installed_exists() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    copied = {path for word, rest in instructions() if word == "COPY" and "--from" not in rest for path in rest.split()[:-1]}
    assert copied == let_in
    tracked = subprocess.run(["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(any(f"{file}/".startswith(f"{path}/") for file in tracked) for path in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"setup.py", "pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]} <= copied
    (extras,) = re.findall(r"requirements\.py ([\w ]+) >", "".join(rest for word, rest in instructions() if word == "RUN"))
    assert set(extras.split()) <= set(project["project"]["optional-dependencies"])
    assert project["project"]["scripts"].keys() >= {words("ENTRYPOINT")[0]}
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for _, name in stages] == ["build", ""]
    (base,) = {base for base, _ in stages}
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", base)


def test_the_volume_and_the_port_are_those_of_the_command() -> None:
    served = words("ENTRYPOINT")
    assert ("VOLUME", served[2]) in instructions()
    assert ("EXPOSE", served[served.index("--listen") + 1].rpartition(":")[2]) in instructions()
    assert any(word == "RUN" and rest.endswith(served[2]) for word, rest in instructions())


def options_after_the_image(line: list[str]) -> list[str]:
    """Return what a `docker run` gives to the image: the options after its name, or those of CMD."""
    return line[line.index("mqstore") + 1 :] or words("CMD")


@pytest.mark.parametrize("line", run_lines(), ids=lambda line: " ".join(line[2:]))
def test_the_command_of_the_image_serves_clients(line: list[str], tmp_path: Path) -> None:
    port = free_port()
    command = [*words("ENTRYPOINT"), *options_after_the_image(line)]
    assert command[:3] == ["mqstore", "serve", "/store"]
    announced = command[command.index("--address") + 1] if "--address" in command else None
    published = [re.fullmatch(r"127\.0\.0\.1:(\d+):9876", each) for each in line]
    assert announced in (None, *(f"127.0.0.1:{found[1]}" for found in published if found))
    # only the directory and the port are others than in the container
    command[command.index("--listen") + 1] = f"0.0.0.0:{port}"
    if announced is not None:
        command[command.index("--address") + 1] = f"127.0.0.1:{port}"
    started = [sys.executable, "-m", *command[:2], str(tmp_path / "store"), *command[3:]]
    with subprocess.Popen(started, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            first = serving.stdout.readline()
            assert '"ready": true' in first  # what the page names to wait for
            ready = json.loads(first)
            assert ready["port"] == port
            assert announced is None or ready["address"] == f"127.0.0.1:{port}"
            with Wire(f"127.0.0.1:{port}") as wire, Client(f"127.0.0.1:{port}") as client:
                sent = client.produce("orders", "paid", keys="o-17")
                assert client.consume("orders", group="billing")[0].keys == "o-17"
                route = wire.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body.decode()
                assert re.findall(r'"brokerAddrs":\{"?0"?:"([^"]+)"\}', route) == [ready["address"]]
        finally:
            serving.terminate()
            rest, errors = serving.communicate(timeout=300)
    assert (serving.returncode, rest) == (0, "")
    assert '"event": "open-to-all"' in errors or '"event":"open-to-all"' in errors
    with MessageStore.open(tmp_path / "store") as store:
        assert store.max_offset("orders", sent.queue_id) == 1


def test_the_page_builds_this_file() -> None:
    (build,) = [line for line in docker_lines() if line[:2] == ["docker", "build"]]
    assert build[2:] == ["-f", "Containerfile", "-t", "mqstore", "."]
    assert len(run_lines()) == 3
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    assert f"#   {shlex.join(build)}\n" in text
