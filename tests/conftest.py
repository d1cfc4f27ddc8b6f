"""What all tests share: the two tiers of a run, how tests are spread over its workers, and one Spark session.

A run without `--all` leaves out the tests whose marker is in `LEFT_OUT`, takes as many cases of each other test as fit into half a second
(`seconds.txt`), and makes the sweeps small. It says at its end how many tests of each kind it has left out. A test that is named by its
node id, or by a marker expression (`-m`), is never left out.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import hypothesis
import pytest

from mqstore.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]

# marker: what it stands for in the last lines of a run
LEFT_OUT = {
    "interop": "with real brokers, nodes and clients",
    "cluster": "on a Spark cluster",
    "browser": "in a browser",
    "long": "long proofs and sweeps",
    "spark": "with Spark, beyond the first of each file",
}
SLOW = "that take many minutes"
LONGER = "that take longer than half a second"
OF_SIZES = "that say how much is handled at once"
SMALL_BATCHES = hasattr(sys.modules.get("sitecustomize"), "LOWERED")  # tests/support/small_batches
SAMPLED = "further cases of tests with many"
SECONDS = 0.5  # that a test may take in a run without --all: as many of its cases as that is enough for
SPARK_SECONDS = 3.0  # that one with Spark may take there
NOTED = ROOT / "tests" / "seconds.txt"  # what a case takes, of the tests whose cases take more than SECONDS together

COUNTED = {
    "images": "corruption sweep: {} images tried",
    "structures": "structural fuzzer: {} damaged images checked",
    "queue_images": "corruption sweep of RabbitMQ stores: {} images tried",
    "crash_states": "crash points: {} states opened",
    "merge_states": "crash points: {} of them in the middle of a merge of message store files",
    "faults": "faults: {} failing calls tried",
    "kills": "kill -9: {} lives ended",
    "rabbit_scripts": "random lives of queues: {} led by a real RabbitMQ node and by our engine",
    "scripts": "random scripts: {} run by the real store and by ours",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests with real brokers, clusters and browsers and the long proofs, too")
    parser.addoption("--first-cases", action="store_true", help="run only the first case of each test")
    parser.addoption("--run-slow", action="store_true", help="with --all: run the tests marked slow, too")
    parser.addoption("--until", type=int, default=None, help="a Unix time after which only tests of a run without --all are begun")
    parser.addoption("--scripts", type=int, default=20, help="random scripts that each version of the real store is compared on")
    parser.addoption("--first-script", type=int, default=0, help="the number of the first of them")
    parser.addoption("--rabbit-scripts", type=int, default=12, help="random lives of queues that a real RabbitMQ node is compared on")
    parser.addoption("--rabbit-seed", type=int, default=None, help="the seed of these lives, as an earlier run has printed it")
    parser.addoption("--crash-states", type=int, default=None, help="crash states to check of both versions together; 0: all there are")
    parser.addoption("--predicates", type=int, default=None, help="random conditions that a query on Spark is tried with")
    parser.addoption("--first-predicate", type=int, default=0, help="the number of the first of them")
    parser.addoption("--images", type=int, default=None, help="damaged images of each family that the structural fuzzer checks")
    parser.addoption("--first-image", type=int, default=0, help="the number of the first of them")
    parser.addoption("--kills", type=int, default=None, help="lives that kill -9 ends, of both versions together")
    parser.addoption("--note-seconds", action="store_true", help="run every case, and write again what they take (tests/seconds.txt)")
    parser.addoption("--whole", action="store_true", help="sweeps try every case instead of an even sample that fits a CI run")


def pytest_configure() -> None:
    # importing readline sets both, in pytest and in all that it starts; a test that reads a wrapped line sets its own width
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # how long one example takes depends on what else the machine does
    hypothesis.settings.register_profile("mqstore", deadline=None)
    hypothesis.settings.load_profile("mqstore")
    # a shell starts a background job with SIGINT ignored, and every program that a test starts and interrupts would inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# what is run, and where


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _place(item)
    if config.option.first_cases:
        _keep(items, list({(item.path, getattr(item, "originalname", item.name)): item for item in reversed(items)}.values())[::-1], config)
    if config.option.markexpr or any("::" in word for word in config.args):
        return
    kept, counts = [], Counter[str]()
    first_with_spark: dict[Path, pytest.Item] = {}
    for item in items:
        wants_spark = _left_out(item, config) == LEFT_OUT["spark"] and not item.get_closest_marker("spark_in_all")
        if wants_spark and _noted().get(_function_of(item), 0) <= SPARK_SECONDS:
            first_with_spark.setdefault(item.path, item)
    beyond_sample = config.stash[_BEYOND_SAMPLE] = _beyond_sample(items)
    every_case = config.option.all or config.option.note_seconds
    for item in items:
        reason = None if first_with_spark.get(item.path) is item else _left_out(item, config)
        if reason is None and item in beyond_sample and first_with_spark.get(item.path) is not item and not every_case:
            reason = SAMPLED if _noted()[_function_of(item)] <= SECONDS else LONGER
        if reason is None:
            kept.append(item)
        else:
            counts[reason] += 1
    _keep(items, kept, config)
    config.stash[_COUNTS] = counts


def _keep(items: list[pytest.Item], kept: list[pytest.Item], config: pytest.Config) -> None:
    if len(kept) != len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


_COUNTS = pytest.StashKey[Counter[str]]()
_BEYOND_SAMPLE = pytest.StashKey[set[pytest.Item]]()


def _place(item: pytest.Item) -> None:
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker("spark")


_GROUP = re.compile(r'xdist_group\("([\w-]+)"\)')
_SPARK = re.compile(r"\bspark: SparkSession\b|\bmark\.spark\b")


@cache
def _group(file: str) -> str:
    """Which tests run in the same worker as those of a file: its own, those of its group, or all that share the Spark session."""
    path = ROOT / file
    source = path.read_text(encoding="utf-8") if path.name.startswith("test_") else ""
    named = _GROUP.search(source)
    return named[1] if named is not None else "spark" if _SPARK.search(source) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadgroup` goes by files and groups of files, so that a run starts one JVM, and unpacks a golden store once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.partition("::")[0])

    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def _beyond_sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases that a run without `--all` leaves out: of each test in `NOTED` all but as many as fit into `SECONDS`, evenly spread.

    Each test of golden stores begins at another of them: together they meet all.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _function_of(item) in _noted():
            cases.setdefault(_function_of(item), []).append(item)
    left_out: set[pytest.Item] = set()
    for name, same in cases.items():
        wanted = min(len(same), int(SECONDS / _noted()[name]))
        first = crc32(name.encode()) % len(same)
        chosen = {(first + number * len(same) // wanted) % len(same) for number in range(wanted)}
        left_out.update(item for number, item in enumerate(same) if number not in chosen)
    return left_out


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@cache
def _noted() -> dict[str, float]:
    lines = NOTED.read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split() for line in lines if not line.startswith("#"))}


def _left_out(item: pytest.Item, config: pytest.Config) -> str | None:
    """Why a test is not run, as `LEFT_OUT` says it; None if it is."""
    if item.get_closest_marker("slow") and not config.getoption("--run-slow"):
        return SLOW
    if item.get_closest_marker("real_sizes") and SMALL_BATCHES:
        return OF_SIZES
    if config.getoption("--all"):
        return None
    return next((why for name, why in LEFT_OUT.items() if item.get_closest_marker(name)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`.ci/run` may take a limited time, on machines of any speed: what it does not begin in time is skipped, and counted, at the end."""
    until = item.config.getoption("--until")
    if until is None or time.time() < until:
        return
    if item in item.config.stash.get(_BEYOND_SAMPLE, ()) or any(item.get_closest_marker(name) for name in LEFT_OUT):
        pytest.skip("the time of this run is up: scripts/test --all without --until runs it")


class _Module(pytest.Module):
    """A file of tests that is skipped, with the reason, if it imports what the installed pyspark does not have."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except UnsupportedError as error:
            from support.spark_api import TABLES

            if TABLES:  # it is not this pyspark that lacks something
                raise
            pytest.skip(str(error), allow_module_level=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = _Module.from_parent(parent, path=module_path)
    return module


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash.get(_COUNTS, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Every worker collects all tests, so the counts of one are those of the run."""
    counts = getattr(node, "workeroutput", {}).get("left_out", {})
    node.config.stash[_COUNTS] = Counter(counts)


# what a run says at its end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Long proofs say how much they tried: tests record it under one of the names in `COUNTED`."""
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    if config.getoption("--note-seconds"):
        _note_seconds(reports)
    for name, sentence in COUNTED.items():
        total = sum(int(value) for report in reports for found, value in report.user_properties if found == name)
        if total:
            terminalreporter.write_line(sentence.format(f"{total:,}"))
    counts = config.stash.get(_COUNTS, Counter())
    how = {SLOW: "scripts/test --all --run-slow"}
    for command in ("scripts/test --all", "scripts/test --all --run-slow"):
        mine = {why: number for why, number in counts.items() if how.get(why, "scripts/test --all") == command}
        if mine:
            kinds = ", ".join(f"{number:,} {why}" for why, number in sorted(mine.items(), key=lambda item: -item[1]))
            terminalreporter.write_line(f"left out: {kinds}; {command} runs them")


def _note_seconds(reports: Iterable[pytest.TestReport]) -> None:
    """Write `NOTED` again; what was not run keeps its line."""
    found: dict[str, list[float]] = {}
    for report in reports:
        found.setdefault(report.nodeid.partition("[")[0], []).append(report.duration)
    lines = NOTED.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or line.split()[1] not in found]
    new = [f"{sum(each) / len(each):.4f} {name}" for name, each in found.items() if sum(each) > SECONDS]
    NOTED.write_text("\n".join([*kept, *new]) + "\n", encoding="utf-8")


# fixtures


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether a sweep tries every case."""
    return bool(request.config.getoption("--whole"))


@pytest.fixture(scope="session")
def small(request: pytest.FixtureRequest) -> bool:
    """Whether a sweep tries a few cases only."""
    return not request.config.getoption("--all") and not request.config.getoption("--whole")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores, in which a task is tried three times."""
    from mqstore.pipeline.spark.session import session, stop

    started = session("local[2,3]", app_name="mqstore tests")
    yield started
    stop()


@pytest.fixture
def kills() -> int:
    """Return how often a replay is killed before it may end; MQSTORE_KILLS=100 is the proof in full."""
    return int(os.environ.get("MQSTORE_KILLS", "20"))
