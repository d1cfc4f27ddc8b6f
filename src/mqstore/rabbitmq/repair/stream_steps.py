"""Steps for the indexes of streams: after them a node keeps every segment, and every chunk in it.

    a segment without its index         the node deletes it
    the last index short or wrong       the node cuts its segment after the last chunk that the index knows
    another index that is wrong         readers who ask for an offset or a time begin at the wrong chunk

An index says nothing that the chunks do not: it is made of them. A segment is not changed, so that a damaged chunk stays damaged; at the
end of the last segment a node cuts it off, with or without an index.

Format: docs/formats/rabbitmq-streams.md, sections 5, 8 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from mqstore.findings import Kind
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.streams.examination import Change as NodeDoes
from mqstore.rabbitmq.streams.examination import Examination
from mqstore.rabbitmq.streams.index import build_index
from mqstore.rabbitmq.streams.segment import Chunks
from mqstore.rabbitmq.streams.stream import Stream
from mqstore.repair.change import Change
from mqstore.table.formatting import count


def stream_steps(store: RabbitMQStore) -> Iterator[QueueStep]:
    """Yield a step for each index that is made of the chunks of its segment."""
    for _, examined in store.examined_streams:
        yield from _steps(examined)


def _steps(examined: Examination) -> Iterator[QueueStep]:
    stream = examined.stream
    wrong = {item.file: item.detail for item in examined.damage if item.kind is Kind.BAD_STREAM_INDEX}
    does = {change.file: change for change in examined.node_start().changes}
    for number, segment in enumerate(examined.segments):
        segment_file, file = stream.segment_file(number), stream.index_file(number)
        change = does.get(segment_file)
        missing = bool(stream.index_size[number] < 0)
        if not (missing or file in wrong) or segment.end == int(stream.first[number]):
            continue
        why = "it is missing, and is made of the chunks of its segment" if missing else f"{wrong[file]}: it is made of the chunks again"
        otherwise = "readers who ask for an offset or a time may begin at the wrong chunk"
        if change is not None and change.messages:
            verb = "deletes the segment" if change.change is NodeDoes.DELETES_SEGMENT else "cuts the segment"
            otherwise = f"it {verb}, with {count(change.messages, 'message')} from offset {change.first} on"
        made = Change("put", file, content=partial(_index_of, stream, number))
        messages = 0 if change is None else change.messages
        yield QueueStep("stream-index", file, 0, max(0, int(stream.index_size[number])), why, otherwise, "", (made,), messages=messages)


def _index_of(stream: Stream, number: int) -> bytes:
    """Return the index of a segment: a record for each of its chunks, the damaged ones too, for a node has them there as well."""
    data, _ = stream.open(number)
    parts = [chunks.columns.copy() for chunks, _ in stream.walk(number, data)]
    return build_index(Chunks(np.concatenate(parts, axis=1)))
