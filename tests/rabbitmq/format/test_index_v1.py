"""Journal and segments together: each cell of the tables in sections 4.1, 5.2, 5.6 and 7.2, and complete files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.rabbitmq_index import array, message_id, term, write

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rabbitmq.format import journal, segment
from mqstore.rabbitmq.format.index_v1 import JA, JD, JDA, JP, JPD, JPDA, NOTHING, SP, SPD, SPDA, QueueIndexV1, journal_map, merge

PUB, DEL, ACK = journal.PUBLISH, journal.DELIVER, journal.ACKNOWLEDGE
ACTIONS = {"pub": PUB, "del": DEL, "ack": ACK}

# section 5.2: state before, action, state after (None: crash), and the state that we keep
FOLDS = [
    ((), "pub", JP, JP),
    ((), "del", JD, JD),
    ((), "ack", JA, JA),
    (("pub",), "pub", None, JP),
    (("pub",), "del", JPD, JPD),
    (("pub",), "ack", None, "removed"),
    (("pub", "del"), "pub", None, JPD),
    (("pub", "del"), "del", None, JPD),
    (("pub", "del"), "ack", "removed", "removed"),
    (("del",), "pub", None, JPD),
    (("del",), "del", None, JD),
    (("del",), "ack", JDA, JDA),
    (("ack",), "pub", None, "removed"),
    (("ack",), "del", None, JA),
    (("ack",), "ack", None, JA),
    (("del", "ack"), "pub", None, "removed"),
    (("del", "ack"), "del", None, JDA),
    (("del", "ack"), "ack", None, JDA),
]


def folded(actions: tuple[str, ...], *, lenient: bool = False) -> tuple[int | str, bool]:
    kinds = np.array([ACTIONS[action] for action in actions], np.uint8)
    found = journal_map(kinds, np.full(len(actions), 9, np.int64), lenient=lenient)
    assert found.seq.tolist() == [9]
    return ("removed" if found.removed[0] else int(found.state[0])), bool(found.bad[0] >= 0)


@pytest.mark.parametrize(("before", "action", "outcome", "kept"), FOLDS)
def test_an_action_changes_the_journal_map_as_the_table_of_section_5_2_says(before, action, outcome, kept):
    state, crash = folded((*before, action))
    assert crash == (outcome is None)
    assert state == (kept if outcome is None else outcome)


def test_an_acknowledgement_of_an_undelivered_publish_removes_it_since_3_10_24():
    assert folded(("pub", "ack"), lenient=True) == ("removed", False)


def test_an_entry_removed_from_the_journal_map_may_be_published_again():
    assert folded(("pub", "del", "ack", "pub")) == (JP, False)


# section 7.2, then 5.6: journal part, segment part, state after a dirty start (None: the broker crashes), the state that we keep
ACKED = SPDA
DIRTY = [
    (JP, NOTHING, SP, SP),
    (JP, SP, SP, SP),
    (JP, SPD, None, SPD),
    (JP, SPDA, None, ACKED),
    (JPD, NOTHING, SPD, SPD),
    (JPD, SP, SPD, SPD),
    (JPD, SPD, SPD, SPD),
    (JPD, SPDA, None, ACKED),
    (JPDA, NOTHING, ACKED, ACKED),
    (JPDA, SP, ACKED, ACKED),
    (JPDA, SPD, ACKED, ACKED),
    (JPDA, SPDA, ACKED, ACKED),
    (JD, NOTHING, None, NOTHING),
    (JD, SP, SPD, SPD),
    (JD, SPD, SPD, SPD),
    (JD, SPDA, None, ACKED),
    (JA, NOTHING, NOTHING, NOTHING),
    (JA, SP, None, ACKED),
    (JA, SPD, ACKED, ACKED),
    (JA, SPDA, ACKED, ACKED),
    (JDA, NOTHING, NOTHING, NOTHING),
    (JDA, SP, ACKED, ACKED),
    (JDA, SPD, ACKED, ACKED),
    (JDA, SPDA, ACKED, ACKED),
    (NOTHING, NOTHING, NOTHING, NOTHING),
    (NOTHING, SP, SP, SP),
    (NOTHING, SPD, SPD, SPD),
    (NOTHING, SPDA, ACKED, ACKED),
]
# section 5.6 alone, as after a clean stop
CLEAN = [
    (JP, NOTHING, SP, SP),
    (JPD, NOTHING, SPD, SPD),
    (JPDA, NOTHING, ACKED, ACKED),
    (JD, NOTHING, None, NOTHING),
    (JA, NOTHING, None, NOTHING),
    (JDA, NOTHING, None, NOTHING),
    (JP, SP, None, SP),
    (JPD, SP, None, SPD),
    (JPDA, SP, None, ACKED),
    (JD, SP, SPD, SPD),
    (JA, SP, None, ACKED),
    (JDA, SP, ACKED, ACKED),
    (JP, SPD, None, SPD),
    (JPD, SPD, None, SPD),
    (JPDA, SPD, None, ACKED),
    (JD, SPD, None, SPD),
    (JA, SPD, ACKED, ACKED),
    (JDA, SPD, None, ACKED),
]


def minus_plus(j: int, s: int, *, dirty: bool, lenient: bool = False, same: bool = True) -> tuple[int, bool]:
    merged = merge(np.array([j], np.uint8), np.array([s], np.uint8), np.array([same]), dirty=dirty, lenient=lenient)
    return int(merged.state[0]), bool(merged.crash[0])


@pytest.mark.parametrize(("in_journal", "in_segment", "outcome", "kept"), DIRTY)
def test_journal_and_segment_combine_after_a_crash_as_the_tables_of_sections_7_2_and_5_6_say(in_journal, in_segment, outcome, kept):
    assert minus_plus(in_journal, in_segment, dirty=True) == (kept, outcome is None)


@pytest.mark.parametrize(("in_journal", "in_segment", "outcome", "kept"), CLEAN)
def test_journal_and_segment_combine_after_a_clean_stop_as_the_table_of_section_5_6_says(in_journal, in_segment, outcome, kept):
    assert minus_plus(in_journal, in_segment, dirty=False) == (kept, outcome is None)


@pytest.mark.parametrize("dirty", [True, False])
def test_an_acknowledgement_of_an_undelivered_entry_does_not_crash_since_3_10_24(dirty):
    assert minus_plus(JA, SP, dirty=dirty, lenient=True) == (ACKED, False)


def test_two_different_publishes_of_a_sequence_id_crash_the_broker():
    assert minus_plus(JP, SP, dirty=True, same=False) == (SP, True)


# section 4.1
SEGMENT_STATES = [
    (("pub",), SP, False),
    (("pub", "mark"), SPD, False),
    (("pub", "mark", "mark"), SPDA, False),
    (("mark",), NOTHING, True),
    (("pub", "mark", "mark", "mark"), SPDA, True),
    (("pub", "mark", "pub"), SP, False),
]


@pytest.mark.parametrize(("entries", "state", "crash"), SEGMENT_STATES)
def test_entries_of_a_segment_change_the_state_as_section_4_1_says(entries, state, crash):
    raw = b"".join(segment.publish(3, message_id(1), b"", size=9) if entry == "pub" else segment.mark(3) for entry in entries)
    found = segment.read_segment(array(raw), 2048)
    assert found.state[3] & 7 == state
    assert bool(found.crash) == crash
    assert bool(found.findings) == crash


def test_a_segment_of_zeros_counts_as_missing():
    assert not segment.read_segment(array(bytes(4096)), 2048).exists
    assert not segment.read_segment(array(b""), 2048).exists


def embedded(rel: int, *, body: bytes = b"body") -> bytes:
    return segment.publish(rel, message_id(rel), term(message_id(rel), body), size=len(body))


@pytest.mark.parametrize("cut", [1, 2, 20, 33, 34, 60])
def test_an_incomplete_publish_ends_a_segment_and_would_crash_the_broker(cut):
    whole = embedded(0) + segment.mark(0)
    found = segment.read_segment(array(whole + embedded(1)[:cut]), 2048)
    assert found.state[:2].tolist() == [SPD, NOTHING]
    assert found.crash
    assert [(item.offset, item.length, item.kind) for item in found.findings] == [(len(whole), cut, Kind.BAD_SEGMENT)]


def test_a_segment_continues_after_damage_at_the_next_publish_that_contains_its_id():
    damaged = bytearray(embedded(0) + embedded(1) + embedded(2) + segment.mark(2))
    damaged[len(embedded(0)) + 30] = 0xFF  # the length of the embedded message
    found = segment.read_segment(array(bytes(damaged)), 2048)
    assert found.state[:3].tolist() == [SP, NOTHING, SPD]
    assert [(item.offset, item.length) for item in found.findings] == [(len(embedded(0)), len(embedded(1)))]


def test_an_entry_beyond_the_segment_entry_count_is_damage():
    found = segment.read_segment(array(segment.publish(2048, message_id(1), b"", size=1)), 2048)
    assert found.crash
    assert "2048 entries" in found.findings[0].detail


@pytest.mark.parametrize("again", [b"other", b"body"])
def test_a_second_publish_in_a_segment_counts_and_is_a_finding_if_it_differs(again):
    first, second = embedded(0) + segment.mark(0), embedded(0, body=again) + segment.mark(0)
    found = segment.read_segment(array(first + second), 2048)
    assert (found.state[0] & 7, found.at[0], found.crash) == (SPD, len(first), None)
    repeated = [(len(first), Kind.REPEATED_ENTRY)] if again != b"body" else []
    assert [(item.offset, item.kind) for item in found.findings] == repeated


def journal_of(*actions: bytes) -> bytes:
    return b"".join(actions)


def pub(seq: int, *, body: bytes = b"body") -> bytes:
    return journal.publish(seq, message_id(seq), term(message_id(seq), body), size=len(body))


def test_a_journal_ends_at_forty_zero_bytes_without_damage():
    raw = pub(0) + journal.deliver(0)
    found = journal.read_journal(array(raw + bytes(4096)))
    assert (len(found.seq), found.seen, found.end, found.findings) == (2, 2, len(raw), ())


@pytest.mark.parametrize("cut", [8, 39, 40, 80])
def test_a_torn_record_ends_a_journal(cut):
    raw = pub(0) + journal.deliver(0)
    found = journal.read_journal(array(raw + pub(1)[:cut]))
    assert (found.seq.tolist(), found.seen, found.end) == ([0, 0], 2, len(raw))
    assert [(item.offset, item.length, item.kind) for item in found.findings] == [(len(raw), cut, Kind.TORN_RECORD)]


def test_the_broker_stops_at_damage_of_a_journal_and_we_continue_after_it():
    raw = bytearray(pub(0) + pub(1) + pub(2) + journal.deliver(2))
    raw[len(pub(0)) + 36] = 0xFF
    found = journal.read_journal(array(bytes(raw)))
    assert found.seq.tolist() == [0, 2, 2]
    assert found.seen == 1
    assert [item.kind for item in found.findings] == [Kind.BAD_JOURNAL]


def test_a_publish_without_message_is_valid_after_damage_if_its_delivery_follows():
    stored = journal.publish(5, message_id(5), b"", size=70000) + journal.deliver(5)
    found = journal.read_journal(array(b"\x3f" * 13 + stored))
    assert found.seq.tolist() == [5, 5]
    assert found.seen == 0


def index(tmp_path: Path, files: dict[str, bytes], count: int = 4) -> QueueIndexV1:
    write(tmp_path / "q", files)
    return QueueIndexV1(ReadOnlyDirectory(tmp_path), "q", count)


def rows(found, *names: str) -> list[tuple[int, ...]]:
    return [tuple(int(value) for value in row) for row in zip(*(found.entries[name] for name in names), strict=True)]


def test_a_journal_without_segments_is_a_queue(tmp_path):
    found = index(tmp_path, {"journal.jif": journal_of(pub(5), journal.deliver(5), pub(6), journal.deliver(6), journal.acknowledge(6))})
    assert found.numbers == [1]
    assert rows(found.segment(1, dirty=True), "seq", "state", "seen") == [(5, SPD, SPD), (6, SPDA, 0)]
    assert found.segment(1, dirty=True).crashes == ()


def test_a_journal_left_without_its_segment_only_acknowledges_nothing(tmp_path):
    found = index(tmp_path, {"journal.jif": journal.acknowledge(1)})
    assert rows(found.segment(0, dirty=True), "seq") == []
    assert found.segment(0, dirty=True).crashes == ()


def test_a_delivery_without_publish_is_reported_and_ignored(tmp_path):
    found = index(tmp_path, {"journal.jif": journal_of(journal.deliver(1), pub(2))})
    segment_found = found.segment(0, dirty=True)
    assert rows(segment_found, "seq", "state") == [(2, SP)]
    assert [item.kind for item in segment_found.findings] == [Kind.BROKER_CRASH]
    assert "sequence id 1" in segment_found.crashes[0]


def test_a_replayed_journal_changes_nothing(tmp_path):
    journal_bytes = journal_of(pub(0), journal.deliver(0), pub(1), journal.deliver(1))
    segment_bytes = embedded(1) + segment.mark(1) + embedded(0) + segment.mark(0)
    found = index(tmp_path, {"journal.jif": journal_bytes, "0.idx": segment_bytes}).segment(0, dirty=True)
    assert rows(found, "seq", "state", "from_journal") == [(0, SPD, 0), (1, SPD, 0)]
    assert found.crashes == ()


def test_replayed_publishes_are_compared_byte_by_byte(tmp_path):
    same = index(tmp_path / "same", {"journal.jif": pub(0), "0.idx": embedded(0)}).segment(0, dirty=True)
    other = index(tmp_path / "other", {"journal.jif": pub(0, body=b"b0dy"), "0.idx": embedded(0)}).segment(0, dirty=True)
    assert (same.crashes, rows(same, "state")) == ((), [(SP,)])
    assert len(other.crashes) == 1


def test_a_repeated_publish_keeps_the_first_and_shows_the_second(tmp_path):
    found = index(tmp_path, {"journal.jif": pub(0) + pub(0, body=b"second")}).segment(0, dirty=True)
    assert rows(found, "seq", "seen", "size") == [(0, SP, 4), (0, 0, 6)]


def test_entries_after_damage_are_not_seen_by_the_broker(tmp_path):
    raw = bytearray(pub(0) + pub(1) + pub(2) + journal.deliver(0) + journal.acknowledge(0))
    raw[len(pub(0)) + 36] = 0xFF
    found = index(tmp_path, {"journal.jif": bytes(raw)}).segment(0, dirty=True)
    assert rows(found, "seq", "state", "seen") == [(0, SPDA, SP), (2, SP, 0)]


def test_a_segment_number_of_a_hostile_sequence_id_costs_nothing(tmp_path):
    found = index(tmp_path, {"journal.jif": pub((1 << 62) - 1)})
    assert found.numbers == [((1 << 62) - 1) // 4]
    assert rows(found.segment(found.numbers[0], dirty=True), "seq") == [((1 << 62) - 1,)]


def test_files_with_other_names_are_not_segments(tmp_path):
    found = index(tmp_path, {"01.idx": embedded(0), "x.idx": embedded(0), "²³.idx": embedded(0), "2.idx": embedded(0)})
    assert found.segment_numbers == [2]


def test_a_journal_is_read_on_after_each_block_of_records(monkeypatch):
    data = array(b"".join(journal.deliver(number) for number in range(5)))
    whole = journal.read_journal(data)
    monkeypatch.setattr(journal, "_BLOCK", 2)
    assert journal.read_journal(data).seq.tolist() == whole.seq.tolist() == [0, 1, 2, 3, 4]


def test_of_many_crashes_of_a_segment_the_first_are_named_and_the_others_counted(tmp_path):
    repeated = b"".join(journal.deliver(number) * 2 for number in range(22))
    found = QueueIndexV1(ReadOnlyDirectory(write(tmp_path, {"journal.jif": repeated})), "", 2048)
    segment = found.segment(0, dirty=True)
    crashes = segment.crashes
    assert len(crashes) == 21
    assert crashes[-1] == "the broker crashes on 2 more sequence ids of the segment from 0"
    assert {(item.offset, item.length) for item in segment.findings if item.kind is Kind.BROKER_CRASH} == {(0, 0)}
