"""What all tests share: one Spark session for a run, and the switches for tests that take long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--scripts", type=int, default=100, help="random scripts that each version of the real store is compared on")
    parser.addoption("--first-script", type=int, default=0, help="the number of the first of them")
    parser.addoption("--rabbit-scripts", type=int, default=60, help="random lives of queues that a real RabbitMQ node is compared on")
    parser.addoption("--rabbit-seed", type=int, default=None, help="the seed of these lives, as an earlier run has printed it")
    parser.addoption("--crash-states", type=int, default=None, help="crash states to check of both versions together; 0: all there are")
    parser.addoption("--kills", type=int, default=None, help="lives that kill -9 ends, of both versions together")
    parser.addoption("--whole", action="store_true", help="sweeps try every case instead of an even sample that fits a CI run")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with a Spark session share one xdist worker, so that a run starts one JVM."""
    slow = pytest.mark.skip(reason="slow; --run-slow runs it")
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--run-slow"):
            item.add_marker(slow)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("spark"))


COUNTED = {
    "images": "corruption sweep: {} images tried",
    "queue_images": "corruption sweep of RabbitMQ stores: {} images tried",
    "crash_states": "crash points: {} states opened",
    "merge_states": "crash points: {} of them in the middle of a merge of message store files",
    "faults": "faults: {} failing calls tried",
    "kills": "kill -9: {} lives ended",
    "rabbit_scripts": "random lives of queues: {} led by a real RabbitMQ node and by our engine",
    "scripts": "random scripts: {} run by the real store and by ours",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Long proofs say how much they tried: tests record it under one of the names above."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    for name, sentence in COUNTED.items():
        total = sum(int(value) for report in reports for found, value in report.user_properties if found == name)
        if total:
            terminalreporter.write_line(sentence.format(f"{total:,}"))


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether a sweep tries every case."""
    return bool(request.config.getoption("--whole"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, in which a task is tried three times."""
    from mqstore.pipeline.spark.session import session, stop

    started = session("local[2,3]", app_name="mqstore tests")
    yield started
    stop()
