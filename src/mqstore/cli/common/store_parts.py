"""The parts of a store, by directory or kind of file, as `inspect` shows them."""

from __future__ import annotations

from collections.abc import Iterable

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.store import StorePart
from mqstore.table.formatting import size


def print_parts(out: Output, parts: Iterable[StorePart]) -> None:
    """Print a table of the parts."""
    out.table(
        (
            Column("part"),
            Column("files", right=True),
            Column("size", right=True),
            Column("on disk", right=True),
            Column("what", flexible=True),
        ),
        ([part.name, f"{part.files:,}", size(part.bytes), size(part.stored), part.purpose] for part in parts),
    )
