"""Messages of AMQP 1.0 in a quorum queue of a real node, written as a classic queue: its consumers get what those of the old one get."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from interop.rabbitmq.amqp10_client import FALSE, NULL, TRUE, Client, binary, described, listed, mapped, symbol, text, uint
from interop.rabbitmq.other_node import CONSUMING, SUITES, OtherNode, missing, other_node
from support.golden import run_cli

from mqstore.rabbitmq.erlang.terms import Term

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77
TIME = 1_700_000_000_123  # milliseconds


def timestamp(milliseconds: int) -> bytes:
    return b"\x83" + milliseconds.to_bytes(8, "big")


def hello(*sections: bytes) -> bytes:
    return b"".join(sections) + described(DATA, binary(b"hello"))


MESSAGES = [
    hello(),
    hello(described(HEADER, listed(TRUE, b"\x50\x07"))),
    hello(described(HEADER, listed(FALSE))),
    hello(described(HEADER, listed(TRUE, NULL, uint(3_600_000)))),
    hello(described(ANNOTATIONS, mapped([(symbol("x-opt-own"), text("noted")), (symbol("x-number"), uint(7))]))),
    hello(
        described(
            PROPERTIES,
            listed(
                text("id-1"), binary(b"guest"), text("/queues/q"), text("subject"), text("/queues/answers"), text("c-1"),
                symbol("text/plain"), symbol("gzip"), NULL, timestamp(TIME), text("group"),
            ),
        )
    ),
    hello(described(PROPERTIES, listed(b"\x98" + uuid.UUID(int=5).bytes))),
    hello(described(PROPERTIES, listed(b"\x80" + (1 << 60).to_bytes(8, "big")))),
    hello(described(PROPERTIES, listed(binary(b"\0\1id"), NULL, NULL, NULL, NULL, text("c" * 300)))),
    hello(described(APPLICATION, mapped([(text("kind"), text("order")), (text("number"), uint(7)), (text("yes"), TRUE)]))),
    described(DATA, binary(b"one ")) + described(DATA, binary(b"two")),
    described(DATA, binary(b"x" * 10_000)),  # too large for the queue's own files
    described(VALUE, text("a text")),
    described(SEQUENCE, listed(text("a"), uint(1))) + described(SEQUENCE, listed(text("b"))),
    described(HEADER, listed(TRUE)) + described(VALUE, mapped([(text("a"), listed(uint(1), TRUE))])),
]  # fmt: skip


def of_0_9_1(node: OtherNode, queue: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Take what a consumer of AMQP 0-9-1 gets."""
    connection = node.connect("/")
    channel = connection.channel()
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            break
        own = {name: value for name, value in vars(properties).items() if value is not None}
        found.append((body, own))
    connection.close()
    return found


def of_1_0(node: OtherNode, queue: str) -> list[list[tuple[int, Term]]]:
    """Take what a consumer of AMQP 1.0 gets; the order of annotations is that of a map."""
    client = Client(node.port)
    found = [
        [(code, sorted(value[1]) if code == ANNOTATIONS else value) for code, value in sections]
        for sections in client.take(queue, len(MESSAGES))
    ]
    client.close()
    return found


def dead_letters_are_there(channel: Any, queue: str) -> bool:
    return bool(channel.queue_declare(queue, passive=True).method.message_count == len(MESSAGES))


@pytest.mark.parametrize("suite", ["sid", "trixie"])
def test_consumers_of_both_protocols_get_from_the_classic_queue_what_the_quorum_queue_gives(suite: str) -> None:
    if reason := missing(suite):
        pytest.skip(reason)
    with other_node(suite) as node, other_node(suite) as new:
        node.start()
        channel = node.connect("/").channel()
        for queue in ("q", "q10", "dead", "dead10"):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        for queue in ("dead", "dead10"):
            dead = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
            channel.queue_declare(f"to {queue}", durable=True, arguments={"x-queue-type": "quorum"} | dead)
        for queue in ("q", "q10", "to%20dead", "to%20dead10"):
            client = Client(node.port)
            client.send(queue, MESSAGES)
            client.close()
        end = time.monotonic() + CONSUMING
        while not all(dead_letters_are_there(channel, queue) for queue in ("dead", "dead10")) and time.monotonic() < end:
            time.sleep(0.05)
        node.stop()
        out = new.base / "out"
        done = run_cli("rescue", node.data, "--to", out, "--for", SUITES[suite], "--quorum-as-classic", "-o", "json")
        assert done.status == 0, done.stderr
        assert run_cli("verify", out).status == 0
        new.run_steps((out / "STEPS.md").read_text())
        node.start()
        for queue in ("q", "dead"):
            got, expected = of_0_9_1(new, queue), of_0_9_1(node, queue)
            assert len(got) == len(expected) == len(MESSAGES)
            for mine, theirs in zip(got, expected, strict=True):
                assert mine == theirs
            for mine10, theirs10 in zip(of_1_0(new, f"{queue}10"), of_1_0(node, f"{queue}10"), strict=True):
                assert mine10 == theirs10
