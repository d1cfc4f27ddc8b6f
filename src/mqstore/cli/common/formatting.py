"""How values are shown to a person; the words are those of `mqstore.table.formatting`, which the console has, too."""

from __future__ import annotations

from mqstore.table.formatting import TELLING, clock, command, count, moment, pace, parse_time, printable, shorten, size

__all__ = ["TELLING", "clock", "command", "count", "moment", "pace", "parse_time", "printable", "shorten", "size"]
