"""Scripts of `queuescripts`, run by a real node over AMQP and by our engine."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interop.rabbitmq.adopting import PAYLOAD_LIMIT, Declared
from interop.rabbitmq.amqp import json_bytes
from interop.rabbitmq.node import Node
from interop.rabbitmq.queuescripts import Acknowledge, Idle, Operation, Publish, Purge, Requeue, Script, Take, body

from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import Delivery, QueueStore
from mqstore.rabbitmq.message.properties import json_properties


def declared(scripts: Sequence[Script]) -> list[Declared]:
    return [Declared(script.vhost, queue, arguments) for script in scripts for queue, arguments in script.queues.items()]


# a real node


def play_phase_on_node(node: Node, script: Script, phase: int) -> None:
    """Play one phase over one channel, which keeps the order; closing the connection requeues unacknowledged messages."""
    import pika

    connection = node.connect(script.vhost)
    channel = connection.channel()
    out: dict[tuple[str, str], int] = {}
    for operation in script.phases[phase]:
        match operation:
            case Publish():
                more = list(operation.queues[1:])
                properties = pika.BasicProperties(
                    headers={"CC": more} if more else None,
                    delivery_mode=2 if operation.persistent else 1,
                    priority=operation.priority,
                    message_id=operation.tag,
                )
                channel.basic_publish("", operation.queues[0], body(operation), properties)
            case Take():
                for _ in range(operation.count):
                    method, properties, _ = channel.basic_get(operation.queue)
                    assert method is not None, f"{script.vhost}: {operation.queue} has fewer messages than it should"
                    out[operation.queue, properties.message_id] = method.delivery_tag
            case Acknowledge():
                for tag in operation.tags:
                    channel.basic_ack(out.pop((operation.queue, tag)))
            case Requeue():
                for tag in operation.tags:
                    channel.basic_reject(out.pop((operation.queue, tag)), requeue=True)
            case Purge():
                channel.queue_purge(operation.queue)
    for queue in script.queues:  # answered after everything before it has been done
        channel.queue_declare(queue, passive=True)
    connection.close()


# our engine


def config(settings: Mapping[str, int], **more: Any) -> EngineConfig:
    return EngineConfig(**settings, **more)


class OurSide:
    """One script on our engine, with each message's deliveries kept by tag."""

    def __init__(self, place: Path, script: Script, settings: EngineConfig) -> None:
        self.place = place
        self.script = script
        self.settings = settings
        self.store = QueueStore.open(place, script.vhost, settings)
        self.out: dict[tuple[str, str], Delivery] = {}
        self._declare()

    def _declare(self) -> None:
        for queue, arguments in self.script.queues.items():
            self.store.declare(queue, arguments)

    def play_phase(self, phase: int) -> None:
        for operation in self.script.phases[phase]:
            self.do(operation)

    def do(self, operation: Operation) -> None:
        match operation:
            case Publish():
                self.store.publish(operation.queues, body(operation), properties=properties_of(operation), routing_keys=_keys(operation))
            case Take():
                taken = self.store.deliver(operation.queue, operation.count)
                assert len(taken) == operation.count
                for delivery in taken:
                    self.out[operation.queue, _tag(delivery)] = delivery
            case Acknowledge():
                self.store.acknowledge([self.out.pop((operation.queue, tag)) for tag in operation.tags])
            case Requeue():
                self.store.requeue([self.out.pop((operation.queue, tag)) for tag in operation.tags])
            case Purge():
                self.store.purge(operation.queue)
            case Idle():
                self.store.idle()

    def end(self, *, clean: bool) -> None:
        self.out.clear()
        if clean:
            self.store.close()
        else:
            self.store.sync()
            self.store.abandon()

    def reopen(self) -> None:
        self.store = QueueStore.open(self.place, self.script.vhost, self.settings)
        self._declare()


def properties_of(publish: Publish) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(publish.queues) > 1:
        found["headers"] = [[b"CC", "array", [["longstr", queue.encode()] for queue in publish.queues[1:]]]]
    found["delivery_mode"] = 2 if publish.persistent else 1
    if publish.priority is not None:
        found["priority"] = publish.priority
    found["message_id"] = publish.tag.encode()
    return found


def _keys(publish: Publish) -> tuple[bytes, ...]:
    return tuple(queue.encode() for queue in publish.queues)


def _tag(delivery: Delivery) -> str:
    tag = delivery.message.properties["message_id"]
    return tag.decode() if isinstance(tag, bytes) else tag


def rows_by_engine(store: Path, scripts: Sequence[Script], settings: EngineConfig, scratch: Path) -> list[dict[str, Any]]:
    """Return every message of a copy of a `msg_stores` directory, as our engine recovers and delivers them."""
    shutil.copytree(store, scratch)
    rows = []
    for script in scripts:
        opened = QueueStore.open(scratch, script.vhost, settings)
        for queue, arguments in script.queues.items():
            opened.declare(queue, arguments)
            for place, delivery in enumerate(opened.deliver(queue, 1 << 30)):
                rows.append(_row(script.vhost, place, delivery, opened, arguments["x-queue-version"]))
        opened.abandon()
    shutil.rmtree(scratch)
    return rows


def _row(vhost: str, place: int, delivery: Delivery, store: QueueStore, version: int) -> dict[str, Any]:
    message = delivery.message
    payload = message.body
    row: dict[str, Any] = {
        "vhost": vhost,
        "queue": delivery.queue,
        "priority_level": delivery.level,
        "pos": place,
        "seq_id": delivery.seq,
        "persistent": message.persistent,
        "expiry_us": delivery.expiry_us or None,
        "size": len(payload),
        "redelivered": delivery.redelivered,
        "msg_id": message.id.hex(),
        "exchange": json_bytes(message.exchange),
        "routing_keys": [json_bytes(key) for key in message.routing_keys],
        "properties": json_properties(message.properties),
        "payload_len": len(payload),
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "recovered": True,
        "location": "msg_store_persistent" if store.messages.read(message.id) else "index" if version == 1 else "queue_store",
    }
    if len(payload) <= PAYLOAD_LIMIT:
        row["payload_b64"] = base64.b64encode(payload).decode()
    return row
