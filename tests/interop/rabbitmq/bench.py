"""Many states of stores in one real node: each in a vhost of its own, so that a boot of a minute shows what ten of them become.

A bench has one template for each vhost: a golden store that this node has started on, in two forms, after a clean stop and after a kill.
A state is a copy of a template with a damage. `boot` puts a state into each vhost, starts the node and drains it as a patient consumer
would: a queue whose channel or process ends is asked again, until nothing more comes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from interop.rabbitmq import node as this_node
from interop.rabbitmq import other_node
from interop.rabbitmq.adopting import Declared, declare
from support.golden import case_named, unpack
from support.rabbitmq_states import rename_vhost, writable

from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.store.store import RabbitMQStore

SUITES = {"3.8.9": "bullseye", "3.10.8": "", "4.0.5": "trixie", "4.3.6": "sid"}
TEMPLATES = {
    "3.8.9": ("3.8.9/a-v1-clean",) * 2 + ("3.10.8/a-small-clean", "3.10.8/d-large-fanout") * 2,
    "3.10.8": tuple(f"3.10.8/{name}" for name in (
        "a-small-clean", "d-large-fanout", "e-gc-combined", "g1-v2-small-clean", "g2-v2-large-dirty",
        "d-large-fanout", "g1-v2-small-clean",
    )),
    "4.0.5": ("4.0.5/a-v2-kill9", "3.10.8/g1-v2-small-clean", "3.10.8/g2-v2-large-dirty") * 3,
    "4.3.6": ("4.3.6/a-v2-clean", "4.3.6/b-small-files-kill9", "3.10.8/g1-v2-small-clean", "3.10.8/g2-v2-large-dirty") * 2,
}  # fmt: skip
ATTEMPTS = 4  # at a queue that ends the channel
LIMIT = 40  # seconds for an attempt: a queue may ask for a message without end, and answers nothing
PATIENCE = 1.0  # seconds without a message until a queue counts as silent

Messages = Counter[tuple[str, str]]  # queue, checksum of the payload


def missing(version: str) -> str:
    """Return why no node of a version can be started; an empty string if one can."""
    return this_node.missing() or (other_node.missing(SUITES[version]) if SUITES[version] else "")


@dataclass(slots=True)
class Drained:
    """What a vhost delivered. failed: queues at which the patience ended, with the last reason. redelivered: how many, of those."""

    messages: Messages = field(default_factory=Counter)
    redelivered: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: int = 0  # how often a channel or a queue ended
    alive: bool = True


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread after this time."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the queue does not answer")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _vhost(slot: int) -> str:
    return f"s{slot}"


class Bench:
    """A node with its templates. base: a directory for all of it."""

    def __init__(self, base: Path, version: str, node: Any, templates: tuple[str, ...] | None = None) -> None:
        self.base = base
        self.version = version
        self.node = node
        self.cases = templates or TEMPLATES[version]
        self.queues: list[Declared] = []
        self.log_read = 0

    def prepare(self) -> None:
        """Make the templates: the node starts on each store, and is stopped, and killed."""
        raw = self.base / "raw"
        for slot, name in enumerate(self.cases):
            store = raw / _vhost(slot)
            unpack(case_named(name), store)
            writable(store)
            rename_vhost(store, _vhost(slot))
            for row in queue_rows(RabbitMQStore(store)):
                arguments: dict[str, Any] = {} if row["priority_levels"] is None else {"x-max-priority": row["priority_levels"] - 1}
                if self.version == "3.10.8":
                    arguments["x-queue-version"] = row["queue_version"]
                self.queues.append(Declared(_vhost(slot), row["queue"], arguments))
        self._quiet()
        self._declare()
        self.node.stop()
        shutil.copytree(self.node.data, self.base / "metadata", symlinks=True)
        for slot in range(len(self.cases)):
            self._put(raw / _vhost(slot) / "msg_stores" / "vhosts" / vhost_directory(_vhost(slot)), slot)
        self.node.start()
        time.sleep(2)
        self.node.stop()
        shutil.copytree(self.node.data, self.base / "clean", symlinks=True)
        self.node.start()
        time.sleep(2)
        self.node.kill()
        shutil.copytree(self.node.data, self.base / "killed", symlinks=True)
        shutil.rmtree(raw)

    def _quiet(self) -> None:
        """Write no reports of crashes: they have the state of a queue with all its messages, and take minutes."""
        path = self.node.base / "rabbitmq.conf"
        path.write_text(path.read_text().replace("log.file.level = debug\n", "") + "log.file.level = critical\n")

    def _declare(self) -> None:
        self.node.start()
        if isinstance(self.node, this_node.Node):
            declare(self.node, self.queues)
            return
        vhosts = sorted({queue.vhost for queue in self.queues})
        document = {
            "vhosts": [{"name": vhost} for vhost in vhosts],
            "permissions": [{"user": "guest", "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"} for vhost in vhosts],
            "queues": [
                {"vhost": each.vhost, "name": each.queue, "durable": True, "auto_delete": False, "arguments": dict(each.arguments)}
                for each in self.queues
            ],
        }
        (self.node.base / "queues.json").write_text(json.dumps(document))
        self.node.ctl("import_definitions", "/broker/queues.json")

    def _put(self, place: Path, slot: int) -> None:
        target = self.node.data / "msg_stores" / "vhosts" / vhost_directory(_vhost(slot))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(place, target, symlinks=True)

    def state(self, slot: int, target: Path, *, clean: bool, change: Callable[[Path], None]) -> Path:
        """Make a state: the directory of a vhost in a `msg_stores` of its own, of the template of a slot. Returns the store."""
        name = vhost_directory(_vhost(slot))
        place = target / "msg_stores" / "vhosts" / name
        shutil.copytree(self.base / ("clean" if clean else "killed") / "msg_stores" / "vhosts" / name, place, symlinks=True)
        change(place)
        return target

    def template(self, slot: int, *, clean: bool) -> Path:
        """Return the directory of the vhost of a slot, unchanged."""
        return self.base / ("clean" if clean else "killed") / "msg_stores" / "vhosts" / vhost_directory(_vhost(slot))

    def boot(self, states: Mapping[int, Path]) -> dict[int, Drained]:
        """Start the node on these states, by slot, and return what each vhost delivers. The node is killed."""
        shutil.rmtree(self.node.data)
        shutil.copytree(self.base / "metadata", self.node.data, symlinks=True)
        shutil.rmtree(self.node.data / "msg_stores" / "vhosts", ignore_errors=True)
        for store in states.values():
            for place in (store / "msg_stores" / "vhosts").iterdir():
                target = self.node.data / "msg_stores" / "vhosts" / place.name
                shutil.copytree(place, target, symlinks=True)
        self.node.start()
        drained = {slot: self._drain(slot) for slot in states}
        self.node.kill()
        return drained

    def _drain(self, slot: int) -> Drained:
        result = Drained()
        for queue in self.queues:
            if queue.vhost == _vhost(slot):
                self._drain_queue(queue, result)
        return result

    def _drain_queue(self, queue: Declared, result: Drained) -> None:
        from pika.exceptions import AMQPError

        nothing = 0
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.5)
            before = result.messages.total()
            result.failed.pop(queue.queue, None)
            try:
                with _limit(LIMIT), self._connection(queue.vhost) as connection:
                    self._consume(connection, queue.queue, result)
                if queue.queue not in result.failed:
                    return
            except (AMQPError, OSError) as error:
                result.interrupted += 1
                result.failed[queue.queue] = f"{type(error).__name__}: {error}"[:300]
            nothing = nothing + 1 if result.messages.total() == before else 0
            if nothing == 2:
                return

    @contextmanager
    def _connection(self, vhost: str) -> Iterator[Any]:
        from pika.exceptions import AMQPError

        connection = self.node.connect(vhost)
        try:
            yield connection
        finally:
            try:
                connection.close()
            except AMQPError:
                pass

    def _consume(self, connection: Any, queue: str, result: Drained) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        ready = channel.queue_declare(queue, passive=True).method.message_count
        last = time.monotonic()
        number = 0

        def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            nonlocal last, number
            result.messages[queue, hashlib.sha256(body).hexdigest()] += 1
            result.redelivered += bool(method.redelivered)
            last = time.monotonic()
            number += 1
            channel.basic_ack(method.delivery_tag)

        if not ready:
            return
        channel.basic_consume(queue, take)
        while number < ready and time.monotonic() - last < PATIENCE:
            connection.process_data_events(time_limit=0.05)
            if channel.is_closed:
                channel.basic_get(queue)  # raises why
        if number < ready:
            result.failed[queue] = f"{ready} ready, {number} delivered, then silence"


@contextmanager
def bench(base: Path, version: str, templates: tuple[str, ...] | None = None) -> Iterator[Bench]:
    """Yield a prepared bench in a directory that is not there yet."""
    base.mkdir(parents=True)
    if SUITES[version]:
        with other_node.other_node(SUITES[version]) as node:
            made = Bench(base, version, node, templates)
            made.prepare()
            yield made
        return
    with this_node.new_node({"msg_store_file_size_limit": 262144}) as node:
        made = Bench(base, version, node, templates)
        made.prepare()
        yield made


def predicted(store: Path) -> tuple[Messages, int]:
    """Return what the reader says that a node delivers, and how many of them with the flag `redelivered`."""
    from mqstore.table.columns import QueueSelection

    rows = RabbitMQStore(store).to_arrow(("queue", "payload", "redelivered"), QueueSelection(recovered=True)).to_pylist()
    messages = Counter((row["queue"], hashlib.sha256(row["payload"] or b"").hexdigest()) for row in rows)
    return messages, sum(bool(row["redelivered"]) for row in rows)
