"""The disk view: the files of a store as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.index_image import IndexImage
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.store.base_view import BaseView
from mqstore.rocketmq.store.message_table import table
from mqstore.rocketmq.store.view import QueueView
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns

if TYPE_CHECKING:
    import pyarrow as pa


class DiskView(BaseView):
    """The files as they are: valid records wherever they are, derived files as found."""

    name = "disk"

    @property
    def _all_queues(self) -> Sequence[QueueView]:
        return self._files.all_queues()

    @cached_property
    def _range(self) -> tuple[int, int]:
        return self.log.start, self.log.end()

    def log_range(self) -> tuple[int, int]:
        """Return the minimum and maximum physical offset."""
        return self._range

    def batches(
        self,
        columns: Sequence[str] = ROCKETMQ_COLUMNS,
        selection: Selection = Selection(),
        *,
        milliseconds: bool = False,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table in physical order. Arguments as in `View.batches`."""
        high = self.log.files[-1].start + self.log.files[-1].size if self.log.files else 0
        return table(
            self.log,
            self.log.start,
            high,
            check_columns(columns),
            selection,
            self.queue_lookup,
            milliseconds=milliseconds,
            on_damage=on_damage,
        )

    def index_files(self) -> Sequence[IndexFile] | Sequence[IndexImage]:
        """Return the index files, oldest first; an index made from the log if the geometry of one is not known, or they were not given."""
        return self._files.scanned_index if self._files.unread_index or self._files.log_only else self._files.index_files()

    def record(self, physical_offset: int) -> Record | None:
        """Return the valid record at a physical offset, or None."""
        return self.log.record(physical_offset)
