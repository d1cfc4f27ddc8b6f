"""What the readers of both kinds of consume queue have in common: the files of one queue directory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.format import mapped_file_queue
from mqstore.rocketmq.format.mapped_file_queue import QueueFile
from mqstore.shown import Shown


class QueueReader(Shown):
    """The files of one queue on disk. Never writes; a missing file is a gap, not an error."""

    max_gap: int | None = None  # files that may be missing in one place before the files after them count as stray

    def __init__(self, directory: ReadOnlyDirectory, topic: str, queue_id: int, *, file_size: int | None, place: str) -> None:
        """place: the directory of all queues of this kind. file_size: bytes of a file as configured; inferred if None."""
        self.topic = topic.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.queue_id = queue_id
        self.relative = f"{place}/{topic}/{queue_id}"
        self._directory = directory
        self._file_size = file_size

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message."""
        raise NotImplementedError

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        raise NotImplementedError

    def _title(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "offsets", f"{self.min_offset} to {self.max_offset}"

    @cached_property
    def _queue(self) -> mapped_file_queue.FileQueue:
        return mapped_file_queue.load(self._directory, self.relative, size=self._file_size, max_gap=self.max_gap)

    @property
    def file_findings(self) -> tuple[Damage, ...]:
        """Findings about names and sizes of the files."""
        return self._queue.findings

    @property
    def files(self) -> tuple[QueueFile, ...]:
        return self._queue.files

    @property
    def file_size(self) -> int:
        """Bytes of a file of this queue."""
        return self._queue.file_size
