"""The real broker on a store: it boots on a copy, recovers the queues, and every message is drained over AMQP.

Rows have the fields of the golden `expected.jsonl`. Two views of each message must agree: the delivery over AMQP, and the queue
process's record of the unacknowledged message (sequence id, location, expiry).
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.rabbitmq.amqp import json_bytes, json_properties, typed_tables
from interop.rabbitmq.node import BootError, Node, erlang_binary, new_node, telling_lines
from support.archives import extract_all

PAYLOAD_LIMIT = 256
PLACES = {"queue_index": "index", "queue_store": "queue_store"}


@dataclass(frozen=True, slots=True)
class Declared:
    """A durable classic queue, and the arguments it is declared with."""

    vhost: str
    queue: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def levels(self) -> list[int | None]:
        """Priority levels from high to low; [None] without priorities."""
        most = self.arguments.get("x-max-priority")
        return [None] if most is None else list(range(min(most, 255), -1, -1))


@dataclass(slots=True)
class Adopted:
    """The result of a boot on a store. error: why it failed. down: vhosts that are not alive; failed: queues, with the reason."""

    booted: bool = False
    error: str = ""
    boot_seconds: float = 0.0
    down: list[str] = field(default_factory=list)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.booted and not self.down and not self.failed


def adopt(
    store: Path,
    queues: Sequence[Declared],
    settings: Mapping[str, object] | None = None,
    *,
    save: Path | None = None,
) -> Adopted:
    """Boot a fresh node on a copy of a `msg_stores` directory (or an archive of one) in which these queues are declared.

    save: also stop the node cleanly, and keep what it leaves as `msg_stores` in that directory.
    """
    with new_node(settings) as node:
        node.start()
        declare(node, queues)
        node.stop()
        return adopt_in(node, store, queues, save=save)


def adopt_in(node: Node, store: Path, queues: Sequence[Declared], *, save: Path | None = None) -> Adopted:
    """Return the same with a stopped node that knows the queues. It is ended by kill -9, or cleanly with `save`."""
    result = Adopted()
    before = len(node.log())
    shutil.rmtree(node.stores, ignore_errors=True)
    copy_store(store, node.stores)
    try:
        node.start()
    except BootError as error:
        result.error = str(error)
        result.log = telling_lines(node.log()[before:])
        return result
    result.booted = True
    result.boot_seconds = node.boot_seconds
    for vhost in sorted({queue.vhost for queue in queues}):
        if node.eval(f"rabbit_vhost_sup_sup:is_vhost_alive({erlang_binary(vhost)}).") != "true":
            result.down.append(vhost)
    drain_all(node, [queue for queue in queues if queue.vhost not in result.down], result)
    if save is not None:
        node.stop()
        shutil.copytree(node.stores, save / "msg_stores")
    node.kill()
    result.log = telling_lines(node.log()[before:])
    return result


def drain_all(node: Node, queues: Iterable[Declared], result: Adopted) -> None:
    from pika.exceptions import AMQPError

    for queue in queues:
        try:
            result.rows += drain(node, queue)
        except (RuntimeError, AssertionError, OSError, AMQPError) as error:
            result.failed[queue.vhost, queue.queue] = f"{type(error).__name__}: {error}"[:600]


def copy_store(store: Path, target: Path) -> None:
    """Copy a `msg_stores` directory, its parent, or a tar archive of either."""
    if store.is_dir():
        inner = store / "msg_stores"
        shutil.copytree(inner if inner.is_dir() else store, target, symlinks=True)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        with tarfile.open(store) as archive:
            extract_all(archive, place)
        shutil.move(f"{place}/msg_stores", target)


def declare(node: Node, queues: Sequence[Declared]) -> None:
    """Declare the vhosts and queues on a running node."""
    for vhost in sorted({queue.vhost for queue in queues}):
        node.add_vhost(vhost)
        connection = node.connect(vhost)
        channel = connection.channel()
        for queue in queues:
            if queue.vhost == vhost:
                channel.queue_declare(queue.queue, durable=True, arguments=dict(queue.arguments) or None)
        connection.close()


def drain(node: Node, queue: Declared) -> list[dict[str, Any]]:
    """Consume a whole queue without acknowledging, then ask the queue process for its unacknowledged messages."""
    connection = node.connect(queue.vhost)
    channel = connection.channel()
    ready = channel.queue_declare(queue.queue, passive=True).method.message_count
    delivered: list[dict[str, Any]] = []

    def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
        row = {
            "exchange": _name(method.exchange),
            "routing_key": _name(method.routing_key),
            "redelivered": method.redelivered,
            "properties": json_properties(properties),
            "payload_len": len(body),
            "payload_sha256": hashlib.sha256(body).hexdigest(),
        }
        if len(body) <= PAYLOAD_LIMIT:
            row["payload_b64"] = base64.b64encode(body).decode()
        delivered.append(row)

    with typed_tables():
        if ready:
            channel.basic_consume(queue.queue, take)
        last = time.monotonic()
        while len(delivered) < ready and time.monotonic() - last < 20:
            before = len(delivered)
            connection.process_data_events(time_limit=0.3)
            last = time.monotonic() if len(delivered) != before else last
        if ready:
            connection.process_data_events(time_limit=0.02)
    rows = [row for level in queue.levels for row in out_for_delivery(node, queue, level)] if ready else []
    connection.close()
    if len(rows) != len(delivered):
        raise RuntimeError(f"AMQP delivered {len(delivered)}, the queue process has {len(rows)} unacknowledged")
    for place, (row, seen) in enumerate(zip(rows, delivered, strict=True)):
        routing_key = seen.pop("routing_key")
        if row["size"] != seen["payload_len"] or row["exchange"] != seen["exchange"] or row["routing_keys"][:1] != [routing_key]:
            raise RuntimeError(f"the two views differ: {row} {seen}")
        row.update(seen, pos=place, recovered=True)
    return rows


def out_for_delivery(node: Node, queue: Declared, level: int | None) -> list[dict[str, Any]]:
    """Return the unacknowledged messages in the state of the queue process."""
    path = node.base / "peek.txt"
    name = "none" if level is None else level
    answer = node.eval(f'oracle:peek({erlang_binary(queue.vhost)},{erlang_binary(queue.queue)},{name},"{path}").')
    if not answer.startswith("{ok"):
        raise RuntimeError(f"peek: {answer}")
    rows = []
    for line in path.read_text().splitlines():
        _, seq, msg_id, expiry, size, persistent, place, exchange, keys = line.split(" ")
        stored = "msg_store_persistent" if persistent == "true" else "msg_store_transient"
        rows.append(
            {
                "vhost": queue.vhost,
                "queue": queue.queue,
                "priority_level": level,
                "seq_id": int(seq),
                "persistent": persistent == "true",
                "expiry_us": None if expiry == "undefined" else int(expiry),
                "size": int(size),
                "msg_id": msg_id,
                "exchange": json_bytes(bytes.fromhex(exchange[1:])),
                "routing_keys": [json_bytes(bytes.fromhex(key[1:])) for key in keys.split(",")] if keys else [],
                "location": PLACES.get(place, stored),
            }
        )
    return rows


def _name(name: str | bytes) -> Any:
    return json_bytes(name) if isinstance(name, bytes) else name


def differences(ours: Iterable[Mapping[str, Any]], broker: Iterable[Mapping[str, Any]], ignore: Iterable[str] = ()) -> list[str]:
    """Return the differences of two lists of rows, one sentence each; rows that are not recovered are skipped."""
    ignored = set(ignore)

    def keyed(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
        recovered = [row for row in rows if row.get("recovered", True)]
        return {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in recovered}

    first, second = keyed(ours), keyed(broker)
    found = []
    for key in sorted(first.keys() | second.keys(), key=str):
        if key not in first or key not in second:
            found.append(f"only {'the broker' if key in second else 'we'} have {key}")
            continue
        names = (first[key].keys() | second[key].keys()) - ignored
        found += [
            f"{key} {name}: {first[key].get(name)!r:.150} | {second[key].get(name)!r:.150}"
            for name in sorted(names)
            if first[key].get(name) != second[key].get(name)
        ]
    return found
