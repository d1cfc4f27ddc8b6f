r"""What a consumer of AMQP 0-9-1 receives of a message container: the properties, completed from its annotations.

A container ({mc, Protocol, Data, Annotations}, since 3.13) holds the message as it was published, and what the broker noted since. At
delivery the broker converts the message to AMQP 0-9-1 and then lets the annotations decide:

    ttl         the expiration in milliseconds. `undefined`: none, whatever the message says: it was dead-lettered and does not
                expire again
    ts          the timestamp in milliseconds; without it there is none
    p, d        priority and durability of a message that does not state them itself
    deaths      the header x-death, a table for each queue and reason
    x-…         headers, for example x-first-death-queue and x-last-death-reason
    timestamp_in_ms   a header

The headers are then sorted by name; of two with one name, that from an annotation remains.

    >>> noted = {"ttl": Atom("undefined"), "x-last-death-reason": b"expired"}
    >>> delivered_properties({"delivery_mode": 2, "expiration": b"1"}, noted)
    {'headers': [[b'x-last-death-reason', 'longstr', b'expired']], 'delivery_mode': 2}
    >>> reply_queue(b"/queues/a%20b"), reply_queue(b"/exchanges/x/key"), reply_queue(b"/queues/a b")
    (b'a b', b'/exchanges/x/key', None)

Format: docs/formats/rabbitmq.md, section 10.4.
"""

from __future__ import annotations

import re
from typing import Any

from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term
from mqstore.rabbitmq.message.properties import NAMES, Properties, PropertiesError

MAX_SHORTSTR = 255
_ADDRESS = b"/queues/"
_QUEUE_NAME = re.compile(rb"(?:[-!$&'()*+,.:;=@_~0-9A-Za-z]|%[0-9A-Fa-f]{2})*")
_MQTT_TO_AMQP = bytes.maketrans(b"/+", b".*")

Header = list[Any]


def delivered_properties(properties: Properties, annotations: dict[str, Term]) -> Properties:
    """Return the properties that are delivered. properties: of the message itself. Raises PropertiesError for invalid annotations."""
    found = dict(properties)
    headers = _headers(found.get("headers"), annotations)
    if headers is not None:
        found["headers"] = headers
    if "ttl" in annotations:
        ttl = annotations["ttl"]
        found["expiration"] = b"%d" % ttl if type(ttl) is int else None
    stamp = annotations.get("ts", annotations.get("timestamp"))
    found["timestamp"] = stamp // 1000 if type(stamp) is int else None
    if found.get("priority") is None and type(annotations.get("p")) is int:
        found["priority"] = annotations["p"]
    if found.get("delivery_mode") is None and annotations.get("d") != "false":
        found["delivery_mode"] = 2
    return {name: found[name] for name in NAMES if found.get(name) is not None}


def _headers(own: list[Header] | None, annotations: dict[str, Term]) -> list[Header] | None:
    """Return the headers, sorted by name; those of the message itself if there are no others."""
    headers = list(own or [])
    if "deaths" in annotations:
        deaths = [b"x-death", "array", _death_tables(annotations["deaths"])]
        headers = [deaths, *(header for header in headers if header[0] != b"x-death")]
    noted = [
        header for name, value in annotations.items() if name.startswith("x-") or name == "timestamp_in_ms"
        for header in _header_of_annotation(name, value)
    ]  # fmt: skip
    if not noted and not headers:
        return own
    by_name: dict[bytes, Header] = {}
    for header in (*noted, *headers):
        by_name.setdefault(header[0], header)
    return [by_name[name] for name in sorted(by_name)]


def _header_of_annotation(name: str, value: Term) -> list[Header]:
    key = name.encode("utf-8", "surrogateescape")
    if type(value) is int:
        return [[key, "long", value]]
    if type(value) is bytes and name != "timestamp_in_ms":
        return [[key, "longstr", value]]
    if isinstance(value, Atom) and value in ("true", "false") and name != "timestamp_in_ms":
        return [[key, "bool", value == "true"]]
    return []


def _death_tables(deaths: Term) -> list[list[Any]]:
    """Return the tables of x-death, the latest death first. 4.x keeps a list in this order; 3.13 {deaths, First, Last, Map}."""
    if type(deaths) is tuple and len(deaths) == 4 and deaths[0] == "deaths" and isinstance(deaths[3], dict | Pairs):
        pairs = sorted(deaths[3].items() if isinstance(deaths[3], dict) else deaths[3], key=_last_time, reverse=True)
        return [_death_table(pair) for pair in pairs]
    if type(deaths) is not list:
        raise PropertiesError(f"the deaths of a message are a list, not {deaths!r:.60}")
    return [_death_table(pair) for pair in deaths]


def _death_parts(pair: Term) -> tuple[bytes, Term, bytes, list[bytes], int, dict[str, Term]]:
    try:
        (queue, reason), (tag, exchange, keys, count, noted) = pair
        named = {str(name): value for name, value in noted.items()}
    except (TypeError, ValueError, AttributeError):
        raise PropertiesError(f"a death of a message is {{{{Queue, Reason}}, {{death, …}}}}, not {pair!r:.60}") from None
    texts = [queue, exchange, *(keys if type(keys) is list else [None])]
    times = [count, named.get("first_time"), named.get("last_time")]
    if tag != "death" or not all(type(text) is bytes for text in texts) or not all(type(time) is int for time in times):
        raise PropertiesError(f"a death of a message is {{{{Queue, Reason}}, {{death, …}}}}, not {pair!r:.60}")
    return queue, reason, exchange, keys, count, named


def _last_time(pair: Term) -> Any:
    return _death_parts(pair)[5]["last_time"]


def _death_table(pair: Term) -> list[Any]:
    queue, reason, exchange, keys, count, noted = _death_parts(pair)
    table: list[Header] = [
        [b"count", "long", count],
        [b"reason", "longstr", reason if type(reason) is bytes else str(reason).encode("utf-8")],
        [b"queue", "longstr", queue],
        [b"time", "timestamp", noted["first_time"] // 1000],
        [b"exchange", "longstr", exchange],
        [b"routing-keys", "array", [["longstr", key] for key in keys]],
    ]
    ttl = noted.get("ttl")
    if type(ttl) is int:
        table.insert(0, [b"original-expiration", "longstr", b"%d" % ttl])
    return ["table", table]


def reply_queue(address: bytes) -> bytes | None:
    """Return the reply-to that 4.3 delivers for an AMQP 1.0 address: of /queues/NAME, percent-encoded, the name.

    None: nothing is delivered, because the address of a queue is not valid.
    """
    if not address.startswith(_ADDRESS):
        return address
    name = address[len(_ADDRESS) :]
    if _QUEUE_NAME.fullmatch(name) is None:
        return None
    name = re.sub(rb"%(..)", lambda code: bytes.fromhex(code[1].decode("ascii")), name)
    return name if len(name) <= MAX_SHORTSTR else None


# MQTT


def mqtt_properties(data: tuple[Term, ...]) -> Properties:
    """Return the properties of {mqtt_msg, Retain, Qos, Topic, Dup, PacketId, Payload, Properties, Timestamp}, without annotations."""
    qos = data[2]
    given = data[7] if isinstance(data[7], dict) else dict(data[7]) if isinstance(data[7], Pairs) else {}
    named = {str(name): value for name, value in given.items() if isinstance(name, Atom)}
    found: Properties = {"delivery_mode": 2 if type(qos) is int and qos else 1}
    content_type = named.get("Content-Type")
    if type(content_type) is bytes and len(content_type) <= MAX_SHORTSTR and content_type.isascii():
        found["content_type"] = content_type
    headers: dict[bytes, Header] = {}
    correlation = named.get("Correlation-Data")
    if type(correlation) is bytes:
        if _is_shortstr(correlation):
            found["correlation_id"] = correlation
        else:
            headers[b"x-correlation-id"] = [b"x-correlation-id", "longstr", correlation]
    topic = named.get("Response-Topic")
    if type(topic) is bytes:
        headers[b"x-reply-to-topic"] = [b"x-reply-to-topic", "longstr", topic.translate(_MQTT_TO_AMQP)]
    pairs = named.get("User-Property")
    for pair in pairs if type(pairs) is list else []:
        if type(pair) is tuple and len(pair) == 2 and type(pair[0]) is bytes and type(pair[1]) is bytes and len(pair[0]) <= MAX_SHORTSTR:
            headers.setdefault(pair[0], [pair[0], "longstr", pair[1]])
    if headers:
        found["headers"] = [headers[name] for name in sorted(headers)]
    seconds = named.get("Message-Expiry-Interval")
    if type(seconds) is int:
        found["expiration"] = b"%d" % (seconds * 1000)
    return found


def _is_shortstr(octets: bytes) -> bool:
    if len(octets) > MAX_SHORTSTR:
        return False
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
