"""HDFS and YARN in a process of their own, for the drivers of `support.cluster`: a real name node and resource manager, and two nodes.

    with Hadoop(place) as hadoop:
        url = hadoop.upload(store, "/store")                           # webhdfs://…
        with Driver(hadoop, place / "driver") as driver:
            driver.run("export", store=url, to=…)
            hadoop.stop_node_manager(0)

The settings of sessions are those of docs/guide/cluster.md. See tests/interop/hadoop for the process itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import fsspec
import pyspark
from support.cluster import PATIENCE, ROOT, bare_python, blocks

from mqstore.pipeline.spark import java as javas

PROJECT = ROOT / "tests" / "interop" / "hadoop"
NODES = 2


def why_not() -> str | None:
    """Return why HDFS and YARN cannot be run here, or None if they can."""
    if not (PROJECT / "target" / "hadoop.jar").exists():
        return "Hadoop's mini clusters are not there; run `mvn -q -B package` in tests/interop/hadoop"
    return None


class Hadoop:
    """The clusters. url: the master of sessions. hdfs: the URL of its root. web: host and port of WebHDFS."""

    url = "yarn"

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> Self:
        self.place.mkdir()
        self.python = bare_python(self.place / "python")
        (self.place / "spark").mkdir()
        settings = blocks("properties yarn")[0].replace("/opt/spark", str(Path(pyspark.__file__).parent))
        (self.place / "spark" / "spark-defaults.conf").write_text(settings)
        java = javas.launcher_home(javas.find_java()) / "bin" / "java"
        jars = os.pathsep.join((str(PROJECT / "target" / "hadoop.jar"), str(PROJECT / "target" / "lib" / "*")))
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars]
        with (self.place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(java), *options, "mqstore.oracle.MiniClusters", str(self.place / "clusters"), str(NODES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.place,
            )
        try:
            _, self.hdfs, web = self._line().split()
            self.web = web.removeprefix("http://")
            self._files = fsspec.filesystem("webhdfs", host=self.web.partition(":")[0], port=int(self.web.partition(":")[2]), user=_user())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, (self.place / "log").read_text(errors="replace")[-3000:]
        return line

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a driver: where the clusters are, its settings, and the Python that executors run."""
        conf = str(self.place / "clusters" / "conf")
        return os.environ | {
            "HADOOP_CONF_DIR": conf,
            "YARN_CONF_DIR": conf,
            "SPARK_CONF_DIR": str(self.place / "spark"),
            "PYSPARK_PYTHON": str(self.python),
        }

    def upload(self, directory: Path, to: str) -> str:
        """Copy a directory to HDFS; return its URL for WebHDFS."""
        self._files.put(f"{directory}/", f"{to}/", recursive=True)
        return f"webhdfs://{self.web}{to}"

    def nodes_of(self, program: str) -> set[int]:
        """Return the numbers of the node managers that run a program in a container."""
        found = set()
        for process in Path("/proc").iterdir():
            try:
                where = re.match(rf"{re.escape(str(self.place))}/.*-nm-(\d+)_", os.readlink(process / "cwd"))
                if where and program.encode() in (process / "cmdline").read_bytes() and (process / "exe").resolve().name == "java":
                    found.add(int(where[1]))
            except OSError:  # no process, or one that has ended
                continue
        return found

    def stop_node_manager(self, number: int) -> None:
        """Stop a node manager; its containers end with it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"stop-node-manager {number}\n")
        self._process.stdin.flush()
        assert self._line() == f"stopped {number}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.place / "clusters", ignore_errors=True)


def _user() -> str:
    import getpass

    return getpass.getuser()
