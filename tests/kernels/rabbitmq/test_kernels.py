"""The kernels of RabbitMQ files, compiled and as plain Python: both give the same for intact, damaged and random bytes."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest
from support.kernels import sources
from support.rabbitmq_index import array, message_id, term

from mqstore.kernels.common import crc_spans
from mqstore.kernels.rabbitmq import message_store, queue_index, terms
from mqstore.rabbitmq.format import journal, message_file, segment

KERNELS = (crc_spans, terms, queue_index, message_store)  # each sees those before it


@pytest.fixture(scope="module")
def plain() -> dict[str, ModuleType]:
    """Return the kernels loaded from their `.py` files, even if compiled ones exist."""
    return dict(zip(("crc_spans", "terms", "queue_index", "message_store"), sources(*KERNELS), strict=True))


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


def walks(kernel: ModuleType, data: np.ndarray) -> list[object]:
    kind, seq, at = np.zeros(100, np.uint8), np.zeros(100, np.int64), np.zeros(100, np.int64)
    state, places = np.zeros(64, np.uint8), np.full(64, -1, np.int64)
    order = None
    found: list[object] = [kernel.journal_walk(data, 0, kind, seq, at), kind.tolist(), seq.tolist(), at.tolist()]
    count = found[0][0]  # type: ignore[index]
    order = np.argsort(seq[:count], kind="stable")
    columns = [np.zeros(count, dtype) for dtype in (np.int64, np.uint8, np.int64, np.int64, np.int64)]
    groups = kernel.fold(order, kind[:count], seq[:count], *columns)
    found += [groups, *(column[:groups].tolist() for column in columns)]
    found += [kernel.journal_resume(data, 1), kernel.segment_resume(data, 1, 64)]
    found += [kernel.segment_walk(data, 0, 64, state, places), state.tolist(), places.tolist()]
    return found


def scans(kernel: ModuleType, data: np.ndarray) -> list[object]:
    found: list[object] = []
    for scan, stop in ((kernel.strict_scan, ()), (kernel.resynchronising_scan, (len(data),))):
        at, total = np.zeros(50, np.int64), np.zeros(50, np.int64)
        found += [scan(data, 0, *stop, at, total), at.tolist(), total.tolist()]
    at, total, quality = np.zeros(50, np.int64), np.zeros(50, np.int64), np.zeros(50, np.uint8)
    found += [kernel.stored_messages(data, 0, len(data), at, total), at.tolist(), total.tolist()]
    for more in (False, True):
        out = np.zeros((5, 50), np.int64)
        found += [kernel.carve(data, 0, len(data), more, out, 1 << 20), out.tolist()]
    return [*found, kernel.careful_scan(data, 0, len(data), at, total, quality), at.tolist(), total.tolist(), quality.tolist()]


def test_both_kinds_of_kernels_walk_journals_and_segments_alike(plain):
    for raw in samples():
        assert walks(plain["queue_index"], array(raw)) == walks(queue_index, array(raw)), raw.hex()


def test_both_kinds_of_kernels_scan_message_files_alike(plain):
    for raw in samples():
        assert scans(plain["message_store"], array(raw)) == scans(message_store, array(raw)), raw.hex()


def test_both_kinds_of_kernels_report_the_same_shape_of_terms(plain):
    chance = random.Random(7)
    base = term(message_id(1), b"body")
    for k in range(300):
        raw = bytearray(base)
        if k:
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        data = array(bytes(raw))
        identity = message_id(1)
        hi, lo = (np.array([int.from_bytes(identity[p : p + 8], "big", signed=True)]) for p in (0, 8))
        told = []
        for kernel in (plain["terms"], terms):
            out = np.zeros(1, np.uint8)
            kernel.shapes(data, np.array([0]), np.array([len(raw)]), hi, lo, out)
            told.append((int(out[0]), kernel.end(data, 0, len(raw))))
        assert told[0] == told[1], bytes(raw).hex()
        if not k:
            assert told[0] == (terms.TERM | terms.MESSAGE | terms.SAME_ID | terms.PERSISTENT, len(raw))


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
