"""What a consumer of AMQP 0-9-1 receives of a message container, as real nodes of 4.0.5 and 4.3.6 answered (`mc:protocol_state`)."""

from __future__ import annotations

from typing import Any

import pytest

from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.message.message_term import as_basic_message, read_message, write_message
from mqstore.rabbitmq.message.properties import PropertiesError, properties_to_bin

STATED = [[b"b", "longstr", b"v"]]


def container(form: str, data: Term, annotations: dict[Any, Term]) -> bytes:
    given = {Atom("id"): bytes(16), Atom("x"): b"", Atom("rk"): [b"q"], **annotations}
    return encode((Atom("mc"), Atom(form), data, given), "utf8")


def amqpl(properties: dict[str, Any], annotations: dict[Any, Term]) -> dict[str, Any]:
    content = (Atom("content"), 60, Atom("none"), properties_to_bin(properties), Atom("rabbit_framing_amqp_0_9_1"), [b"body"])
    return read_message(container("mc_amqpl", content, annotations)).properties


def mqtt(given: dict[str, Term], annotations: dict[Any, Term] | None = None, qos: int = 1) -> dict[str, Any]:
    properties = {Atom(name): value for name, value in given.items()}
    data = (Atom("mqtt_msg"), Atom("false"), qos, b"t", Atom("false"), 1, b"body", properties, Atom("undefined"))
    return read_message(container("mc_mqtt", data, annotations or {})).properties


def amqp10(fields: bytes, annotations: list[Term] | None = None, application: bytes = b"", noted: dict[Any, Term] | None = None) -> Any:
    head = b"\x00\x53\x73\xd0" + (len(fields[1:]) + 4).to_bytes(4, "big") + fields[:1].rjust(4, b"\0") + fields[1:] if fields else b""
    positions = (0 if head else [], len(head) if application else [], len(head) + len(application))
    data = (Atom("v1"), annotations or [], head + application + b"\x00\x53\x75\xa0\x01b", *positions, 0x75)
    return read_message(container("mc_amqp", data, noted or {}))


def reply_to(address: bytes) -> bytes:
    return b"\x05\x40\x40\x40\x40\xb1" + len(address).to_bytes(4, "big") + address


def test_deaths_become_x_death_with_the_latest_first() -> None:
    def death(exchange: bytes, count: int, at: int, **more: Term) -> Term:
        noted = {**{Atom(name): value for name, value in more.items()}, Atom("first_time"): at, Atom("last_time"): at + 1000}
        return (Atom("death"), exchange, [b"k"], count, noted)

    rejected = ((b"q1", Atom("rejected")), death(b"x", 2, 1_700_000_000_123))
    expired = ((b"q2", Atom("expired")), death(b"", 1, 1_700_000_002_123, ttl=5))
    tables = [
        ["table", [
            [b"original-expiration", "longstr", b"5"], [b"count", "long", 1], [b"reason", "longstr", b"expired"],
            [b"queue", "longstr", b"q2"], [b"time", "timestamp", 1_700_000_002], [b"exchange", "longstr", b""],
            [b"routing-keys", "array", [["longstr", b"k"]]],
        ]],
        ["table", [
            [b"count", "long", 2], [b"reason", "longstr", b"rejected"], [b"queue", "longstr", b"q1"],
            [b"time", "timestamp", 1_700_000_000], [b"exchange", "longstr", b"x"], [b"routing-keys", "array", [["longstr", b"k"]]],
        ]],
    ]  # fmt: skip
    listed: Term = [expired, rejected]
    recorded: Term = (Atom("deaths"), rejected[0], expired[0], dict([rejected, expired]))
    for deaths in (listed, recorded):
        more = {b"x-i": 7, b"x-b": Atom("true"), b"b": 1, Atom("p"): 3, Atom("ts"): 1_700_000_000_999, b"timestamp_in_ms": 9}
        assert amqpl({"headers": [*STATED, [b"x-death", "long", 1]], "delivery_mode": 2}, {Atom("deaths"): deaths, **more}) == {
            "headers": [
                *STATED,
                [b"timestamp_in_ms", "long", 9],
                [b"x-b", "bool", True],
                [b"x-death", "array", tables],
                [b"x-i", "long", 7],
            ],
            "delivery_mode": 2,
            "priority": 3,
            "timestamp": 1_700_000_000,
        }


def test_a_dead_lettered_message_has_no_expiration_and_becomes_none_in_a_basic_message() -> None:
    stated = {"delivery_mode": 2, "expiration": b"1"}
    assert amqpl(stated, {}) == stated
    assert amqpl(stated, {Atom("ttl"): 7})["expiration"] == b"7"
    assert amqpl(stated, {Atom("ttl"): Atom("undefined")}) == {"delivery_mode": 2}
    content = (Atom("content"), 60, Atom("none"), properties_to_bin(stated), Atom("rabbit_framing_amqp_0_9_1"), [b"body"])
    dead = read_message(container("mc_amqpl", content, {Atom("ttl"): Atom("undefined")}))
    again = read_message(write_message(as_basic_message(dead, b"/")))
    assert again.properties == {"delivery_mode": 2}


def test_annotations_complete_what_a_message_does_not_state() -> None:
    assert amqpl({}, {}) == {"delivery_mode": 2}
    assert amqpl({}, {Atom("d"): Atom("false"), Atom("p"): 200}) == {"priority": 200}
    assert amqpl({"priority": 1, "delivery_mode": 1}, {Atom("p"): 9}) == {"priority": 1, "delivery_mode": 1}
    assert amqpl({"headers": []}, {}) == {"headers": [], "delivery_mode": 2}


@pytest.mark.parametrize(
    "deaths",
    [
        7,
        [7],
        [((b"q",), 1)],
        [((b"q", Atom("r")), (Atom("death"), b"x", [b"k"], 1, {}))],
        [((b"q", Atom("r")), (Atom("death"), 1, 1, 1, 1))],
    ],
    ids=str,
)
def test_deaths_that_cannot_be_read_are_an_error_of_the_properties(deaths: Term) -> None:
    with pytest.raises(PropertiesError, match="death"):
        amqpl({}, {Atom("deaths"): deaths})


@pytest.mark.parametrize(
    ("address", "delivered"),
    [
        (b"/queues/answers", b"answers"),
        (b"/queues/a%20b", b"a b"),
        (b"/queues/a%2Fb", b"a/b"),
        (b"/queues/%D0%B7", "\u0437".encode()),
        (b"/queues/a+b", b"a+b"),
        (b"/queues/", b""),
        (b"/queues/a/b", None),
        (b"/queues/a%zz", None),
        (b"/queues/a%2", None),
        ("/queues/\u0437".encode(), None),
        (b"/queues/a b", None),
        (b"/queues/" + b"n" * 247, b"n" * 247),
        (b"/exchanges/x/k", b"/exchanges/x/k"),
        (b"/queue/old", b"/queue/old"),
        (b"plain", b"plain"),
        (b"/exchanges/" + b"n" * 260, None),
    ],
)
def test_4_3_delivers_the_name_of_a_queue_for_its_address_and_4_0_the_address(address: bytes, delivered: bytes | None) -> None:
    message = amqp10(reply_to(address))
    assert message.delivered(queue_addresses=True).get("reply_to") == delivered
    assert message.properties.get("reply_to") == (address if len(address) <= 255 else None)


def test_application_properties_become_headers_of_the_types_that_4_3_gives_them() -> None:
    def header(encoded: bytes) -> list[Any]:
        inner = b"\x02\xa1\x01k" + encoded
        application = b"\x00\x53\x74\xc1" + bytes([len(inner)]) + inner
        return amqp10(b"", application=application).properties.get("headers")

    assert header(b"\xa0\x01\xff") == [[b"k", "longstr", b"\xff"]]
    assert header(b"\x80" + b"\xff" * 8) == [[b"k", "long", -1]]
    assert header(b"\x83" + (1_700_000_000_123).to_bytes(8, "big")) == [[b"k", "timestamp", 1_700_000_000]]
    assert header(b"\x83" + (-5).to_bytes(8, "big", signed=True)) == [[b"k", "timestamp", 0]]
    assert header(b"\xa3\x01s") == [[b"k", "longstr", b"s"]]
    assert header(b"\x40") == [[b"k", "void", None]]
    assert header(b"\x74" + bytes(4)) is None  # a decimal


def test_an_mqtt_message_has_its_user_properties_as_sorted_headers() -> None:
    assert mqtt({}) == {"delivery_mode": 2}
    assert mqtt({}, {Atom("d"): Atom("false")}, qos=0) == {"delivery_mode": 1}
    assert mqtt({"User-Property": [(b"b", b"2"), (b"a", b"1"), (b"b", b"3")]})["headers"] == [
        [b"a", "longstr", b"1"],
        [b"b", "longstr", b"2"],
    ]
    assert mqtt({"Response-Topic": b"a/b.c/+/#"})["headers"] == [[b"x-reply-to-topic", "longstr", b"a.b.c.*.#"]]
    assert mqtt({"Correlation-Data": b"c"})["correlation_id"] == b"c"
    assert mqtt({"Correlation-Data": b"\xff\xfe"})["headers"] == [[b"x-correlation-id", "longstr", b"\xff\xfe"]]
    assert mqtt({"Correlation-Data": b"c" * 300})["headers"] == [[b"x-correlation-id", "longstr", b"c" * 300]]
    assert "content_type" not in mqtt({"Content-Type": "\u0437".encode()})
    assert mqtt({"Message-Expiry-Interval": 5})["expiration"] == b"5000"
    assert mqtt({"Message-Expiry-Interval": 5}, {Atom("ttl"): 4000, Atom("ts"): 1_700_000_000_123}) == {
        "delivery_mode": 2,
        "expiration": b"4000",
        "timestamp": 1_700_000_000,
    }
