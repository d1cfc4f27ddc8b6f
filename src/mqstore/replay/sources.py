"""Messages in the form in which they are replayed: of a store, in the order of the log or of the queues, or of an edited file of rows.

A message is left out, and counted, if its verdict is not one of those chosen, if its body cannot be read, or if it is in an internal topic
that was not asked for by name. A message asked for from the topic of delayed messages, or of half transactions, goes to its own topic.
All rows of a file are checked before the first is sent.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqstore.errors import CannotOpenError, NotFoundError, UsageError
from mqstore.files.regular_file import open_regular_file
from mqstore.jobs.load_rows import BadLineError, BodyForm, Source, open_source
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.message.message_term import MessageTerm
from mqstore.rabbitmq.message.properties import PropertiesError
from mqstore.rabbitmq.store import message_table
from mqstore.rabbitmq.store.message_table import MessageRows
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.replay.outgoing import ReplayMessage, born_of
from mqstore.replay.queue_rows import holds_queue_rows, queue_rows
from mqstore.rocketmq.format.system_topics import is_internal
from mqstore.rocketmq.store.pop import Pops
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import QueueSelection, Selection

DEFAULT_VERDICTS = frozenset({"intact", "unindexed"})  # without a queue entry: the broker would list it after its start
RABBITMQ_VERDICTS = frozenset({"intact"})

COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "body",
    "flag",
    "sys_flag",
    "reconsume_times",
    "born_timestamp",
    "born_host",
    "properties",
    "verdict",
)
COMPRESSED = 1
HIGHEST_LEVEL, LEVEL_BITS = 255, 56
SHOWN = 5  # bad lines that are named
CHUNK = 1 << 20


UNPROVED = "that the group has passed, although a pop may have moved its offset: whether it consumed them is not known"


@dataclass(frozen=True, slots=True)
class NotConsumed:
    """Keeps messages that a consumer group has not passed, by the offsets that it committed, or that it has in hand.

    doubts: sentences about what that does not rest on.
    """

    group: str
    offsets: dict[tuple[str, int], int]
    pops: Pops
    doubts: tuple[str, ...] = ()

    @classmethod
    def by(cls, view: View, group: str, doubt: str = "") -> NotConsumed:
        """Return the filter for a group. doubt: why its offsets may not count. Raises NotFoundError if it has committed nothing."""
        all_offsets = view.consumer_offsets()
        mine = {(each.topic, each.queue_id): each.offset for each in all_offsets if each.group == group and each.state != "above-max"}
        if not any(each.group == group for each in all_offsets):
            known = sorted({each.group for each in all_offsets})
            raise NotFoundError(f"no offset of group {group!r} is in this store; its groups are {', '.join(known[:20]) or 'none'}")
        said = f"whether messages were consumed is not known: {doubt}"
        return cls(group, mine, view.pops, (*view.pops.notes, *([said] if doubt else [])))

    def why_left_out(self, row: dict[str, Any]) -> str:
        """Return why a message is not one that the group has yet to consume; empty if it is."""
        queue = (row["topic"], row["queue_id"])
        state, _ = self.pops.state((self.group, *queue), row["queue_offset"], self.offsets.get(queue), beyond=False)
        return {"consumed": "that the group has passed", "unproved": UNPROVED}.get(state, "")


def rocketmq_messages(
    store: RocketMQStore, selection: Selection, verdicts: frozenset[str], left: NotConsumed | None, skipped: Counter[str]
) -> Iterator[ReplayMessage]:
    """Yield the messages of a RocketMQ store. left: only those that a group has not passed. skipped: counts why others are left out."""
    name = store.path.name
    named = selection.topics or frozenset()
    for batch in store.view().batches(COLUMNS, selection, milliseconds=True):
        for row in batch.to_pylist():
            topic = row["topic"]
            if topic not in named and is_internal(topic):
                skipped[f"of the internal topic {topic}"] += 1
            elif row["verdict"] not in verdicts:
                skipped[row["verdict"]] += 1
            elif row["body"] is None:
                skipped["with a body that cannot be decompressed"] += 1
            elif left is not None and (why := left.why_left_out(row)):
                skipped[why] += 1
            else:
                yield _of_row(row, name)


def _of_row(row: dict[str, Any], store: str) -> ReplayMessage:
    properties = dict(row["properties"] or ())
    topic, queue_id = row["topic"], row["queue_id"]
    own = is_internal(topic) and "REAL_TOPIC" in properties
    if own:
        number = properties.get("REAL_QID", "")
        topic, queue_id = properties["REAL_TOPIC"], int(number) if number.isascii() and number.isdigit() else 0
    source = f"{row['topic']}/{row['queue_id']}"
    return ReplayMessage(
        source,
        row["physical_offset"],
        f"{store}#{source}/{row['physical_offset']}",
        topic,
        row["body"],
        queue_id,
        properties,
        flag=row["flag"],
        compressed=bool(row["sys_flag"] & COMPRESSED),
        born_timestamp=row["born_timestamp"],
        born_host=row["born_host"],
        reconsume_times=row["reconsume_times"],
    )


def rabbitmq_messages(
    store: RabbitMQStore, selection: QueueSelection, verdicts: frozenset[str], skipped: Counter[str]
) -> Iterator[ReplayMessage]:
    """Yield the messages of a RabbitMQ store. skipped: counts why others are left out."""
    number = 0
    for rows in store.rows(selection):
        for k, verdict in enumerate(message_table.verdicts(rows, store.terms(rows))):
            number += 1
            if verdict not in verdicts:
                skipped[verdict] += 1
                continue
            message = rows.table.message(k, store.directory)
            if message is None:
                skipped["unreadable"] += 1
                continue
            yield _of_term(store, rows, k, message, number)
    for each in store.replayed_messages(selection):
        source = f"{each.vhost or '?'}/{each.queue}"
        if each.verdict not in verdicts:
            skipped[each.verdict] += 1
        elif each.stored is None or each.properties is None:
            skipped["unreadable"] += 1
        elif each.leaves is not None:
            skipped[each.leaves] += 1
        else:
            mark = f"{store.path.name}#{source}/{each.entry}"
            yield _queued(each.stored, source, each.number, mark, each.queue, dict(each.properties))


def _of_term(store: RabbitMQStore, rows: MessageRows, k: int, message: MessageTerm, number: int) -> ReplayMessage:
    seq = int(np.int64(rows.table.entries["seq"][k])) if rows.indexed else number
    key = text_of(message.routing_keys[0]) if message.routing_keys else ""
    queue = rows.queue if rows.queue is not None else key
    level = rows.priority_level
    queue_of_source = f"{rows.vhost or '?'}/{rows.queue or 'no queue'}"
    path = f"{queue_of_source}/{seq}" if level is None else f"{queue_of_source}/{level}/{seq}"
    position = seq if level is None else (HIGHEST_LEVEL - level << LEVEL_BITS) + seq  # the highest level comes first
    try:
        properties: dict[str, Any] = dict(message.properties)
    except PropertiesError:
        properties = {}
    return _queued(message, queue_of_source, position, f"{store.path.name}#{path}", queue, properties)


def _queued(message: MessageTerm, source: str, position: int, name: str, queue: str, properties: dict[str, Any]) -> ReplayMessage:
    return ReplayMessage(
        source,
        position,
        name,
        queue,
        message.body,
        amqp=properties,
        born_timestamp=born_of(properties),
        exchange=text_of(message.exchange),
        routing_key=text_of(message.routing_keys[0]) if message.routing_keys else "",
    )


def digest_of(file: Path) -> str:
    """Return a digest of a file: a resume file belongs to the rows as they were. Raises CannotOpenError."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        with open_regular_file(file) as source:
            while piece := source.read(CHUNK):
                digest.update(piece)
    except OSError as error:
        raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def rows_of_file(file: Path) -> Iterator[ReplayMessage]:
    """Return the messages of a file of rows of either broker. Raises UsageError, which names bad lines, and CannotOpenError."""
    noun, skip = "line", 0
    bad: list[str] = []
    while len(bad) <= SHOWN:
        try:
            for _ in _messages(file, skip):
                pass
            break
        except BadLineError as error:
            noun = "row" if file.suffix == ".parquet" else "line"
            bad.append(f"{noun} {error.number}: {error}")
            skip = error.number
    if bad:
        more = f", and more {noun}s" if len(bad) > SHOWN else ""
        raise UsageError(f"{file}, {'; '.join(bad[:SHOWN])}{more}; nothing was sent")
    return _messages(file, 0)


def _messages(file: Path, skip: int) -> Iterator[ReplayMessage]:
    if holds_queue_rows(file):
        yield from queue_rows(file, skip)
    else:
        yield from _log_rows(open_source(str(file), skip, BodyForm.AUTO), file.name)


def _log_rows(source: Source, name: str) -> Iterator[ReplayMessage]:
    for rows in source.rows:
        for number, row in zip(rows.numbers, rows.batch.to_pylist(), strict=True):
            properties = dict(row.get("properties") or ())
            for key, column in (("KEYS", "keys"), ("TAGS", "tags"), ("UNIQ_KEY", "uniq_key")):
                if row.get(column):
                    properties[key] = " ".join(row[column]) if isinstance(row[column], list) else row[column]
            queue = row.get("queue_id") or 0
            born = row.get("born_timestamp")
            yield ReplayMessage(
                f"{row['topic']}/{queue}",
                number,
                f"{name}#{number}",
                row["topic"],
                row.get("body") or b"",
                queue,
                properties,
                flag=row.get("flag") or 0,
                compressed=bool((row.get("sys_flag") or 0) & 1),
                born_timestamp=int(born.timestamp() * 1000) if hasattr(born, "timestamp") else born,
                reconsume_times=row.get("reconsume_times") or 0,
            )
