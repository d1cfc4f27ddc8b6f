"""Streams with a limit on real nodes: what `diagnose` says that a start and the first client delete is what they delete.

The last segment of each stream is full; 3.10.8 has such streams in the lives of `scripts-quorum`.
"""

from __future__ import annotations

import time

import pytest
from interop.rabbitmq.other_node import OtherNode, missing, other_node
from interop.rabbitmq.stream_publisher import StreamPublisher
from support.golden import run_cli

from mqstore.rabbitmq.streams.segment import entry

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SEGMENT, LIMIT = 4000, 12000  # bytes
ARGUMENTS = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT, "x-max-length-bytes": LIMIT}
TRACKED, PLAIN = "tracked", "plain"  # by a client of AMQP, whose name the node keeps, and by one without a name


def sizes(node: OtherNode, queue: str) -> dict[int, int]:
    """Return the bytes of the segments of a stream by their first offsets."""
    (place,) = node.data.glob(f"stream/__{queue}_*")
    return {int(path.stem): path.stat().st_size for path in sorted(place.glob("*.segment"))}


def fill(node: OtherNode) -> None:
    """Publish until both streams have lost segments by their limit, and their last ones are full."""
    channel = node.connect("/").channel()
    channel.confirm_delivery()
    for queue in (TRACKED, PLAIN):
        channel.queue_declare(queue, durable=True, arguments=ARGUMENTS)
    time.sleep(2)  # a stream is there a moment after its declaration
    publisher = StreamPublisher(node.stream_port, PLAIN)
    publish = {
        TRACKED: lambda: channel.basic_publish("", TRACKED, bytes(300)),
        PLAIN: lambda: publisher.publish([entry(b"\0Su\xa0\xff" + bytes(255))]),
    }
    for queue, one in publish.items():
        while 0 in (now := sizes(node, queue)) or now[max(now)] < SEGMENT:
            one()


def delivered(node: OtherNode, queue: str) -> list[int]:
    """Return the offsets that a consumer gets, once a client has been there before it."""
    channel = node.connect("/").channel()
    channel.basic_qos(prefetch_count=1000)
    channel.basic_consume(queue, print, arguments={"x-stream-offset": "next"}, consumer_tag="first client")
    channel.basic_cancel("first client")
    time.sleep(1)
    taken = channel.consume(queue, arguments={"x-stream-offset": "first"}, inactivity_timeout=2)
    offsets = []
    for method, properties, _ in taken:
        if method is None:
            break
        offsets.append(properties.headers["x-stream-offset"])
    return offsets


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_a_limit_deletes_what_is_said_and_when_it_is_said(suite: str) -> None:
    if reason := missing(suite):
        pytest.skip(reason)
    with other_node(suite, plugins=("rabbitmq_stream",)) as node:
        node.start()
        fill(node)
        node.kill()
        before = {queue: sizes(node, queue) for queue in (TRACKED, PLAIN)}
        rows = run_cli("messages", node.data, "--queue-type", "stream", "-o", "jsonl", "--body", "none").rows
        read = {queue: [row["stream_offset"] for row in rows if row["queue"] == queue] for queue in before}
        evidence = run_cli("diagnose", node.data, "-o", "json").document["evidence"]
        said = {queue: each for each in evidence for queue in before if f"stream '{queue}'" in each["detail"]}
        assert "for the first client the node begins another one" in said[TRACKED]["detail"]
        assert "with the next message the node begins another one" in said[PLAIN]["detail"]

        node.start()
        assert {queue: sizes(node, queue) for queue in before} == before  # the start itself deletes nothing
        assert delivered(node, TRACKED) == read[TRACKED][said[TRACKED]["messages"] :]
        assert delivered(node, PLAIN) == read[PLAIN]
        assert sizes(node, PLAIN) == before[PLAIN]
        channel = node.connect("/").channel()
        channel.confirm_delivery()
        channel.basic_publish("", PLAIN, b"next")
        time.sleep(1)
        assert delivered(node, PLAIN)[:-1] == read[PLAIN][said[PLAIN]["messages"] :]
