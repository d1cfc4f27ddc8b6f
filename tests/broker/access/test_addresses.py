"""White-listed addresses: which address belongs to which pattern, and which patterns are none."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.broker.access.addresses import NO_ADDRESS, contains, parse
from mqstore.errors import UsageError

HOLDS = [
    ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.4", "::10.1.2.3", "fe80::1%eth0", "", "no address"]),
    ("10.1.2.3, 10.1.2.9", ["10.1.2.3", "10.1.2.9"], ["10.1.2.4"]),
    ("10.1.2.{3, 9}", ["10.1.2.3", "10.1.2.9"], ["10.1.2.39", "10.1.2.1"]),
    ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0"]),
    ("10.*.*.*", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "9.255.255.255"]),
    ("10.1.5-7.*", ["10.1.5.0", "10.1.7.255"], ["10.1.4.255", "10.1.8.0"]),
    ("10.1.2.0-0", ["10.1.2.0"], ["10.1.2.1"]),
    ("*", ["1.2.3.4", "::1"], ["no address"]),
    ("*.*.*.*", ["1.2.3.4", "::1"], []),
    ("::1", ["::1", "0:0:0:0:0:0:0:1", "::1%lo"], ["::2", "127.0.0.1", "0.0.0.1"]),
    ("2001:DB8::{a,b}", ["2001:db8::a", "2001:0db8:0:0:0:0:0:b"], ["2001:db8::ab", "2001:db8::"]),
    ("2001:db8:0:0:0:0:1-2:*", ["2001:db8::1:0", "2001:db8::2:ffff"], ["2001:db8::3:0"]),
    ("", [], ["127.0.0.1"]),
    ("   ", [], ["127.0.0.1"]),
]
NO_PATTERNS = [
    "10.1.2",
    "10.1.2.256",
    "10.1.2.-3",
    "10.1.2.5-3",
    "10.1-2.3.4",
    "*.1.2.3",
    "10.1.2.3,",
    "10.1.2.{3,4",
    "10.1.2{3,4}",
    "10.1.2.{}",
]
NO_PATTERNS += [
    "10.1.2.3/24",
    "host",
    "1:2:3",
    "1::2::3",
    "1:2:3:4:5:6:7:8:9",
    "::g",
    "1:2:3:4:5:6:7:12345",
    "10.1.2.٣",
    "10.1.2.3\x00",
    "}",
    "{}",
]
NO_PATTERNS += ["10.1.2.+3", "10.1.2.1_0", "0:0:0:0:0:0:0:0x1", "1.2.3.4.{5,6}", "*.*", "**"]


@pytest.mark.parametrize(("pattern", "inside", "outside"), HOLDS, ids=[each[0] or "empty" for each in HOLDS])
def test_an_address_belongs_to_a_pattern_or_does_not(pattern: str, inside: list[str], outside: list[str]) -> None:
    white = [parse(pattern)]
    assert [host for host in inside if not contains(white, host)] == []
    assert [host for host in outside if contains(white, host)] == []


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_what_is_not_a_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="is not an address or a pattern"):
        parse(pattern)


def test_a_pattern_with_thousands_of_addresses_is_refused() -> None:
    with pytest.raises(UsageError, match=re.escape("more than 1000 addresses")):
        parse(",".join(["10.1.2.3"] * 1001))


@given(st.ip_addresses())
def test_every_address_is_a_pattern_of_itself_alone(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    white = parse(str(address))
    mapped = getattr(address, "ipv4_mapped", None)
    other = type(address)(int(address) ^ 1)
    if mapped is None:
        assert contains([white], str(address))
    assert not contains([white], str(other))


@given(st.text(max_size=40))
def test_any_text_is_a_pattern_or_an_error(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert found is NO_ADDRESS or found.every or found.ranges
