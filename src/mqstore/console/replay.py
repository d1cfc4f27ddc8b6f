"""Replay of a basket's messages into a target: a RocketMQ store that no broker has open, or a broker that speaks AMQP 0-9-1.

Only the targets given with `--replay-to` can be written to, never the stores that are shown. Messages are replayed unchanged. Between
brokers of different families, fields without a counterpart become properties or headers:

    RocketMQ -> AMQP       to the queue named as the topic; message id from the unique key, headers from the properties
    RabbitMQ -> RocketMQ   to the topic named as the queue; KEYS from the message id
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.console.basket import InLog, Place, log_batches, queue_rows
from mqstore.console.jobs import Progress
from mqstore.console.stores import StoreList
from mqstore.errors import CannotOpenError, TargetError, UsageError
from mqstore.files.location import is_url, refuse_address, without_password
from mqstore.rabbitmq.amqp_sender import OutgoingMessage, Sender, outgoing_message
from mqstore.rabbitmq.message.properties import properties_to_bin
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message
from mqstore.table.columns import RABBITMQ_COLUMNS, ROCKETMQ_COLUMNS


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """A target of a replay. shown: its address without the password."""

    address: str
    shown: str
    is_store: bool


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay. stored: accepted by the target; returned, refused: not accepted; gone: no longer in the store, or unreadable."""

    target: str
    stored: int
    returned: int = 0
    refused: int = 0
    gone: int = 0


def targets_of(addresses: Sequence[str], shown: Sequence[object]) -> tuple[ReplayTarget, ...]:
    """Parse the targets of a command line. Raises UsageError."""
    targets = []
    for address in addresses:
        if address.startswith(("amqp://", "amqps://")):
            targets.append(ReplayTarget(address, without_password(address), False))
            continue
        what = "give amqp://user:password@host:port/vhost (amqps:// with TLS), or a store's directory"
        if is_url(address):
            raise UsageError(f"{without_password(address)} is not a replay target; {what}")
        refuse_address(address, what)
        if any(isinstance(place, Path) and _same(Path(address), place) for place in shown):
            raise UsageError(
                f"{address} is one of the stores that are shown; replay into another store, so that the ones being read do not change"
            )
        if not os.path.isdir(address):
            raise CannotOpenError(f"{address} is not a directory; create it first, a store is made in an empty one")
        targets.append(ReplayTarget(address, address, True))
    return tuple(targets)


def _same(one: Path, other: Path) -> bool:
    return any(os.path.realpath(one) == os.path.realpath(each) for each in (other, other / "store"))


def replay(stores: StoreList, places: Sequence[Place], target: ReplayTarget, progress: Progress) -> ReplayResult:
    """Send the messages in the order of the basket, those of RocketMQ stores first. Raises TargetError, CancelledError."""
    if target.is_store:
        return _into_store(stores, places, target, progress)
    sender = Sender(target.address)
    sent = sender.send(_outgoing(stores, places, sender.user, progress))
    return ReplayResult(target.shown, sent.confirmed - sent.returned, sent.returned, sent.refused, len(places) - sent.sent)


def _into_store(stores: StoreList, places: Sequence[Place], target: ReplayTarget, progress: Progress) -> ReplayResult:
    done = 0
    with MessageStore.open(target.address, StoreConfig(services=False)) as store:
        for batch in log_batches(stores, places, ROCKETMQ_COLUMNS, milliseconds=False):
            progress(done, len(places))
            result = store.put_batch(batch, stored=True)
            done += result.count
            if result.count < batch.num_rows:
                raise TargetError(f"{target.shown} rejected a message: {result.detail}; {done} are stored")
        for message in _as_messages(stores, places):
            progress(done, len(places))
            put = store.put(message)
            if not put.stored:
                raise TargetError(f"{target.shown} rejected a message of topic {message.topic}: {put.detail}; {done} are stored")
            done += 1
        store.dispatch_now()
        progress(done, done)
    return ReplayResult(target.shown, done, gone=len(places) - done)


def _as_messages(stores: StoreList, places: Sequence[Place]) -> Iterator[Message]:
    for store, rows in queue_rows(stores, places):
        batch = store.batch(rows, RABBITMQ_COLUMNS)
        for row in [] if batch is None else batch.to_pylist():
            if row["payload"] is not None:
                yield Message(row["queue"], row["payload"], keys=_message_id(row), properties=_properties(row))


def _message_id(row: dict[str, Any]) -> str:
    return str((row["properties"] or {}).get("message_id") or "")


def _properties(row: dict[str, Any]) -> dict[str, str]:
    """Return AMQP properties by name, with headers prefixed `header.`; only plain values."""
    known = dict(row["properties"] or {})
    headers = known.pop("headers", None) or ()
    plain = {name: str(value) for name, value in known.items() if value is not None and name != "message_id"}
    return plain | {f"header.{each['name']}": str(each["value"]) for each in headers if each["value"] is not None}


def _outgoing(stores: StoreList, places: Sequence[Place], user: str, progress: Progress) -> Iterator[OutgoingMessage]:
    done = 0
    for batch in log_batches(stores, places, ROCKETMQ_COLUMNS, milliseconds=True):
        for row in batch.to_pylist():
            progress(done, len(places))
            if row["body"] is not None:
                done += 1
                yield OutgoingMessage("", row["topic"], _property_block(row), row["body"])
    for store, rows in queue_rows(stores, places):
        for number in range(len(rows)):
            progress(done, len(places))
            message = outgoing_message(store, rows, number, user)
            if message is not None:
                done += 1
                yield message


def _property_block(row: dict[str, Any]) -> bytes:
    headers = [(name, "longstr", value.encode()) for name, value in (row["properties"] or ())]
    properties: dict[str, Any] = {"headers": headers, "delivery_mode": 2, "timestamp": max(0, row["born_timestamp"] // 1000)}
    if row["uniq_key"]:
        properties["message_id"] = row["uniq_key"].encode()[:255]
    return properties_to_bin(properties)


def count_by_family(places: Sequence[Place]) -> dict[str, int]:
    """Count the places by store family."""
    logs = sum(isinstance(place, InLog) for place in places)
    return {name: number for name, number in (("rocketmq", logs), ("rabbitmq", len(places) - logs)) if number}
