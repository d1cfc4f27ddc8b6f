"""The term decoder: every tag, its limits, and hostile bytes."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqstore.rabbitmq.erlang.etf import EtfError, Limits, decode
from mqstore.rabbitmq.erlang.terms import Atom, BitBinary, ImproperList, Opaque, Pairs, Term, encode


def term(text: str) -> Term:
    data = bytes.fromhex(text)
    found, end = decode(data)
    assert end == len(data)
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("83 61 ff", 255),
        ("83 62 ffffffff", -1),
        ("83 6e 08 00 ffffffffffffff7f", (1 << 63) - 1),
        ("83 6e 05 01 0000000001", -(1 << 32)),
        ("83 6e 00 00", 0),
        ("83 6f 00000002 00 0102", 513),
        ("83 46 3ff8000000000000", 1.5),
        ("83 63" + b"1.50000000000000000000e+00".ljust(31, b"\0").hex(), 1.5),
        ("83 64 0002 6f6b", Atom("ok")),
        ("83 64 0001 e9", Atom("é")),
        ("83 73 02 6f6b", Atom("ok")),
        ("83 76 0002 c3a9", Atom("é")),
        ("83 77 02 c3a9", Atom("é")),
        ("83 77 00", Atom("")),
        ("83 68 00", ()),
        ("83 68 02 61 01 6a", (1, [])),
        ("83 69 00000001 61 01", (1,)),
        ("83 6a", []),
        ("83 6b 0003 010203", [1, 2, 3]),
        ("83 6c 00000002 61 01 61 02 6a", [1, 2]),
        ("83 6c 00000001 61 01 6b 0001 02", [1, 2]),
        ("83 6c 00000001 61 01 61 02", ImproperList((1,), 2)),
        ("83 6c 00000000 6a", []),
        ("83 6d 00000003 616263", b"abc"),
        ("83 4d 00000002 03 ffe0", BitBinary(b"\xff\xe0", 3)),
        ("83 74 00000001 61 01 61 02", {1: 2}),
        ("83 74 00000001 6a 61 02", Pairs((([], 2),))),
        ("83 74 00000002 61 01 61 02 46 3ff0000000000000 61 03", Pairs(((1, 2), (1.0, 3)))),
        ("83 58 64 0001 61 00000001 00000002 00000003", Opaque(bytes.fromhex("5864000161 00000001 00000002 00000003"))),
        ("83 67 64 0001 61 00000001 00000002 03", Opaque(bytes.fromhex("6764000161 00000001 00000002 03"))),
        ("83 5a 0002 77 01 61 00000001 00000002 00000003", Opaque(bytes.fromhex("5a0002770161 00000001 00000002 00000003"))),
        ("83 72 0001 77 01 61 01 00000002", Opaque(bytes.fromhex("720001770161 01 00000002"))),
        ("83 59 77 01 61 00000001 00000002", Opaque(bytes.fromhex("59770161 00000001 00000002"))),
        ("83 66 77 01 61 00000001 02", Opaque(bytes.fromhex("66770161 00000001 02"))),
        ("83 78 77 01 61 0000000000000001 00000002", Opaque(bytes.fromhex("78770161 0000000000000001 00000002"))),
        ("83 71 77 01 61 77 01 62 61 02", Opaque(bytes.fromhex("71770161 770162 6102"))),
        ("83 70 00000006 ffff", Opaque(bytes.fromhex("7000000006ffff"))),
    ],
)
def test_every_tag_becomes_its_value(text: str, wanted: Term) -> None:
    found = term(text)
    assert found == wanted
    assert type(found) is type(wanted)


def test_an_atom_is_never_a_binary() -> None:
    assert isinstance(term("83 64 0002 6f6b"), Atom)
    assert term("83 6d 00000002 6f6b") != Atom("ok")


def test_bytes_after_a_term_are_not_read() -> None:
    data = b"junk" + encode([1, b"x"]) + b"\0\0"
    assert decode(data, 4) == ([1, b"x"], len(data) - 2)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_read(buffer: type) -> None:
    assert decode(buffer(encode((Atom("a"), b"b"))))[0] == ("a", b"b")


def test_a_compressed_term_is_read() -> None:
    inner = encode([b"x" * 5000])[1:]
    packed = b"\x83P" + len(inner).to_bytes(4, "big") + zlib.compress(inner)
    assert decode(packed + b"tail") == ([b"x" * 5000], len(packed))


atoms = st.text(max_size=255).map(Atom)
values = st.recursive(
    st.integers(-(1 << 2000), 1 << 2000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=300)
    | atoms
    | st.lists(st.integers(0, 255), max_size=300)
    | st.builds(BitBinary, st.binary(min_size=1, max_size=5), st.integers(1, 8)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.binary(max_size=4) | atoms | st.integers(), inner, max_size=4)
    ),
    max_leaves=30,
)


@settings(deadline=None)
@given(values, st.sampled_from(["latin1", "utf8"]))
def test_encoding_and_decoding_return_the_same_value(value: Term, atoms: str) -> None:
    data = encode(value, atoms)
    found, end = decode(data + b"\0")
    assert end == len(data)
    assert found == value
    assert encode(found, atoms) == data


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x74\xff\xff\xff\xff")
def test_arbitrary_bytes_are_a_term_or_an_error(data: bytes) -> None:
    try:
        _, at = decode(b"\x83" + data)
    except EtfError as error:
        at = error.offset
    assert 0 <= at <= len(data) + 6


@settings(deadline=None)
@given(values, st.data())
def test_a_torn_term_is_an_error(value: Term, data: st.DataObject) -> None:
    whole = encode(value)
    with pytest.raises(EtfError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


HOSTILE = {
    "nested tuples": b"\x83" + b"\x68\x01" * 100_000 + b"\x6a",
    "nested lists": b"\x83" + b"\x6c\x00\x00\x00\x01" * 100_000 + b"\x6a" * 100_001,
    "nested maps": b"\x83" + b"\x74\x00\x00\x00\x01\x61\x00" * 100_000 + b"\x6a",
    "nested tails": b"\x83" + b"\x6c\x00\x00\x00\x01\x6a" * 100_000 + b"\x6a",
    "nested functions": b"\x83" + b"\x71" * 100_000,
    "a huge tuple": b"\x83\x69\xff\xff\xff\xff" + b"\x6a" * 1000,
    "a huge list": b"\x83\x6c\xff\xff\xff\xff" + b"\x6a" * 1000,
    "a huge map": b"\x83\x74\xff\xff\xff\xff" + b"\x6a" * 1000,
    "a huge binary": b"\x83\x6d\xff\xff\xff\xff" + b"x" * 1000,
    "a huge bit string": b"\x83\x4d\xff\xff\xff\xff\x08" + b"x" * 1000,
    "a huge integer": b"\x83\x6f\xff\xff\xff\xff\x00" + b"x" * 1000,
    "an integer that cannot be printed": b"\x83\x6f\x00\x00\x27\x10\x00" + b"\xff" * 10_000,
    "a huge function": b"\x83\x70\xff\xff\xff\xff",
    "a function smaller than itself": b"\x83\x70\x00\x00\x00\x00",
    "a huge reference": b"\x83\x5a\xff\xff\x77\x01a",
    "more elements than allowed": b"\x83\x6c\x00\x2d\xc6\xc0" + b"\x6a" * 3_000_001,
    "strings with more elements than allowed": b"\x83\x68\x40" + (b"\x6b\xff\xff" + b"x" * 65535) * 64,
    "a bomb": lambda: b"\x83P\x03\xff\xff\xff" + zlib.compress(b"\x6d\x03\xff\xff\xf9" + bytes((64 << 20) - 6)),
    "a bomb with a wrong size": lambda: b"\x83P\x00\x00\x00\x10" + zlib.compress(bytes(256 << 20)),
    "a bomb of 4 GiB": b"\x83P\xff\xff\xff\xff" + zlib.compress(bytes(1 << 20)),
    "a compressed term in a compressed term": b"\x83P\x00\x00\x00\x10" + zlib.compress(b"\x83P" + bytes(14)),
    "a compressed term cut short": b"\x83P\x00\x00\x10\x00" + zlib.compress(b"\x6d" + bytes(4095))[:-5],
    "no zlib": b"\x83P\x00\x00\x00\x01abc",
    "a float that is not a number": b"\x83\x46\x7f\xf8\x00\x00\x00\x00\x00\x00",
    "an infinite float": b"\x83\x46\x7f\xf0\x00\x00\x00\x00\x00\x00",
    "a float in words": b"\x83\x63" + b"seven".ljust(31, b"\0"),
    "an atom that is not UTF-8": b"\x83\x77\x02\xff\xff",
    "an atom too long": b"\x83\x64\x01\x00" + b"a" * 256,
    "an integer with an invalid sign": b"\x83\x6e\x01\x02\x01",
    "bits of no byte": b"\x83\x4d\x00\x00\x00\x00\x03",
    "nine bits in a byte": b"\x83\x4d\x00\x00\x00\x01\x09x",
    "a pid of a number": b"\x83\x58\x61\x01" + bytes(12),
    "an unknown tag": b"\x83\x52\x00",
    "a local term": b"\x83\x79" + bytes(20),
    "no version": b"\x68\x00",
    "nothing": b"",
    "only a version": b"\x83",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_terms_are_refused_with_little_time_and_memory(name: str) -> None:
    made = HOSTILE[name]
    data = made() if callable(made) else made
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(EtfError) as caught:
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 <= caught.value.offset <= len(data)
    # 64 MiB is the limit of a compressed term, and its value has another 64 MiB
    assert peak < 150 << 20
    # generous: tracing makes it many times slower
    assert time.perf_counter() - started < 20


def test_terms_are_read_up_to_the_maximum_depth() -> None:
    deep = b"\x83" + b"\x68\x01" * 256 + b"\x6a"
    assert decode(deep)[1] == len(deep)
    with pytest.raises(EtfError, match="deeper than 255"):
        decode(deep, limits=Limits(depth=255))


def test_keys_chosen_to_collide_do_not_make_a_map_slow() -> None:
    """All multiples of 2^61-1 have the hash 0 in Python; a dict of 50,000 of them takes a minute."""
    collide = (1 << 61) - 1
    keys = b"".join(encode(collide * k)[1:] + b"\x6a" for k in range(1, 20_001))
    started = time.perf_counter()
    found, _ = decode(b"\x83\x74" + (20_000).to_bytes(4, "big") + keys)
    assert isinstance(found, Pairs)
    assert time.perf_counter() - started < 5


def test_a_value_that_is_not_a_term_is_not_encoded() -> None:
    for wrong in (None, True, "text", object(), math.nan, math.inf, [True]):
        with pytest.raises(TypeError):
            encode(wrong)
    with pytest.raises(ValueError, match="255 characters"):
        encode(Atom("a" * 256))


ERLANG = shutil.which("erl")


@pytest.mark.skipif(ERLANG is None, reason="needs Erlang")
def test_erlang_reads_what_we_write_and_writes_the_same(tmp_path: object) -> None:
    """OTP 25 and older; newer ones write atoms differently, as the second encoding does."""
    assert ERLANG is not None
    terms: list[Term] = [
        *(
            sign * ((1 << bits) + more)
            for bits in (0, 7, 8, 15, 16, 27, 28, 31, 32, 59, 60, 63, 64, 128, 2039, 2040)
            for more in (-1, 0, 1)
            for sign in (1, -1)
        ),
        1.5,
        -0.1,
        b"",
        b"abc",
        Atom("ok"),
        Atom("é"),
        Atom("√"),
        Atom("é" * 200),
        Atom("√" * 200),
        [],
        [0, 255],
        [256],
        [-1],
        list(b"x" * 65535),
        list(b"x" * 65536),
        [1, [2, [3]]],
        (),
        tuple(range(255)),
        tuple(range(256)),
        {1: 2, Atom("a"): b"b"},
        ImproperList((1, 2), 3),
        BitBinary(b"\xff\xe0", 3),
    ]
    program = (
        "lists:foreach(fun(_) -> {ok, Line} = file:read_line(standard_io),"
        " B = binary:decode_hex(string:trim(list_to_binary(Line))), T = binary_to_term(B),"
        ' io:format("~s~n", [binary:encode_hex(term_to_binary(T))]) end, lists:seq(1, N)), halt().'
    )
    lines = "".join(f"{encode(value).hex()}\n" for value in terms)
    done = subprocess.run(
        [ERLANG, "-noinput", "-noshell", "-eval", f"N = {len(terms)}, " + program],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    answers = [bytes.fromhex(line) for line in done.stdout.split()]
    assert len(answers) == len(terms)
    for value, answer in zip(terms, answers, strict=True):
        assert answer in (encode(value), encode(value, "utf8")), value
        assert decode(answer)[0] == value
