"""Index and queue store of version 2: damaged headers, entries that lead nowhere, files without their other one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.format.index_v1 import HIDDEN, IN_QUEUE_STORE, IN_STORE, PERSISTENT, SP, SPDA
from mqstore.rabbitmq.format.index_v2 import (
    ENTRY_COUNT,
    ENTRY_HEADER,
    ENTRY_SIZE,
    HEADER_SIZE,
    QueueIndexV2,
    header,
    queue_store_entries,
    queue_store_entry,
    read_index,
    shared_entry,
    stored_entry,
)

PLACE = "queues/q"
MESSAGES = [queue_store_entry(b"m" * (10 + number)) for number in range(3)]
STORE = header(0, ENTRY_COUNT, store=True) + b"".join(MESSAGES)
AT = [HEADER_SIZE + sum(map(len, MESSAGES[:number])) for number in range(4)]
INDEX = header(0, ENTRY_COUNT) + b"".join(
    stored_entry(at, len(message) - ENTRY_HEADER, size=5) for at, message in zip(AT, MESSAGES, strict=False)
)


def queue(root: Path, **files: bytes) -> QueueIndexV2:
    """Return the queue with these files; `qi_0` is 0.qi."""
    (root / PLACE).mkdir(parents=True)
    for name, content in files.items():
        (root / PLACE / ".".join(name.split("_")[::-1])).write_bytes(content)
    return QueueIndexV2(ReadOnlyDirectory(root), PLACE)


def octets(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


@pytest.mark.parametrize(
    ("head", "number", "first", "count", "valid"),
    [
        (header(0, 16), 0, 0, 16, True),
        (header(48, 16), 3, 48, 16, True),
        (header(48, 16), 2, 2 * ENTRY_COUNT, ENTRY_COUNT, True),
        (header(0, 1 << 22), 0, 0, 1 << 22, True),
        (header(0, (1 << 22) + 1), 0, 0, ENTRY_COUNT, True),
        (header(0, 0), 0, 0, ENTRY_COUNT, True),
        (b"X" + header(48, 16)[1:], 3, 48, 16, False),
        (header(48, 16)[:4] + b"\x03" + header(48, 16)[5:], 3, 48, 16, False),
        (header(48, 16)[:-1], 3, 3 * ENTRY_COUNT, ENTRY_COUNT, False),
    ],
)
def test_the_range_of_a_header_counts_if_it_is_that_of_the_file(head: bytes, number: int, first: int, count: int, valid: bool) -> None:
    index = read_index(octets(head), number, "i.qi")
    assert (index.first, index.count, index.valid_header) == (first, count, valid)
    low, high = (int.from_bytes(head[at : at + 8], "big") for at in (5, 13))
    plausible = (first, first + count) == (low, high)
    places = [(item.file, item.offset, item.length) for item in index.findings]
    assert places == ([("i.qi", 5, 16)] if valid and not plausible else [] if valid else [("i.qi", 0, len(head))])
    assert all(item.kind is Kind.BAD_QUEUE_FILE for item in index.findings)


@pytest.mark.parametrize("left", [1, 2, 31])
@pytest.mark.parametrize("persistent", [True, False])
def test_an_incomplete_last_entry_crashes_the_broker_if_it_may_be_persistent(left: int, persistent: bool) -> None:
    entry = stored_entry(64, 10, size=5, persistent=persistent)
    index = read_index(octets(header(0, 16) + entry + entry[:left]), 0)
    [damage] = index.findings
    assert (damage.kind, damage.offset, damage.length) == (Kind.TORN_RECORD, HEADER_SIZE + ENTRY_SIZE, left)
    assert (len(index.rows), index.partial) == (1, left)
    assert (index.crash is not None) == (persistent or left < 2)


def test_what_follows_the_last_entry_that_a_file_can_have_is_not_read() -> None:
    index = read_index(octets(header(0, 2) + b"".join([shared_entry(bytes(16), size=1)] * 3) + b"\1"), 0)
    assert (len(index.rows), index.partial, index.findings) == (2, 0, ())


def test_a_status_that_is_none_is_reported_at_the_first_of_its_entries() -> None:
    entries = [b"\0", b"\2", b"\1", b"\xff"]
    [damage] = read_index(octets(header(0, 16) + b"".join(each.ljust(ENTRY_SIZE, b"\0") for each in entries)), 0).findings
    assert damage.offset == HEADER_SIZE + ENTRY_SIZE
    assert damage.detail == "2 entries have a status that is neither 0 nor 1"


def test_the_messages_of_both_stores_are_where_the_entries_say(tmp_path: Path) -> None:
    number = (7).to_bytes(8, "big") + (9).to_bytes(8, "big")
    index = queue(tmp_path, qi_0=INDEX + shared_entry(number, size=9, expiry=4, persistent=False) + bytes(ENTRY_SIZE), qs_0=STORE)
    assert (index.exists, index.numbers, index.orphan_stores, index.count) == (True, [0], [], ENTRY_COUNT)
    segment = index.segment(0, dirty=False)
    entries = segment.entries
    assert entries["seq"].tolist() == [0, 1, 2, 3]
    assert entries["record"].tolist() == [HEADER_SIZE + ENTRY_SIZE * row for row in range(4)]
    assert entries["place"].tolist() == [IN_QUEUE_STORE] * 3 + [IN_STORE]
    assert entries["at"].tolist() == [at + ENTRY_HEADER for at in AT[:3]] + [0]
    assert entries["length"].tolist() == [10, 11, 12, 0]
    assert [int(entries[name][3]) for name in ("hi", "lo", "size", "expiry")] == [7, 9, 9, 4]
    assert not entries["hi"][:3].any()
    assert not entries["lo"][:3].any()
    assert entries["flags"].tolist() == [PERSISTENT] * 3 + [0]
    assert entries["seen"].tolist() == [SP] * 4
    assert (segment.findings, segment.crashes) == ((), ())
    assert index.segment(0, dirty=True).entries["seen"].tolist() == [SP, SP, SP, 0]
    assert index.segment(0, dirty=True).findings == ()


def test_an_acknowledged_entry_is_not_seen_and_the_others_are(tmp_path: Path) -> None:
    acknowledged = b"\0" + stored_entry(AT[0], 10, size=5)[1:]
    segment = queue(tmp_path, qi_0=header(0, 16) + acknowledged + stored_entry(AT[1], 11, size=5), qs_0=STORE).segment(0, dirty=True)
    assert segment.entries["state"].tolist() == [SPDA, SP]
    assert segment.entries["seen"].tolist() == [0, SP]
    assert segment.findings == ()


@pytest.mark.parametrize(("at", "length"), [(AT[0], 11), (AT[0] + 1, 10), (AT[3], 10), (AT[2], 13)])
def test_an_entry_that_leads_to_no_message_is_hidden_and_reported(at: int, length: int, tmp_path: Path) -> None:
    segment = queue(tmp_path, qi_0=header(0, 16) + stored_entry(at, length, size=5), qs_0=STORE).segment(0, dirty=True)
    [damage] = segment.findings
    assert (damage.kind, damage.file, damage.offset, damage.messages) == (Kind.BAD_QUEUE_FILE, f"{PLACE}/0.qi", HEADER_SIZE, 1)
    assert damage.detail == "the entry does not point to a complete, valid message in 0.qs"
    assert segment.entries["flags"].tolist() == [PERSISTENT | HIDDEN]
    assert segment.entries["seen"].tolist() == [0]


@pytest.mark.parametrize("persistent", [True, False])
def test_an_entry_of_a_message_in_memory_only_is_a_finding_unless_a_crash_explains_it(persistent: bool, tmp_path: Path) -> None:
    entry = bytearray(shared_entry(bytes(16), size=5, persistent=persistent))
    entry[3] = 0
    index = queue(tmp_path, qi_0=header(0, 16) + entry)
    details = [[item.detail for item in index.segment(0, dirty=dirty).findings] for dirty in (True, False)]
    expected = ["the entry has location 0: its message was never on disk"]
    assert details == [expected if persistent else [], expected]


def test_a_queue_store_that_is_missing_crashes_the_broker(tmp_path: Path) -> None:
    index = queue(tmp_path, qi_0=INDEX, qs_1=STORE)
    assert index.lacks_store(0)
    assert index.orphan_stores == [1]
    [crash] = index.segment(0, dirty=True).crashes
    assert crash == f"0.qs is missing, and {PLACE}/0.qi has messages in it; the broker's queue process crashes on it at every start"
    assert index.store_data(0).tolist() == []


def test_an_incomplete_entry_crashes_the_broker_after_a_clean_stop_too(tmp_path: Path) -> None:
    index = queue(tmp_path, qi_0=INDEX + stored_entry(64, 10, size=5, persistent=False)[:9], qs_0=STORE)
    assert index.segment(0, dirty=True).crashes == ()
    assert index.segment(0, dirty=False).crashes == (
        f"{PLACE}/0.qi ends inside an entry; the broker's queue process crashes on it whenever it reads on",
    )


@pytest.mark.parametrize("left", [2, 1000])
def test_of_many_torn_segments_after_a_crash_all_but_the_last_end_the_queue(left: int, tmp_path: Path) -> None:
    torn = {f"qi_{number}": header(number, 16) + shared_entry(bytes(16), size=5) + b"\xff" * 9 for number in range(left)}
    index = queue(tmp_path, **torn)
    crashes = [bool(index.segment(number, dirty=True).crashes) for number in index.numbers]
    assert crashes == [True] * (left - 1) + [False]


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_torn_segment_ends_the_queue_only_if_a_message_is_after_it(acknowledged: bool, tmp_path: Path) -> None:
    entry = shared_entry(bytes(16), size=5)
    later = header(1, 16) + (b"\0" + entry[1:] if acknowledged else entry)
    torn = queue(tmp_path, qi_0=header(0, 16) + entry + b"\xff" * 9, qi_1=later).segment(0, dirty=True)
    assert bool(torn.crashes) != acknowledged


def test_the_header_of_a_queue_store_is_reported_and_its_messages_are_read(tmp_path: Path) -> None:
    segment = queue(tmp_path, qi_0=INDEX, qs_0=b"X" + STORE[1:]).segment(0, dirty=True)
    assert [(item.file, item.offset, item.length) for item in segment.findings] == [(f"{PLACE}/0.qs", 0, HEADER_SIZE)]
    assert segment.entries["seen"].tolist() == [SP] * 3


def test_the_entries_of_a_queue_store_are_found_without_an_index() -> None:
    at, size, end = queue_store_entries(octets(STORE))
    assert (at.tolist(), size.tolist(), end) == (AT[:3], [10, 11, 12], len(STORE))
    for raw in (STORE + bytes(20), STORE + b"\0\0\0\1", STORE[:-1]):
        whole = 3 if raw.startswith(STORE) else 2
        at, size, end = queue_store_entries(octets(raw))
        assert (at.tolist(), size.tolist(), end) == (AT[:whole], [10, 11, 12][:whole], AT[whole])
    assert queue_store_entries(octets(STORE[:9]))[2] == 9


def test_the_range_of_a_queue_store_is_that_of_its_header_if_it_fits_its_number(tmp_path: Path) -> None:
    files = {
        "qi_0": header(0, 16), "qs_0": header(0, 8, store=True), "qs_1": header(16, 16, store=True), "qs_2": header(2, 1, store=True)[:-1],
        "qs_3": header(0, 16, store=True), "qs_4": header(32, 8), "qs_5": b"RCQS\3" + header(40, 8, store=True)[5:],
    }  # fmt: skip
    index = queue(tmp_path, **files)
    assert index.count == 16
    assert [index.store_range(number) for number in range(7)] == [(0, 8), *((16 * number, 16) for number in range(1, 7))]


def test_the_count_is_that_of_the_first_valid_header(tmp_path: Path) -> None:
    index = queue(tmp_path, qi_0=b"X" + header(0, 16)[1:], qi_1=header(0, 0), qi_2=header(0, 16)[:9], qi_3=header(96, 32))
    assert index.count == 32
    assert QueueIndexV2(ReadOnlyDirectory(tmp_path), "queues").count == ENTRY_COUNT


def test_messages_that_no_entry_points_to_are_orphans(tmp_path: Path) -> None:
    index = queue(tmp_path, qi_0=header(0, 16) + stored_entry(AT[1], 11, size=5), qs_0=STORE, qs_1=STORE)
    assert [[column.tolist() for column in index.orphans(number)] for number in (0, 1)] == [
        [[AT[0], AT[2]], [10, 12]],
        [AT[:3], [10, 11, 12]],
    ]


def test_files_of_other_names_are_not_of_the_index(tmp_path: Path) -> None:
    index = queue(tmp_path, qi_x=INDEX, qi_01=INDEX, idx_0=INDEX)
    assert not index.exists
    assert index.numbers == []
