"""Values as text for a person: sizes, times and counts, and text from a store made safe for a terminal or a web page.

>>> size(1_048_576), moment(1640995200123), count(2, "queue"), printable("a\\x1b[2Jb")
('1.0 MiB', '2022-01-01 00:00:00.123', '2 queues', 'a\\\\x1b[2Jb')
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from unicodedata import east_asian_width

from mqstore.errors import UsageError
from mqstore.shown import count as count  # noqa: PLC0414 - offered here with the others; findings, below, need it too

MIN_BYTES_FOR_RATE = 64 << 20  # below this, start-up dominates and a rate means nothing
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PART = r"([0-9]{1,6}) ?(seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d|weeks?|w)"
_SPAN = re.compile(rf"{_PART}(?: ?{_PART})*(?: ago)?", re.IGNORECASE)
_PARTS = re.compile(_PART, re.IGNORECASE)
_MILLISECONDS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DAYS = {"today": 0, "yesterday": 1}
# terminals act on control characters, which a store may contain; lone surrogates cannot be encoded
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # also full-width, which Excel takes for the same


def _escape(character: re.Match[str]) -> str:
    code = ord(character[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def printable(text: str) -> str:
    """Escape control characters, direction marks and lone surrogates."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_csv(text: str) -> str:
    """Escape what `printable` escapes, but for the line ends and tabs of a CSV file."""
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in "\n\t" else _escape(match), text)


def printable_json(text: str) -> str:
    """Escape what `printable` escapes as JSON does, but for line ends; the values are the same."""
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def no_formula(cell: Any) -> Any:
    """Put ' before a text that a spreadsheet would take for a formula.

    >>> no_formula('=HYPERLINK("http://192.0.2.1")'), no_formula("@A1"), no_formula("orders"), no_formula(-1), no_formula("")
    ('\\'=HYPERLINK("http://192.0.2.1")', "'@A1", 'orders', -1, '')
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def size(count_of_bytes: int) -> str:
    """Format a number of bytes in the largest binary unit in which it is at least one."""
    amount = float(count_of_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{count_of_bytes} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def moment(milliseconds: int | None, zone: str = "UTC") -> str:
    """Format a time to the millisecond: in UTC without an offset, in other zones with it, outside the calendar as the number itself.

    >>> moment(1640995200123, "Europe/Berlin"), moment(None)
    ('2022-01-01 01:00:00.123+01:00', '-')
    """
    if milliseconds is None:
        return "-"
    try:
        time = EPOCH + timedelta(milliseconds=milliseconds)
        if zone != "UTC":
            import zoneinfo  # takes some milliseconds

            try:
                return time.astimezone(zoneinfo.ZoneInfo(zone)).isoformat(" ", "milliseconds")
            except (OverflowError, ValueError, zoneinfo.ZoneInfoNotFoundError):
                pass
        return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return str(milliseconds)


@cache
def zone_names() -> tuple[str, ...]:
    """Return the names of all time zones that this machine knows, UTC first."""
    import zoneinfo

    return ("UTC", *sorted(zoneinfo.available_timezones() - {"UTC", "localtime", "posixrules"}))


def zone_named(name: str) -> str:
    """Return the name of a zone as it is written, for a name in any case. Raises UsageError."""
    zone = next((each for each in zone_names() if each.lower() == name.strip().lower()), None)
    if zone is None:
        raise UsageError(f"there is no time zone {printable(name)!r} on this machine; give one such as UTC or Europe/Berlin")
    return zone


def clock(seconds: float) -> str:
    """Format a duration.

    >>> clock(0.0042), clock(3.21), clock(75)
    ('4 ms', '3.2 s', '1 min 15 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def pace(count_of_bytes: int, seconds: float) -> str:
    """Format a duration, with the throughput if there were enough bytes to measure it.

    >>> pace(4_000_000_000, 2.0), pace(1000, 0.5)
    ('2.0 s, 2.00 GB/s', '500 ms')
    """
    rate = f", {count_of_bytes / seconds / 1e9:.2f} GB/s" if seconds > 0 and count_of_bytes >= MIN_BYTES_FOR_RATE else ""
    return clock(seconds) + rate


def agreeing(number: int, noun: str, one: str, several: str) -> str:
    """Format a number with its noun and the verb that agrees with it.

    >>> agreeing(1, "message", "is", "are"), agreeing(2, "message", "has", "have")
    ('1 message is', '2 messages have')
    """
    return f"{count(number, noun)} {one if number == 1 else several}"


def display_width(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def shorten(text: str, width: int) -> str:
    """Cut text to at most `width` characters, the last of them an ellipsis if any are left out."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def command(*words: object) -> str:
    """Format a command line that can be pasted into a shell.

    >>> command("mqstore", "query", "store", "-k", "two words")
    "mqstore query store -k 'two words'"
    """
    return " ".join(shlex.quote(printable(str(word))) for word in words)


def real_copy(path: object) -> tuple[str, str]:
    """Return the command line that copies a directory so that each link becomes a separate file, and the path of the copy.

    It keeps the name, which is that of a node, in a new directory beside it.

    >>> real_copy("/data/store")
    ('mkdir /data/store.copy && cp -rLp /data/store /data/store.copy', '/data/store.copy/store')
    """
    source = os.path.abspath(str(path))
    beside = f"{source}.copy"
    return f"{command('mkdir', beside)} && {command('cp', '-rLp', source, beside)}", os.path.join(beside, os.path.basename(source))


def is_real_copy(path: object) -> bool:
    """Return whether a directory is where `real_copy` makes the copy of another, which is there."""
    beside, name = os.path.split(os.path.abspath(str(path)))
    source = os.path.join(os.path.dirname(beside), name)
    return os.path.isdir(source) and real_copy(source)[1] == os.path.join(beside, name)


def parse_time(text: str, option: str, *, now: int | None = None) -> int:
    """Parse a time into milliseconds since the epoch. Raises UsageError.

    A time is a number; an ISO 8601 time, in UTC if it has no zone; a span before now: 45s, 1h30m, 3 days, 1w ago; `now`; `today` and
    `yesterday`, which begin at midnight UTC. now: in milliseconds.

    >>> parse_time("2022-01-01T00:00:00.123Z", "--since"), parse_time("2022-01-01 01:00+01:00", "--since"), parse_time("5", "--since")
    (1640995200123, 1640995200000, 5)
    >>> parse_time("2h", "--since", now=10_000_000), parse_time("1h 30 minutes ago", "--since", now=10_000_000)
    (2800000, 4600000)
    """
    stripped = text.strip()
    if stripped.removeprefix("-").isdecimal():
        return int(stripped)
    now = time.time_ns() // 1_000_000 if now is None else now
    word = stripped.lower()
    if word == "now":
        return now
    if word in _DAYS:
        return now - now % _MILLISECONDS["d"] - _DAYS[word] * _MILLISECONDS["d"]
    if _SPAN.fullmatch(stripped) is not None:
        return now - sum(int(number) * _MILLISECONDS[unit[0].lower()] for number, unit in _PARTS.findall(stripped))
    try:
        parsed = datetime.fromisoformat(stripped)
    except ValueError:
        raise UsageError(
            f"{option} {printable(text)!r} is not a time; give milliseconds since the epoch, an ISO 8601 time such as "
            "2024-05-01T12:30:00Z (UTC if it has no zone), or a span before now such as 2h or 3d"
        ) from None
    aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(milliseconds=1)


def queue_title(queue: str, priority: int | None) -> str:
    """Return a queue's name for a person, with its priority level.

    >>> queue_title("tasks", None), queue_title("tasks", 4)
    ('tasks', 'tasks (priority 4)')
    """
    return queue if priority is None else f"{queue} (priority {priority})"


# ---- names that were probably meant: for topics, queues, vhosts and groups that a store does not have


SHOWN = 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the nearest names, if any.

    >>> did_you_mean("orderz", ["orders", "late"]), did_you_mean("ORDERS", ["orders"]), did_you_mean("x", ["orders"])
    ("; did you mean 'orders'?", "; did you mean 'orders'?", '')
    """
    import difflib  # most commands end without it

    by_form: dict[str, str] = {}
    for each in sorted(known):
        by_form.setdefault(each.casefold(), each)
    near = difflib.get_close_matches(name.casefold(), by_form, 2, 0.75)
    return f"; did you mean {' or '.join(repr(by_form[form]) for form in near)}?" if near else ""


def no_vhost(name: str, known: Collection[str]) -> str:
    """Return the sentence for a vhost that a store does not have.

    >>> no_vhost("prd", ["prod", "test"]), no_vhost("x", ["prod", "test"])
    ("the store has no vhost 'prd'; did you mean 'prod'?", "the store has no vhost 'x'; it has 'prod' and 'test'")
    """
    there = [repr(each) for each in sorted(known)]
    more = len(there) - SHOWN
    shown = [*there[:SHOWN], *([f"{more:,} more"] if more > 0 else [])]
    listed = " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else "".join(shown) or "none"
    return f"the store has no vhost {name!r}{did_you_mean(name, known) or f'; it has {listed}'}"
