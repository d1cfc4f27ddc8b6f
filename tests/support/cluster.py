"""A Spark cluster of several local processes, with drivers that can be held, released and killed.

    with Cluster(place) as cluster:                                    # a master and two workers, 127.0.0.1 and 127.0.0.2
        with Driver(cluster, place / "driver") as driver:              # a separate process: see tests/support/cluster_driver.py
            driver.begin("rebuild", store=…, to=…, hold=hold.at(5))
            end_of(hold.first().executor)                              # a task is held, and its executor is killed
            hold.release()
            driver.result()

The commands that start the cluster and the settings of its executors are those of docs/guide/cluster.md. Executors run a Python with
the package's dependencies, but without the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypeVar

import pyspark
import pytest

from mqstore.pipeline.spark import java as javas

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide" / "cluster.md"
T = TypeVar("T")

PATIENCE = 600.0  # seconds to wait for what takes a few seconds on an idle machine


def blocks(word: str) -> list[str]:
    """Return the contents of the guide's fenced blocks of that kind."""
    return re.findall(rf"^```{re.escape(word)}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def until(find: Callable[[], T | None], what: str) -> T:
    """Call `find` until it returns something, and return that."""
    end = time.monotonic() + PATIENCE
    while (found := find()) is None:
        if time.monotonic() > end:
            pytest.fail(f"timed out waiting for {what}")
        time.sleep(0.01)
    return found


def end_of(pid: int) -> None:
    """Kill a process that is not a child of this one, and wait until it has ended."""
    os.kill(pid, signal.SIGKILL)
    until(lambda: None if alive(pid) else True, f"the end of process {pid}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def bare_python(place: Path) -> Path:
    """Create a Python with the packages of this one that cannot import this project, neither from a path nor from an editable install."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    # a path in a .pth file is searched for modules, but .pth files in it are not read
    (site / "others.pth").write_text("".join(f"{sysconfig.get_path(kind)}\n" for kind in ("purelib", "platlib")))
    return place / "bin" / "python"


class Cluster:
    """Master and workers. `mend` restarts killed workers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self.place.mkdir()
        self.python = bare_python(self.place / "python")
        (self.place / "conf").mkdir()
        (self.place / "conf" / "spark-defaults.conf").write_text("".join(blocks("properties")))
        commands = [shlex.split(line.removesuffix("&")) for line in blocks("sh cluster")[0].splitlines() if "spark-class" in line]
        try:
            for number, command in enumerate(commands):
                name = "master" if not number else f"worker{number}"
                more = ["--webui-port", "0", *(["--work-dir", str(self.place / name)] if number else [])]
                words = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *command[1:2], *more, *command[2:]]
                self._start(name, [re.sub(r"^spark://.*", self.url, word) if number else word.replace("7077", "0") for word in words])
                if not number:
                    self.url = self._told(name, r"Starting Spark master at (spark://\S+)")
            self.mend()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a driver: the location of its settings, and the Python that executors run."""
        return os.environ | {"SPARK_CONF_DIR": str(self.place / "conf"), "PYSPARK_PYTHON": str(self.python)}

    def _start(self, name: str, command: list[str]) -> None:
        java = javas.launcher_home(javas.find_java())
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "JAVA_HOME": str(java),
            "SPARK_CONF_DIR": str(self.place / "conf"),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
            # daemons and executors live for seconds: the second compiler costs them more than it gives
            "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        self._commands[name] = command
        with (self.place / f"{name}.log").open("wb") as log:
            # the executors of a worker are in its process group: they end with it in any case
            self._processes[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.place, start_new_session=True
            )

    def _told(self, name: str, pattern: str) -> str:
        def look() -> str | None:
            text = (self.place / f"{name}.log").read_text(errors="replace")
            found = re.search(pattern, text)
            if found is None and self._processes[name].poll() is not None:
                pytest.fail(f"the {name} ended:\n{text[-3000:]}")
            return None if found is None else found[1]

        return until(look, f"{pattern} of the {name}")

    def mend(self) -> None:
        """Restart the workers that have ended, and wait until the master has all of them."""
        for name, process in [*self._processes.items()]:
            if process.poll() is not None:
                self._start(name, self._commands[name])
        for name in self._processes:
            if name != "master":
                self._told(name, r"Successfully registered with master (\S+)")

    def worker_of(self, executor: int) -> int:
        """Return the process of the worker that started an executor."""
        return int(Path(f"/proc/{executor}/stat").read_text().rpartition(")")[2].split()[1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self._processes.values()):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()

    def applications(self) -> set[str]:
        """Return the applications that had an executor on any worker."""
        return {path.name for path in self.place.glob("worker*/app-*")}

    def kill_worker(self, pid: int) -> None:
        """Kill a worker; its executors notice by themselves."""
        process = next(each for each in self._processes.values() if each.pid == pid)
        process.kill()
        process.wait()


@dataclass
class Hold:
    """Holds, fails or kills one attempt at a task, the first that arrives. Task and test communicate through the directory."""

    place: Path

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True)

    def at(self, number: int, then: str = "wait", *, done: bool = True) -> dict[str, Any]:
        """Hold the first task whose number is not below this one. then: wait, fail or die. done: when its work is written, else before."""
        return {"place": str(self.place), "number": number, "then": then, "done": done}

    def first(self) -> Held:
        """Return the attempt that arrived first."""
        return until(self.held, f"a task that is held in {self.place}")

    def held(self) -> Held | None:
        try:
            return Held(**json.loads((self.place / "held").read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def attempts(self, number: int) -> int:
        """Return how many attempts at a task have begun."""
        return len([*self.place.glob(f"attempt-{number}-*")])

    def release(self) -> None:
        (self.place / "go").touch()


@dataclass(frozen=True)
class Held:
    """A held attempt. executor: its Java process."""

    number: int
    worker: int
    executor: int


class Master(Protocol):
    """A cluster as drivers see it. url: the master of their sessions."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a driver."""
        ...


class Driver:
    """A driver process: jobs go in and reports come out as lines of JSON."""

    def __init__(self, cluster: Master | None, place: Path, *, master: str | None = None, **settings: str) -> None:
        place.mkdir(parents=True)
        self._errors = place / "stderr"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))}
        if cluster is not None:
            environment = cluster.environment | environment
        url = master or (cluster.url if cluster is not None else "local[2]")
        command = [sys.executable, str(ROOT / "tests" / "support/cluster_driver.py"), url, json.dumps(settings)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=place
            )
        self._told: Queue[str | None] = Queue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        assert self._next() == {"ready": True}

    def _listen(self, stream: IO[str] | None) -> None:
        for line in stream or ():
            self._told.put(line)
        self._told.put(None)

    def _next(self) -> dict[str, Any]:
        with contextlib.suppress(Empty):
            line = self._told.get(timeout=PATIENCE)
            if line is None:
                pytest.fail(f"the driver ended:\n{self._errors.read_text(errors='replace')[-3000:]}")
            found: dict[str, Any] = json.loads(line)
            return found
        self.kill()
        pytest.fail(f"timed out waiting for the driver:\n{self._errors.read_text(errors='replace')[-3000:]}")

    def begin(self, job: str, **asked: Any) -> None:
        """Start a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **asked}, default=str) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        """Return the report of the started job; fail the test if the job failed."""
        told = self._next()
        if "error" in told:
            pytest.fail(f"the job failed: {told['error']}")
        return told["report"]

    def error(self) -> str:
        """Return the message with which the started job failed."""
        told = self._next()
        assert "error" in told, told
        return str(told["error"])

    def run(self, job: str, **asked: Any) -> Any:
        self.begin(job, **asked)
        return self.result()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
