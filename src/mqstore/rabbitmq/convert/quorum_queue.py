"""A quorum queue as a classic queue in a new directory: what a restarted node would deliver, in that order, as a replay sends it.

Each message is a `basic_message` with the properties that a consumer of AMQP 0-9-1 receives, its exchange and its routing keys. For 4.x
a message of AMQP 1.0 keeps its form, as those properties do not hold all of it. Sequence ids begin at 0, and what was delivered before
keeps its mark; classic queues do not count deliveries. Messages from the size on that no broker keeps in a queue's own files go to the
message store of the vhost, into files after those that are there.

Format: docs/formats/rabbitmq.md, sections 3, 10 and 15, and docs/formats/rabbitmq-quorum.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from mqstore.files.durable import DurableDirectory
from mqstore.findings import Verdict
from mqstore.rabbitmq.broker_version import BrokerVersion
from mqstore.rabbitmq.convert.convert_queue import UNREADABLE, QueueReport, QueueResult, needed_rows, queue_reference
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.erlang.terms import Atom
from mqstore.rabbitmq.format.index_v1 import ENTRY, IN_SEGMENT, IN_STORE
from mqstore.rabbitmq.format.message_file import record
from mqstore.rabbitmq.format.names import queue_directory, queue_name_file
from mqstore.rabbitmq.format.queue_writer import queue_writer
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.message.message_term import MessageTerm, write_message
from mqstore.rabbitmq.message.properties import PropertiesError, properties_to_bin
from mqstore.rabbitmq.quorum.queue import QuorumMessage
from mqstore.rabbitmq.quorum.rows import QuorumRows
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.table.columns import CLASSIC, QUORUM

LIMITS = EngineConfig()
# what both types of queues heed; the priorities of a quorum queue are in the order of its messages
_ARGUMENTS = frozenset(
    {
        "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-expires", "x-max-length", "x-max-length-bytes", "x-message-ttl",
        "x-overflow", "x-single-active-consumer",
    }
)  # fmt: skip


def as_classic(queue: dict[str, object], arguments: dict[str, object]) -> list[str]:
    """Make the definition of a quorum queue that of a classic one; return the arguments that are left out. arguments: its own."""
    queue["type"] = CLASSIC
    left_out = sorted(arguments.keys() - _ARGUMENTS - {"x-queue-type"})
    for name in left_out:
        del arguments[name]
    if "x-queue-type" in arguments:
        arguments["x-queue-type"] = CLASSIC
    return left_out


class StoreFiles:
    """Writes messages to files of a vhost's message store. place: of the files, below the root of stage; number: of the first."""

    def __init__(self, stage: DurableDirectory, place: str, number: int) -> None:
        self._stage = stage
        self._place = place
        self._number = number
        self._size = 0

    def add(self, message_id: bytes, stored: bytes) -> None:
        written = record(message_id, stored)
        if self._size and self._size + len(written) > LIMITS.msg_store_file_size_limit:
            self._number, self._size = self._number + 1, 0
        self._stage.make_directory(self._place)
        self._stage.append(f"{self._place}/{self._number}.rdq", np.frombuffer(written, np.uint8))
        self._size += len(written)


def _of_amqp10(message: QuorumMessage, stored: MessageTerm, message_id: bytes) -> MessageTerm | None:
    """Return a message of AMQP 1.0 as a classic queue of 4.x holds it, with what the quorum queue notes; None for one of another form."""
    noted = {} if message.annotations is None else message.annotations
    if stored.stated_size is None or stored.form != "mc_amqp" or not (isinstance(stored.annotations, dict) and isinstance(noted, dict)):
        return None
    return replace(stored, id=message_id, annotations={**stored.annotations, **noted, Atom("id"): message_id})


def write_quorum_queue(
    vhost: Vhost, name: str, rows: Iterable[QuorumRows], files: StoreFiles, stage: DurableDirectory, place: str, broker: BrokerVersion
) -> QueueResult:
    """Write the queue `name` of a vhost below the new vhost's place. files: for what is too large for the queue's own."""
    assert vhost.name is not None, "a quorum queue is of a vhost with a name"
    directory = queue_directory(vhost.name, name)
    below = f"{place}/queues/{directory}" if place else f"queues/{directory}"
    stage.make_directory(below)
    version = broker.queue_version
    writer = queue_writer(stage, below, version, count=vhost.entry_count)
    messages = size = 0
    left_out: Counter[str] = Counter()
    deliveries: dict[int, int] = {}
    for part in rows:
        entries = np.zeros(len(part), ENTRY)
        buffer = bytearray()
        taken = 0
        for message, (verdict, stored, properties) in zip(part.messages, part.stored(), strict=True):
            if message.leaves is not None or verdict != Verdict.INTACT or stored is None or properties is None:
                left_out[message.leaves or UNREADABLE] += 1
                continue
            message_id = hashlib.sha256(f"mqstore {directory} {message.index} {messages + taken}".encode()).digest()[:16]
            written = _of_amqp10(message, stored, message_id) if broker.containers else None
            if written is None:
                try:
                    block = properties_to_bin(properties)
                except PropertiesError:
                    left_out[UNREADABLE] += 1
                    continue
                of = vhost.name.encode("utf-8", "surrogateescape")
                written = MessageTerm(message_id, of, stored.exchange, stored.routing_keys, True, stored.fragments, block)
            term = write_message(written)
            if message.redelivered:
                deliveries[messages + taken] = 1
            entry = entries[taken]
            entry["seq"], entry["size"], entry["expiry"] = messages + taken, written.stated_size, (message.expiry or 0) * 1000
            entry["hi"], entry["lo"] = np.frombuffer(message_id, ">i8")
            if len(term) < LIMITS.queue_index_embed_msgs_below:
                entry["at"], entry["length"], entry["place"] = len(buffer), len(term), IN_SEGMENT
                buffer += term
            else:
                entry["place"] = IN_STORE
                files.add(message_id, term)
            taken += 1
        writer.add(entries[:taken], (np.frombuffer(bytes(buffer), np.uint8),))
        messages += taken
        size += int(entries["size"][:taken].sum())
    unacked = writer.close()
    stage.write_small(needed_rows(vhost.place.place, directory), b"")
    stage.write_small(f"{below}/.queue_name", queue_name_file(vhost.name, name, version == 2))
    marked = max(deliveries, default=-1) + 1
    v1, v2 = (unacked, None) if version == 1 else (None, unacked)
    report = QueueReport(
        vhost.name, name, None, directory, True, QUORUM, version, messages, size, messages, len(deliveries), 0, dict(left_out), messages
    )
    return QueueResult(report, QueueTerms(v1, v2, messages, marked, queue_reference(vhost, directory), messages, size, deliveries, 0))
