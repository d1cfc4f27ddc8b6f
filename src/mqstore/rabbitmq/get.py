"""Get: one message in full, by message id, position in a queue, or sequence id.

get(store, vhost="/", queue="orders", at=0).row["payload_len"]
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mqstore.errors import NotFoundError, UsageError
from mqstore.findings import LOST_VERDICTS
from mqstore.table.columns import QueueSelection
from mqstore.table.formatting import count, queue_title
from mqstore.table.text import body_text, python_rows, rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore, TableRows

WAYS = "name the message with one of --id MESSAGE_ID, --vhost V --queue QUEUE --at POSITION, or --vhost V --queue QUEUE --seq SEQ"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. row: of the message table, with the payload in base64. notes: sentences on how it was found."""

    family: ClassVar[str] = "rabbitmq"
    body_name: ClassVar[str] = "payload"

    row: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def body(self) -> bytes | None:
        """The payload; None if its bytes are not there."""
        return None if self.row["payload_b64"] is None else base64.b64decode(self.row["payload_b64"])

    @property
    def bodiless(self) -> str:
        """What is said if there is no payload."""
        return f"the payload of message {self.row['msg_id']} was not found"

    @property
    def ok(self) -> bool:
        """Whether all its bytes are there and valid."""
        return self.row["verdict"] not in LOST_VERDICTS

    def as_dict(self, body: str = "base64") -> dict[str, Any]:
        """Return the document that `get -o json` prints. body: none, sha256, base64 or text."""
        names = ("properties" if name == "properties_json" else name for name in rabbitmq_columns_for(body))
        row = self.row | {"payload": body_text(self.body)} if body == "text" else self.row
        return {name: row[name] for name in names}


def get(
    store: RabbitMQStore,
    *,
    id: str | None = None,  # noqa: A002
    vhost: str | None = None,
    queue: str | None = None,
    at: int | None = None,
    seq: int | None = None,
    priority: int | None = None,
) -> Message:
    """Return one message, given by exactly one of id, at (position in a queue) or seq (sequence id, with the priority level).

    vhost: needed only if several have such a queue. Raises UsageError, NotFoundError.
    """
    if sum(way is not None for way in (id, at, seq)) != 1:
        raise UsageError(WAYS)
    if id is not None:
        hits, what = list(_rows_with_id(store, id)), f"id {id}"
    else:
        if queue is None:
            raise UsageError("--at and --seq need a queue: add --vhost V and --queue QUEUE; `mqstore topics` lists them")
        of = store.vhost_of(vhost, queue)
        chosen = QueueSelection(
            vhosts=frozenset({of}), queues=frozenset({queue}), from_seq=seq, to_seq=None if seq is None else seq + 1,
            recovered=True if at is not None else None, everything=seq is not None,
        )  # fmt: skip
        hits = list(_rows_at(store, chosen, at, priority))
        what = f"sequence id {seq}" if at is None else f"position {at}"
        what += f" in queue {queue!r} of vhost {of!r}"
    if not hits:
        raise NotFoundError(f"no message with {what} is in this store; `mqstore messages --all` lists those that are")
    if len(hits) == 1:
        return Message(hits[0])
    others = ", ".join(f"{row['vhost']}: {queue_title(row['queue'] or 'in no queue', row['priority_level'])}" for row in hits[1:9])
    return Message(hits[0], (f"{count(len(hits), 'place')} hold this message; the first is shown, the others are {others}",))


def indexed_with_id(store: RabbitMQStore, message_id: str) -> tuple[str | None, str, int | None, int] | None:
    """Return vhost, queue, priority level and sequence id of the first index entry with a message id, or None. Only indexes are read.

    RabbitMQ has no index of message ids, and a version 2 queue keeps those of small messages in its own store. Raises UsageError.
    """
    hi, lo = _halves(message_id)
    for rows in store.rows(QueueSelection(everything=True)):
        entries = rows.table.entries
        hits = np.flatnonzero((entries["hi"] == hi) & (entries["lo"] == lo))
        if len(hits) and rows.indexed and rows.queue is not None:
            return rows.vhost, rows.queue, rows.priority_level, int(entries["seq"][hits[0]])
    return None


def _halves(message_id: str) -> tuple[int, int]:
    """Return the two halves of a message id as index entries hold them. Raises UsageError."""
    try:
        octets = bytes.fromhex(message_id.strip())
    except ValueError:
        octets = b""
    if len(octets) != 16:
        raise UsageError(f"{message_id!r} is not a message id: in RabbitMQ stores they have 32 hexadecimal digits, see `mqstore messages`")
    return int.from_bytes(octets[:8], "big", signed=True), int.from_bytes(octets[8:], "big", signed=True)


def _rows_with_id(store: RabbitMQStore, message_id: str) -> Iterator[dict[str, Any]]:
    """Yield the rows with a message id, live ones first."""
    hi, lo = _halves(message_id)
    hits = []
    for rows in store.rows(QueueSelection(everything=True)):
        entries = rows.table.entries
        # an entry of a version 2 queue does not hold the id of a message in the queue's own store
        keep = ((entries["hi"] == hi) & (entries["lo"] == lo)) | ((entries["hi"] == 0) & (entries["lo"] == 0))
        hits += [row for row in _decoded(store, rows, keep) if row["msg_id"] == bytes.fromhex(message_id).hex()]
    yield from sorted(hits, key=lambda row: (not row["recovered"], row["verdict"] != "intact"))


def _rows_at(store: RabbitMQStore, chosen: QueueSelection, at: int | None, priority: int | None) -> Iterator[dict[str, Any]]:
    for rows in store.rows(chosen):
        if priority is None or rows.priority_level == priority:
            yield from _decoded(store, rows, np.ones(len(rows), np.bool_) if at is None else rows.pos == at)
    if at is None or priority is not None:
        return
    for held in store.quorum_rows(chosen):
        yield from _decoded(store, held, np.array([message.pos == at for message in held.messages], np.bool_))
    for named in store.selected_streams(chosen):
        for part in store.stream_rows(named, replace(chosen, limit=at + 1)):
            if (part.pos == at).any():
                yield from _decoded(store, part, part.pos == at)
                break


def _decoded(store: RabbitMQStore, rows: TableRows, keep: Any) -> list[dict[str, Any]]:
    """Return the rows selected by the mask `keep` as JSON values, with the payload as base64."""
    if not keep.any():
        return []
    batch = store.batch(rows.take(np.flatnonzero(keep)), rabbitmq_columns_for("base64"))
    return [] if batch is None else list(python_rows(rename_properties_json(batch), "base64"))
