"""Tag filter: which messages of a queue a consumer subscribes to.

A subscription expression is `*` (also nothing at all) or tags between double bars. A broker knows only the tags code of
an entry, the 32-bit hash of the tag, so it lets through every tag that has the hash of a wanted one; the client compares
the tags themselves afterwards.

    >>> wanted = TagFilter.parse("Aa || TagB")
    >>> sorted(wanted.tags), sorted(wanted.hashes)
    (['Aa', 'TagB'], [2112, 2598920])
    >>> wanted.matches_code(2112), wanted.matches_tags("BB"), wanted.matches_tags("Aa")
    (True, False, True)
    >>> TagFilter.parse("*").matches_code(1), TagFilter.parse(None).everything
    (True, True)

A tags code is 64 bits wide and holds the hash with its sign; only the low 32 bits are compared. In the queues of waiting
messages it is a delivery time, which no filter of tags fits.

Format: docs/formats/rocketmq.md, section 10.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.errors import UsageError
from mqstore.rocketmq.format.java_text import java_hash

__all__ = ["EVERYTHING", "TagFilter"]

_BLANKS = "".join(map(chr, range(0x21)))  # what Java's trim() takes off


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed expression. everything: no tag is looked at. hashes: signed 32-bit hashes of the tags."""

    everything: bool
    tags: frozenset[str] = frozenset()
    hashes: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """The filter that an expression stands for. Raises UsageError where a client would refuse it: bars and nothing else."""
        if not expression or expression == "*":
            return EVERYTHING
        parts = expression.split("||")
        if not any(parts):
            raise UsageError(f"the tag expression {expression!r} names no tag; write tags between double bars, or * for every message")
        tags = frozenset(part.strip(_BLANKS) for part in parts) - {""}
        return cls(False, tags, frozenset(map(java_hash, tags)))

    def matches_code(self, tags_code: int | None) -> bool:
        """What a broker decides on an entry. None: a tags code that could not be read, which matches."""
        return self.everything or tags_code is None or (tags_code + (1 << 31)) % (1 << 32) - (1 << 31) in self.hashes

    def matches_tags(self, tags: str | None) -> bool:
        """What a client decides on a message. A message without tags is dropped; a filter without tags drops nothing."""
        return not self.tags or tags in self.tags


EVERYTHING = TagFilter(True)
