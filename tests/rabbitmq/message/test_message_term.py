"""Message terms: the delivered messages from the stored bytes, the same bytes from the decoded messages, and every form."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support import rabbitmq_terms as rabbitterms
from support.golden import GoldenCase, case_id

from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import Atom, Term, encode
from mqstore.rabbitmq.message import message_term as content
from mqstore.rabbitmq.message.message_term import MessageTerm, NotAMessageError, as_basic_message, read_message, write_message
from mqstore.rabbitmq.message.properties import (
    OCTETS,
    PropertiesError,
    json_properties,
    properties_from_bin,
    properties_from_record,
    properties_to_bin,
)
from mqstore.table.columns import RABBITMQ_PROPERTIES

every_case = pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)


def test_all_golden_stores_exist() -> None:
    assert len(goldenkit.RABBITMQ) == 11


@every_case
def test_every_golden_message_reads_as_the_broker_delivered_it(case: GoldenCase) -> None:
    stored = {message.id: message for message in map(read_message, rabbitterms.terms(case))}
    rows = [row for row in goldenkit.expected(case) if "exchange" in row]
    assert rows
    for row in rows:
        message = stored[bytes.fromhex(row["msg_id"])]
        assert message.vhost is not None
        assert message.vhost.decode() == row["vhost"]
        assert message.exchange.decode() == row["exchange"]
        assert [key.decode() for key in message.routing_keys] == row["routing_keys"]
        # as text, so that order and kind of numbers count
        assert json.dumps(message.json_properties()) == json.dumps(row["properties"])
        assert len(message.body) == row["payload_len"]
        assert hashlib.sha256(message.body).hexdigest() == row["payload_sha256"]


@every_case
def test_every_golden_term_is_written_back_byte_by_byte(case: GoldenCase) -> None:
    for term in rabbitterms.terms(case):
        written = write_message(read_message(term))
        assert written == term[: len(written)]
        assert not term[len(written) :].strip(b"\0")


@every_case
def test_every_golden_property_block_is_written_back_byte_by_byte(case: GoldenCase) -> None:
    """Except for the second octet of a long and a bool of 7, which case f has on purpose and which decode to the same values."""
    changed = set()
    for block in {message.properties_bin for message in map(read_message, rabbitterms.terms(case))} - {None}:
        properties = properties_from_bin(block)
        written = properties_to_bin(properties)
        assert len(written) == len(block)
        changed |= {(old, new) for old, new in zip(block, written, strict=True) if old != new}
        assert properties_from_bin(written) == properties
    assert changed == ({(ord("L"), ord("l")), (7, 1)} if case.name == "f-mixed-features" else set())


# properties

texts = st.binary(max_size=255)
integers = {
    "signedint": (-(1 << 31), (1 << 31) - 1),
    "unsignedint": (0, (1 << 32) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "unsignedshort": (0, (1 << 16) - 1),
    "byte": (-128, 127),
    "unsignedbyte": (0, 255),
    "timestamp": (0, (1 << 64) - 1),
}
plain = st.one_of(
    *(st.tuples(st.just(kind), st.integers(low, high)) for kind, (low, high) in integers.items()),
    st.tuples(st.sampled_from(["longstr", "binary"]), st.binary(max_size=300)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("void"), st.none()),
    st.tuples(st.just("decimal"), st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1))),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("float"), st.floats(allow_nan=False, width=32)),
)


def _fields(inner: st.SearchStrategy[tuple[str, object]]) -> st.SearchStrategy[list[list[object]]]:
    return st.lists(st.tuples(texts, inner).map(lambda field: [field[0], *field[1]]), max_size=4)


typed = st.recursive(
    plain,
    lambda inner: st.tuples(st.just("table"), _fields(inner)) | st.tuples(st.just("array"), st.lists(inner.map(list), max_size=4)),
    max_leaves=10,
)
blocks = st.fixed_dictionaries(
    {},
    optional={
        "content_type": texts,
        "content_encoding": texts,
        "headers": _fields(typed),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": texts,
        "reply_to": texts,
        "expiration": texts,
        "message_id": texts,
        "timestamp": st.integers(0, (1 << 64) - 1),
        "type": texts,
        "user_id": texts,
        "app_id": texts,
        "cluster_id": texts,
    },
)


@settings(deadline=None)
@given(blocks)
def test_properties_survive_the_block(properties: dict[str, object]) -> None:
    found = properties_from_bin(properties_to_bin(properties))
    assert found == properties
    json.dumps(json_properties(found), allow_nan=False)


def _record(properties: dict[str, object]) -> tuple[Term, ...]:
    """Properties in the form of the broker's record."""

    def value(kind: str, found: object) -> Term:
        if kind == "void":
            return Atom("undefined")
        if kind == "bool":
            return Atom(str(found).lower())
        if kind in ("table", "array"):
            assert isinstance(found, list)
            return [(*field[:-2], Atom(field[-2]), value(field[-2], field[-1])) for field in found]
        return found

    return (
        Atom("P_basic"),
        *(
            Atom("undefined") if name not in properties else value("table" if name == "headers" else "", properties[name])
            for name in RABBITMQ_PROPERTIES
        ),
    )


@settings(deadline=None)
@given(blocks)
def test_decoded_properties_are_the_encoded_ones(properties: dict[str, object]) -> None:
    record = _record(properties)
    if not any("inf" in repr(part) for part in record):
        message = MessageTerm(bytes(16), b"/", b"x", (b"k",), True, (b"b",), None, record, Atom("none"))
        assert read_message(write_message(message)).properties == properties
    assert properties_from_record(record) == properties


def test_nan_and_infinities_have_names_in_json() -> None:
    block = properties_to_bin({"headers": [[b"a", "double", float("nan")], [b"b", "float", float("-inf")], [b"c", "double", float("inf")]]})
    assert json_properties(properties_from_bin(block))["headers"] == [
        ["a", "double", "NaN"],
        ["b", "float", "-Infinity"],
        ["c", "double", "Infinity"],
    ]


def test_both_octets_of_a_long_and_every_true_are_read() -> None:
    table = b"\x01al" + bytes(7) + b"\x05" + b"\x01bL" + bytes(7) + b"\x05" + b"\x01ct\x07" + b"\x01ct\x00"
    found = properties_from_bin(b"\x20\x00" + len(table).to_bytes(4, "big") + table)
    assert found["headers"] == [[b"a", "long", 5], [b"b", "long", 5], [b"c", "bool", True], [b"c", "bool", False]]


def nested(levels: int, octet: bytes = b"F", name: bytes = b"\x00") -> bytes:
    inner = b""
    for _ in range(levels):
        inner = name + octet + len(inner).to_bytes(4, "big") + inner
    return b"\x20\x00" + len(inner).to_bytes(4, "big") + inner


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x10",
        b"\x10\x00",
        b"\x10\x01\x02",
        b"\x10\x00\x02\x00",
        b"\x80\x00\x05text",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x20\x00\x00\x00\x00\x02\x01a",
        b"\x20\x00\x00\x00\x00\x03\x01aZ",
        b"\x20\x00\x00\x00\x00\x08\x01aS\xff\xff\xff\xffx",
        b"\x20\x00\x00\x00\x00\x07\x01aA\x00\x00\x00\x09",
        b"\x20\x00\x00\x00\x00\x03\x01aI\x00\x00\x00\x09",
        nested(20_000),
        b"\x20\x00" + (2_000_000).to_bytes(4, "big") + b"\x00V" * 1_000_000,
    ],
    ids=lambda block: block[:12].hex(),
)
def test_invalid_properties_are_refused_and_the_message_is_still_read(block: bytes) -> None:
    message = read_message(write_message(MessageTerm(bytes(16), b"/", b"", (b"q",), True, (b"body",), block)))
    assert message.body == b"body"
    assert message.properties_bin == block
    with pytest.raises(PropertiesError):
        message.json_properties()


def test_headers_may_nest_a_hundred_tables() -> None:
    properties = properties_from_bin(nested(99))
    assert properties_to_bin(properties) == nested(99)
    assert json.dumps(json_properties(properties)).count('"table"') == 99
    with pytest.raises(PropertiesError, match="nest deeper"):
        properties_from_bin(nested(100))
    with pytest.raises(PropertiesError, match="nest deeper"):
        properties_to_bin({"headers": [[b"", "table", properties["headers"]]]})


@pytest.mark.parametrize(
    "wrong", [{"colour": b"red"}, {"priority": 256}, {"type": b"x" * 256}, {"headers": [["a", "blob", 1]]}, {"headers": [1]}]
)
def test_properties_that_cannot_be_written_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((PropertiesError, TypeError)):
        properties_to_bin(wrong)


def test_every_field_type_has_one_octet_that_is_written() -> None:
    assert len(OCTETS) == 17
    assert OCTETS["long"][0] == ord("l")


@pytest.mark.parametrize(
    "change",
    [
        {1: b"text/plain", 3: [(b"a", Atom("blob"), 1)]},
        {3: 7},
        {3: [b"a"]},
        {3: [(1, Atom("long"), 1)]},
        {3: [(b"a", Atom("long"), 1 << 64)]},
        {3: [(b"a", Atom("longstr"), 1)]},
        {3: [(b"a", Atom("bool"), Atom("maybe"))]},
        {3: [(b"a", Atom("decimal"), 1)]},
        {3: [(b"a", Atom("double"), 1 << 2000)]},
        {4: b"2"},
        {4: 256},
        {10: -1},
        {11: Atom("text")},
    ],
    ids=str,
)
def test_invalid_decoded_properties_are_refused(change: dict[int, Term]) -> None:
    record = tuple(change.get(k, Atom("P_basic" if not k else "undefined")) for k in range(15))
    message = read_message(write_message(MessageTerm(bytes(16), b"/", b"", (), True, (b"body",), None, record, Atom("none"))))
    assert message.body == b"body"
    with pytest.raises(PropertiesError):
        _ = message.properties


# terms


def message_term(**changes: Term) -> bytes:
    parts: dict[str, Term] = {
        "tag": Atom("basic_message"),
        "name": (Atom("resource"), b"/", Atom("exchange"), b"x"),
        "keys": [b"k"],
        "content": (Atom("content"), 60, Atom("none"), b"\x00\x00", content.PROTOCOL, [b"b"]),
        "id": bytes(16),
        "persistent": Atom("true"),
    }
    return encode(tuple({**parts, **changes}.values()))


@pytest.mark.parametrize(
    "changes",
    [
        {"tag": Atom("other")},
        {"tag": b"basic_message"},
        {"extra": 1},
        {"name": b"x"},
        {"name": (Atom("resource"), b"/", Atom("queue"), b"x")},
        {"name": (Atom("resource"), b"/", Atom("exchange"), Atom("x"))},
        {"keys": b"k"},
        {"keys": [Atom("k")]},
        {"id": bytes(15)},
        {"id": Atom("undefined")},
        {"persistent": Atom("undefined")},
        {"persistent": b"true"},
        {"content": Atom("none")},
        {"content": (Atom("content"), 61, Atom("none"), b"\x00\x00", content.PROTOCOL, [])},
        {"content": (Atom("content"), 60, Atom("none"), Atom("none"), content.PROTOCOL, [])},
        {"content": (Atom("content"), 60, Atom("none"), b"\x00\x00", b"amqp", [])},
        {"content": (Atom("content"), 60, Atom("none"), b"\x00\x00", content.PROTOCOL, b"body")},
        {"content": (Atom("content"), 60, Atom("none"), b"\x00\x00", content.PROTOCOL, [1])},
    ],
    ids=str,
)
def test_a_term_that_is_not_a_message_is_refused_with_its_position(changes: dict[str, Term]) -> None:
    assert read_message(message_term()).body == b"b"
    with pytest.raises(NotAMessageError) as caught:
        read_message(b"junk" + message_term(**changes), 4)
    assert caught.value.offset == 4


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_changed_byte_causes_at_most_an_error(data: st.DataObject) -> None:
    term = bytearray(message_term())
    for _ in range(data.draw(st.integers(1, 3))):
        term[data.draw(st.integers(0, len(term) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = read_message(np.frombuffer(bytes(term), np.uint8))
    except EtfError:
        return
    assert isinstance(message.body, bytes)
    assert len(message.id) == 16


@settings(deadline=None)
@given(
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=20),
    st.binary(max_size=255),
    st.lists(st.binary(max_size=255), max_size=3),
    st.booleans(),
    st.lists(st.binary(max_size=100), max_size=4),
    blocks.map(properties_to_bin),
    st.sampled_from(["latin1", "utf8"]),
)
def test_messages_survive_their_term(
    message_id: bytes, vhost: bytes, exchange: bytes, keys: list[bytes], persistent: bool, frames: list[bytes], block: bytes, atoms: str
) -> None:
    message = MessageTerm(message_id, vhost, exchange, tuple(keys), persistent, tuple(frames), block)
    found = read_message(write_message(message, atoms) + b"\0\0")
    assert found == message
    assert found.body == b"".join(frames)


# message containers of 3.13 and newer


def container(form: str, data: Term, **annotations: Term) -> bytes:
    given_: dict[Term, Term] = {Atom("id"): bytes(range(16)), Atom("x"): b"ex", Atom("rk"): [b"k", b"cc"]}
    given_.update({Atom(name): value for name, value in annotations.items()})
    return encode((Atom("mc"), Atom(form), data, given_), "utf8")


def test_a_container_of_amqp_0_9_1_reads_as_its_message() -> None:
    block = properties_to_bin({"delivery_mode": 2, "headers": [[b"a", "long", 1]]})
    term = container("mc_amqpl", (Atom("content"), 60, Atom("none"), block, Atom("none"), [b"world", b"hello "]))
    message = read_message(term)
    assert (message.id, message.exchange, message.routing_keys) == (bytes(range(16)), b"ex", (b"k", b"cc"))
    assert message.vhost is None
    assert message.persistent
    assert message.body == b"hello world"
    assert message.json_properties() == {"headers": [["a", "long", 1]], "delivery_mode": 2}
    assert write_message(message, "utf8") == term
    assert not read_message(container("mc_amqpl", (Atom("content"), 60, Atom("none"), block, Atom("none"), []), d=Atom("false"))).persistent


def test_a_container_becomes_a_message_that_older_brokers_read() -> None:
    block = properties_to_bin({"delivery_mode": 2})
    old = as_basic_message(read_message(container("mc_amqpl", (Atom("content"), 60, Atom("none"), block, Atom("none"), [b"b"]))), b"/v")
    again = read_message(write_message(old))
    assert (again.form, again.vhost, again.exchange, again.routing_keys, again.body) == ("basic_message", b"/v", b"ex", (b"k", b"cc"), b"b")
    assert again.properties == {"delivery_mode": 2}
    assert as_basic_message(again, b"/other") is again


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def amqp_list(*items: bytes) -> bytes:
    inner = bytes([len(items)]) + b"".join(items)
    return b"\xc0" + bytes([len(inner)]) + inner


def amqp_map(*items: bytes) -> bytes:
    inner = bytes([len(items)]) + b"".join(items)
    return b"\xc1" + bytes([len(inner)]) + inner


def text(value: bytes, code: int = 0xA1) -> bytes:
    return bytes([code, len(value)]) + value


PROPERTIES = section(
    0x73,
    amqp_list(
        b"\x98" + bytes(range(16)),  # message id, a uuid
        text(b"guest", 0xA0),
        text(b"/queues/q"),
        b"\x40",  # subject
        text(b"reply"),
        text(b"c" * 3),
        text(b"text/plain", 0xA3),
        text(b"gzip", 0xA3),
        b"\x40",
        b"\x83" + (1_700_000_000_123).to_bytes(8, "big"),
        text(b"group"),
    ),
)
APPLICATION = section(
    0x74,
    amqp_map(
        text(b"s"),
        text(b"v"),
        text(b"i"),
        b"\x71\xff\xff\xff\xff",
        text(b"t"),
        b"\x41",
        text(b"n"),
        b"\x40",
        text(b"u"),
        b"\x80" + bytes(7) + b"\x09",
    ),
)
DATA = section(0x75, text(b"pay", 0xA0)) + section(0x75, b"\xb0\x00\x00\x00\x04load")
FOOTER = section(0x78, amqp_map(text(b"f", 0xA3), b"\x43"))
ANNOTATIONS = [
    ((Atom("symbol"), b"x-opt-colour"), (Atom("utf8"), b"red")),
    ((Atom("symbol"), b"x-exchange"), (Atom("utf8"), b"hidden")),
    ((Atom("symbol"), b"x-cc"), (Atom("list"), [(Atom("utf8"), b"cc")])),
    ((Atom("symbol"), b"x-opt-rabbitmq-received-time"), (Atom("timestamp"), 1_700_000_000_500)),
    ((Atom("symbol"), b"unrelated"), (Atom("utf8"), b"no")),
]
WANTED = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": [
        ["CC", "array", [["longstr", "cc"]]],
        ["i", "signedint", -1],
        ["n", "void", None],
        ["s", "longstr", "v"],
        ["t", "bool", True],
        ["timestamp_in_ms", "long", 1_700_000_000_500],
        ["u", "long", 9],
        ["x-opt-colour", "longstr", "red"],
    ],
    "delivery_mode": 2,
    "priority": 4,
    "correlation_id": "ccc",
    "reply_to": "reply",
    "expiration": "60000",
    "message_id": "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f",
    "timestamp": 1_700_000_000,
    "user_id": "guest",
    "app_id": "group",
}


def v1(bare: bytes, properties: Term, application: Term, body: int, code: int) -> Term:
    return (Atom("v1"), ANNOTATIONS, bare, properties, application, body, code)


def test_a_message_from_amqp_1_0_is_read_from_its_bare_bytes() -> None:
    head = PROPERTIES + APPLICATION
    term = container("mc_amqp", v1(head + DATA + FOOTER, 0, len(PROPERTIES), len(head), 0x75), p=4, ttl=60000, ts=1_700_000_000_123)
    message = read_message(term)
    assert message.body == b"payload"
    assert message.json_properties() == WANTED
    assert write_message(message, "utf8") == term
    old = read_message(write_message(as_basic_message(message, b"/")))
    assert old.json_properties() == WANTED
    assert old.body == b"payload"


def test_a_body_of_amqp_1_0_that_is_not_data_stays_encoded() -> None:
    value = section(0x77, text(b"text"))
    message = read_message(container("mc_amqp", (Atom("v1"), [], value + FOOTER, [], [], 0, 0x77)))
    assert message.body == value + FOOTER
    assert message.json_properties() == {"delivery_mode": 2, "type": "amqp-1.0"}


def test_the_decoded_sections_of_3_13_read_the_same() -> None:
    head = (Atom("v1_0.header"), Atom("true"), (Atom("ubyte"), 4), (Atom("uint"), 60000), Atom("undefined"), Atom("undefined"))
    fields: list[Term] = [(Atom("uuid"), bytes(range(16))), (Atom("binary"), b"guest"), (Atom("utf8"), b"/queues/q"), Atom("undefined")]
    fields += [
        (Atom("utf8"), b"reply"),
        (Atom("utf8"), b"ccc"),
        (Atom("symbol"), b"text/plain"),
        (Atom("symbol"), b"gzip"),
        Atom("undefined"),
    ]
    fields += [(Atom("timestamp"), 1_700_000_000_123), (Atom("utf8"), b"group"), Atom("undefined"), Atom("undefined")]
    application = [
        ((Atom("utf8"), b"s"), (Atom("utf8"), b"v")),
        ((Atom("utf8"), b"i"), (Atom("int"), -1)),
        ((Atom("utf8"), b"t"), Atom("true")),
        ((Atom("utf8"), b"n"), Atom("null")),
        ((Atom("utf8"), b"u"), (Atom("ulong"), 9)),
    ]
    data = [(Atom("v1_0.data"), b"pay"), (Atom("v1_0.data"), [b"lo", b"ad"])]
    msg = (Atom("msg"), head, Atom("undefined"), ANNOTATIONS, (Atom("v1_0.properties"), *fields), application, data, [])
    message = read_message(container("mc_amqp", msg, ts=1_700_000_000_123))
    assert message.body == b"payload"
    assert message.json_properties() == WANTED


def test_a_decoded_value_of_3_13_is_encoded_as_its_section() -> None:
    body = (Atom("v1_0.amqp_value"), (Atom("map"), [((Atom("utf8"), b"k"), (Atom("uint"), 7)), ((Atom("utf8"), b"l"), Atom("true"))]))
    msg = (Atom("msg"), Atom("undefined"), Atom("undefined"), [], Atom("undefined"), [], body, [])
    message = read_message(container("mc_amqp", msg))
    inner = (4).to_bytes(4, "big") + text(b"k") + b"\x70\x00\x00\x00\x07" + text(b"l") + b"\x41"
    assert message.body == section(0x77, b"\xd1" + len(inner).to_bytes(4, "big") + inner)


def test_a_message_from_mqtt_is_read() -> None:
    data = (Atom("mqtt_msg"), Atom("false"), 1, b"a/b", Atom("false"), 7, [b"pay", [108], b"oad"], {Atom("Content-Type"): b"text/plain"}, 5)
    message = read_message(container("mc_mqtt", data))
    assert message.body == b"payload"
    assert message.json_properties() == {"content_type": "text/plain", "delivery_mode": 2}


DEEP = section(0x75, b"\xc0\x06\x01" * 50)


@pytest.mark.parametrize(
    "term",
    [
        container("mc_unknown", b""),
        container("mc_amqpl", b""),
        container("mc_amqp", b""),
        container("mc_amqp", (Atom("v1"), [], b"", [], [], 1, 0x75)),
        container("mc_amqp", (Atom("v1"), [], b"\x00\x53\x75\xb0\xff\xff\xff\xff", [], [], 0, 0x75)),
        container("mc_amqp", (Atom("v1"), [], b"\x00" * 5000, [], [], 0, 0x75)),
        container("mc_amqp", (Atom("v1"), [], DEEP, [], [], 0, 0x75)),
        container("mc_amqp", (Atom("v1"), [], b"\x00\x53\x75\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", [], [], 0, 0x75)),
        container("mc_amqp", (Atom("v1"), [], text(b"no section"), [], [], 0, 0x75)),
        container("mc_amqp", (Atom("msg"), 1, 2, 3, 4, 5, 6, 7)),
        container("mc_amqp", (Atom("msg"), 1, 2, 3, 4, 5, [(Atom("v1_0.data"), 7)], 7)),
        container("mc_mqtt", (Atom("mqtt_msg"), 1)),
        container("mc_mqtt", (Atom("mqtt_msg"), 1, 1, 1, 1, 1, 1000, 1, 1)),
        container("mc_mqtt", (Atom("mqtt_msg"), 1, 1, 1, 1, 1, [b"a", Atom("b")], 1, 1)),
        encode((Atom("mc"), Atom("mc_amqpl"), 1, [])),
        encode((Atom("mc"), Atom("mc_amqpl"), 1, {})),
        container("mc_amqpl", b"", id=b"short"),
        container("mc_amqpl", b"", x=Atom("x")),
        container("mc_amqpl", b"", rk=[1, 2]),
    ],
    ids=range(19),
)
def test_a_container_that_cannot_be_read_is_refused(term: bytes) -> None:
    with pytest.raises(NotAMessageError):
        read_message(term)


@pytest.mark.parametrize(
    "bare", [b"\x00\x53\x73\x41", b"\x00\x53\x73\xc0\x02\x02\x41", b"\x00\x53\x74\xc1\x03\x01\x41\x41", b"\x00\x53\x73\xc0\x03\x01\xa1\x05"]
)
def test_damaged_sections_affect_only_the_properties(bare: bytes) -> None:
    message = read_message(container("mc_amqp", v1(bare + DATA, 0, [], len(bare), 0x75)))
    assert message.body == b"payload"
    with pytest.raises(PropertiesError):
        message.json_properties()
