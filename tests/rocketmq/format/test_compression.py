"""Compressed bodies: every codec restores its text, and invalid streams raise a single kind of error."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from mqstore.rocketmq.format.compression import BadCompressionError, decompress
from mqstore.rocketmq.format.record import COMPRESSED

pytestmark = pytest.mark.versions

TEXT = b"RocketMQ " * 200
STREAMS = {
    0x001: zlib.compress(TEXT),
    0x301: zlib.compress(TEXT),
    0x101: lz4.frame.compress(TEXT),
    0x201: zstandard.compress(TEXT),
}


@pytest.mark.parametrize("flags", STREAMS, ids=hex)
def test_each_codec_restores_its_text(flags: int) -> None:
    assert decompress(STREAMS[flags], flags) == TEXT
    assert decompress(STREAMS[flags], flags & ~COMPRESSED) == STREAMS[flags]


@pytest.mark.parametrize("flags", STREAMS, ids=hex)
@pytest.mark.parametrize("raw", [b"", b"\0", b"no stream at all", TEXT])
def test_an_invalid_stream_is_refused(flags: int, raw: bytes) -> None:
    with pytest.raises(BadCompressionError, match="not a valid"):
        decompress(raw, flags)


@pytest.mark.parametrize("flags", STREAMS, ids=hex)
def test_a_stream_that_ends_early_is_refused(flags: int) -> None:
    for length in range(0, len(STREAMS[flags]) - 1, 3):
        with pytest.raises(BadCompressionError):
            decompress(STREAMS[flags][:length], flags)


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_an_unknown_codec_is_named(kind: int) -> None:
    with pytest.raises(BadCompressionError, match=f"type {kind} is unknown"):
        decompress(b"x", COMPRESSED | kind << 8)


@pytest.mark.parametrize("compress", [(0x001, zlib.compress), (0x101, lz4.frame.compress), (0x201, zstandard.compress)])
def test_a_bomb_is_refused_before_it_takes_memory(compress: tuple) -> None:  # type: ignore[type-arg]
    flags, pack = compress
    with pytest.raises(BadCompressionError, match="beyond 100000 bytes"):
        decompress(pack(bytes(50_000_000)), flags, limit=100_000)


@given(st.sampled_from(sorted(STREAMS)), st.data())
@settings(deadline=None, max_examples=200)
def test_any_change_to_a_stream_gives_a_text_or_the_one_error(flags: int, data: st.DataObject) -> None:
    raw = bytearray(STREAMS[flags])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(bytes(raw), flags, limit=10_000)) <= 10_000
    except BadCompressionError:
        return
