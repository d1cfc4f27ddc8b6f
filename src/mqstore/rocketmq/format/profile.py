"""Profiles: what differs between the versions of RocketMQ in the files of a store, in one table.

    from    rules    tags indexed   checkpoint fields   log files recovered   rewritten properties   properties of a batch
    4.3.0   4.9.3    no             3                   all                   end with a separator   not stored
    4.8.0   4.9.3    no             3                   all                   end with a separator   with each message
    4.9.1   4.9.3    no             3                   all                   do not                 with each message
    5.0.0   5.3.3    no             5                   all                   do not                 with each message
    5.2.0   5.3.3    no             5                   all                   end with a separator   with each message
    5.3.4   5.3.3    no             5                   all                   end with a separator   not stored
    5.4.0   5.3.3    yes            5                   the newest 10         end with a separator   not stored
    5.5.0   5.3.3    yes            6                   the newest 10         end with a separator   not stored

`rules` is the version that was reproduced in every detail and compared with the real broker; the versions of a row follow it. A broker
carries checkpoint fields that it does not know; so does this package.

    >>> profile("4.7.1").rules, profile("5.5.0").rules, profile("5.5.0").indexes_tags
    ('4.9.3', '5.3.3', True)

Format: docs/formats/rocketmq.md, sections 5.6, 7.1 and 8.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mqstore.errors import UsageError

__all__ = ["NEWEST", "OLDEST", "RELEASES", "Profile", "profile"]

_PATCHES = {
    "4.3": 2, "4.4": 0, "4.5": 2, "4.6": 1, "4.7": 1, "4.8": 0, "4.9": 8,
    "5.0": 0, "5.1": 4, "5.2": 0, "5.3": 4, "5.4": 0, "5.5": 0,
}  # fmt: skip
RELEASES = tuple(f"{minor}.{patch}" for minor, newest in _PATCHES.items() for patch in range(newest + 1))
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]


@dataclass(frozen=True, slots=True)
class Profile:
    """One version. rules: the version whose rules for records, queues, index and recovery it follows.

    indexes_tags: since 5.4.0 the index has an entry `topic#T#tags` as well. recovered_files: log files that a recovery looks at, from
    the newest back; None: all. ends_properties: property texts that the broker writes itself, as those of delayed messages, end with a
    separator. shares_properties: those of a producer's batch are stored with each of its messages. span: the releases that have the same
    files, as text.
    """

    version: str
    rules: str
    indexes_tags: bool
    checkpoint_fields: int
    recovered_files: int | None
    ends_properties: bool
    shares_properties: bool
    span: str

    @property
    def is_v5(self) -> bool:
        return self.rules != "4.9.3"


_TABLE = (
    ((4, 3, 0), "4.9.3", False, 3, None, True, False, "4.3.0 to 4.9.8"),
    ((4, 8, 0), "4.9.3", False, 3, None, True, True, "4.3.0 to 4.9.8"),
    ((4, 9, 1), "4.9.3", False, 3, None, False, True, "4.3.0 to 4.9.8"),
    ((5, 0, 0), "5.3.3", False, 5, None, False, True, "5.0.0 to 5.3.4"),
    ((5, 2, 0), "5.3.3", False, 5, None, True, True, "5.0.0 to 5.3.4"),
    ((5, 3, 4), "5.3.3", False, 5, None, True, False, "5.0.0 to 5.3.4"),
    ((5, 4, 0), "5.3.3", True, 5, 10, True, False, "5.4.0"),
    ((5, 5, 0), "5.3.3", True, 6, 10, True, False, "5.5.0"),
)


@lru_cache
def profile(version: str) -> Profile:
    """Return the profile of a release. Raises UsageError, with the list of all, for any other text."""
    if version not in RELEASES:
        raise UsageError(f"there are no rules of version {version!r}; known are {OLDEST} to {NEWEST}: {', '.join(RELEASES)}")
    number = tuple(map(int, version.split(".")))
    _, rules, tags, fields, files, ends, shares, span = max((row for row in _TABLE if row[0] <= number), key=lambda row: row[0])
    return Profile(version, rules, tags, fields, files, ends, shares, span)
