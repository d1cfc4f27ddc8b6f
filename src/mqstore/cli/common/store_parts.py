"""The parts of a store, by directory or kind of file, as `inspect` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.table.formatting import size

__all__ = ["StorePart", "print_parts"]


@dataclass(frozen=True, slots=True)
class StorePart:
    """Files of one directory or kind. bytes: total length; stored: bytes of the disk blocks they occupy."""

    name: str
    purpose: str
    files: int
    bytes: int
    stored: int

    def as_dict(self) -> dict[str, Any]:
        """Return an item of `parts` in the document that `inspect -o json` prints."""
        return {"name": self.name, "files": self.files, "bytes": self.bytes, "stored_bytes": self.stored}


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
