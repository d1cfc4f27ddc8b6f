"""Our broker and the real 4.9.3 broker under the same unmodified 4.9.3 Java client: sends, a push consumer, queries by key, startup.

Both brokers have their default settings (asynchronous flush, log files of 1 GiB), auto-created topics of 4 queues, and a new store for
each round; the rounds of both sides alternate. The client (tests/interop/rocketmq-clients, Load) is a separate JVM
for each round, with one connection to the broker. Sends are synchronous, 1 KiB each, and counted for a few seconds after a few seconds
of warm-up. The push consumer drains a topic that was filled beforehand; the first fifth is not measured. Startup is measured from the
start of the process until it accepts a message from a client that is already running and keeps retrying; resident memory is read right
after that. The floor of both is a process that imports asyncio and numpy and ends. Name server and real broker share one JVM with a heap
of at most 1 GB. If enough memory is free, it is also started once with the heap size of its start script (8 GB, pre-touched).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchkit import ROOT, Bench, Row, Target, child, cpu_of, divided, mqstore, remove

CLIENTS = ROOT / "tests" / "interop" / "rocketmq-clients"
VERSION = "4.9.3"
TOPIC = "load-filled"
SHIPPED = ("-Xms8g", "-Xmx8g", "-XX:+AlwaysPreTouch")  # from bin/runbroker.sh
ROOM = 12_000_000  # kB that must be free for that heap
# prints its resident kB
IMPORTS = """
import asyncio, numpy
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""
LOADS = {
    "1 threads": ("broker: one producer thread, sync sends of 1 KiB", Target(">=", 1, "x the real broker")),
    "16 threads": ("broker: 16 producer threads, sync sends of 1 KiB", Target(">=", 0.5, "x the real broker")),
    "consumed": ("broker: push consumer, 1 KiB", Target(">=", 0.7, "x the real broker")),
    "query": ("broker: query by key, round trip, p50", Target("<=", 1.2, "x the real broker")),
}
OPENED = [
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]


def java(directory: Path, main: str, *arguments: object, heap: Sequence[str]) -> list[str]:
    """Return the command line of a program of the client folder; files it writes to the home directory go to `directory`."""
    target = CLIENTS / "target" / VERSION
    if not target.joinpath("rocketmq-clients.jar").exists():
        subprocess.run(["mvn", "-q", "-B", "package", f"-Drocketmq.version={VERSION}"], cwd=CLIENTS, check=True)
    places = [f"-Duser.home={directory}", f"-Drocketmq.home.dir={directory / 'home'}", "-Duser.timezone=UTC"]
    path = f"{target}/rocketmq-clients.jar:{target}/lib/*"
    return ["java", *heap, *OPENED, *places, "-cp", path, f"mqstore.oracle.{main}", *map(str, arguments)]


class Client:
    """A running Load client: one command in, one answer out."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            java(directory, "Load", heap=("-Xmx512m",)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def begin(self, *command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last command; output of the client's libraries is skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                if "error" in found:
                    raise RuntimeError(f"the client gave up: {found['error']}")
                return found
        raise RuntimeError("the client ended without an answer")

    def ask(self, *command: object) -> dict[str, Any]:
        self.begin(*command)
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


@dataclass(frozen=True)
class Side:
    """The broker under test. ours: our broker, otherwise the real one. heap: JVM options of the real one."""

    ours: bool
    heap: tuple[str, ...] = ("-Xmx1g",)

    @property
    def name(self) -> str:
        return "ours" if self.ours else "peer"

    def command(self, directory: Path, port: int) -> list[str]:
        """Return the command that starts the broker on that port."""
        store = directory / "store"
        if self.ours:
            return mqstore("serve", store, "--listen", f"127.0.0.1:{port}", "--auto-create-topics")
        return java(directory, "LocalCluster", "--namesrv-port", port, "--store", store, "--sizes", "default", heap=self.heap)


@contextmanager
def broker(side: Side, directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a broker on a new store, and yield its process while it starts."""
    remove(directory)
    directory.mkdir(parents=True)
    try:
        with broker_of(side.command(directory, port), directory) as process:
            yield process
    finally:
        remove(directory)


@contextmanager
def broker_of(command: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a broker by its command, with its log in the directory."""
    # modules are compiled before the first round that counts, as they are after an installation
    compiled = {"PYTHONPYCACHEPREFIX": str(directory.parent / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **compiled})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def resident(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    return 0.0


def free_memory() -> int:
    """Return the available memory in kB."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)


@dataclass
class Sizes:
    """Amount of work in one round: seconds and counts."""

    warm: float
    measured: float
    filled: int
    queries: int

    @classmethod
    def of(cls, scale: float) -> Sizes:
        return cls(max(1.0, 3 * scale), max(1.0, 5 * scale), max(20_000, int(200_000 * scale)), max(200, int(4000 * scale)))


def imported(rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds and MB, of each round, of a process that imports asyncio and numpy, which the broker needs, and ends."""
    runs = [child(sys.executable, "-c", IMPORTS) for _ in range(rounds + 1)][1:]
    assert all(run.status == 0 for run in runs)
    return [run.seconds for run in runs], [float(run.stdout) / 1000 for run in runs]


def starts(bench: Bench, directory: Path) -> None:
    """Measure the time to the first accepted message, and the memory after it."""
    started, resting = "broker: start to first accepted message", "broker: resident memory after the first message"
    shipping = f"{resting}, the real broker with the heap of its start script"
    if not bench.wants(started, resting, shipping):
        return
    client = Client(directory / "client")
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    memory: dict[str, list[float]] = {"ours": [], "peer": []}
    busy: dict[str, list[float]] = {"ours": [], "peer": []}

    def measured(side: Side) -> tuple[float, float, float]:
        """Return (seconds, MB, seconds of CPU time) of one start."""
        port = free_port()
        client.begin("first", f"127.0.0.1:{port}")
        time.sleep(0.3)
        began = time.time_ns()
        with broker(side, directory / side.name, port) as process:
            accepted = client.answer()["accepted"]
            return (accepted - began) / 1e9, resident(process), cpu_of(process.pid)

    for number in range(bench.rounds + 1):
        for side in (Side(True), Side(False)):
            took, held, used = measured(side)
            if number:  # the first round warms the client up
                seconds[side.name].append(took)
                memory[side.name].append(held)
                busy[side.name].append(used)
    shipped = measured(Side(False, SHIPPED)) if bench.wants(shipping) and free_memory() > ROOM else None
    client.end()
    imports, holding = imported(bench.rounds)
    conditions = "the real name server and broker start in one JVM, -Xmx1g"
    ours, theirs = seconds["ours"], seconds["peer"]
    figures = {
        "s": theirs,
        "CPU s": busy["peer"],
        "floor: a process that imports asyncio and numpy, s": imports,
        "ratio of the floor": divided(imports, theirs),
    }
    target = Target("<=", 0.09, "x the real broker")
    bench.emit(Row(started, [target], {"s": ours, "CPU s": busy["ours"]}, figures, divided(ours, theirs), conditions))
    ours, theirs = memory["ours"], memory["peer"]
    figures = {
        "MB": theirs,
        "floor: a process that imports asyncio and numpy, MB": holding,
        "ratio of the floor": divided(holding, theirs),
    }
    target = Target("<=", 0.16, "x the real broker")
    bench.emit(Row(resting, [target], {"MB": ours}, figures, divided(ours, theirs), conditions))
    if shipped is not None:
        conditions = f"ours as above; the real one once, {' '.join(SHIPPED)}; to its first message {shipped[0]:.1f} s"
        bench.emit(Row(shipping, [target], {"MB": ours}, {"MB": shipped[1]}, [each / shipped[1] for each in ours], conditions))


def loads(side: Side, directory: Path, sizes: Sizes) -> dict[str, float]:
    """Run one round on one side and return its figures by name."""
    port = free_port()
    with broker(side, directory / side.name, port):
        client = Client(directory / "client")
        at = f"127.0.0.1:{port}"
        client.ask("first", at)
        found = {}
        for threads in (1, 16):
            told = client.ask("produce", at, threads, sizes.warm, sizes.measured)
            if told["failed"]:
                raise RuntimeError(f"{told['failed']} sends failed ({side.name})")
            found[f"{threads} threads"] = told["messages"] / told["seconds"]
        client.ask("fill", at, TOPIC, sizes.filled)
        told = client.ask("consume", at, TOPIC, sizes.filled, sizes.filled // 5)
        found["consumed"] = told["messages"] / told["seconds"]
        found["query"] = client.ask("query", at, TOPIC, sizes.filled, sizes.queries, sizes.queries)["p50_us"]
        client.end()
    return found


def main() -> None:
    bench = Bench(__doc__ or "")
    sizes = Sizes.of(bench.options.scale)
    with bench.scratch(f"brokering-{os.getpid()}") as directory:
        starts(bench, directory)
        rounds: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
        for _ in range(bench.rounds if bench.wants(*(what for what, _ in LOADS.values())) else 0):
            for side in (Side(False), Side(True)):
                rounds[side.name].append(loads(side, directory, sizes))
    conditions = f"{sizes.measured:g} s after {sizes.warm:g} s of warm-up; topic filled with {sizes.filled} messages"
    for key, (what, target) in LOADS.items():
        if bench.wants(what):
            ours, theirs = ([each[key] for each in rounds[side]] for side in ("ours", "peer"))
            unit = "us" if key == "query" else "messages/s"
            bench.emit(Row(what, [target], {unit: ours}, {unit: theirs}, divided(ours, theirs), conditions))


if __name__ == "__main__":
    sys.exit(main())
