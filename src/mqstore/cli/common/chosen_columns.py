"""`--columns A,B`: which columns of the tables of a command are printed, and in which order.

>>> chosen = ChosenColumns(("topic", "stored", "queue_id"))
>>> chosen.of(["topic", "queue id", "size", "stored (UTC)"])
[0, 3, 1]
"""

from __future__ import annotations

from collections.abc import Sequence

from mqstore.errors import UsageError
from mqstore.table.formatting import printable


def _plain(title: str) -> str:
    return " ".join(title.lower().replace("(utc)", "").replace("_", " ").split())


class ChosenColumns:
    """The columns that are wanted, by the titles of a table or the names of its fields, in any case. A table without any is left out."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self.wanted = tuple(wanted)
        self._found: set[str] = set()
        self._offered: dict[str, None] = {}

    def of(self, titles: Sequence[str]) -> list[int]:
        """Return the positions of the wanted columns in a table with these titles, in the order in which they are wanted."""
        self._offered |= dict.fromkeys(title for title in titles if title)
        places = {_plain(title): k for k, title in enumerate(titles)}
        found = [name for name in self.wanted if _plain(name) in places]
        self._found |= set(found)
        return list(dict.fromkeys(places[_plain(name)] for name in found))

    def check(self) -> None:
        """Raise UsageError if a wanted column was in none of the tables so far."""
        unknown = [name for name in self.wanted if name not in self._found]
        if unknown and self._offered:
            names = ", ".join(printable(name) for name in unknown)
            raise UsageError(f"--columns: there is no column {names}; the columns are {', '.join(self._offered)}")
