"""A private RabbitMQ node of another version, out of a directory that `make_root.sh` made; it needs root, for `unshare` and `chroot`.

The directories are made by `.ci/run`: one for each of Debian's suites in `SUITES`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from support.ports import free_port

if TYPE_CHECKING:
    import pika

BOOT_TIMEOUT = 180
CONSUMING = 60  # seconds of patience with a queue
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
SUITES = {"sid": "4.3", "trixie": "4.0", "bookworm": "3.10", "bullseye": "3.8"}
_MOUNTED = (
    'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && mount --bind "$1" "$0/broker" && cd "$0" && R=$0 && shift'
    ' && exec chroot "$R" /usr/bin/env -i "$@"'
)


def root_of(suite: str) -> Path:
    """Return the directory with the RabbitMQ of a suite."""
    given = os.environ.get("MQSTORE_RABBITMQ_ROOT") if suite == "sid" else None
    return Path(given or _CACHE / f"mqstore-rabbitmq-{suite}")


def missing(suite: str = "sid") -> str:
    """Return why no such node can be started; an empty string if one can."""
    root = root_of(suite)
    if not (root / ".complete").exists():
        return (
            f"no RabbitMQ of Debian's suite {suite} in {root}: tests/interop/rabbitmq/make_root.sh {suite} {root} makes it, as .ci/run does"
        )
    if os.geteuid():
        return "a node out of another Debian suite needs root, for unshare and chroot"
    allowed = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    return "" if allowed else "this machine does not allow unshare -m, which a node out of another Debian suite needs"


class OtherNode:
    """One node; all its files are in base, which it sees as /broker. Its data directory has the node's name, as by default.

    cluster: names of the nodes that form one with it when all start for the first time. epmd_port: of all nodes of that cluster.
    """

    def __init__(
        self, base: Path, suite: str, name: str, plugins: Sequence[str] = (), cluster: Sequence[str] = (), epmd_port: int | None = None
    ) -> None:
        self.base = base
        self.name = name
        self.data = base / name
        self._root = root_of(suite)
        self.version = (self._root / ".complete").read_text().split()[1].rstrip(",")
        (sbin,) = self._root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")
        self._sbin = f"/{sbin.relative_to(self._root)}"
        self.port, dist, self._epmd_port, self.management_port = (free_port() for _ in range(4))
        self._epmd_port = epmd_port or self._epmd_port
        self.stream_port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        for folder in ("home", "log", "gen", "schema"):
            (base / folder).mkdir()
        (base / "rabbitmq.conf").write_text(
            f"loopback_users = none\nlisteners.tcp.1 = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 50MB\n"
            "vm_memory_high_watermark.absolute = 4GB\n"
            + "".join(f"cluster_formation.classic_config.nodes.{number} = {each}\n" for number, each in enumerate(cluster, 1))
            + f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n" * ("rabbitmq_management" in plugins)
            + f"stream.listeners.tcp.1 = 127.0.0.1:{self.stream_port}\n" * ("rabbitmq_stream" in plugins)
        )
        (base / "plugins").write_text(f"[{','.join(plugins)}].")
        if cluster:
            (base / "home" / ".erlang.cookie").write_text("CLUSTER")
            (base / "home" / ".erlang.cookie").chmod(0o400)
        local = "-kernel inet_dist_use_interface {127,0,0,1}"
        self._environment = {
            "PATH": "/usr/bin:/usr/sbin", "HOME": "/broker/home", "LC_ALL": "C.UTF-8", "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": "/broker", "RABBITMQ_PID_FILE": "/broker/pid",
            "RABBITMQ_LOG_BASE": "/broker/log", "RABBITMQ_CONFIG_FILE": "/broker/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "/broker/plugins", "RABBITMQ_CONF_ENV_FILE": "/broker/none",
            "RABBITMQ_GENERATED_CONFIG_DIR": "/broker/gen", "RABBITMQ_SCHEMA_DIR": "/broker/schema",
            "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0", "RABBITMQ_CTL_ERL_ARGS": f"+S 1:1 {local}",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{local} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }  # fmt: skip

    def _command(self, *words: str) -> list[str]:
        environment = [f"{name}={value}" for name, value in self._environment.items()]
        return ["unshare", "-m", "bash", "-c", _MOUNTED, str(self._root), str(self.base), *environment, *words]

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.base / "out.txt", "ab") as output:
            command = self._command(*words)
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def start(self) -> None:
        """Boot, and return when clients can connect."""
        if self._epmd is None:
            self._epmd = self._spawn("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        output = self.base / "out.txt"
        heard = output.stat().st_size
        self._server = self._spawn(f"{self._sbin}/rabbitmq-server")
        end = time.monotonic() + BOOT_TIMEOUT
        while time.monotonic() < end:
            said = output.read_bytes()[heard:]
            assert self._server.poll() is None, said.decode(errors="replace")[-1500:]
            if b" completed with " in said:  # clients can connect a moment before commands are taken
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                    self.ctl("await_startup")  # without it a consumer once came before messages that had been in hand
                    return
            time.sleep(0.05)
        raise AssertionError(f"no listener after {BOOT_TIMEOUT} s")

    def ctl(self, *words: str) -> str:
        """Run rabbitmqctl and return what it prints."""
        command = self._command(f"{self._sbin}/rabbitmqctl", "-n", self.name, "--quiet", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        return done.stdout

    def run_steps(self, text: str) -> str:
        """Run the commands of a STEPS.md in bash, where this node is the service, and return what they print; paths below base are its own.

        Lines that begin with `mqstore` are not run: they have placeholders.
        """
        lines = [line.removeprefix("       ") for line in text.split("\n") if line.startswith("       ")]
        state = self.base / "steps.state"
        state.touch()
        printed, run = "", [""]
        for line in [*(line for line in lines if not line.startswith("mqstore ")), "systemctl none"]:
            if not line.startswith("systemctl "):
                run.append(line)
                continue
            script = "\n".join(
                (*self._functions(), f". {shlex.quote(str(state))}", *run, f"declare -p DATA > {shlex.quote(str(state))} || true")
            )
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, (script, done.stdout + done.stderr)
            printed, run = printed + done.stdout, []
            if line == "systemctl start rabbitmq-server" and not self.running:
                self.start()
            elif line == "systemctl stop rabbitmq-server" and self.running:
                self.stop()
        return printed

    def _functions(self) -> list[str]:
        """Return the commands of the node as functions of bash, with paths as the machine has them."""
        base = shlex.quote(str(self.base))
        made = []
        for name in ("rabbitmqctl", "rabbitmq-diagnostics"):
            command = shlex.join(self._command(f"{self._sbin}/{name}", "-n", self.name))
            made.append(f'{name}() {{ local base={base}; {command} "${{@//"$base"//broker}}" | sed "s#/broker#$base#g"; }}')
        return made

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def stop(self) -> None:
        self.ctl("stop")
        assert self._server is not None
        self._server.wait(timeout=120)

    def kill(self) -> None:
        """Send kill -9 to the emulator, by the process group that this object created."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        end = time.monotonic() + 10
        while time.monotonic() < end:  # the emulator may briefly outlive its wrapper
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                return
            time.sleep(0.02)

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted((self.base / "log").glob("*.log")))

    def connect(self, vhost: str) -> pika.BlockingConnection:
        import pika

        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, virtual_host=vhost, heartbeat=0))

    def consume_all(self, queue: str, count: int, vhost: str = "/") -> list[tuple[bytes, str | None]]:
        """Take and acknowledge the messages of a queue as a consumer, in its order, until count are there and a second brings no more.

        4.3 refuses basic.get on a queue with a single active consumer.
        """
        connection = self.connect(vhost)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        found: list[tuple[bytes, str | None]] = []
        end = time.monotonic() + CONSUMING
        for method, properties, body in channel.consume(queue, inactivity_timeout=1):
            if method is not None:
                found.append((body, properties.message_id))
                channel.basic_ack(method.delivery_tag)
            elif len(found) >= count or time.monotonic() > end:
                break
        connection.close()
        return found

    def close(self) -> None:
        for process in (self._server, self._epmd):
            if process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def other_node(suite: str = "sid", *, name: str = "rabbit@localhost", plugins: Sequence[str] = ()) -> Iterator[OtherNode]:
    """Yield a node that has not been started. name: of the node; plugins: those it enables."""
    base = Path(tempfile.mkdtemp(prefix="mqstore-rabbit-"))
    node = OtherNode(base, suite, name, plugins)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(base, ignore_errors=True)


@contextlib.contextmanager
def other_cluster(suite: str = "sid", names: Sequence[str] = ("one", "two", "three")) -> Iterator[list[OtherNode]]:
    """Yield the nodes of a cluster, `NAME@localhost`, which have not been started; `start_all` makes one of them."""
    base = Path(tempfile.mkdtemp(prefix="mqstore-cluster-"))
    full = [f"{name}@localhost" for name in names]
    epmd_port = free_port()
    nodes = []
    for name in full:
        (base / name).mkdir()
        nodes.append(OtherNode(base / name, suite, name, cluster=full, epmd_port=epmd_port))
    try:
        yield nodes
    finally:
        for node in nodes:
            node.close()
        shutil.rmtree(base, ignore_errors=True)


def start_all(nodes: Sequence[OtherNode]) -> None:
    """Start nodes that wait for each other."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(OtherNode.start, nodes))
