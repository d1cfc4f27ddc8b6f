"""A batch of Parquet files on disk that is to be added to a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddedBatch:
    """A batch that is on disk. files: paths below OUT, with their sizes. start, stop: physical offsets."""

    number: int
    start: int
    stop: int
    files: tuple[tuple[str, int], ...]

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the commit that adds the batch."""
        return {"mqstore.batch": str(self.number), "mqstore.start": str(self.start), "mqstore.stop": str(self.stop)}
