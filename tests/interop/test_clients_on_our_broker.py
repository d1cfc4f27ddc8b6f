"""Three families of real clients on our broker: Java 4.9.3, Java 5.3.x and C++, and hand-made requests, which real brokers pass as well.

The expected results were recorded with the same clients on real brokers of the same version (rocketmq-clients/README.md).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.clientoracle import CLIENTS, SCENARIOS, VERSIONS, Running, start, why_not

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]


class Fleet:
    """A broker for each version, all started at once, as the scenarios mostly wait. reasons: why a version has no Java clients."""

    def __init__(self, directory: Path) -> None:
        self.reasons = {version: why_not(version) for version in VERSIONS}
        self.running = {version: start(version, directory / version, with_clients=self.reasons[version] is None) for version in VERSIONS}
        self._outcomes: dict[str, dict[str, tuple[bool, str]]] = {}

    def outcomes(self, version: str) -> dict[str, tuple[bool, str]]:
        if version not in self._outcomes:
            self._outcomes[version] = self.running[version].outcomes()
        return self._outcomes[version]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    started = Fleet(tmp_path_factory.mktemp("clients"))
    yield started
    codes = [running.stop() for running in started.running.values()]
    assert codes == [0] * len(codes)


def lines(running: Running, script: str, *arguments: str) -> list[dict[str, object]]:
    """Run a script of the folder against a broker and return the JSON lines that it prints."""
    command = [sys.executable, str(CLIENTS / script), running.address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=running.directory)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr
    return found


@pytest.mark.parametrize(("version", "passing"), [("4.9.3", 38), ("5.3.3", 38)])
def test_requests_by_hand_are_answered_as_by_a_real_broker(fleet: Fleet, version: str, passing: int) -> None:
    told = lines(fleet.running[version], "raw_checks.py", "--profile", version)
    assert [each for each in told if not each["ok"]] == []
    assert len(told) == passing


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_in_cpp_sends_consumes_and_pulls(fleet: Fleet, version: str) -> None:
    if importlib.util.find_spec("rocketmq") is None:
        pytest.skip("the wheel rocketmq 0.4.4 is not installed; `pip install rocketmq==0.4.4` installs the C++ client (x86_64 Linux)")
    told = lines(fleet.running[version], "cpp_client.py")
    assert [each for each in told if not each["ok"]] == []
    assert len(told) == 2


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_unmodified_java_client_finds_a_broker(fleet: Fleet, version: str, scenario: str) -> None:
    reason = fleet.reasons[version]
    if reason is not None:
        pytest.skip(reason)
    told = fleet.outcomes(version)
    assert scenario in told, fleet.running[version].complaints()
    ok, detail = told[scenario]
    assert ok, f"{detail}\n{fleet.running[version].complaints()}"
