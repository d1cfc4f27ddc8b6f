"""The order of a Java hash map: the order in which a broker writes the properties of a message.

A broker parses the property text of a message into a `HashMap`, changes it, and writes it in the map's iteration order. For a
table of n buckets (a power of two) that order is

    bucket(name) = (h xor (h >>> 16)) and (n - 1)      h: Java string hash, unsigned 32 bits
    buckets 0 … n-1; names of one bucket in insertion order

Setting a name again keeps its place; removing and adding it moves it to the end of its bucket. n doubles when the map holds
more than 0.75 n names, or when a ninth name enters one bucket of a table with fewer than 64. It never shrinks.

    >>> names = ["KEYS", "UNIQ_KEY", "WAIT", "TAGS", "CLUSTER", "a"]
    >>> [name for name, _ in JavaMap.of(dict.fromkeys(names, "x"), 16).items()]
    ['a', 'KEYS', 'UNIQ_KEY', 'CLUSTER', 'WAIT', 'TAGS']
    >>> [name for name, _ in JavaMap.of(dict.fromkeys(names, "x"), 128).items()]
    ['UNIQ_KEY', 'CLUSTER', 'TAGS', 'KEYS', 'WAIT', 'a']
    >>> names += ["REAL_TOPIC", "REAL_QID", "DELAY", "MSG_REGION", "TRACE_ON", "INSTANCE_ID", "TRAN_MSG", "PGROUP", "b", "c"]
    >>> grown = JavaMap.of(dict.fromkeys(names, "x"))
    >>> grown.capacity, " ".join(name for name, _ in grown.items())
    (32, 'a b c TRACE_ON TRAN_MSG INSTANCE_ID REAL_TOPIC KEYS MSG_REGION UNIQ_KEY CLUSTER WAIT DELAY PGROUP TAGS REAL_QID')

Not modelled: a table of 64 buckets or more turns a bucket of nine names into a tree, whose root moves to the front.

Format: docs/formats/rocketmq.md, section 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.java_text import java_hash
from mqstore.rocketmq.format.profile import profile, version_rules

_TREE_AT = 8
_TREE_TABLE = 64


@lru_cache(4096)
def _spread(name: str) -> int:
    unsigned = java_hash(name) & 0xFFFFFFFF
    return unsigned ^ (unsigned >> 16)


class JavaMap:
    """Names and values in the iteration order of `java.util.HashMap`.

    capacity: buckets, a power of two. Within a bucket the order is insertion order, which a Python dictionary keeps.
    """

    __slots__ = ("_values", "capacity")

    def __init__(self, capacity: int = 16) -> None:
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError(f"the number of buckets must be a power of two (got {capacity})")
        self.capacity = capacity
        self._values: dict[str, str] = {}

    @classmethod
    def of(cls, values: Mapping[str, str], capacity: int = 16) -> JavaMap:
        """Create a map and put these values one after the other."""
        made = cls(capacity)
        for name, value in values.items():
            made.put(name, value)
        return made

    def put(self, name: str, value: str) -> None:
        values = self._values
        if name not in values and len(values) >= _TREE_AT and self.capacity < _TREE_TABLE and self._bucket_size(name) >= _TREE_AT:
            self.capacity *= 2
        values[name] = value
        if 4 * len(values) > 3 * self.capacity:
            self.capacity *= 2

    def remove(self, name: str) -> str | None:
        """Remove a name and return its value, or None."""
        return self._values.pop(name, None)

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def items(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs in Java's order. O(n log n)."""
        mask = self.capacity - 1
        return sorted(self._values.items(), key=lambda item: _spread(item[0]) & mask)

    def encoded(self, version: str) -> bytes:
        """Return the property text that a broker of this version writes."""
        return record.encode_properties(dict(self.items()), trailing=profile(version).ends_properties)

    def _bucket_size(self, name: str) -> int:
        mask = self.capacity - 1
        bucket = _spread(name) & mask
        return sum(_spread(other) & mask == bucket for other in self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"JavaMap({dict(self.items())!r}, capacity={self.capacity})"


def parsed(properties: bytes, version: str) -> JavaMap:
    """Parse a property text into the map that a broker of this version uses: 16 buckets in 4.9.3, 128 in 5.3.3."""
    return JavaMap.of(record.decode_properties(properties), version_rules(version).property_buckets)


def reencode(properties: bytes, changes: Mapping[str, str | None], version: str) -> bytes:
    """Return a property text as a broker writes it after changes in this order; None removes a property.

    >>> reencode(b"KEYS\\x01k\\x02UNIQ_KEY\\x01u\\x02WAIT\\x01true\\x02a\\x011", {"CLUSTER": "c", "WAIT": None}, "4.9.3")
    b'a\\x011\\x02KEYS\\x01k\\x02UNIQ_KEY\\x01u\\x02CLUSTER\\x01c'
    """
    table = parsed(properties, version)
    for name, value in changes.items():
        if value is None:
            table.remove(name)
        else:
            table.put(name, value)
    return table.encoded(version)
