"""White-listed addresses: the patterns of `globalWhiteRemoteAddresses` and `whiteRemoteAddress`.

    10.10.103.5                    one address
    10.10.103.5,10.10.103.6        several
    10.10.103.{5,6}                several that differ in the last number
    10.10.103.*, 10.10.*.*         any number in the last places
    10.10.103.1-20, 10.10.1-9.*    a range in one place, with * in those after it
    *                              every address; also *.*.*.* and *:*:*:*:*:*:*:*

IPv6 addresses have hexadecimal numbers between colons, and may use :: in place of zeros.

    >>> white = parse("10.10.1-9.*"), parse("2001:db8::{1,2}")
    >>> [contains(white, host) for host in ("10.10.9.255", "10.10.10.0", "2001:DB8:0:0::2", "::ffff:10.10.1.1")]
    [True, False, True, True]

Format: docs/formats/rocketmq-remoting.md, section 10.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from mqstore.errors import UsageError

EVERY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
MAX_ADDRESSES = 1000  # of one pattern
DIGITS = {10: frozenset("0123456789"), 16: frozenset("0123456789abcdefABCDEF")}


@dataclass(frozen=True, slots=True)
class WhiteList:
    """Addresses of a pattern: inclusive ranges of (version, first, last), or every address."""

    ranges: tuple[tuple[int, int, int], ...] = ()
    every: bool = False

    def holds(self, version: int, number: int) -> bool:
        """Whether an address belongs to the pattern."""
        return self.every or any(kind == version and first <= number <= last for kind, first, last in self.ranges)


NO_ADDRESS = WhiteList()


def contains(lists: Iterable[WhiteList], host: str) -> bool:
    """Return whether an ip address belongs to one of the patterns. An IPv4 address in the form of IPv6 counts as IPv4."""
    lists = [each for each in lists if each is not NO_ADDRESS]
    if not lists:
        return False
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(each.holds(address.version, int(address)) for each in lists)


def parse(pattern: str) -> WhiteList:
    """Parse a pattern; an empty one holds no address. Raises UsageError."""
    text = pattern.strip()
    if not text:
        return NO_ADDRESS
    if text in EVERY:
        return WhiteList(every=True)
    if text.endswith("}"):
        start, brace, inner = text[:-1].rpartition("{")
        if not brace or not start.endswith((".", ":")):
            raise _not_a_pattern(pattern)
        parts = [start + each.strip() for each in inner.split(",")]
    else:
        parts = [each.strip() for each in text.split(",")]
    if len(parts) > MAX_ADDRESSES:
        raise UsageError(f"an address pattern has more than {MAX_ADDRESSES} addresses")
    return WhiteList(tuple(_range(part, pattern) for part in parts))


def _range(text: str, pattern: str) -> tuple[int, int, int]:
    """Return (version, first, last) of one address or range."""
    if ":" in text:
        return 6, *_bounds(_groups(text, pattern), 16, 16, pattern)
    numbers = text.split(".")
    if len(numbers) != 4:
        raise _not_a_pattern(pattern)
    return 4, *_bounds(numbers, 10, 8, pattern)


def _groups(text: str, pattern: str) -> list[str]:
    """Return the eight groups of an IPv6 address or range."""
    head, gap, tail = text.partition("::")
    before, after = head.split(":") if head else [], tail.split(":") if tail else []
    missing = 8 - len(before) - len(after)
    if (gap and missing < 1) or (not gap and missing) or "::" in tail:
        raise _not_a_pattern(pattern)
    return [*before, *["0"] * missing, *after]


def _bounds(numbers: list[str], base: int, bits: int, pattern: str) -> tuple[int, int]:
    """Return the first and last address; after a range or *, only * may follow."""
    first = last = 0
    top, open_ended = (1 << bits) - 1, False
    for text in numbers:
        low, dash, high = text.partition("-")
        if text == "*":
            start, end = 0, top
        elif open_ended:
            raise _not_a_pattern(pattern)
        else:
            start = _number(low, base, top, pattern)
            end = _number(high, base, top, pattern) if dash else start
        if start > end:
            raise _not_a_pattern(pattern)
        open_ended = open_ended or text == "*" or bool(dash)
        first, last = first << bits | start, last << bits | end
    return first, last


def _number(text: str, base: int, top: int, pattern: str) -> int:
    if not 0 < len(text) <= 4 or not DIGITS[base].issuperset(text) or int(text, base) > top:
        raise _not_a_pattern(pattern)
    return int(text, base)


def _not_a_pattern(pattern: str) -> UsageError:
    shown = pattern if len(pattern) <= 64 else pattern[:64] + "…"
    return UsageError(f"{shown!r} is not an address or a pattern such as 10.1.2.3, 10.1.2.*, 10.1.2.1-20 or 10.1.2.{{3,4}}")
