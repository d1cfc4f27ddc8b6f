"""Random lives of quorum queues and streams on real nodes: what we read after each phase is what the restarted node has.

A life is a queue and some phases of operations drawn from a seed: publishes, deliveries, acknowledgements, requeues, rejections, purges,
with limits, times to live, priorities and a single active consumer. A phase ends with a stop or with kill -9, with messages in the hands
of consumers. Then the directory is read by us, the node starts again, and counts, order, bodies, `redelivered` and the counts of
deliveries must be the same. All lives of a batch share the boots of a node, its write-ahead logs and segments, which are small.
The seed of a batch says the release of its node, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from interop.rabbitmq.node import Node, new_node
from interop.rabbitmq.other_node import OtherNode, other_node
from support.golden import run_cli

from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.streams.stream import SEGMENT_BYTES

RELEASES = ("3.10", "sid", "trixie", "bullseye")  # that of the machine, and suites of Debian; a batch has the one of its seed
OLDEST = "bullseye"  # 3.8 has no streams, and of a quorum queue neither a time to live nor an overflow
ENDS = ("kill", "stop", "kill")
STREAMS = 3  # every third life is one of a stream
SHORT = 1  # milliseconds to live of messages that are to expire
LONG = 86_400_000
NOT_FOUND = 404  # also "home node … is down or inaccessible"
HASTE = "raft.segment_max_entries = 64\nraft.wal_max_size_bytes = 65536\n"

Seen = tuple[str | None, bool | None, Any, Any]  # message id, redelivered, and what the headers count


@dataclass(frozen=True, slots=True)
class Life:
    """One queue. chance: for its arguments and for what is done to it."""

    name: str
    arguments: dict[str, Any]
    chance: random.Random

    @property
    def is_stream(self) -> bool:
        return bool(self.arguments["x-queue-type"] == "stream")


def release(seed: int) -> str:
    return RELEASES[seed % len(RELEASES)]


def _node(seed: int) -> AbstractContextManager[Node | OtherNode]:
    return new_node() if release(seed) == "3.10" else other_node(release(seed))


def lives(seed: int, count: int) -> list[Life]:
    found = []
    for number in range(count):
        chance = random.Random(seed * 1_000_003 + number)
        is_stream = number % STREAMS == 0 and release(seed) != OLDEST
        arguments: dict[str, Any] = {"x-queue-type": "stream" if is_stream else "quorum"}
        if is_stream:
            if chance.random() < 0.7:
                arguments["x-stream-max-segment-size-bytes"] = chance.choice((1000, 4000))
            if chance.random() < 0.3:
                arguments["x-max-length-bytes"] = 8000
        else:
            choices = {
                "x-delivery-limit": chance.choice((1, 3, 100)),
                "x-max-length": chance.choice((5, 20)),
                "x-max-length-bytes": 4000,
                "x-overflow": chance.choice(("drop-head", "reject-publish")),
                "x-single-active-consumer": True,
                "x-message-ttl": LONG,
            }
            if release(seed) == OLDEST:
                del choices["x-message-ttl"], choices["x-overflow"]
            arguments |= {name: value for name, value in choices.items() if chance.random() < 0.25}
        found.append(Life(f"life.{seed}.{number}", arguments, chance))
    return found


class _Player:
    """A life over one connection. in_hand: delivery tags of what was delivered and not answered."""

    def __init__(self, node: Node | OtherNode, life: Life, phase: int) -> None:
        self.life = life
        self.phase = phase
        self.connection = node.connect("/")
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare(life.name, durable=True, arguments=life.arguments)
        self.in_hand: list[int] = []
        self.count = 0

    def play(self) -> None:
        """Lead the life through a phase; what it has in hand stays there if the chance says so."""
        chance = self.life.chance
        for _ in range(chance.randint(3, 12)):
            if self.life.is_stream or chance.random() < 0.4:
                self._publish()
            else:
                chance.choice((self._take, self._take, self._answer, self._answer, self._answer, self._purge))()
        if chance.random() < 0.5:
            self.connection.close()

    def _publish(self) -> None:
        import pika
        from pika.exceptions import NackError

        chance = self.life.chance
        for _ in range(chance.randint(1, 12)):
            self.count += 1
            properties = pika.BasicProperties(
                message_id=f"{self.life.name}-{self.phase}-{self.count}",
                delivery_mode=2,
                priority=chance.choice((None, None, 0, 3, 5, 9)),
                expiration=None if self.life.is_stream else chance.choice((None, None, None, None, str(LONG), str(SHORT))),
                headers=chance.choice((None, {"a": 1, "b": "c"})),
            )
            try:
                self.channel.basic_publish("", self.life.name, chance.randbytes(chance.choice((0, 10, 200, 900))), properties)
            except NackError:  # by its limit
                pass

    def _take(self) -> None:
        if self.life.arguments.get("x-single-active-consumer"):
            return
        for _ in range(self.life.chance.choice((1, 2, 7))):
            method, _, _ = self.channel.basic_get(self.life.name)
            if method is None:
                return
            self.in_hand.append(method.delivery_tag)

    def _answer(self) -> None:
        chance = self.life.chance
        some = chance.sample(self.in_hand, chance.randint(0, len(self.in_hand)))
        self.in_hand = [tag for tag in self.in_hand if tag not in some]
        how = chance.choice(("ack", "ack", "requeue", "reject", "drop"))
        for tag in some:
            if how == "ack":
                self.channel.basic_ack(tag)
            elif how == "requeue":
                self.channel.basic_nack(tag, requeue=True)
            else:
                self.channel.basic_reject(tag, requeue=how == "reject")

    def _purge(self) -> None:
        if self.life.chance.random() < 0.3:
            self.channel.queue_purge(self.life.name)


def delivered(node: Node | OtherNode, life: Life, expected: int) -> list[Seen]:
    """Take all messages of a queue as a consumer that acknowledges none; closing its connection gives them back."""
    from pika.exceptions import ChannelClosedByBroker

    end = time.monotonic() + 60
    while True:
        connection = node.connect("/")
        try:
            return _consumed(connection.channel(), life, expected, end)
        except ChannelClosedByBroker as error:  # a node serves clients before the coordinator has started its streams
            if not life.is_stream or error.reply_code != NOT_FOUND or time.monotonic() > end:
                raise
            time.sleep(0.2)
        finally:
            connection.close()


def _consumed(channel: Any, life: Life, expected: int, end: float) -> list[Seen]:
    channel.basic_qos(prefetch_count=2000)
    if life.is_stream:  # any client lets a node begin a new segment where the last one is full, and deletes others by its limit
        channel.basic_consume(life.name, print, arguments={"x-stream-offset": "next"}, consumer_tag="first client")
        channel.basic_cancel("first client")
        time.sleep(0.2)
    arguments = {"x-stream-offset": "first"} if life.is_stream else None
    found: list[Seen] = []
    for method, properties, _ in channel.consume(life.name, inactivity_timeout=0.3, arguments=arguments):
        if method is not None:
            headers = properties.headers or {}
            redelivered = None if life.is_stream else method.redelivered
            counts = [headers.get(name) for name in ("x-delivery-count", "x-acquired-count")]
            found.append((properties.message_id, redelivered, *counts))
        elif len(found) >= expected or time.monotonic() > end:
            break
    return found


def ours(data: Any, now: int) -> tuple[dict[str, list[Seen]], dict[str, dict[str, Any]]]:
    """Return what we read: the messages that each queue delivers after a start at `now`, in order, and its counts."""
    shown = run_cli("messages", data, "--queue-type", "quorum", "--queue-type", "stream", "-o", "jsonl", "--body", "none")
    assert shown.status == 0, shown.stderr
    found: dict[str, list[Seen]] = {}
    kept = _within_limits(data)
    for row in shown.rows:
        if row["stream_offset"] is not None and row["stream_offset"] < kept[row["queue"]]:
            continue
        if row["recovered"] and (row["expiry_us"] is None or row["expiry_us"] > now * 1_000_000):
            properties = row["properties"] or {}
            headers = {name: value for name, _, value in properties.get("headers") or ()}
            counts = [headers.get(name) for name in ("x-delivery-count", "x-acquired-count")]
            redelivered = None if row["queue_type"] == "stream" else row["redelivered"]
            found.setdefault(row["queue"], []).append((properties.get("message_id"), redelivered, *counts))
    topics = run_cli("topics", data, "-o", "jsonl")
    assert topics.status == 0, topics.stderr
    return found, {row["queue"]: row for row in topics.rows}


def _within_limits(data: Any) -> dict[str, int]:
    """Return the first offset of each stream, once a client has come and its limit has been applied."""
    found = {}
    store = RabbitMQStore(data)
    for named in store.streams:
        stream, definition = named.stream, store.stream_definitions[named.stream.name]
        limit, most = (definition.limit(name) for name in ("max-length-bytes", "stream-max-segment-size-bytes"))
        begins = stream.is_full(int(most or SEGMENT_BYTES)) and not stream.tracking().is_empty
        number = stream.limited_to(int(limit)) if limit is not None and begins else 0
        found[named.queue] = int(stream.first[number]) if number < len(stream) else stream.end()
    return found


def prove(seed: int, count: int) -> list[str]:
    """Lead `count` lives on a node; return what differs."""
    mine = lives(seed, count)
    wrong: list[str] = []
    compared = 0
    with _node(seed) as node:
        with open(node.base / "rabbitmq.conf", "a") as conf:
            conf.write(HASTE)
        node.start()
        for phase, end in enumerate(ENDS):
            players = [_Player(node, life, phase) for life in mine]  # their connections stay open until the node ends
            for player in players:
                player.play()
            if end == "kill":
                time.sleep(1.5)  # a member that was declared within the last second is not known to the node
                node.kill()
            else:
                node.stop()
            read, topics = ours(node.data, int(time.time()))
            compared += sum(map(len, read.values()))
            node.start()
            wrong += _compare(node, mine, read, topics, f"{release(seed)}, seed {seed}, phase {phase} ended by {end}")
    assert compared > count, f"only {compared} messages were compared"
    return wrong


def _compare(
    node: Node | OtherNode, mine: Sequence[Life], read: dict[str, list[Seen]], topics: dict[str, dict[str, Any]], said: str
) -> list[str]:
    wrong = []
    for life in mine:
        expected = read.get(life.name, [])
        found = delivered(node, life, len(expected))
        if found != expected:
            both = zip(found, expected, strict=False)
            first = next((place for place, (a, b) in enumerate(both) if a != b), min(len(found), len(expected)))
            wrong.append(
                f"{said}: {life.name} {life.arguments}: the node delivers {len(found)}, we read {len(expected)}; "
                f"at {first}: {found[first : first + 3]}, and ours {expected[first : first + 3]}"
            )
        if life.name not in topics:
            wrong.append(f"{said}: {life.name} is not in our list of queues")
    return wrong
