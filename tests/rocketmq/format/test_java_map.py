"""The order of a Java hash map."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.broker_records import all_of

from mqstore.rocketmq.format.java_map import JavaMap, parsed, reencode
from mqstore.rocketmq.format.java_text import java_hash

NAMES = st.one_of(
    st.sampled_from(["KEYS", "TAGS", "WAIT", "UNIQ_KEY", "CLUSTER", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "TRACE_ON"]),
    st.text("abAB\u00e9\u6d88", min_size=1, max_size=4),
    st.sampled_from(["AaAa", "AaBB", "BBAa", "BBBB"]),  # one hash
)


class Buckets:
    """`java.util.HashMap` with its table written out: an array of lists that is split when it grows."""

    def __init__(self, capacity: int) -> None:
        self.table: list[list[list[str]]] = [[] for _ in range(capacity)]

    def bucket(self, name: str) -> list[list[str]]:
        unsigned = java_hash(name) % 2**32
        return self.table[(unsigned ^ unsigned >> 16) % len(self.table)]

    def put(self, name: str, value: str) -> None:
        for pair in self.bucket(name):
            if pair[0] == name:
                pair[1] = value
                return
        self.bucket(name).append([name, value])
        if len(self.bucket(name)) > 8 and len(self.table) < 64:
            self.grow()
        if sum(map(len, self.table)) > 0.75 * len(self.table):
            self.grow()

    def remove(self, name: str) -> None:
        self.bucket(name)[:] = [pair for pair in self.bucket(name) if pair[0] != name]

    def grow(self) -> None:
        old = [pair for bucket in self.table for pair in bucket]
        self.table = [[] for _ in range(2 * len(self.table))]
        for pair in old:
            self.bucket(pair[0]).append(pair)

    def items(self) -> list[tuple[str, str]]:
        return [(name, value) for bucket in self.table for name, value in bucket]


@given(st.sampled_from([1, 16, 128]), st.lists(st.tuples(NAMES, st.sampled_from(["1", "2", None])), max_size=120))
def test_the_order_is_that_of_a_table_of_buckets(capacity: int, changes: list[tuple[str, str | None]]) -> None:
    ours, theirs = JavaMap(capacity), Buckets(capacity)
    for name, value in changes:
        if value is None:
            ours.remove(name)
            theirs.remove(name)
        else:
            ours.put(name, value)
            theirs.put(name, value)
        assert ours.items() == theirs.items()
        assert ours.capacity == len(theirs.table)


def test_nine_names_in_one_bucket_double_a_small_table() -> None:
    names = ["AaAaAa", "AaAaBB", "AaBBAa", "AaBBBB", "BBAaAa", "BBAaBB", "BBBBAa", "BBBBBB"]
    found = JavaMap.of(dict.fromkeys(names, "x"))
    assert (found.capacity, [name for name, _ in found.items()]) == (16, names)
    found.put("C#" + "AaAa", "x")
    assert (found.capacity, len(found)) == (32, 9)


def test_setting_again_keeps_the_place_and_adding_again_takes_the_last() -> None:
    found = JavaMap.of({"AaAa": "1", "AaBB": "2", "BBBB": "3"})
    found.put("AaAa", "4")
    assert found.items() == [("AaAa", "4"), ("AaBB", "2"), ("BBBB", "3")]
    assert found.remove("AaAa") == "4"
    assert found.remove("AaAa") is None
    found.put("AaAa", "5")
    assert found.items() == [("AaBB", "2"), ("BBBB", "3"), ("AaAa", "5")]
    assert (found.get("AaAa"), found.get("b"), "AaBB" in found, "b" in found) == ("5", None, True, False)


def test_a_table_has_a_power_of_two_of_buckets() -> None:
    with pytest.raises(ValueError, match="must be a power of two"):
        JavaMap(12)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_what_brokers_encoded_comes_out_byte_for_byte(version: str) -> None:
    """All but batches, whose text is two in a row, op messages, which 5.3.3 makes in a small table, and records put in by hand."""
    by_hand = (b"batch ", b"raw ")
    found = [each for each in all_of(version) if not each.body.startswith(by_hand) and "_OP_" not in each.topic]
    assert len(found) > 400
    assert [each.physical_offset for each in found if reencode(each.properties, {}, version) != each.properties] == []


@pytest.mark.parametrize(("version", "capacity", "end"), [("4.9.3", 16, b""), ("5.3.3", 128, b"\x02")])
def test_versions_differ_in_buckets_and_in_the_last_separator(version: str, capacity: int, end: bytes) -> None:
    assert parsed(b"a\x011", version).capacity == capacity
    assert reencode(b"a\x011\x02b\x012\x02", {"b": None, "a": "3"}, version) == b"a\x013" + end
    assert reencode(b"", {}, version) == b""


def test_a_map_shows_what_is_in_it() -> None:
    assert repr(parsed(b"a\x01b\x02", "4.9.3")) == "JavaMap({'a': 'b'}, capacity=16)"
