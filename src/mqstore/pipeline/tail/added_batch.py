"""A batch of Parquet files on disk that a table is to hold."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AddedBatch"]


@dataclass(frozen=True, slots=True)
class AddedBatch:
    """A batch that is on disk. files: below OUT, with their bytes. start, stop: physical offsets."""

    number: int
    start: int
    stop: int
    files: tuple[tuple[str, int], ...]

    @property
    def properties(self) -> dict[str, str]:
        """What the commit of a batch says of it."""
        return {"mqstore.batch": str(self.number), "mqstore.start": str(self.start), "mqstore.stop": str(self.stop)}
