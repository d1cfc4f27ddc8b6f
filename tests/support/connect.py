"""A Spark Connect server in a process of its own, started by the command of docs/guide/connect.md."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
import pytest
from support.cluster import until

from mqstore.pipeline.spark import java as javas
from mqstore.pipeline.spark.session import CATALOG_CLASS, CATALOG_JAR

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "connect.md"


def blocks(word: str) -> list[str]:
    """Return the contents of the guide's fenced blocks of that kind."""
    return re.findall(rf"^```{re.escape(word)}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class ConnectServer:
    """The server; `url` once it answers. It tries a task three times, and finds the package where this process does."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""

    def __enter__(self) -> Self:
        self.place.mkdir()
        words = shlex.split(blocks("sh server")[0].replace("\\\n", " "))
        assert words[0] == "spark-submit"
        words = [word.replace("local[2]", "local[2,3]").replace("=15002", "=0") for word in words[1:]]
        quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        settings = ["--conf", "spark.ui.enabled=false", "--conf", f"spark.driver.extraJavaOptions={quick}"]
        if CATALOG_JAR.exists():
            settings += ["--driver-class-path", str(CATALOG_JAR), "--conf", f"spark.sql.catalog.mq={CATALOG_CLASS}"]
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *settings, *words]
        environment = os.environ | {
            "JAVA_HOME": str(javas.launcher_home(javas.find_java())),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": quick,
        }
        log = self.place / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.place, start_new_session=True
            )

        def port() -> str | None:
            text = log.read_text(errors="replace")
            found = re.search(r"Spark Connect server started at: \S+:(\d+)", text)
            if found is None and self._process.poll() is not None:
                pytest.fail(f"the server ended:\n{text[-3000:]}")
            return None if found is None else found[1]

        try:
            self.url = f"sc://127.0.0.1:{until(port, 'the port of the Spark Connect server')}"
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Kill the server and its Python workers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
