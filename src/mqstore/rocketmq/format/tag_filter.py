"""Tag filter: which messages of a queue a consumer subscribes to.

A subscription expression is `*` (or empty), or tags separated by double bars. A broker knows only the tags code of an
entry, the 32-bit hash of the tag, so it passes every tag with the hash of a wanted one; the client then compares the tags
themselves.

    >>> wanted = TagFilter.parse("Aa || TagB")
    >>> sorted(wanted.tags), sorted(wanted.hashes)
    (['Aa', 'TagB'], [2112, 2598920])
    >>> wanted.matches_code(2112), wanted.matches_tags("BB"), wanted.matches_tags("Aa")
    (True, False, True)
    >>> TagFilter.parse("*").matches_code(1), TagFilter.parse(None).everything
    (True, True)

A tags code is 64 bits wide and holds the sign-extended hash; only the low 32 bits are compared. In the queues of delayed
messages it is a delivery time, which tag filters are not meant for.

Format: docs/formats/rocketmq.md, section 10.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.errors import UsageError
from mqstore.rocketmq.format.java_text import java_hash

_BLANKS = "".join(map(chr, range(0x21)))  # what Java's trim() removes


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed expression. everything: all messages match. hashes: signed 32-bit hashes of the tags."""

    everything: bool
    tags: frozenset[str] = frozenset()
    hashes: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Parse an expression. Raises UsageError where a client would refuse it: an expression of bars only."""
        if not expression or expression == "*":
            return EVERYTHING
        parts = expression.split("||")
        if not any(parts):
            raise UsageError(f"the tag expression {expression!r} names no tag; write tags separated by ||, or * for every message")
        tags = frozenset(part.strip(_BLANKS) for part in parts) - {""}
        return cls(False, tags, frozenset(map(java_hash, tags)))

    def matches_code(self, tags_code: int | None) -> bool:
        """Return whether a broker passes an entry. None: a tags code that could not be read, which matches."""
        return self.everything or tags_code is None or (tags_code + (1 << 31)) % (1 << 32) - (1 << 31) in self.hashes

    def matches_tags(self, tags: str | None) -> bool:
        """Return whether a client accepts a message. A message without tags is dropped; a filter without tags drops nothing."""
        return not self.tags or tags in self.tags


EVERYTHING = TagFilter(True)
