"""Shared code of the benchmarks: stores written by the real put path, the real 4.9.3 store as peer, medians, one JSON row per figure.

Each figure is measured in several rounds, which alternate with the peer's where that is cheap. A row states the median of the rounds'
ratios and the interval of that median; whether a target is met that the interval contains cannot be told.

Stores are made once, in the directory given by --work (by default benchmarks/stores, which is not in version control; 6 GB), and
shared by all scripts.
Message i of a store goes to topic bench-(i mod 4), queue (i/4) mod 8; its KEYS is order-%09d of i, its TAGS Tag(i mod 5), its body 1 KiB of
JSON text; in store s2 it also has a UNIQ_KEY of 32 characters. Store s10 is like s2, with 10 GB of log; only
the scripts that need it create it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import comb
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT / "tests" / "interop" / "rocketmq"
TOPICS = 4
MESSAGES = {"s1": 900_000, "s2": 3_700_000, "s10": 8_400_000}


CONFIDENCE = 0.9  # of an interval from which a verdict is drawn: at least five rounds have it


class Spread(NamedTuple):
    """The median of some rounds, and an interval that contains the median of all possible rounds with this probability."""

    median: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        between = f"{short(self.low)} to {short(self.high)}, {100 * self.confidence:.4g} %"
        return f"{short(self.median)} ({between if self.confidence else 'one round'})"


def spread(values: Sequence[float]) -> Spread:
    """Return the median of the values and its interval by the sign test, the narrowest between two of them that has CONFIDENCE.

    Each value is above or below the true median with probability 1/2. So the k-th from either end of n enclose it unless fewer than k
    are on one side of it: with probability 1 - 2 * (C(n,0) + ... + C(n,k-1)) / 2^n. Below five rounds none has CONFIDENCE, and it is the
    widest.

    >>> print(spread([1.1, 1.3, 1.0, 1.2, 1.6]))
    1.2 (1 to 1.6, 93.75 %)
    """
    ordered, count = sorted(values), len(values)
    covered = [1 - 2 * sum(comb(count, k) for k in range(cut + 1)) / 2**count for cut in range((count + 1) // 2)]
    cut = max((cut for cut, share in enumerate(covered) if share >= CONFIDENCE), default=0)
    return Spread(median(values), ordered[cut], ordered[-1 - cut], covered[cut])


@dataclass(frozen=True)
class Target:
    """A limit of a figure. unit: what follows the number. values: the figure in each round; by default the ratios of the row."""

    sign: Literal[">=", "<="]
    number: float
    unit: str
    values: Sequence[float] = ()

    def __str__(self) -> str:
        return f"{self.sign} {self.number:g} {self.unit}"

    def met(self, values: Sequence[float]) -> bool | None:
        """Return whether the median of all possible rounds keeps the limit; None if that cannot be told from these."""
        _, low, high, confidence = spread(values)
        if self.sign == "<=":
            low, high = -high, -low
        number = self.number if self.sign == ">=" else -self.number
        return None if confidence < CONFIDENCE or low < number <= high else low >= number


Figures = Mapping[str, Any]  # numbers by name, or the numbers of the rounds


@dataclass(frozen=True)
class Row:
    """One figure. ours, peer: numbers by name, or those of the rounds, which are shown by their median. ratios: of each round."""

    what: str
    targets: Sequence[Target]
    ours: Figures
    peer: Figures = field(default_factory=dict)
    ratios: Sequence[float] = ()
    conditions: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what is shown and stored of the row."""
        rounds = max((len(each) for each in (*self.ours.values(), *self.peer.values()) if isinstance(each, list)), default=1)
        judged = [target.met(target.values or self.ratios) for target in self.targets]
        return {
            "what": self.what,
            "target": " and ".join(map(str, self.targets)),
            "met": None if not judged or (None in judged and False not in judged) else all(judged),
            "limited": {target.unit: str(spread(target.values)) for target in self.targets if target.values},
            "ours": _medians(self.ours),
            "peer": _medians(self.peer),
            "ratio": spread(self.ratios)._asdict() if self.ratios else None,
            "ratios": list(self.ratios),
            "conditions": "; ".join(filter(None, (f"medians of {rounds}" * (rounds > 1), self.conditions))),
        }


def _medians(figures: Figures) -> dict[str, Any]:
    return {name: median(value) if isinstance(value, list) else value for name, value in figures.items()}


def divided(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(numerators, denominators, strict=True)]


def verdict(facts: Figures) -> str:
    """Return whether a row meets its target, in parentheses if the store is small, and the figures that have a target; else nothing."""
    mark = {True: "met", False: "MISSED", None: "cannot be told"}[facts["met"]]
    mark = mark if facts["scale"] >= 1 else f"({mark})"
    return "; ".join([mark, *(f"{unit}: {figure}" for unit, figure in facts["limited"].items())]) if facts["target"] else ""


def listed(figures: Figures) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in figures.items())


def ratio_of(facts: Figures) -> str:
    return str(Spread(**facts["ratio"])) if facts["ratio"] else ""


class Bench:
    """One run of one script: its options, its stores, its rows."""

    def __init__(self, description: str, add_arguments: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
        """add_arguments: adds the options that only one script has."""
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        if add_arguments is not None:
            add_arguments(parser)
        parser.add_argument("--work", type=Path, default=ROOT / "benchmarks" / "stores", help="directory for stores and outputs")
        parser.add_argument("--s1", type=Path, help="an existing s1 store to use instead of creating one")
        parser.add_argument("--s2", type=Path, help="an existing s2 store to use instead of creating one")
        parser.add_argument("--s10", type=Path, help="an existing s10 store to use instead of creating one")
        parser.add_argument(
            "--scale", type=float, default=1.0, help="fraction of the messages of a full store; results below 1 are not representative"
        )
        parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="measure only rows with this in their names")
        parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: 5); from fewer no verdict is drawn")
        parser.add_argument("--json", type=Path, help="file to append rows to, one JSON object per line")
        self.options = parser.parse_args()
        self.work: Path = self.options.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.rounds: int = self.options.rounds
        self.environment = environment()
        print(f"# {description.splitlines()[0]}\n# {self.environment}", flush=True)
        if self.options.scale < 1:
            print(
                f"# Small stores, {self.options.scale:g} of the full size; (a verdict in parentheses): the targets are for full ones.",
                flush=True,
            )

    def wants(self, *rows: str) -> bool:
        """Return whether any of the rows with these names is to be measured."""
        return not self.options.only or any(text in row for text in self.options.only for row in rows)

    def messages(self, kind: str) -> int:
        """Return the number of messages in a store of that kind."""
        return max(1000, int(MESSAGES[kind] * self.options.scale))

    def store(self, kind: str) -> Path:
        """Return a store of that kind, created if necessary, with its log in the page cache."""
        given = getattr(self.options, kind)
        path = given if given is not None else self.work / f"store-{kind}-{self.messages(kind)}"
        if not path.exists():
            being_made = path.with_name(path.name + ".part")
            oracle("gen", being_made, "--messages", self.messages(kind), "--keys", "s1" if kind == "s1" else "s2")
            being_made.rename(path)
        warm(path)
        return path.resolve()

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Yield a path beside the stores at which nothing exists before and after."""
        path = self.work / name
        remove(path)
        try:
            yield path
        finally:
            remove(path)

    def emit(self, row: Row) -> None:
        """Print a row and append it to the --json file, unless --only leaves it out."""
        if not self.wants(row.what):
            return
        facts = {**row.facts(), "environment": self.environment, "scale": self.options.scale}
        print(f"\n{row.what}" + (f"\n  target {facts['target']}  {verdict(facts)}" if row.targets else ""))
        for side in ("ours", "peer"):
            if facts[side]:
                print(f"  {side}: {listed(facts[side])}")
        if row.ratios:
            print(f"  ratio {ratio_of(facts)}")
        if facts["conditions"]:
            print(f"  {facts['conditions']}")
        sys.stdout.flush()
        if self.options.json is not None:
            with self.options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")


def short(value: object) -> str:
    return (f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}") if isinstance(value, float) else str(value)


def environment() -> str:
    """Describe the machine in one line."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next((int(line.split()[1]) // 1_000_000 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    try:
        load = f", load {os.getloadavg()[0]:.1f}"
    except OSError:
        load = ""
    return f"{model}, {os.cpu_count()} cores, {memory} GB, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}{load}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def provide_memory(size: int = 3 << 29) -> None:
    """Use and free so much memory, so that what runs next gets pages that the host of a virtual machine has already provided.

    Memory that such a machine has not used for some seconds may have gone back to its host; the first access then costs 10 us a page.
    """
    subprocess.run([sys.executable, "-c", f"b'.' * {size}"], check=True)


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def warm(store: Path) -> None:
    """Read log and index once to bring them into the page cache."""
    for folder in ("commitlog", "index"):
        for path in sorted((store / folder).glob("*")):
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def remove(path: Path) -> None:
    subprocess.run(["rm", "-rf", "--", str(path)], check=True)


def link_log(store: Path, target: Path) -> Path:
    """Create a store with only the log files of another, hard-linked if the file system allows it."""
    (target / "commitlog").mkdir(parents=True)
    for path in log_files(store):
        try:
            os.link(path, target / "commitlog" / path.name)
        except OSError:
            subprocess.run(["cp", "--sparse=always", str(path), str(target / "commitlog")], check=True)
    return target


def oracle(mode: str, store: Path, *options: object, version: str = "4.9.3") -> list[dict[str, Any]]:
    """Run the real store (tests/interop/rocketmq, built with Maven) and return the JSON lines it prints."""
    jar = ORACLE / "target" / version / "oracle.jar"
    if not jar.exists():
        build = ["mvn", "-q", "-B", "package", f"-Drocketmq.version={version}"]
        subprocess.run(build, cwd=ORACLE, check=True)
    command = [str(ORACLE / "run.sh"), "-main", "mqstore.oracle.Bench", mode, str(store), *map(str, options)]
    done = subprocess.run(command, env={**os.environ, "ROCKETMQ_VERSION": version}, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def count_messages(store: Path) -> int:
    """Return the number of messages in a store created here, according to its consume queues."""
    import mqstore

    return sum(queue.max_offset for queue in mqstore.open(store).consume_queues())


def log_size(store: Path) -> int:
    """Return the number of log bytes up to the last one written."""
    import mqstore
    from mqstore.rocketmq.scan.splits import log_bytes, plan

    log = mqstore.open(store).log
    return log_bytes(log, plan(log))


def floor(spark: Any, tasks: int, rounds: int) -> list[float]:
    """Return the seconds of an empty job of `tasks` Python tasks, grouped and collected: Spark's own cost of a query."""

    def run() -> None:
        spark.range(tasks, numPartitions=tasks).mapInArrow(lambda batches: batches, "id long").groupBy("id").count().collect()

    run()
    return [timed(run).seconds for _ in range(rounds)]


def peer_dispatch(store: Path, work: Path, rounds: int = 2) -> dict[str, Any]:
    """Let the real store build queues and index of a linked log in one JVM; return the last round, for which it is warm."""
    remove(work)
    provide_memory()
    try:
        return oracle("dispatch", link_log(store, work), "--rounds", rounds)[-1]
    finally:
        remove(work)


def peer_walks(store: Path, rounds: int) -> list[dict[str, Any]]:
    """Let the real store walk a log in one JVM; return the rounds after one that warms it up."""
    return oracle("scan", store, "--rounds", rounds + 1)[1:]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


class Timed(NamedTuple):
    """A finished call. cpu: seconds of processor time."""

    seconds: float
    cpu: float
    result: Any


def timed(function: Callable[..., object], *arguments: object, clock: Callable[[], float] = time.process_time, **named: object) -> Timed:
    """Call a function. clock: what the processor time is taken from; that of this process, or `cpu_time`, where Spark works."""
    before, start = clock(), time.perf_counter()
    result = function(*arguments, **named)
    seconds = time.perf_counter() - start
    return Timed(seconds, clock() - before, result)


def cpu_time() -> float:
    """Return the seconds of processor time of this process and all below it, such as Spark's, those that have ended included."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + sum(map(cpu_of, below(os.getpid())))


def cpu_of(pid: int) -> float:
    """Return the seconds of processor time of a process and of the children it has waited for; 0 if it has ended."""
    ticks = [int(tick) for line in _lines(f"/proc/{pid}/stat") for tick in line.rpartition(")")[2].split()[11:15]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> list[int]:
    """Return the process ids of all descendants."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
        for child in map(int, children):
            found += [child, *below(child)]
    return found


def percentiles(rounds: Sequence[Sequence[int]]) -> dict[str, list[float]]:
    """Return median and 95th percentile of each round of nanoseconds, as figures of a row."""
    ordered = [sorted(each) for each in rounds]
    return {f"p{share} us": [each[len(each) * share // 100] / 1e3 for each in ordered] for share in (50, 95)}


def costs(runs: Sequence[Timed | Child]) -> dict[str, list[float]]:
    """Return wall time and processor time of the rounds, as figures of a row."""
    return {"seconds": [run.seconds for run in runs], "CPU s": [run.cpu for run in runs]}


@dataclass(frozen=True)
class Child:
    """A finished child process. rss: peak resident bytes, including mapped file pages; anonymous: peak bytes that are not file pages.

    cpu: seconds of processor time, of its own children too where it waited for them.
    """

    seconds: float
    cpu: float
    rss: int
    anonymous: int
    stdout: str
    status: int


def child(*command: object, sample: float = 0.02, errors: list[tuple[float, str]] | None = None) -> Child:
    """Run a command and sample its memory. Its standard output goes to a file, so that it never blocks on a pipe.

    errors: list that the lines of its standard error are appended to, each with the seconds since the start.
    """
    peak = {"VmHWM": 0, "RssAnon": 0}
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=None if errors is None else subprocess.PIPE, text=True
        )
        ended = threading.Event()

        def listen() -> None:
            with process.stderr as lines:
                errors.extend((time.perf_counter() - start, line) for line in lines)

        def watch() -> None:
            while not ended.wait(sample):
                for line in _lines(f"/proc/{process.pid}/status"):
                    name, _, value = line.partition(":")
                    if name in peak:
                        peak[name] = max(peak[name], int(value.split()[0]) * 1024)

        threads = [threading.Thread(target=work) for work in ((watch,) if errors is None else (watch, listen))]
        for thread in threads:
            thread.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        for thread in threads:
            thread.join()
        out.seek(0)
        text = out.read(1 << 24).decode("utf-8", "replace")
    return Child(
        seconds, usage.ru_utime + usage.ru_stime, max(usage.ru_maxrss * 1024, peak["VmHWM"]), peak["RssAnon"], text, process.returncode
    )


def apart(function: Callable[..., float], *arguments: object) -> float:
    """Call a function in another process: the peak memory of a child begins with that of its parent, which must stay small."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(function, *arguments).result()


def mqstore(*arguments: object) -> list[str]:
    """Return the command line of the `mqstore` command."""
    return [sys.executable, "-m", "mqstore", *map(str, arguments)]
