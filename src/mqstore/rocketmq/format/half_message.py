"""The forms of a message in a transaction: half message, op message, commit, renewal, and the message that is discarded in the end.

    half      RMQ_SYS_TRANS_HALF_TOPIC, queue 0       the message; its topic and queue are kept in REAL_TOPIC and REAL_QID
    op        RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0    TAGS `d`; body: queue offsets of resolved half messages
    commit    the real topic and queue                SYSFLAG type commit, PREPAREDTRANSACTIONOFFSET of the half record
    renewed   as half                                 TRANSACTION_CHECK_TIMES one higher; without the user's flag
    discarded TRANS_CHECK_MAX_TIME_TOPIC, queue 0     the half message after too many checks

    >>> message = Message("orders", b"paid", queue_id=1, sys_flag=4, properties={"TRAN_MSG": "true", "PGROUP": "shop"})
    >>> waiting = half(message, "4.9.3")
    >>> waiting.topic, waiting.queue_id, waiting.sys_flag, waiting.properties
    ('RMQ_SYS_TRANS_HALF_TOPIC', 0, 0, b'REAL_TOPIC\\x01orders\\x02TRAN_MSG\\x01true\\x02PGROUP\\x01shop\\x02REAL_QID\\x011')
    >>> op_message([7], "4.9.3").body, op_message([7, 9], "5.3.3").body
    (b'7', b'7,9,')

An op record has no UNIQ_KEY: the broker creates one only after it has encoded the properties.

Format: docs/formats/rocketmq.md, section 3.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.java_map import parsed, reencode
from mqstore.rocketmq.format.message import Message, property_text
from mqstore.rocketmq.format.profile import profile, version_rules
from mqstore.rocketmq.format.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"


def half(message: Message, version: str) -> Message:
    """Return the half message of a message that is part of a transaction."""
    changes: dict[str, str | None] = {}
    properties = property_text(message, version)
    if version_rules(version).keeps_transaction_id:
        unique = record.decode_properties(properties).get("UNIQ_KEY")
        if unique:
            changes["__transactionId__"] = unique
    changes["REAL_TOPIC"] = message.topic
    changes["REAL_QID"] = str(message.queue_id)
    return message.replaced(
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=message.sys_flag & ~record.TRANSACTION_MASK,
        properties=reencode(properties, changes, version),
    )


def committed(half_record: record.Record, version: str) -> Message:
    """Return the message that a commit puts. Raises ValueError if the record is not a half message."""
    message = original(Message, half_record, version)
    if message is None:
        raise ValueError(
            f"the record at {half_record.physical_offset} is not a half message: its REAL_TOPIC and REAL_QID do not name a queue"
        )
    message.sys_flag = half_record.sys_flag & ~record.TRANSACTION_MASK | record.TRANSACTION_COMMIT
    message.prepared_transaction_offset = half_record.physical_offset
    return message


M = TypeVar("M", bound=Message)


def original(kind: type[M], stored: record.Record, version: str) -> M | None:
    """Return the message that a record of a system topic stands for; None if its REAL_TOPIC and REAL_QID do not name a queue."""
    properties = parsed(stored.properties, version)
    topic, queue_id = properties.get("REAL_TOPIC"), properties.get("REAL_QID")
    if not topic or queue_id is None or not queue_id.removeprefix("-").isdecimal():
        return None
    return kind(
        topic,
        stored.body,
        queue_id=int(queue_id),
        properties=properties.encoded(version),
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        reconsume_times=stored.reconsume_times,
    )


def op_message(queue_offsets: Sequence[int], version: str, *, born_host: str | None = None) -> Message:
    """Return the op message that marks the half messages at these queue offsets as resolved. born_host: None: the store's own.

    4.9.3 writes one op message for each half message. Raises ValueError for several offsets in 4.9.3.
    """
    if not version_rules(version).joins_op_messages:
        if len(queue_offsets) != 1:
            raise ValueError(f"an op message of {version} names one half message, not {len(queue_offsets)}")
        body = str(queue_offsets[0])
    else:
        body = "".join(f"{offset}," for offset in queue_offsets)
    properties = record.encode_properties({"WAIT": "true", "TAGS": "d"}, trailing=profile(version).ends_properties)
    return Message(OP_TOPIC, body.encode(), properties=properties, born_host=born_host)


def settled_by(op_record: record.Record) -> tuple[int, ...]:
    """Return the queue offsets of half messages that an op record names; items that are not numbers are left out."""
    if op_record.property_map().get("TAGS") != "d":
        return ()
    return tuple(int(item) for item in bytes(op_record.body).split(b",") if item.isdigit())


def renewed(half_record: record.Record, version: str, *, check_times: int, prepared_queue_offset: int | None = None) -> Message:
    """Return the half message as a check puts it again; the user's flag and the number of retries are lost, as in the broker.

    check_times: number of checks, including this one. prepared_queue_offset: the queue offset by which op messages refer to it,
    given if it is put again because its immunity time is not over.
    """
    changes: dict[str, str | None] = {CHECK_TIMES: str(check_times)}
    if prepared_queue_offset is not None:
        changes[PREPARED_QUEUE_OFFSET] = str(prepared_queue_offset)
    return Message(
        half_record.topic,
        half_record.body,
        queue_id=half_record.queue_id,
        properties=reencode(half_record.properties, changes, version),
        sys_flag=half_record.sys_flag,
        born_timestamp=half_record.born_timestamp,
        born_host=half_record.born_host,
        store_host=half_record.store_host,
    )


def given_up(half_record: record.Record, version: str, *, check_times: int | None = None) -> Message:
    """Return the message that stores a discarded half message, one that was checked too often or is too old.

    check_times: incremented once more if it is too old, None otherwise.
    """
    return Message(
        GIVEN_UP_TOPIC,
        half_record.body,
        properties=reencode(half_record.properties, {} if check_times is None else {CHECK_TIMES: str(check_times)}, version),
        flag=half_record.flag,
        sys_flag=half_record.sys_flag,
        born_timestamp=half_record.born_timestamp,
        born_host=half_record.born_host,
        store_host=half_record.store_host,
        reconsume_times=half_record.reconsume_times,
    )
