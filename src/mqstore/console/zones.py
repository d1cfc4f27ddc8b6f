"""Times of pages in a time zone that the visitor chooses.

>>> moment(1640995200123, "UTC"), moment(1640995200123, "Europe/Berlin"), moment(None, "UTC")
('2022-01-01 00:00:00.123', '2022-01-01 01:00:00.123+01:00', '-')
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import cache

from mqstore.errors import UsageError
from mqstore.table import formatting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all time zones that this machine knows, UTC first."""
    return ("UTC", *sorted(zoneinfo.available_timezones() - {"UTC", "localtime", "posixrules"}))


def zone_named(name: str) -> str:
    """Return the name of a zone as it is written, for a name in any case. Raises UsageError."""
    found = next((each for each in names() if each.lower() == name.strip().lower()), None)
    if found is None:
        raise UsageError(f"there is no time zone {formatting.printable(name)!r} on this machine; give one such as UTC or Europe/Berlin")
    return found


def moment(milliseconds: int | None, zone: str) -> str:
    """Format a time to the millisecond: in UTC without an offset, in other zones with it."""
    if milliseconds is None or zone == "UTC":
        return formatting.moment(milliseconds)
    try:
        found = (_EPOCH + timedelta(milliseconds=milliseconds)).astimezone(zoneinfo.ZoneInfo(zone))
    except (OverflowError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        return formatting.moment(milliseconds)
    return found.isoformat(" ", "milliseconds")
