"""Sub-batches of a stream, which its publishers compress and a node only stores: read as published, with the offsets of a real node."""

from __future__ import annotations

import base64
import gzip

import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from interop.rabbitmq.other_node import missing, other_node
from interop.rabbitmq.stream_publisher import StreamPublisher
from interop.rabbitmq.test_streams_into_new_node import consumed
from support.golden import run_cli

from mqstore.rabbitmq.streams.segment import batch, entry

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


def _snappy(content: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(content, asbytes=True)
    return packed


def _framed(content: bytes) -> bytes:
    """Return the frames that clients write around blocks of Snappy: a name, then a block with a sum that is not looked at."""
    block = bytes(4) + _snappy(content)
    return b"\xff\x06\x00\x00sNaPpY\x00" + len(block).to_bytes(3, "little") + block


PACK = (
    (0, bytes),
    (1, gzip.compress),
    (2, _snappy),
    (2, _framed),
    (3, lz4.frame.compress),
    (4, zstandard.compress),
)


def test_sub_batches_of_every_codec_are_read_as_published_with_the_offsets_of_the_node() -> None:
    if reason := missing():
        pytest.skip(reason)
    with other_node(plugins=("rabbitmq_stream",)) as node:
        node.start()
        connection = node.connect("/")
        connection.channel().queue_declare("batches", durable=True, arguments={"x-queue-type": "stream"})
        connection.close()
        published: list[bytes] = []
        plain: list[int] = []  # offsets of what a consumer of AMQP 0-9-1 receives

        def records(number: int, *, packed: bool) -> bytes:
            bodies = [b"%05d " % (len(published) + each) * 7 for each in range(number)]
            plain.extend(range(len(published), len(published) + number) if not packed else ())
            published.extend(bodies)
            return b"".join(entry(b"\x00\x53\x75\xb0" + entry(body)) for body in bodies)

        publisher = StreamPublisher(node.stream_port, "batches")
        for codec, pack in PACK:
            before = records(1, packed=False)
            content = records(300, packed=codec > 0)
            publisher.publish([before, batch(codec, pack(content), 300, len(content)), records(1, packed=False)])
        publisher.close()
        got = {properties.headers["x-stream-offset"]: body for body, properties in consumed(node, "batches", len(plain))}
        assert got == {offset: published[offset] for offset in plain}
        node.kill()
        rows = run_cli("messages", node.data, "--queue-type", "stream", "-o", "jsonl", "--body", "base64").rows
    read = {row["stream_offset"]: base64.b64decode(row["payload_b64"]) for row in rows}
    assert read == dict(enumerate(published))
    assert {row["verdict"] for row in rows} == {"intact"}
