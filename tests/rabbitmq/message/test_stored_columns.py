"""Stored messages as columns: the kernel and the decoder give equal results, also in one batch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.golden import RABBITMQ, case_id, opened
from support.rabbitmq_index import array, message_id, term

import mqstore
from mqstore.rabbitmq.message.message_term import MessageTerm, read_message, write_message
from mqstore.rabbitmq.message.stored_columns import StoredTerms

COLUMNS = ("exchange", "routing_keys", "payload", "payload_len", "payload_sha256", "properties", "properties_json")


def collected(*raw: bytes) -> StoredTerms:
    length = np.array([len(each) for each in raw])
    return StoredTerms.collect([array(b"".join(raw))], np.zeros(len(raw), np.int32), np.cumsum(length) - length, length)


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_every_golden_message_is_what_the_decoder_reads(case):
    store = mqstore.open(opened(case))
    from mqstore.rabbitmq.store import message_table

    for rows in store.rows():
        rows = rows.take(np.arange(min(len(rows), 200)))
        found = message_table.decode_terms(rows, lambda name: store.directory.map(name).data)
        columns = {name: found.column(name).to_pylist() for name in ("exchange", "routing_keys", "payload")}
        for row in range(len(rows)):
            if not found.present[row]:
                assert columns["payload"][row] is None
                continue
            name, data = rows.table.sources[int(rows.table.source[row])]
            at, length = int(rows.table.at[row]), int(rows.table.length[row])
            source = store.directory.map(name).data if data is None else data
            message = read_message(source[at : at + length].tobytes())
            assert columns["payload"][row] == message.body
            assert columns["exchange"][row] == message.exchange.decode()
            assert columns["routing_keys"][row] == [key.decode() for key in message.routing_keys]


def test_fast_and_slow_messages_keep_their_rows():
    plain = term(message_id(1), b"one", key=b"k1", exchange=b"x")
    slow = write_message(MessageTerm(message_id(2), b"/", b"y", (b"k2", b"cc"), True, (b"tw", b"o"), b"\x10\x00\x02"), "utf8")
    found = collected(plain, b"\x83no term", slow, plain)
    columns = {name: found.column(name).to_pylist() for name in COLUMNS}
    assert columns["payload"] == [b"one", None, b"two", b"one"]
    assert columns["routing_keys"] == [["k1"], None, ["k2", "cc"], ["k1"]]
    assert columns["exchange"] == ["x", None, "y", "x"]
    assert columns["payload_len"] == [3, None, 3, 3]
    assert [None if each is None else each["delivery_mode"] for each in columns["properties"]] == [2, None, 2, 2]
    assert found.readable.tolist() == [True, False, True, True]


def test_the_struct_and_the_json_of_properties_are_equal():
    for case in RABBITMQ:
        if case.name not in ("f-mixed-features", "d-large-fanout"):
            continue
        for batch in mqstore.open(opened(case)).to_batches(("properties", "properties_json")):
            for row in batch.to_pylist():
                told = json.loads(row["properties_json"])
                shown = {name: value for name, value in row["properties"].items() if value is not None}
                assert set(shown) == set(told)
                if "headers" in told:
                    assert [[each["type"], json.loads(each["value"])] for each in shown.pop("headers")] == [
                        [kind, value] for _, kind, value in told.pop("headers")
                    ]
                assert {name: value for name, value in shown.items() if not isinstance(told[name], dict)} == {
                    name: value for name, value in told.items() if not isinstance(value, dict)
                }


def test_names_that_are_not_utf_8_show_replacement_characters():
    found = collected(term(message_id(1), b"", key=b"\xff\xfe", exchange="é".encode()), term(message_id(2), b"x"))
    assert found.column("routing_keys").to_pylist() == [["��"], ["q"]]
    assert found.column("exchange").to_pylist() == ["é", ""]
    assert found.column("payload").to_pylist() == [b"", b"x"]


def test_missing_bytes_yield_rows_without_a_message():
    data = array(term(message_id(1), b"x"))
    outside = StoredTerms.collect([data, None], np.array([0, 0, 1, -1], np.int32), np.array([0, 5, 0, 0]), np.full(4, len(data)))
    assert outside.present.tolist() == [True, False, False, False]
    assert outside.column("payload").to_pylist() == [b"x", None, None, None]
    assert StoredTerms.collect([], np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)).column("payload").to_pylist() == []


def test_properties_that_cannot_be_read_make_a_message_unreadable():
    sound = term(message_id(1), b"x")
    broken = sound.replace(b"\x10\x00\x02", b"\x20\x00\x02")
    found = collected(sound, broken)
    assert found.readable.tolist() == [True, False]
    assert found.column("properties").to_pylist()[1] is None
    assert found.column("payload").to_pylist() == [b"x", b"x"]
