"""The broker's send path: the properties it adds to a message, and how a consumer sends a message back.

    4.9.3   CLUSTER added; WAIT left out of the text, unless a later step encodes the properties again (delay, half message)
    5.3.3   MSG_REGION, TRACE_ON, UNIQ_KEY (if missing) and CLUSTER added; WAIT stored
    batch   the same for the text that all its messages share, but 4.9.3 keeps WAIT

    >>> message = Message("orders", b"paid", keys="o-1", properties={"WAIT": "true"})
    >>> as_sent(message, "4.9.3").properties
    b'KEYS\\x01o-1\\x02CLUSTER\\x01DefaultCluster'

A message that a consumer could not process goes to the retry topic of its group, and after the last attempt to the dead letter topic:

    %RETRY%group   with the delay level requested, or 3 + earlier attempts if that is 0
    %DLQ%group     after the last attempt, or if a level below 0 is requested

A client's unique id (UNIQ_KEY) is 16 or 28 bytes in upper-case hex: IP address (4 or 16), process id (2), a hash (4), ms
since the beginning of the month (4) and a counter (2).

    >>> ids = UniqueIds("10.0.0.1", process=0x5344, loader=0x4E0E2F2A, clock=lambda: 1_795_230_189_770)
    >>> ids.next(), ids.next()
    ('0A00000153444E0E2F2A67A6E0CA0000', '0A00000153444E0E2F2A67A6E0CA0001')

Format: docs/formats/rocketmq.md, sections 2.12 and 3.5.
"""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.java_map import JavaMap, parsed
from mqstore.rocketmq.format.message import Message, MessageBatch, property_text
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import dead_letter_topic, retry_topic

_TAIL = struct.Struct(">HIIH")
_EXTRAORDINARY = frozenset({b"", b"TRAN_MSG", b"DELAY", b"INNER_MULTI_DISPATCH"})  # names whose values `as_sent` reads


def _month(now: int, zone: datetime.tzinfo) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(now / 1000, zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


class UniqueIds:
    """Generator of client unique ids. Thread-safe.

    ip: of the client. process: its id. loader: any 32-bit number that distinguishes clients of one process (Java takes the hash of
    its class loader). clock: ms. zone: of the client; the id counts from the beginning of its month.
    """

    def __init__(
        self,
        ip: str = "127.0.0.1",
        *,
        process: int | None = None,
        loader: int = 0,
        clock: Callable[[], int] = now_ms,
        zone: datetime.tzinfo = datetime.UTC,
    ) -> None:
        self._address = ipaddress.ip_address(ip).packed
        self._process = (os.getpid() if process is None else process) & 0xFFFF
        self._loader = loader & 0xFFFFFFFF
        self._clock = clock
        self._zone = zone
        self._counter = itertools.count()

    def next(self) -> str:
        """Return a new id."""
        now = self._clock()
        since = now - round(_month(now, self._zone).timestamp() * 1000)
        tail = _TAIL.pack(self._process, self._loader, since & 0xFFFFFFFF, next(self._counter) & 0xFFFF)
        return (self._address + tail).hex().upper()


def _encoded_again(properties: JavaMap, sys_flag: int, multi_dispatch: bool) -> bool:
    """Return whether a later step of 4.9.3 encodes the properties again, from the map that still has WAIT."""
    if (properties.get("TRAN_MSG") or "").lower() == "true":
        return True
    plain = sys_flag & record.TRANSACTION_MASK in (record.TRANSACTION_NONE, record.TRANSACTION_COMMIT)
    level = properties.get("DELAY")
    if plain and level is not None and level.lstrip("+-").isdecimal() and int(level) > 0:
        return True
    return multi_dispatch and bool((properties.get("INNER_MULTI_DISPATCH") or "").strip())


def _with_broker_properties(properties: JavaMap, version: str, cluster: str, region: str, ids: UniqueIds | None) -> JavaMap:
    if version_rules(version).adds_to_request:
        properties.put("MSG_REGION", region)
        properties.put("TRACE_ON", "true")
        properties = parsed(properties.encoded(version), version)  # the two are added to the request, whose text is then parsed again
        if ids is not None and not properties.get("UNIQ_KEY"):
            properties.put("UNIQ_KEY", ids.next())
    properties.put("CLUSTER", cluster)
    return properties


def as_sent(
    message: Message,
    version: str,
    *,
    cluster: str = "DefaultCluster",
    region: str = "DefaultRegion",
    ids: UniqueIds | None = None,
    multi_dispatch: bool = False,
) -> Message:
    """Return the message as the broker passes it to its store.

    ids: source of a missing UNIQ_KEY for 5.3.3; None leaves it missing. multi_dispatch: the broker's enableMultiDispatch, with
    which 4.9.3 drops WAIT from messages for several queues in a later step.
    """
    given = property_text(message, version)
    properties = _rearranged(given, version, cluster, region)
    if properties is None:
        sent = parsed(given, version)
        sent = _with_broker_properties(sent, version, cluster, region, ids)
        if not version_rules(version).keeps_wait:
            wait = sent.remove("WAIT")
            if wait is not None and _encoded_again(sent, message.sys_flag, multi_dispatch):
                sent.put("WAIT", wait)
        properties = sent.encoded(version)
    return Message(
        message.topic,
        message.body,
        queue_id=message.queue_id,
        properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


def _rearranged(properties: bytes, version: str, cluster: str, region: str) -> bytes | None:
    """Return the stored properties of an ordinary message, without reading their values; None for any other message."""
    if not properties.isascii() or not region.isalnum():
        return None
    pieces = properties.split(b"\x02")
    if not pieces[-1]:
        pieces.pop()
    halves = [piece.partition(b"\x01") for piece in pieces]
    order = _order(tuple([half[0] for half in halves]), version)
    if order is None or not all(half[2] for half in halves):
        return None
    pieces += (b"TRACE_ON\x01true", b"MSG_REGION\x01" + region.encode(), b"CLUSTER\x01" + cluster.encode("utf-8", "surrogatepass"))
    text = b"\x02".join([pieces[number] for number in order])
    return text + b"\x02" if version_rules(version).ends_with_separator else text


@lru_cache(1024)
def _order(names: tuple[bytes, ...], version: str) -> tuple[int, ...] | None:
    """Return the order of the pieces, -3, -2, -1 being the broker's; None if the names need more than an order.

    >>> _order((b"KEYS", b"UNIQ_KEY", b"WAIT"), "4.9.3")
    (0, 1, -1)
    """
    rules = version_rules(version)
    if len(set(names)) < len(names) or not _EXTRAORDINARY.isdisjoint(names) or (rules.adds_to_request and b"UNIQ_KEY" not in names):
        return None
    table = JavaMap(rules.property_buckets)
    for number, name in enumerate(names):
        table.put(name.decode("ascii"), str(number))
    if rules.adds_to_request:
        table.put("MSG_REGION", "-2")
        table.put("TRACE_ON", "-3")
        table = JavaMap.of(dict(table.items()), rules.property_buckets)  # as in `_with_broker_properties`
    table.put("CLUSTER", "-1")
    if not rules.keeps_wait:
        table.remove("WAIT")
    return tuple(int(number) for _, number in table.items())


def batch_as_sent(
    batch: MessageBatch,
    version: str,
    *,
    cluster: str = "DefaultCluster",
    region: str = "DefaultRegion",
    ids: UniqueIds | None = None,
) -> MessageBatch:
    """Return the batch as the broker passes it to its store: only the shared properties change."""
    properties = parsed(property_text(batch.envelope, version), version)
    properties = _with_broker_properties(properties, version, cluster, region, ids)
    return replace(batch, envelope=batch.envelope.replaced(properties=properties.encoded(version)))


def sent_back(source: record.Record, group: str, delay_level: int, max_reconsume: int, version: str, *, queue_id: int = 0) -> Message:
    """Return the message that is stored when a consumer of the group sends this record back.

    delay_level: 0 lets the number of attempts decide, below 0 gives up. max_reconsume: attempts after which it is a dead letter. queue_id:
    of the retry topic; a dead letter goes to queue 0. The store delays a message with a level above 0.
    """
    properties = parsed(source.properties, version)
    if properties.get("RETRY_TOPIC") is None:
        properties.put("RETRY_TOPIC", source.topic)
    properties.put("WAIT", "false")
    dead = delay_level < 0 or source.reconsume_times >= max_reconsume
    properties.put("DELAY", "0" if dead else str(delay_level or 3 + source.reconsume_times))
    if not (properties.get("ORIGIN_MESSAGE_ID") or "").strip():
        properties.put("ORIGIN_MESSAGE_ID", record.offset_message_id(record.parse_host(source.store_host), source.physical_offset))
    return Message(
        dead_letter_topic(group) if dead else retry_topic(group),
        source.body,
        queue_id=0 if dead else queue_id,
        properties=properties.encoded(version),
        flag=source.flag,
        sys_flag=source.sys_flag,
        born_timestamp=source.born_timestamp,
        born_host=source.born_host,
        store_host=source.store_host if version_rules(version).keeps_store_host else None,
        reconsume_times=source.reconsume_times + 1,
    )
