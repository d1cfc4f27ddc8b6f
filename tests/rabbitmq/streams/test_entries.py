"""Entries and sub-batches: what compressed batches may hold, and what they may not do."""

from __future__ import annotations

import gzip
import tracemalloc

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.streams import entries
from mqstore.rabbitmq.streams.entries import CODECS, MAX_BATCH, walk_records
from mqstore.rabbitmq.streams.segment import HEADER, batch, chunk, entry, walk_segment

RECORDS = [b"record %d" % number for number in range(50)]
CONTENT = b"".join(map(entry, RECORDS))
PACKED = {
    0: CONTENT,
    1: gzip.compress(CONTENT),
    2: pa.Codec("snappy").compress(CONTENT, asbytes=True),
    3: lz4.frame.compress(CONTENT),
    4: zstandard.compress(CONTENT),
}


def read(parts: list[bytes], records: int, *, crc: bool = True) -> tuple[list[tuple[int, bytes | None]], list[Damage]]:
    """Return offset and bytes of the records of one chunk with these entries, and the findings."""
    raw = bytearray(HEADER + chunk(100, parts, records=records))
    raw[8 + 32] ^= not crc
    data = np.frombuffer(bytes(raw), np.uint8)
    found, findings = [], []
    for chunks, _ in walk_segment(data, 100):
        for part, damage in walk_records(data, chunks, file="s"):
            found += [(int(part.offset[row]), part.content(row)) for row in range(len(part))]
            findings += damage
    return found, findings


def test_every_codec_has_a_batch_here() -> None:
    assert set(PACKED) == set(CODECS)


@pytest.mark.parametrize("codec", PACKED)
def test_the_records_of_a_sub_batch_are_between_those_around_it(codec: int) -> None:
    found, findings = read([entry(b"before"), batch(codec, PACKED[codec], 50, len(CONTENT)), entry(b"after")], 52)
    assert found == list(enumerate([b"before", *RECORDS, b"after"], start=100))
    assert findings == []


@pytest.mark.parametrize("codec", PACKED)
def test_a_sub_batch_that_is_cut_has_its_offsets_and_a_finding(codec: int) -> None:
    found, [damage] = read([batch(codec, PACKED[codec][:-20], 50, len(CONTENT)), entry(b"after")], 51)
    assert [offset for offset, _ in found] == list(range(100, 151))
    assert found[-1] == (150, b"after")
    lost = [offset for offset, content in found if content is None]
    assert (damage.kind, damage.messages) == (Kind.BAD_BATCH, len(lost))
    assert lost
    assert [content for _, content in found[: 50 - len(lost)]] == RECORDS[: 50 - len(lost)]


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_is_not_defined_keeps_its_offsets(codec: int) -> None:
    found, [damage] = read([batch(codec, b"??", 3, 10), entry(b"after")], 4)
    assert found == [(100, None), (101, None), (102, None), (103, b"after")]
    assert damage.kind == Kind.BAD_BATCH
    assert f"compression {codec} is not known" in damage.detail


@pytest.mark.parametrize(("records", "size"), [(49, len(CONTENT)), (51, len(CONTENT)), (50, len(CONTENT) - 1), (50, len(CONTENT) + 1)])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_sub_batch_whose_counts_do_not_fit_is_a_finding(codec: int, records: int, size: int) -> None:
    found, [damage] = read([batch(codec, PACKED[codec], records, size)], records)
    assert len(found) == records
    assert damage.kind == Kind.BAD_BATCH


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, lz4.frame.compress])
def test_a_sub_batch_that_expands_without_bound_takes_no_more_memory_than_it_announces(compress: object) -> None:
    bomb = compress(bytes(64 << 20))  # type: ignore[operator]
    codec = {gzip.compress: 1, zstandard.compress: 4, lz4.frame.compress: 3}[compress]  # type: ignore[index]
    tracemalloc.start()
    _, [damage] = read([batch(codec, bomb, 10, 1 << 20)], 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "beyond 1048576 bytes" in damage.detail
    assert peak < 8 << 20


def test_a_sub_batch_that_announces_gigabytes_is_not_expanded() -> None:
    _, [damage] = read([batch(1, gzip.compress(b""), 1, MAX_BATCH + 1)], 1)
    assert "would expand to 268435457 bytes" in damage.detail


def test_many_sub_batches_are_handed_on_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "BUFFERED", 4 * len(CONTENT))
    data = np.frombuffer(HEADER + chunk(0, [batch(4, PACKED[4], 50, len(CONTENT))] * 40, records=2000), np.uint8)
    [(chunks, _)] = walk_segment(data, 0)
    parts = [records for records, _ in walk_records(data, chunks)]
    assert [len(part.buffers) for part in parts] == [5] * 10
    assert np.concatenate([part.offset for part in parts]).tolist() == list(range(2000))


def test_a_chunk_that_does_not_match_its_checksum_has_the_records_that_its_lengths_lead_to() -> None:
    found, findings = read([entry(b"one"), entry(b"two")], 2, crc=False)
    assert (found, findings) == ([(100, b"one"), (101, b"two")], [])


def test_a_damaged_chunk_has_no_more_records_than_its_header_counts() -> None:
    found, _ = read([entry(b""), entry(b""), entry(b"")], 2, crc=False)
    assert [offset for offset, _ in found] == [100, 101]


def test_empty_records_are_records() -> None:
    assert read([entry(b""), batch(0, entry(b"") * 2, 2, 8)], 3)[0] == [(100, b""), (101, b""), (102, b"")]


def test_a_chunk_whose_only_entry_is_a_batch_that_counts_no_records_has_a_finding_and_no_record() -> None:
    found, [damage] = read([batch(0, CONTENT, 0, len(CONTENT))], 0)
    assert found == []
    assert damage.kind is Kind.BAD_BATCH
