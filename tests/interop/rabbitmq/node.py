"""A private, temporary RabbitMQ 3.10.8 node: the reference for what our RabbitMQ code reads and writes (see README.md).

All files of a node are in one temporary directory; it listens only on 127.0.0.1, on free ports, with a separate `epmd` and cookie,
and only processes that it started are stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from support.ports import free_port

if TYPE_CHECKING:
    import pika

HERE = Path(__file__).parent
VERSION = "3.10.8"
BOOT_TIMEOUT = 300  # seconds; a busy machine needs more than a minute
SBIN = Path(os.environ.get("RMQ_ORACLE_SBIN", f"/usr/lib/rabbitmq/lib/rabbitmq_server-{VERSION}/sbin"))

_TELLING = re.compile(
    r"dropp|[Cc]ombin|[Rr]ebuild|unclean|discard|Recovering [0-9]* queues of type rabbit_classic|[Cc]onvert"
    r"|\[warning\]|\[error\]|\[critical\]|crash|Unable|invalid|corrupt"
)
_NOISE = re.compile(r"Rebuilding message (location index from|refcount)|Done rebuilding|Finished rebuilding|_transient|deprecat")
_BY = re.compile(r"\[\w+\] (<[\d.]+>)")
_HUNG_UP = re.compile(r"^.*\[error\] (<[\d.]+>) +supervisor: \{<[\d.]+>,rabbit_channel_sup_sup\}$", re.MULTILINE)

_CONF = """\
loopback_users = none
listeners.tcp.1 = 127.0.0.1:{port}
log.file.level = debug
vm_memory_high_watermark.absolute = 8GB
disk_free_limit.absolute = 50MB
consumer_timeout = 86400000
"""


class BootError(Exception):
    """The node did not start. The text has its output."""


def missing() -> str:
    """Return why no node can be started on this machine; empty if one can."""
    if not (SBIN / "rabbitmq-server").exists():
        return (
            f"no rabbitmq-server {VERSION} in {SBIN}: install Debian's package rabbitmq-server, or let RMQ_ORACLE_SBIN name the directory"
        )
    if shutil.which("erlc") is None or _epmd() is None:
        return "erlc or epmd is not on the path: install Debian's package rabbitmq-server, which brings them"
    try:
        import pika  # noqa: F401
    except ImportError:
        return "the Python package pika is not installed: it belongs to the extra `dev`"
    return ""


def _epmd() -> str | None:
    return shutil.which("epmd")


def erlang_binary(name: str | bytes) -> str:
    """Return a binary as Erlang source."""
    return "<<" + ",".join(map(str, name.encode() if isinstance(name, str) else name)) + ">>"


class Node:
    """One node. `settings`: variables of the application `rabbit`, values as Erlang terms."""

    def __init__(self, base: Path, settings: Mapping[str, object] | None = None) -> None:
        self.base = base
        self.name = f"referee{os.getpid()}@localhost"
        self.data = base / "node"
        self.stores = self.data / "msg_stores"
        self.boot_seconds = 0.0
        self.port, self._dist, self._epmd_port, self._eval_port = (free_port() for _ in range(4))
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._questions: socket.socket | None = None
        for name in ("home", "log", "gen", "schema", "ebin"):
            (base / name).mkdir(parents=True, exist_ok=True)
        variables = ",".join(f"{{{name},{value}}}" for name, value in (settings or {}).items())
        (base / "advanced.config").write_text(f"[{{rabbit,[{variables}]}}].\n")
        (base / "rabbitmq.conf").write_text(_CONF.format(port=self.port))
        (base / "plugins").write_text("[].")
        self._environment = self._make_environment()

    def _make_environment(self) -> dict[str, str]:
        base = self.base
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ", "ERL"))}
        listening = "-kernel inet_dist_use_interface {127,0,0,1}"
        return kept | {
            "HOME": f"{base}/home",
            "LC_ALL": "C.UTF-8",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{base}/advanced.config",
            "RABBITMQ_CONFIG_FILE": f"{base}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{base}/none",
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{base}/plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{base}/feature_flags",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{base}/gen",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_MNESIA_BASE": f"{base}",
            "RABBITMQ_MNESIA_DIR": f"{self.data}",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_PID_FILE": f"{base}/pid",
            "RABBITMQ_SCHEMA_DIR": f"{base}/schema",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{listening} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -pa {base}/ebin -run oracle serve {self._eval_port}"
            ),
        }

    def start(self) -> None:
        """Boot, and return when clients can connect. Raises BootError."""
        if self._epmd is None:
            command = [_epmd() or "epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(0.1)
        if not (self.base / "ebin" / "oracle.beam").exists():
            command = ["erlc", "-o", str(self.base / "ebin"), str(HERE / "oracle.erl")]
            subprocess.run(command, check=True, env=self._environment, capture_output=True)
        with open(self.base / "out.txt", "ab") as output:
            self._server = subprocess.Popen(
                [SBIN / "rabbitmq-server"],
                env=self._environment,
                cwd=self.base,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun = time.monotonic()
        # a node that has booted shows how busy the machine is; some damage keeps one from ever listening
        patience = max(60.0, 8 * self.boot_seconds) if self.boot_seconds else BOOT_TIMEOUT
        while time.monotonic() - begun < patience:
            if self._server.poll() is not None:
                raise BootError("the node exited while it booted")
            if _listens(self.port) and _listens(self._eval_port) and self._is_running():
                self.boot_seconds = time.monotonic() - begun
                return
            time.sleep(0.05)
        self.kill()
        raise BootError(f"no listener after {patience:.0f} s")

    def _is_running(self) -> bool:
        try:
            return self.eval("rabbit:is_running().") == "true"
        except (RuntimeError, OSError):  # it is still booting
            if self._questions is not None:
                self._questions.close()
            self._questions = None
            return False

    def eval(self, expression: str, *, timeout: float = 900) -> str:
        """Return the value of an Erlang expression inside the node, as text. Raises RuntimeError with the broker's own words."""
        if self._questions is None:
            self._questions = socket.create_connection(("127.0.0.1", self._eval_port), timeout)
        text = expression.encode()
        self._questions.sendall(len(text).to_bytes(4, "big") + text)
        length = int.from_bytes(self._receive(4), "big")
        kind, _, value = self._receive(length).decode().partition(" ")
        if kind != "ok":
            raise RuntimeError(value[:2000])
        return value

    def _receive(self, count: int) -> bytes:
        assert self._questions is not None
        got = b""
        while len(got) < count:
            part = self._questions.recv(count - len(got))
            if not part:
                raise RuntimeError("the node closed the connection")
            got += part
        return got

    def stop(self) -> None:
        """Stop cleanly, as `rabbitmqctl stop` does."""
        assert self._server is not None
        self.eval("spawn(fun () -> timer:sleep(50), rabbit:stop_and_halt() end).")
        self._server.wait(timeout=300)
        self._gone()

    def kill(self) -> None:
        """Send kill -9 to the emulator, by the process group that this object created."""
        if self._server is not None and self._server.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        self._gone()

    def _gone(self) -> None:
        self._server = None
        if self._questions is not None:
            self._questions.close()
            self._questions = None
        for port in (self.port, self._dist, self._eval_port):  # the emulator may briefly outlive its wrapper
            end = time.monotonic() + 10
            while _listens(port) and time.monotonic() < end:
                time.sleep(0.02)

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def add_vhost(self, vhost: str | bytes) -> None:
        self.eval(f"oracle:add_vhost({erlang_binary(vhost)}).")

    def connect(self, vhost: str = "/") -> pika.BlockingConnection:
        import pika

        place = pika.ConnectionParameters("127.0.0.1", self.port, virtual_host=vhost, heartbeat=0, blocked_connection_timeout=600)
        return pika.BlockingConnection(place)

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted((self.base / "log").glob("*.log")))


def telling_lines(log: str) -> list[str]:
    """Return the lines on recovery, dropped messages, merging, conversion, warnings and errors.

    Omits those of a connection that ends while its channels are being closed: a report of several lines under one process id.
    """
    hung_up = {found[1] for found in _HUNG_UP.finditer(log)}
    told = [line for line in log.split("\n") if _TELLING.search(line) and not _NOISE.search(line)]
    return [line for line in told if not (found := _BY.search(line)) or found[1] not in hung_up]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def new_node(settings: Mapping[str, object] | None = None) -> Iterator[Node]:
    """Yield a node that is not started yet; all of it is removed when the block ends."""
    with tempfile.TemporaryDirectory(prefix="referee-", ignore_cleanup_errors=True) as base:
        node = Node(Path(base), settings)
        try:
            yield node
        finally:
            node.close()
