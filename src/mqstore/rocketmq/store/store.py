"""A RocketMQ store opened for reading: its files, and the views of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mqstore.errors import UnsupportedError, UsageError
from mqstore.rocketmq.format.profile import profile, version_rules
from mqstore.rocketmq.store.store_files import StoreFiles
from mqstore.rocketmq.store.view import View
from mqstore.shown import Shown
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection, check_columns, rocketmq_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from mqstore.rocketmq.store.disk_view import DiskView


class RocketMQStore(StoreFiles, Shown):
    """One store directory. `view` returns one of the two views; the other members are the files as they are on disk."""

    def _title(self) -> str:
        of = ("log file" if self.one_file else "log files") if self.log_only else "store"
        return f"RocketMQ {of} {str(self.path)!r}"

    def _facts(self) -> Iterator[tuple[str, object]]:
        from mqstore.table.formatting import count, size

        files = self.log.files
        if self.log_only:
            yield "log", f"{size(sum(file.size for file in files))} from physical offset {files[0].start:,}"
            yield "queues, index, shutdown", "not known"
            return
        yield "files of", f"RocketMQ {version_rules(self.version_hint).series}"
        yield "log", f"{size(sum(file.size for file in files))} in {count(len(files), 'file')}"
        queues = self.view().queues()
        yield "queues", f"{len(queues):,} of {count(len({queue.topic for queue in queues}), 'topic')}"
        yield "shutdown", "unclean" if self.unclean else "clean"

    # the views

    def unknown_topic(self, topics: Iterable[str] | None) -> str:
        """Return a sentence on the first of these topics that the store does not have; empty if it has all, or is one log file."""
        if self.log_only:
            return ""
        from mqstore.table.formatting import did_you_mean

        known = {queue.topic for queue in self.view().queues()} | set(self.topics.names)
        for topic in sorted(set(topics or ()) - known):
            return f"topic {topic!r} has neither a queue nor a configuration{did_you_mean(topic, known)}"
        return ""

    def view(self, name: str = "disk", as_: str | None = None) -> View:
        """Return the view `disk` or `recovered`.

        as_: version of the broker that recovers, from 4.3.0 to 5.5.0; by default the one that the files suggest. Raises UsageError.
        """
        if as_ is not None:
            profile(as_)
        if name == "disk":
            return self._disk_view
        if name == "recovered":
            self.require_commit_log("the recovered view")
            from mqstore.rocketmq.store.recovered_view import recover

            return recover(self, as_)
        raise UsageError(f"there is no view {name!r}; the views are disk and recovered")

    @cached_property
    def _disk_view(self) -> DiskView:
        from mqstore.rocketmq.store.disk_view import DiskView  # loading a store for writing takes no view

        return DiskView(self)

    def to_batches(
        self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection(), *, milliseconds: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield the message table of the disk view, batch by batch."""
        return self.view().batches(columns, selection, milliseconds=milliseconds)

    def to_arrow(self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection()) -> pa.Table:
        """Return the message table of the disk view in memory. Use `to_batches` if it does not fit."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(columns, selection), rocketmq_schema(columns))

    def to_pandas(self, columns: Sequence[str] = ROCKETMQ_COLUMNS, selection: Selection = Selection()) -> Any:
        """Return the message table of the disk view as a `pandas.DataFrame`. Raises UnsupportedError if pandas is not installed."""
        check_columns(columns)
        if find_spec("pandas") is None:
            raise UnsupportedError("pandas is not installed: `pip install pandas`, or use to_arrow, which needs nothing more")
        return self.to_arrow(columns, selection).to_pandas()
