"""CRC-32 of the kernel and of `crc_of_spans`, against zlib's."""

from __future__ import annotations

import ctypes
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from mqstore.kernels.common import crc32 as crc
from mqstore.kernels.common import crc_spans

pytestmark = pytest.mark.versions

NOISE = np.random.default_rng(20220101).integers(0, 256, 5000, np.uint8)


@pytest.mark.parametrize("address", [0, crc._address()], ids=["kernel", "library"])
def test_every_length_has_the_crc_of_zlib(address: int, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: crc_spans.use_library(crc._address()))
    crc_spans.use_library(address)
    for length in (*range(300), 1000, 1024, 4096, 4999):
        for start in (0, 1):
            span = NOISE[start : start + length]
            assert crc_spans.crc_of(span) == zlib.crc32(span), length


@given(st.binary(max_size=400), st.binary(max_size=400))
@settings(deadline=None, max_examples=100)
def test_a_crc_can_be_continued(head: bytes, tail: bytes) -> None:
    first, second = (np.frombuffer(part, np.uint8) for part in (head, tail))
    assert crc_spans.crc_of(second, crc_spans.crc_of(first)) == zlib.crc32(head + tail)


@pytest.mark.parametrize(
    ("text", "expected"), [(b"", 0), (b"a", 0x68B7BE43), (b"123456789", 0x4BF43926), (b"Hello RocketMQ", 0x69C865ED), (b"\0", 0x5202EF8D)]
)
def test_known_crcs_without_their_top_bit(text: bytes, expected: int) -> None:
    out = np.full(1, -1, np.int64)
    crc_spans.crc_spans(np.frombuffer(text, np.uint8), np.array([0]), np.array([len(text)]), out)
    assert out[0] == expected


SPANS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2000)).filter(lambda span: sum(span) <= 5000), max_size=8)


@given(SPANS, st.sampled_from([0, 100, 700, 2**62]))
@settings(deadline=None, max_examples=100)
def test_spans_have_the_crc_of_zlib_whichever_function_computes_it(spans: list[tuple[int, int]], long: int) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([length for _, length in spans], np.int64)
    expected = [zlib.crc32(NOISE[start : start + length]) & 0x7FFFFFFF for start, length in spans]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc, "LONG_SPAN", long)
        assert crc.crc_of_spans(NOISE, starts, lengths).tolist() == expected
    out = np.empty(len(spans), np.int64)
    crc_spans.crc_spans(NOISE, starts, lengths, out)
    assert out.tolist() == expected


@pytest.mark.parametrize(("start", "length"), [(-1, 3), (0, -1), (4990, 11), (5001, 0), (2**62, 2**62), (0, 2**63 - 1)])
def test_spans_outside_the_buffer_are_refused(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside its buffer"):
        crc_spans.crc_spans(NOISE, np.array([0, start]), np.array([1, length]), np.empty(2, np.int64))


def test_arrays_that_are_too_small_are_refused() -> None:
    for lengths, out in ((1, 2), (2, 1)):
        with pytest.raises(ValueError, match="too small"):
            crc_spans.crc_spans(NOISE, np.zeros(2, np.int64), np.zeros(lengths, np.int64), np.empty(out, np.int64))


def test_the_kernel_calls_the_library_itself() -> None:
    assert crc._address() != 0
    assert len(NOISE) < crc.LONG_SPAN


@pytest.mark.parametrize("lent", ["crc32_gzip_refl", "crc32_ieee"])
def test_a_function_of_another_checksum_is_not_used(lent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(isal_zlib.__file__)

    class Lending:
        crc32_gzip_refl = library[lent]

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Lending)
    assert bool(crc._address()) == (lent == "crc32_gzip_refl")


@pytest.mark.parametrize("found", [OSError, AttributeError])
def test_without_the_function_the_library_is_called_as_usual(found: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> None:
        raise found

    monkeypatch.setattr(ctypes, "CDLL", refused)
    assert crc._address() == 0


def test_a_read_only_buffer_is_read() -> None:
    text = np.frombuffer(bytes(1000), np.uint8)
    assert crc.crc_of_spans(text, np.array([0, 0]), np.array([3, 1000])).tolist() == [zlib.crc32(bytes(n)) & 0x7FFFFFFF for n in (3, 1000)]
