"""The keys of a lookup: hashed as the index hashes them, laid out for tasks to map, matched with records.

Repeated pairs are looked up once. `KeySet` holds the pairs by ascending hash, so that a hash from the log or from an index finds its
pairs by bisection, or in large sets by a table over the high digits of the hashes; a bit table over the low digits rules out nearly all
other hashes before that. A pair takes 16 bytes and its key: topics are numbers of a dictionary.

    >>> keys = KeySet.of([("bills", "b-7"), ("orders", "o-1"), ("orders", "o-1")])
    >>> len(keys), keys.repeated, keys.topic.to_pylist(), keys.number.tolist()
    (2, 1, ['orders', 'bills'], [1, 0])
    >>> keys.has(np.array([keys.hash[1], 5], np.int32)).tolist()
    [True, False]

A record matches a pair if its topic and one of its keys *equal* those of the pair. Records of rolled back messages never match, because
a broker does not index them; those of prepared messages do.

Format: docs/formats/rocketmq.md, section 5.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import UsageError
from mqstore.kernels.rocketmq import frames, hashing
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.arrow_spans import distinct, spans_of

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_BAD = 5  # bad pairs that an error names
AT_ONCE = 100_000  # pairs of a sequence that are hashed at once
MIN_BITS, MAX_BITS = 12, 26  # binary digits of the size of the bit table
FEW = 1 << 15  # pairs up to which the cache of a processor holds what bisection touches
HASH_BITS, MAX_GROUP_BITS = 31, 22
MOST_STEPS = 16  # from the beginning of a group, before bisection takes over: many keys may have one hash


def hash_pairs(topics: pa.Array, keys: pa.Array) -> Ints:
    """Return the index hash of each `topic#key`. Both arrays hold text without nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = pa.large_string()
    spans = spans_of("key", pc.binary_join_element_wise(topics.cast(wide), keys.cast(wide), pa.scalar("#", wide)))
    unsigned = np.zeros(len(topics), np.int64)
    if len(topics):
        hashing.hash_spans(spans.data, np.ascontiguousarray(spans.starts), np.ascontiguousarray(spans.lengths), unsigned)
    # the absolute value of a signed 32-bit number; -2^31 does not have one and becomes 0
    return np.where(unsigned >= 1 << 31, ((1 << 32) - unsigned) & 0x7FFFFFFF, unsigned).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Matches:
    """Records compared with the pairs of a key set. rows, places: record and pair of each hit, by record, then by the pair's number.

    collisions: places of pairs that share the hash of a record's key but differ from it. hashes: of all keys of the records;
    owners: the record of each of these keys.
    """

    rows: Longs
    places: Longs
    collisions: Longs
    hashes: Ints
    owners: Longs


class BadPairs:
    """Pairs that cannot be looked up, the first of them each with a few words. what: where they come from."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: list[str] = []
        self._count = 0

    def add(self, sentence: str) -> None:
        self._count += 1
        if len(self._first) < MAX_BAD:
            self._first.append(sentence)

    def refuse(self) -> None:
        """Raise UsageError if there are any."""
        if self._count:
            more = f"; {self._count - MAX_BAD} more" if self._count > MAX_BAD else ""
            raise UsageError(f"{self._what} cannot be looked up: {', '.join(self._first)}{more}; each row needs a topic and a key")


class PairColumns:
    """Pairs that are collected batch by batch: hashes, numbers of topics, and the text of all keys.

    The arrays grow in place: at this size, pieces that are allocated and joined would leave holes in memory as large as themselves.
    """

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._hashes = np.empty(0, np.int32)
        self._codes = np.empty(0, np.int32)
        self._lengths = np.empty(0, np.int32)
        self._text = np.empty(0, np.uint8)
        self._topics: dict[str, int] = {}

    def add(self, topics: pa.Array, keys: pa.Array) -> None:
        """Add pairs of text, none of them null or empty."""
        low, high = self._count, self._count + len(keys)
        spans = spans_of("key", keys)
        begin, size = (int(spans.starts[0]), int(spans.lengths.sum())) if len(keys) else (0, 0)
        for array in (self._hashes, self._codes, self._lengths):
            _grow(array, high)
        _grow(self._text, self._bytes + size)
        self._hashes[low:high] = hash_pairs(topics, keys)
        encoded = topics.dictionary_encode()
        numbers = [self._topics.setdefault(topic, len(self._topics)) for topic in encoded.dictionary.to_pylist()]
        self._codes[low:high] = np.array(numbers, np.int32)[encoded.indices.to_numpy()]
        self._lengths[low:high] = spans.lengths
        self._text[self._bytes : self._bytes + size] = spans.data[begin : begin + size]
        self._count, self._bytes = high, self._bytes + size

    def key_set(self) -> KeySet:
        """Return the set of the pairs. Can be called once. Raises UsageError if there are none."""
        import pyarrow as pa

        if not self._count:
            raise UsageError("there are no keys to look up: give at least one line `topic<TAB>key`")
        hashes, codes = self._hashes[: self._count], self._codes[: self._count]
        keys = self._keys()
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        again = _repeated(hashes, order, codes, keys)
        number = order
        if len(again):
            first = np.ones(len(hashes), np.bool_)
            first[again] = False
            order = order[first[order]]
            number = (np.cumsum(first, dtype=np.int32) - 1)[order]
        topic = pa.DictionaryArray.from_arrays(pa.array(codes[order]), pa.array(list(self._topics), pa.string()))
        return KeySet(hashes[order], number, topic, keys.take(pa.array(order)), len(again))

    def _keys(self) -> pa.Array:
        import pyarrow as pa

        narrow = self._bytes < 1 << 31
        offsets = np.zeros(self._count + 1, np.int32 if narrow else np.int64)
        np.cumsum(self._lengths[: self._count], out=offsets[1:])
        self._lengths = np.empty(0, np.int32)
        kind = pa.string() if narrow else pa.large_string()
        return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(offsets), pa.py_buffer(self._text[: self._bytes])])


def _grow(array: NDArray[Any], size: int) -> None:
    """Make room in an array, in place: large ones are moved by the system, not copied."""
    if len(array) < size:
        array.resize(max(size, len(array) + (len(array) >> 3)), refcheck=False)


def _repeated(hashes: Ints, order: Ints, codes: Ints, keys: pa.Array) -> Longs:
    """Return the rows of pairs that an earlier row has too. Only pairs of equal hash are compared: nearly all hashes differ."""
    import pyarrow as pa

    alike = np.diff(hashes[order]) == 0
    shared = np.sort(order[np.append(alike, False) | np.append(False, alike)]).astype(np.int64)
    if not len(shared):
        return shared
    rows = pa.array(shared)
    table = pa.table({"topic": pa.array(codes[shared]), "key": keys.take(rows), "row": rows})
    first = table.group_by(["topic", "key"], use_threads=False).aggregate([("row", "min")])["row_min"].to_numpy()
    is_first = np.zeros(len(hashes), np.bool_)
    is_first[first] = True
    return shared[~is_first[shared]]


class KeySet:
    """Pairs of topic and key by ascending hash. number: rank of each pair in the file, repetitions not counted.

    repeated: how many repetitions were left out. A *place* is an index into these columns.
    """

    def __init__(self, hashes: Ints, number: Ints, topic: pa.Array, key: pa.Array, repeated: int = 0) -> None:
        self.hash = hashes
        self.number = number
        self.topic = topic
        self.key = key
        self.repeated = repeated

    def __len__(self) -> int:
        return len(self.hash)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> KeySet:
        """Return the set of some (topic, key) pairs. Raises UsageError for an empty topic or key, or if there are no pairs."""
        import pyarrow as pa

        listed = list(pairs)
        bad = BadPairs("the keys")
        for number, pair in enumerate(listed, 1):
            if not all(pair):
                bad.add(f"pair {number} has no {'key' if pair[0] else 'topic'}")
        bad.refuse()
        columns = PairColumns()
        try:
            for low in range(0, len(listed), AT_ONCE):
                topics, keys = zip(*listed[low : low + AT_ONCE], strict=True)
                columns.add(pa.array(topics, pa.string()), pa.array(keys, pa.string()))
        except UnicodeEncodeError:
            raise UsageError("a key or topic holds a lone surrogate, which no message can hold: give text that UTF-8 can encode") from None
        return columns.key_set()

    # for tasks

    def write_to(self, sink: Any) -> None:
        """Write an Arrow file that `mapped` reads in place. sink: a file open for writing."""
        import pyarrow as pa

        columns = {"hash": pa.array(self.hash), "number": pa.array(self.number), "topic": self.topic, "key": self.key}
        batch = pa.RecordBatch.from_pydict(columns).replace_schema_metadata({"repeated": str(self.repeated)})
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)

    @classmethod
    def mapped(cls, path: str | os.PathLike[str]) -> KeySet:
        """Map a file of `write_to`. All tasks of a machine share its pages."""
        import pyarrow as pa

        file = pa.ipc.open_file(pa.memory_map(os.fspath(path)))
        batch = file.get_batch(0)
        repeated = int(file.schema.metadata[b"repeated"])
        return cls(batch.column(0).to_numpy(), batch.column(1).to_numpy(), batch.column(2), batch.column(3), repeated)

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of the pairs."""
        return frozenset(self.topic.unique().to_pylist())

    def of_topics(self, topics: Iterable[str]) -> Mask:
        """Return which pairs have one of these topics."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(self.topic.dictionary, pa.array(sorted(topics), pa.string())).to_numpy(zero_copy_only=False)
        mask: Mask = known[self.topic.indices.to_numpy()]
        return mask

    @cached_property
    def in_order(self) -> Ints:
        """The place of each pair, in the order of the file."""
        places = np.empty(len(self), np.int32)
        places[self.number] = np.arange(len(self), dtype=np.int32)
        return places

    # finding

    @cached_property
    def _bits(self) -> Mask:
        size = 1 << min(MAX_BITS, max(MIN_BITS, (16 * len(self)).bit_length()))
        table = np.zeros(size, np.bool_)
        table[self.hash & (size - 1)] = True
        return table

    def has(self, hashes: NDArray[Any]) -> Mask:
        """Return which hashes belong to a pair. O(1) for nearly all that do not."""
        bits = self._bits
        mask: Mask = bits[hashes & (len(bits) - 1)]
        maybe = np.flatnonzero(mask)
        if len(maybe):
            selected = hashes[maybe]
            rows = np.minimum(self._first_places(selected), len(self.hash) - 1)
            mask[maybe] = self.hash[rows] == selected
        return mask

    @cached_property
    def _groups(self) -> Ints:
        """The first place of each group of pairs whose hashes have the same high digits: some two to four pairs on average."""
        bits = min(MAX_GROUP_BITS, max(1, len(self).bit_length() - 2))
        first = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(np.bincount(self.hash >> (HASH_BITS - bits), minlength=1 << bits), out=first[1:])
        return first

    def _first_places(self, hashes: Ints) -> Longs:
        """Return the first place with a hash that is not less than each of these, like `numpy.searchsorted`.

        Bisection of millions of hashes misses the cache at nearly every step: 700 ns a hash among 7,000,000, and 50 by groups.
        """
        if len(self) <= FEW:
            few: Longs = np.searchsorted(self.hash, hashes)
            return few
        groups, last = self._groups, len(self) - 1
        shift = HASH_BITS + 1 - (len(groups) - 1).bit_length()
        low: Longs = groups[np.maximum(hashes, 0) >> shift].astype(np.int64)
        going = np.flatnonzero((low <= last) & (self.hash[np.minimum(low, last)] < hashes))
        for _ in range(MOST_STEPS):
            if not len(going):
                return low
            low[going] += 1
            going = going[low[going] <= last]
            going = going[self.hash[low[going]] < hashes[going]]
        low[going] = np.searchsorted(self.hash, hashes[going])
        return low

    def places(self, hashes: Ints) -> tuple[Longs, Longs]:
        """Return (index into `hashes`, place) of each pair with one of the hashes."""
        low = self._first_places(hashes)
        counts = np.zeros(len(hashes), np.int64)
        going = np.arange(len(hashes))
        while len(going):  # few hashes belong to several pairs
            reached = low[going] + counts[going]
            going = going[reached < len(self.hash)]
            going = going[self.hash[low[going] + counts[going]] == hashes[going]]
            counts[going] += 1
        rows = np.repeat(np.arange(len(hashes)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, np.repeat(low, counts) + within

    def match(self, columns: RecordColumns) -> Matches:
        """Return which records have which pairs, by exact comparison."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wide = pa.large_string()
        uniq, stored = columns.uniq_key, columns.column("keys")
        owners = np.concatenate([np.flatnonzero(uniq.is_valid().to_numpy(zero_copy_only=False)), pc.list_parent_indices(stored).to_numpy()])
        texts = pa.concat_arrays([uniq.drop_null().cast(wide), pc.list_flatten(stored).cast(wide)])
        valid = columns.row(frames.SYS_FLAG)[owners] & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        owners, texts = owners[valid].astype(np.int64), texts.filter(pa.array(valid))
        topics = columns.topic.cast(wide).take(pa.array(owners))
        hashes = hash_pairs(topics, texts)
        rows, places = self.places(hashes)
        own, other = pa.array(rows), pa.array(places)
        expected = self.topic.take(other).dictionary_decode().cast(wide), self.key.take(other).cast(wide)
        same = pc.and_(pc.equal(topics.take(own), expected[0]), pc.equal(texts.take(own), expected[1]))
        hit = same.to_numpy(zero_copy_only=False).astype(np.bool_)
        # a record may hold one key twice, as UNIQ_KEY and in KEYS
        hits = distinct((owners[rows[hit]] << 32) + self.number[places[hit]])
        return Matches(hits >> 32, self.in_order[hits & 0xFFFFFFFF].astype(np.int64), distinct(places[~hit]), hashes, owners)


def last_per_key_mask(places: Longs, limit: int) -> Mask:
    """Return which hits are among the last `limit` of their pair. places: the pair of each hit, in log order."""
    order = np.argsort(places, kind="stable")
    by_key = places[order]
    ends = np.searchsorted(by_key, by_key, "right")
    mask = np.empty(len(places), np.bool_)
    mask[order] = ends - np.arange(len(places)) <= limit
    return mask
