"""The kernels of RabbitMQ files on intact, damaged and random bytes."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from support.rabbitmq_index import array, message_id, term

from mqstore.kernels.rabbitmq import message_store, queue_index, terms
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.format import journal, message_file, segment
from mqstore.rabbitmq.message.message_term import read_message


def samples() -> list[bytes]:
    """Return files of all three kinds: whole, truncated, with bytes changed, and random."""
    chance = random.Random(5)
    stored = [term(message_id(k), bytes([k]) * (k * 7)) for k in range(5)]
    whole = [
        b"".join(journal.publish(k, message_id(k), stored[k], size=k * 7) + journal.deliver(k) for k in range(5)) + journal.acknowledge(2),
        b"".join(segment.publish(k, message_id(k), stored[k], size=k * 7) + segment.mark(k) for k in range(5)) + segment.mark(3),
        b"".join(message_file.record(message_id(k), stored[k]) for k in range(5)),
    ]
    found = [*whole, b"", bytes(100), chance.randbytes(500)]
    for raw in whole:
        found.append(raw[: chance.randrange(len(raw))])
        for _ in range(12):
            changed = bytearray(raw)
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(raw))] = chance.choice((0, 1, 0x40, 0x80, 0xFF, chance.randrange(256)))
            found.append(bytes(changed))
    return found


def walks(data: np.ndarray) -> list[object]:
    kind, seq, at = np.zeros(100, np.uint8), np.zeros(100, np.int64), np.zeros(100, np.int64)
    state, places = np.zeros(64, np.uint8), np.full(64, -1, np.int64)
    order = None
    found: list[object] = [queue_index.journal_walk(data, 0, kind, seq, at), kind.tolist(), seq.tolist(), at.tolist()]
    count = found[0][0]  # type: ignore[index]
    order = np.argsort(seq[:count], kind="stable")
    columns = [np.zeros(count, dtype) for dtype in (np.int64, np.uint8, np.int64, np.int64, np.int64)]
    groups = queue_index.fold(order, kind[:count], seq[:count], *columns)
    found += [groups, *(column[:groups].tolist() for column in columns)]
    found += [queue_index.journal_resume(data, 1), queue_index.segment_resume(data, 1, 64)]
    found += [queue_index.segment_walk(data, 0, 64, state, places), state.tolist(), places.tolist()]
    return found


def scans(data: np.ndarray) -> list[object]:
    found: list[object] = []
    for scan, stop in ((message_store.strict_scan, ()), (message_store.resynchronising_scan, (len(data),))):
        at, total = np.zeros(50, np.int64), np.zeros(50, np.int64)
        found += [scan(data, 0, *stop, at, total), at.tolist(), total.tolist()]
    at, total, quality = np.zeros(50, np.int64), np.zeros(50, np.int64), np.zeros(50, np.uint8)
    found += [message_store.stored_messages(data, 0, len(data), at, total), at.tolist(), total.tolist()]
    for more in (False, True):
        out = np.zeros((5, 50), np.int64)
        found += [message_store.carve(data, 0, len(data), more, out, 1 << 20), out.tolist()]
    return [*found, message_store.careful_scan(data, 0, len(data), at, total, quality), at.tolist(), total.tolist(), quality.tolist()]


# What `walks` and `scans` return for each sample, as SHA-256 begins. Recorded from the kernels' source when it still ran as plain Python,
# and from the compiled kernels: both said the same.
RECORDED = """
9fbec46da7 7561941b3d 95a8c5fc18 9b6b47c19e b5137fabf6 7619f79c54 667cbf4330 9fbec46da7 a935221f4f 9fbec46da7
9fbec46da7 722f42ec42 fbd6d7ea3e 3af068769c 7f3df57ba4 996681572c 9fbec46da7 0f8c318719 38ef3ec989 ccaa98fb90
7561941b3d a8d10f576d e22bb7baf9 04244cb30e 7561941b3d 15c324a40b d62356f82a 03c6b99ea8 17eef91d8a b8096ec664
7561941b3d 6e4e988b78 9b6b47c19e 95a8c5fc18 74acf0ba2e 95a8c5fc18 95a8c5fc18 3a6400240d 95a8c5fc18 1eb26e03e2
a7e3132633 10788e9eeb 95a8c5fc18 95a8c5fc18 3f3f3bf6ad
"""


def numbers(found: object) -> object:
    return [numbers(each) for each in found] if isinstance(found, list | tuple) else int(found)  # type: ignore[call-overload]


def test_whole_damaged_and_random_files_are_walked_and_scanned_as_recorded():
    for raw, expected in zip(samples(), RECORDED.split(), strict=True):
        told = repr(numbers([walks(array(raw)), scans(array(raw))]))
        assert hashlib.sha256(told.encode()).hexdigest()[:10] == expected, (raw.hex(), told)


def test_a_shape_never_says_more_or_less_than_the_decoder():
    chance = random.Random(7)
    identity = message_id(1)
    hi, lo = (np.array([int.from_bytes(identity[p : p + 8], "big", signed=True)]) for p in (0, 8))
    decoded = 0
    for k in range(300):
        raw = bytearray(term(identity, b"body"))
        if k:
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        out = np.zeros(1, np.uint8)
        terms.shapes(array(bytes(raw)), np.array([0]), np.array([len(raw)]), hi, lo, out)
        shape, end = int(out[0]), terms.end(array(bytes(raw)), 0, len(raw))
        try:
            message = read_message(bytes(raw))
        except EtfError:
            continue
        decoded += 1
        assert (end, shape & terms.TERM, shape & terms.MESSAGE) == (len(raw), terms.TERM, terms.MESSAGE), bytes(raw).hex()
        assert (shape & terms.SAME_ID != 0, shape & terms.PERSISTENT != 0) == (message.id == identity, message.persistent), bytes(raw).hex()
    assert decoded > 80


def test_a_truncated_term_is_not_a_term():
    raw = term(message_id(1), b"body")
    assert all(terms.end(array(raw[:cut]), 0, cut) == -1 for cut in range(len(raw)))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x83" + b"h\xff" * 1000,  # deep nesting
        b"\x83l\xff\xff\xff\xff" + b"j" * 50,  # a huge list
        b"\x83t\xff\xff\xff\xff",
        b"\x83i\xff\xff\xff\xff" + b"i\xff\xff\xff\xff" * 100,
        b"\x83m\xff\xff\xff\xff",
        b"\x83n\xff",
        b"\x83Z\xff\xff",
    ],
)
def test_hostile_terms_are_rejected_at_once(raw):
    assert terms.end(array(raw), 0, len(raw)) == -1


@pytest.mark.parametrize(
    ("raw", "length"),
    [
        (b"\x83X" + b"d\x00\x01n" + bytes(12), 18),
        (b"\x83g" + b"s\x01n" + bytes(9), 14),
        (b"\x83Z\x00\x02" + b"w\x01n" + bytes(12), 19),
        (b"\x83r\x00\x01" + b"d\x00\x01n" + bytes(5), 13),
        (b"\x83F" + bytes(8), 10),
        (b"\x83t\x00\x00\x00\x01a\x01a\x02", 10),
        (b"\x83q" + b"d\x00\x01ad\x00\x01ba\x03", 12),
        (b"\x83k\x00\x03abc", 7),
        (b"\x83o\x00\x00\x00\x01\x00\x05", 8),
    ],
)
def test_terms_of_every_tag_are_skipped(raw, length):
    assert terms.end(array(raw + b"junk"), 0, len(raw) + 4) == length == len(raw)
