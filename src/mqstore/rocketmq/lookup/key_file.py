"""Files of keys to look up.

    text       topic<TAB>key, one pair a line; empty lines are skipped
    CSV        a header with the columns topic and key; other columns are ignored
    Parquet    columns topic and key

A Parquet file is recognised by its first bytes, a CSV file by its suffix; anything else is text. A line without a pair is an error with
its number. Files are read in pieces, so that ten million keys take little more memory than the set that is made of them.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import CannotOpenError, UsageError
from mqstore.kernels.common.spans import copy_spans
from mqstore.rocketmq.lookup.key_set import AT_ONCE, BadPairs, KeySet, PairColumns

if TYPE_CHECKING:
    import pyarrow as pa

PIECE = 4 << 20  # bytes of text read at once
_TAB, _RETURN, _NEWLINE = b"\t\r\n"
_BOM = b"\xef\xbb\xbf"


def read_keys(path: str | os.PathLike[str]) -> KeySet:
    """Read the keys of a text, CSV or Parquet file. Raises CannotOpenError, or UsageError that names bad lines by number."""
    path = Path(path)
    columns = PairColumns()
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic == b"PAR1":
                _parquet(path, columns)
            else:
                file.seek(0)
                (_csv if path.suffix.lower() == ".csv" else _text)(path, file, columns)
    except OSError as error:
        raise CannotOpenError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}; give a file of topics and keys") from None
    return columns.key_set()


# text


def _text(path: Path, file: IO[bytes], columns: PairColumns) -> None:
    bad = BadPairs(str(path))
    number = 1
    for piece in _pieces(path, file):
        try:
            piece.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number + piece.count(b"\n", 0, error.start)) from None
        if not _add_lines(piece, columns):
            _add_lines_one_by_one(piece, number, columns, bad)
        number += piece.count(b"\n")
    bad.refuse()


def _not_utf8(path: Path, line: int) -> UsageError:
    return UsageError(f"{path}, line {line} is not UTF-8 text; give lines `topic<TAB>key`, CSV or Parquet")


def _pieces(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file in pieces of whole lines, without a byte order mark."""
    rest = file.read(len(_BOM)).removeprefix(_BOM)
    lines = 0
    while block := file.read(PIECE):
        end = block.rfind(b"\n") + 1
        if end:
            lines += block.count(b"\n")
            yield rest + block[:end]
            rest = block[end:]
        elif len(rest) >= PIECE:
            raise UsageError(f"{path}, line {lines + 1} has more than {PIECE} bytes; give lines `topic<TAB>key`, CSV or Parquet")
        else:
            rest += block
    if rest:
        yield rest


def _add_lines(piece: bytes, columns: PairColumns) -> bool:
    """Add the pairs of a piece if all of its lines have one or are empty. Returns False, and adds nothing, if not."""
    octets = np.frombuffer(piece, np.uint8)
    newlines = np.flatnonzero(octets == _NEWLINE)
    ends = newlines if len(newlines) and newlines[-1] == len(octets) - 1 else np.append(newlines, len(octets))
    starts = np.append(0, ends[:-1] + 1)
    returns = (ends > starts) & (octets[np.maximum(ends, 1) - 1] == _RETURN)
    ends = ends - returns
    used = ends > starts
    starts, ends = starts[used], ends[used]
    tabs = np.flatnonzero(octets == _TAB)
    if len(tabs) != len(starts) or not ((tabs > starts) & (tabs < ends - 1)).all():
        return False
    if len(tabs):
        columns.add(_texts(octets, starts, tabs), _texts(octets, tabs + 1, ends))
    return True


def _texts(octets: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    lengths = ends - starts
    offsets = np.empty(len(starts) + 1, np.int32)
    text = np.empty(int(lengths.sum()), np.uint8)
    copy_spans(octets, np.ascontiguousarray(starts), lengths, offsets, text)
    return pa.Array.from_buffers(pa.string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _add_lines_one_by_one(piece: bytes, first: int, columns: PairColumns, bad: BadPairs) -> None:
    """Add the pairs of a piece, and note the lines without one. first: number of the first line."""
    topics: list[str] = []
    keys: list[str] = []
    for number, line in enumerate(piece.decode("utf-8").split("\n"), first):
        line = line.removesuffix("\r")
        topic, tab, key = line.partition("\t")
        if topic and key and "\t" not in key:
            topics.append(topic)
            keys.append(key)
        elif line:
            wrong = "no tab" if not tab else "more than one tab" if "\t" in key else f"no {'key' if topic else 'topic'}"
            bad.add(f"line {number} has {wrong}")
    _add_texts(columns, topics, keys)


def _add_texts(columns: PairColumns, topics: Sequence[str], keys: Sequence[str]) -> None:
    import pyarrow as pa

    if topics:
        columns.add(pa.array(topics, pa.string()), pa.array(keys, pa.string()))


# CSV


def _csv(path: Path, file: IO[bytes], columns: PairColumns) -> None:
    bad = BadPairs(str(path))
    rows = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
    try:
        head = next(rows, [])
        at = _places(path, head)
        while True:
            topics: list[str] = []
            keys: list[str] = []
            pending = 0
            for row in islice(rows, AT_ONCE):
                pending += 1
                pair = [row[k] for k in at if k < len(row)]
                if len(pair) == 2 and all(pair):
                    topics.append(pair[0])
                    keys.append(pair[1])
                elif row:
                    bad.add(f"line {rows.line_num} has no {'topic' if not pair or not pair[0] else 'key'}")
            _add_texts(columns, topics, keys)
            if pending < AT_ONCE:
                break
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num} is not valid CSV: {error}") from None
    except UnicodeDecodeError:
        raise _not_utf8(path, _undecodable_line(path)) from None
    bad.refuse()


def _undecodable_line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):  # noqa: B007
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                break
    return number


def _places(path: Path, names: Sequence[str]) -> list[int]:
    for name in ("topic", "key"):
        if name not in names:
            raise UsageError(f"{path} has no column {name!r}, it has {', '.join(names) or 'none'}; give one with topic and key")
    return [names.index("topic"), names.index("key")]


# Parquet


def _parquet(path: Path, columns: PairColumns) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    bad = BadPairs(str(path))
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            _places(path, file.schema_arrow.names)
            for batch in file.iter_batches(AT_ONCE, columns=["topic", "key"]):
                pair = {name: batch.column(name).cast(pa.string()) for name in ("topic", "key")}
                whole = np.ones(len(batch), np.bool_)
                for name, column in pair.items():
                    empty = pc.fill_null(pc.equal(pc.binary_length(column), 0), True).to_numpy(zero_copy_only=False)
                    for k in np.flatnonzero(empty).tolist():
                        bad.add(f"row {row + k + 1} has no {name}")
                    whole &= ~empty
                if whole.all() and len(batch):
                    columns.add(pair["topic"], pair["key"])
                row += len(batch)
    except (pa.ArrowException, pa.ArrowInvalid) as error:
        raise UsageError(f"{path} cannot be read as Parquet with text in topic and key: {' '.join(str(error).split())[:200]}") from None
    bad.refuse()
