"""The keys of a lookup: read from a file, hashed as the index hashes them, laid out for tasks to map, matched with records.

    text       topic<TAB>key, one pair a line; empty lines are skipped
    CSV        a header with the columns topic and key; other columns are ignored
    Parquet    columns topic and key

A Parquet file is recognised by its first bytes, a CSV file by its suffix; anything else is text. A line without a pair is an error with
its number. Repeated pairs are looked up once. `KeySet` holds the pairs by ascending hash, so that a hash from the log or from an index
finds its pairs by bisection; a bit table over the low digits of the hashes rules out nearly all other hashes before that.

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

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, UsageError
from mqstore.kernels.rocketmq import frames, hashing
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.table.arrow_spans import spans_of
from mqstore.table.distinct import distinct

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeySet", "Matches", "hash_pairs", "last_per_key_mask", "read_keys"]

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_BAD_LINES = 5  # bad lines that an error names
MIN_BITS, MAX_BITS = 12, 26  # binary digits of the size of the bit table


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


class KeySet:
    """Pairs of topic and key by ascending hash. number: rank of each pair in the file, repetitions not counted.

    repeated: how many repetitions were left out. A *place* is an index into these columns.
    """

    def __init__(self, hashes: Ints, number: Longs, topic: pa.Array, key: pa.Array, repeated: int = 0) -> None:
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
        bad = [f"pair {number} has no {'key' if pair[0] else 'topic'}" for number, pair in enumerate(listed, 1) if not all(pair)]
        _refuse("the keys", bad)
        wide = pa.large_string()
        try:
            return cls._distinct(pa.array([topic for topic, _ in listed], wide), pa.array([key for _, key in listed], wide))
        except UnicodeEncodeError:
            raise UsageError("a key or topic holds a lone surrogate, which no message can hold: give text that UTF-8 can encode") from None

    @classmethod
    def _distinct(cls, topics: pa.Array, keys: pa.Array) -> KeySet:
        import pyarrow as pa

        if not len(topics):
            raise UsageError("there are no keys to look up: give at least one line `topic<TAB>key`")
        hashes = hash_pairs(topics, keys)
        again = cls._repeated(hashes, topics, keys)
        if len(again):
            kept = np.delete(np.arange(len(topics)), again)
            hashes, topics, keys = hashes[kept], topics.take(pa.array(kept)), keys.take(pa.array(kept))
        order = np.argsort(hashes, kind="stable")
        by_hash = pa.array(order)
        return cls(hashes[order], order.astype(np.int64), topics.take(by_hash), keys.take(by_hash), len(again))

    @staticmethod
    def _repeated(hashes: Ints, topics: pa.Array, keys: pa.Array) -> Longs:
        """Return the rows of pairs that an earlier row has too. Only pairs of equal hash are compared: nearly all hashes differ."""
        import pyarrow as pa

        order = np.argsort(hashes, kind="stable")
        alike = np.diff(hashes[order]) == 0
        shared = np.sort(order[np.append(alike, False) | np.append(False, alike)])
        if not len(shared):
            return shared
        rows = pa.array(shared)
        table = pa.table({"topic": topics.take(rows), "key": keys.take(rows), "row": rows})
        first = table.group_by(["topic", "key"], use_threads=False).aggregate([("row", "min")])["row_min"].to_numpy()
        return np.setdiff1d(shared, first)

    # for tasks

    def to_bytes(self) -> Any:
        """Return an Arrow file that `mapped` reads in place."""
        import pyarrow as pa

        batch = pa.record_batch(
            [pa.array(self.hash), pa.array(self.number), self.topic, self.key], names=["hash", "number", "topic", "key"]
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    @classmethod
    def mapped(cls, path: str | os.PathLike[str]) -> KeySet:
        """Map a file of `to_bytes`. All tasks of a machine share its pages."""
        import pyarrow as pa

        batch = pa.ipc.open_file(pa.memory_map(os.fspath(path))).get_batch(0)
        return cls(batch.column(0).to_numpy(), batch.column(1).to_numpy(), batch.column(2), batch.column(3))

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of the pairs."""
        return frozenset(self.topic.unique().to_pylist())

    @cached_property
    def in_order(self) -> Longs:
        """The place of each pair, in the order of the file."""
        places = np.empty(len(self), np.int64)
        places[self.number] = np.arange(len(self))
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
            wanted = hashes[maybe]
            place = np.minimum(np.searchsorted(self.hash, wanted), len(self.hash) - 1)
            mask[maybe] = self.hash[place] == wanted
        return mask

    def places(self, hashes: Ints) -> tuple[Longs, Longs]:
        """Return (index into `hashes`, place) of each pair with one of the hashes."""
        low = np.searchsorted(self.hash, hashes, "left")
        counts = np.searchsorted(self.hash, hashes, "right") - low
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
        kept = columns.row(frames.SYS_FLAG)[owners] & TRANSACTION_MASK != TRANSACTION_ROLLBACK
        owners, texts = owners[kept].astype(np.int64), texts.filter(pa.array(kept))
        topics = columns.topic.cast(wide).take(pa.array(owners))
        hashes = hash_pairs(topics, texts)
        rows, places = self.places(hashes)
        own, other = pa.array(rows), pa.array(places)
        same = pc.and_(pc.equal(topics.take(own), self.topic.take(other)), pc.equal(texts.take(own), self.key.take(other)))
        hit = same.to_numpy(zero_copy_only=False).astype(np.bool_)
        # a record may hold one key twice, as UNIQ_KEY and in KEYS
        found = np.unique(np.stack([owners[rows[hit]], self.number[places[hit]]], axis=1), axis=0)
        return Matches(found[:, 0], self.in_order[found[:, 1]], distinct(places[~hit]), hashes, owners)


def last_per_key_mask(places: Longs, limit: int) -> Mask:
    """Return which hits are among the last `limit` of their pair. places: the pair of each hit, in log order."""
    order = np.argsort(places, kind="stable")
    by_key = places[order]
    ends = np.searchsorted(by_key, by_key, "right")
    mask = np.empty(len(places), np.bool_)
    mask[order] = ends - np.arange(len(places)) <= limit
    return mask


# files


def read_keys(path: str | os.PathLike[str]) -> KeySet:
    """Read the keys of a text, CSV or Parquet file. Raises CannotOpenError, or UsageError that names bad lines by number."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            magic = file.read(4)
            if magic == b"PAR1":
                return _parquet(place)
            raw = magic + file.read()
    except OSError as error:
        raise CannotOpenError(f"{place} cannot be read: {(error.strerror or str(error)).lower()}; give a file of topics and keys") from None
    text = _decode_utf8(place, raw)
    topics, keys, bad = (_csv if place.suffix.lower() == ".csv" else _lines)(place, text)
    _refuse(str(place), bad)
    import pyarrow as pa

    return KeySet._distinct(pa.array(topics, pa.large_string()), pa.array(keys, pa.large_string()))


def _refuse(what: str, bad: Sequence[str]) -> None:
    if bad:
        more = f"; {len(bad) - MAX_BAD_LINES} more" if len(bad) > MAX_BAD_LINES else ""
        raise UsageError(f"{what} cannot be looked up: {', '.join(bad[:MAX_BAD_LINES])}{more}; each row needs a topic and a key")


def _decode_utf8(place: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{place}, line {line} is not UTF-8 text; give lines `topic<TAB>key`, CSV or Parquet") from None


def _lines(place: Path, text: str) -> tuple[list[str], list[str], list[str]]:
    topics, keys, bad = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        topic, tab, key = line.partition("\t")
        if topic and key and "\t" not in key:
            topics.append(topic)
            keys.append(key)
        elif line:
            wrong = "no tab" if not tab else "more than one tab" if "\t" in key else f"no {'key' if topic else 'topic'}"
            bad.append(f"line {number} has {wrong}")
    return topics, keys, bad


def _csv(place: Path, text: str) -> tuple[list[str], list[str], list[str]]:
    topics, keys, bad = [], [], []
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        head = next(rows, [])
        at = _columns(place, head)
        for row in rows:
            pair = [row[k] for k in at if k < len(row)]
            if len(pair) == 2 and all(pair):
                topics.append(pair[0])
                keys.append(pair[1])
            elif row:
                bad.append(f"line {rows.line_num} has no {'topic' if not pair or not pair[0] else 'key'}")
    except csv.Error as error:
        raise UsageError(f"{place}, line {rows.line_num} is not valid CSV: {error}") from None
    return topics, keys, bad


def _columns(place: Path, names: Sequence[str]) -> list[int]:
    for name in ("topic", "key"):
        if name not in names:
            raise UsageError(f"{place} has no column {name!r}, it has {', '.join(names) or 'none'}; give one with topic and key")
    return [names.index("topic"), names.index("key")]


def _parquet(place: Path) -> KeySet:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        _columns(place, pq.read_schema(place).names)
        rows = pq.read_table(place, columns=["topic", "key"])
        pair = [rows.column(name).cast(pa.large_string()).combine_chunks() for name in ("topic", "key")]
    except (pa.ArrowException, pa.ArrowInvalid) as error:
        raise UsageError(f"{place} cannot be read as Parquet with text in topic and key: {' '.join(str(error).split())[:200]}") from None
    bad: list[str] = []
    for name, column in zip(("topic", "key"), pair, strict=True):
        empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), True).to_numpy(zero_copy_only=False)
        bad.extend(f"row {row + 1} has no {name}" for row in np.flatnonzero(empty)[:1000].tolist())
    _refuse(str(place), bad)
    topics, keys = (column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks) for column in pair)
    return KeySet._distinct(topics, keys)
