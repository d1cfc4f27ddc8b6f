"""Messages in the log of a quorum queue, read in place: what the kernel takes is readable for the decoder, with the same parts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from support import quorum
from support.logged_messages import changed, entries, shortest

from mqstore.kernels.rabbitmq import message_terms as kernel
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Pairs, Term, encode
from mqstore.rabbitmq.message.message_term import MessageTerm, message_from
from mqstore.rabbitmq.message.properties import FIELD_TYPES, PropertiesError, json_properties, properties_from_bin, properties_to_bin
from mqstore.rabbitmq.quorum.queue import QuorumMessage, stored_message
from mqstore.rabbitmq.quorum.rows import delivered
from mqstore.table.columns import RABBITMQ_PROPERTIES

HEADERS = kernel.PROPERTY_START + 2 * RABBITMQ_PROPERTIES.index("headers")
BEFORE, AFTER = b"\x83h\x04", b"\x83m"
# parts of a message: exchange, keys, property block, frames, persistent
Parts = tuple[bytes, tuple[bytes, ...], bytes, tuple[bytes, ...], bool]


def readable(entry: bytes) -> MessageTerm | None:
    """Return the message of an entry as it is decoded; None if it or what any version of the machine delivers of it is not readable."""
    try:
        message = message_from(stored_message(entry), with_id=False)
        for version in (0, 5, 8):
            json_properties(delivered(QuorumMessage(7, 0, "returned", 5, None, 1, 2, True, None, None, 0, True, None, version), message))
    except (EtfError, PropertiesError):
        return None
    return message


def split(texts: Sequence[bytes]) -> list[tuple[Parts, bool] | None]:
    """Return what the kernel takes of each entry, which has other bytes on both sides, and whether it proves the properties readable.

    None: the entry is left to the decoder.
    """
    data = b"".join(BEFORE + text + AFTER for text in texts)
    length = np.array([len(text) for text in texts], np.int64)
    start = np.cumsum(length + len(BEFORE + AFTER)) - length - len(AFTER)
    fields = np.full((len(texts), kernel.FIELD_COUNT), 99, np.int64)
    blocks = np.full((len(texts), kernel.PROPERTY_COLUMNS), 99, np.int64)
    tables = np.full(len(texts), 99, np.uint8)
    b = np.frombuffer(data, np.uint8)
    assert kernel.logged_fields(b, start, length, fields) == fields[:, kernel.STATUS].sum()
    kernel.properties(b, fields[:, kernel.PROPERTIES_START], fields[:, kernel.PROPERTIES_LENGTH], blocks)
    kernel.tables(b, blocks[:, HEADERS], blocks[:, HEADERS + 1], tables)
    sure = (blocks[:, kernel.STATUS] == kernel.FAST) & (tables == 1) & (fields[:, kernel.NOTED] < kernel.UNPROVED)
    return [
        (_parts(data, b, row), proved) if row[kernel.STATUS] == kernel.FAST else None
        for row, proved in zip(fields, sure.tolist(), strict=True)
    ]


def _parts(data: bytes, b: NDArray[np.uint8], row: NDArray[np.int64]) -> Parts:
    def listed(at: int, backwards: bool) -> tuple[bytes, ...]:
        count = int(row[at + 1])
        starts, lengths = np.zeros((2, count), np.int64)
        assert kernel.listed(b, row[at : at + 1], row[at + 1 : at + 2], backwards, starts, lengths) == count
        return tuple(data[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True))

    def span(at: int) -> bytes:
        return data[row[at] : row[at] + row[at + 1]]

    frames = listed(kernel.PAYLOAD_START, True)
    assert sum(map(len, frames)) == row[kernel.BODY_LENGTH]
    keys = listed(kernel.KEYS_START, False)
    return span(kernel.EXCHANGE_START), keys, span(kernel.PROPERTIES_START), frames, bool(row[kernel.PERSISTENT])


def taken(texts: Sequence[bytes]) -> int:
    """Return how many entries the kernel proves readable. All that it takes have the same parts for the decoder."""
    found = 0
    for text, taken in zip(texts, split(texts), strict=True):
        if taken is not None:
            parts, proved = taken
            message = readable(text) if proved else message_from(stored_message(text), with_id=False)
            assert message is not None, text.hex()
            assert message.properties_bin is not None
            assert parts == (message.exchange, message.routing_keys, message.properties_bin, message.fragments, message.persistent), (
                text.hex()
            )
            found += proved
    return found


@pytest.mark.parametrize("case", quorum.CASES)
def test_what_the_kernel_takes_of_real_logs_is_what_the_decoder_reads(case: str) -> None:
    messages = [entry for entry in entries(case) if readable(entry) is not None]
    assert taken(messages) > 0.75 * len(messages) > 0
    assert not taken([entry for entry in entries(case) if readable(entry) is None])


@pytest.mark.parametrize("case", quorum.CASES)
def test_no_changed_byte_makes_the_kernel_take_what_the_decoder_does_not_read(case: str) -> None:
    rng = random.Random(case)
    assert sum(taken(changed(entry, rng)) for entry in shortest(entries(case)))


PROCESS = Opaque(b"Xw\x0brabbit@host" + bytes(12))
HEADER_VALUES = {
    **dict.fromkeys(("signedint", "unsignedint", "long", "short", "unsignedshort", "byte", "unsignedbyte", "timestamp"), 7),
    **dict.fromkeys(("double", "float"), float("nan")),
    **dict.fromkeys(("longstr", "binary"), b"\xff text"),
    "decimal": (2, 314),
    "bool": True,
    "void": None,
    "table": [[b"inner", "array", [["void", None], ["table", [[b"", "bool", False]]]]]],
    "array": [["array", []], ["longstr", b"e"]],
}
ALL_HEADERS = [[b"h-" + kind.encode(), kind, value] for kind, value in HEADER_VALUES.items()]
BLOCK = properties_to_bin(
    dict.fromkeys(RABBITMQ_PROPERTIES, b"text") | {"headers": ALL_HEADERS, "delivery_mode": 2, "priority": 9, "timestamp": 1}
)
NOTED: dict[Term, Term] = {Atom("x"): b"exchange", Atom("rk"): [b"key", b"cc"], Atom("rts"): 1_795_603_199_726, b"x-own": b"\xff"}


NONE = Atom("none")
EXCHANGE = (Atom("resource"), b"/", Atom("exchange"), b"x")


def content(block: Term = BLOCK, record: Term = NONE, payload: Term = (b"last", b"first")) -> Term:
    return Atom("content"), 60, record, block, Atom("rabbit_framing_amqp_0_9_1"), list(payload)


def container(annotations: Term = NOTED, data: Term = None, form: str = "mc_amqpl") -> Term:
    return Atom("mc"), Atom(form), content() if data is None else data, annotations


def basic(data: Term = None, name: Term = EXCHANGE, own: Term = b"", keys: Term = (b"q",)) -> Term:
    return Atom("basic_message"), name, list(keys), content() if data is None else data, own, Atom("false")


def logged(message: Term, *, enqueue: bool = False) -> bytes:
    command = (Atom("enqueue"), PROCESS, 300, message) if enqueue else (Atom("e"), 1 << 40, message, (30, 9))
    return encode((Atom("$usr"), {Atom("ts"): 1_795_603_199_726}, command, (Atom("notify"), 1, PROCESS)), "utf8")


def test_messages_with_every_property_and_every_type_of_header_are_taken_and_no_change_of_a_byte_is_taken_for_one() -> None:
    assert {name for name, _ in FIELD_TYPES.values()} == set(HEADER_VALUES)
    record = (Atom("P_basic"), *[Atom("undefined")] * 14)
    made = [
        logged(container()),
        logged(container({**NOTED, Atom("id"): bytes(16), Atom("d"): Atom("false"), Atom("ttl"): Atom("undefined"), Atom("p"): 3})),
        logged(basic(), enqueue=True),
        logged(basic(content(record=record), own=bytes(16)), enqueue=True),
        requeued(basic()),
    ]
    assert taken(made) == len(made)
    rng = random.Random(35)
    for entry in made:
        texts = changed(entry, rng)
        assert 0 < taken(texts) < len(texts)


DEEP: Term = []
for _ in range(300):
    DEEP = [DEEP, 1000]


def nested(kind: str, depth: int) -> list[object]:
    return [[b"n", kind, nested(kind, depth - 1)]] if depth else []


def requeued(message: Term) -> bytes:
    command = (Atom("requeue"), (b"ctag", PROCESS), 1, 7, {Atom("delivery_count"): 1}, message)
    return encode((Atom("$usr"), {Atom("ts"): 1_795_603_199_726}, command, Atom("noreply")), "utf8")


# as many as are not readable, or that the kernel does not judge
LEFT = {
    "no exchange": container({Atom("rk"): []}),
    "no keys": container({Atom("x"): b""}),
    "a later exchange that is no binary": container(Pairs(((Atom("x"), b""), (Atom("rk"), []), (b"x", 1)))),
    "later keys that are no list": container(Pairs(((Atom("x"), b""), (Atom("rk"), []), (b"rk", b"q")))),
    "keys that are bytes": container({**NOTED, Atom("rk"): [1, 2]}),
    "a key that is no binary": basic(keys=(b"q", Atom("q"))),
    "an id of another length": container({**NOTED, Atom("id"): bytes(15)}),
    "an id that is an atom": basic(own=Atom("undefined")),
    "deaths that are no list": container({**NOTED, Atom("deaths"): 1}),
    "an annotation named by a list": container(Pairs(((Atom("x"), b""), (Atom("rk"), []), ([1], 1)))),
    "annotations that are no map": container([]),
    "another class": basic((Atom("content"), 61, *content()[2:])),
    "no property block": basic(content(block=Atom("none"))),
    "a block with more flags": basic(content(block=b"\0\1")),
    "a block that ends early": basic(content(block=BLOCK[:-1])),
    "bytes after a block": basic(content(block=BLOCK + b"\0")),
    "a frame that is no binary": basic(content(payload=(b"a", 1))),
    "a resource of another kind": basic(name=(Atom("resource"), b"/", Atom("queue"), b"x")),
    "a message from MQTT": container(form="mc_mqtt"),
    "terms nested too deep": container({**NOTED, b"x-deep": DEEP}),
    "an atom that is not ASCII": container({**NOTED, Atom("\u00e9"): 1}),
    "a float": container({**NOTED, b"x-float": 1.5}),
}


@pytest.mark.parametrize("what", LEFT)
def test_other_messages_are_left_to_the_decoder(what: str) -> None:
    assert taken([logged(LEFT[what]), logged(LEFT[what], enqueue=True)]) == 0


def test_the_last_of_two_annotations_with_one_name_counts() -> None:
    pairs = Pairs(((Atom("x"), b"no"), (Atom("rk"), []), (Atom("d"), Atom("false")), (b"x", b"yes"), (b"d", b"false"), (b"rk", [b"q"])))
    (found,) = split([logged(container(pairs))])
    assert found is not None
    assert (found[0][0], found[0][1], found[0][4]) == (b"yes", (b"q",), True)
    assert taken([logged(container(pairs))]) == 1


def test_a_name_that_only_ends_like_an_annotation_is_another_one() -> None:
    names = (b"\0x", b"xx", b"\0rk", b"\0\0\0\0\0x", b"long-name-x")
    assert taken([logged(container({**NOTED, **{name: Atom(str(number)) for number, name in enumerate(names)}}))]) == 1


def test_tables_within_each_other_are_taken_up_to_a_depth_that_the_reader_exceeds() -> None:
    made = [logged(basic(content(block=properties_to_bin({"headers": nested("table", depth)})))) for depth in range(40)]
    found = [each is not None and each[1] for each in split(made)]
    assert found == sorted(found, reverse=True)
    assert 4 < sum(found) == taken(made) < 40


def test_every_type_of_field_has_the_size_that_the_reader_gives_it() -> None:
    taken_types = set()
    for octet in range(256):
        for size in range(14):
            fields = b"\1a%c" % octet + bytes(size)
            found = np.full(1, 99, np.uint8)
            kernel.tables(np.frombuffer(fields, np.uint8), np.array([0]), np.array([len(fields)]), found)
            try:
                read = properties_from_bin(b"\x20\0" + len(fields).to_bytes(4, "big") + fields) is not None
            except PropertiesError:
                read = False
            assert found[0] == read, (octet, size)
            taken_types |= {octet} if read else set()
    assert taken_types == set(FIELD_TYPES)


@pytest.mark.parametrize("count", [0, 300, 70_000, 250_000])
def test_the_number_of_fields_has_the_bound_of_the_reader(count: int) -> None:
    block = properties_to_bin({"headers": [[b"a", "array", [["void", None]] * count]]})
    try:
        read = properties_from_bin(block) is not None
    except PropertiesError:
        read = False
    assert read == (count < 200_000)
    assert taken([logged(basic(content(block=block)))]) == read


def test_more_elements_than_the_decoder_takes_are_left_to_it() -> None:
    many = {**NOTED, **{b"x-%d" % number: bytes(0) for number in range(100)}, b"list": [300] * 200_000}
    most = {**many, **{b"list-%d" % number: [300] * 200_000 for number in range(10)}}
    assert taken([logged(container(many))]) == 1
    assert taken([logged(container(most))]) == 0
    assert readable(logged(container(most))) is None


def test_positions_outside_the_buffer_are_left_to_the_decoder() -> None:
    entry = logged(container())
    b = np.frombuffer(entry, np.uint8)
    spans = [(-1, 5), (0, -1), (0, len(entry) + 1), (len(entry), 1), (len(entry) + 1, 0), (1 << 62, 1 << 62), (0, 0)]
    start, length = np.array(spans, np.int64).T.copy()
    rows = np.full((len(spans), kernel.FIELD_COUNT), 99, np.int64)
    assert kernel.logged_fields(b, start, length, rows) == len(spans)
    assert (rows[:, kernel.STATUS] == kernel.SLOW).all()
    assert not rows[:, 1:].any()
    found = np.full(len(spans), 99, np.uint8)
    kernel.tables(b, start, length, found)
    assert found.tolist() == [0, 1, 0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="differ in length"):
        kernel.logged_fields(b, start, length[:-1], rows)
    with pytest.raises(ValueError, match="differ in length"):
        kernel.tables(b, start, length[:-1], found)
