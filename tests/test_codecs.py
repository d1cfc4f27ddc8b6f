"""Compressed bytes of every format, in the forms that clients write, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import struct
import zlib

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

from mqstore.codecs import NAMES, ExpandError, TooLargeError, expand

TEXT = b"".join(b"a line of text, number %d\n" % number for number in range(8000))


def snappy_block(text: bytes) -> bytes:
    return pa.Codec("snappy").compress(text, asbytes=True)


def snappy_frames(text: bytes) -> bytes:
    """Return text as Google's and Xerial's streams write it: blocks of 64 KiB, one of them plain, padding between."""
    out = [b"\xff\x06\x00\x00sNaPpY"]
    for number, at in enumerate(range(0, len(text), 65536)):
        part = text[at : at + 65536]
        block = part if number == 1 else snappy_block(part)
        out.append(struct.pack("<I", len(block) + 4 << 8 | (number == 1)) + b"crc!" + block)
        out.append(b"\xfe\x03\x00\x00pad")
    return b"".join(out)


FORMS = {
    "zlib": ("zlib", zlib.compress(TEXT)),
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip, two members": ("gzip", gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
    "snappy, framed": ("snappy", snappy_frames(TEXT)),
    "snappy, a block": ("snappy", snappy_block(TEXT)),
    "lz4": ("lz4", lz4.frame.compress(TEXT)),
    "lz4, with checksums": ("lz4", lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True, store_size=False)),
    "zstd": ("zstd", zstandard.compress(TEXT)),
    "zstd, streamed": ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
}


def test_every_format_has_a_form() -> None:
    assert {name for name, _ in FORMS.values()} == set(NAMES)


@pytest.mark.parametrize("form", FORMS)
def test_what_was_compressed_is_expanded(form: str) -> None:
    name, packed = FORMS[form]
    assert expand(name, packed, len(TEXT)) == TEXT


@pytest.mark.parametrize("form", FORMS)
def test_nothing_expands_beyond_its_limit(form: str) -> None:
    name, packed = FORMS[form]
    with pytest.raises(TooLargeError, match="beyond 1000 bytes"):
        expand(name, packed, 1000)


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_one_is_refused(form: str) -> None:
    name, packed = FORMS[form]
    if form == "gzip, two members":
        packed = packed[:-10]
    with pytest.raises(ExpandError):
        expand(name, packed[: len(packed) * 9 // 10], len(TEXT))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [b"", b"\xff", bytes(100), b"\xff" * 100, bz2.compress(TEXT), b"\xff\x06\x00\x00sNaPpY\x02\x00\x00\x00"])
def test_what_is_not_of_the_format_is_refused(name: str, packed: bytes) -> None:
    if (name, packed) == ("gzip", b""):
        assert expand(name, packed, 100) == b""  # no member at all
        return
    if (name, packed) == ("snappy", bytes(100)):
        assert expand(name, packed, 100) == b""  # a block of nothing
        return
    with pytest.raises(ExpandError):
        expand(name, packed, len(TEXT))
