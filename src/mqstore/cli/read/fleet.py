"""`inspect` of many stores: one row a store, of either broker; a path that is not a store is a row with the reason.

    mqstore inspect '/backup/*/store' -o jsonl

The stores are opened in threads, and rows come in the order of the paths.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.grid import Column
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import InspectOptions
from mqstore.errors import CannotOpenError, MqstoreError, UsageError
from mqstore.table.formatting import command, count, size

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore

THREADS = 8  # opening a store waits for the disk, or for a server, more than it computes
SHOWN = 12
_BROKERS = {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}


@dataclass(frozen=True, slots=True)
class StoreRow:
    """What `inspect` reports of one of many stores; of a path that is not a store, only `store` and `error`.

    messages, messages_not_listed: as in the report of a single store. files, bytes: all of the store. findings: from names, sizes and small
    files alone. refusals: versions, or vhosts, of which a broker would not start. unsupported: parts that are not read.
    """

    store: str
    family: str | None = None
    version: str | None = None
    shutdown: str | None = None
    messages: int | None = None
    messages_not_listed: int | None = None
    files: int | None = None
    bytes: int | None = None
    findings: int | None = None
    refusals: int | None = None
    unsupported: int | None = None
    error: str | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong with the store, as far as `inspect` looks."""
        return not (self.findings or self.refusals or self.error)


def is_pattern(place: Path) -> bool:
    """Return whether a path, or a URL, is a pattern of paths and not itself the name of one."""
    return glob.has_magic(str(place)) and not os.path.lexists(str(place))


def inspect(out: Output, store: Sequence[Path], options: InspectOptions) -> int:
    """Show one row for each store: broker and version, shutdown, counts, and the number of findings."""
    from mqstore.jobs.runner import ThreadRunner

    _check_files(options)
    places = [match for place in store for match in _matches(place)]
    places = list({str(place): place for place in places}.values())
    rows = _Tally(ThreadRunner(min(THREADS, len(places))).each(places, partial(_row_of, options=options)))
    if out.is_text:
        _print_rows(out, rows)
    else:
        out.records([field.name for field in fields(StoreRow)], map(asdict, rows))
    if len(rows.unreadable) == rows.total:
        several = f"none of the {rows.total} paths can be read as a store; of the first: " if rows.total > 1 else ""
        raise CannotOpenError(f"{several}{rows.unreadable[0].error}")
    return 1 if rows.unreadable or rows.suspicious else 0


def _check_files(options: InspectOptions) -> None:
    """Raise an error for a file of an option that cannot be read, which would otherwise be one of every store."""
    if options.config is not None:
        from mqstore.rocketmq.config import broker_config

        broker_config.load(options.config)
    if options.names is not None:
        from mqstore.cli.rabbitmq.store import read_names

        read_names(options.names)


def _matches(place: Any) -> list[Any]:
    from mqstore.files.location import Url
    from mqstore.files.remote import matching

    if not is_pattern(place):
        return [place]
    found = matching(place) if isinstance(place, Url) else [Path(each) for each in sorted(glob.glob(str(place)))]
    if not found:
        raise UsageError(f"nothing matches {place}: give a pattern of store directories, those that hold commitlog/ or msg_stores/")
    return list(found)


def _row_of(place: Any, *, options: InspectOptions) -> StoreRow:
    from mqstore.rocketmq.store.store import RocketMQStore
    from mqstore.stores import open_store

    try:
        opened = open_store(place, config=options.config)
        return _rocketmq_row(place, opened) if isinstance(opened, RocketMQStore) else _rabbitmq_row(place, opened, options)
    except MqstoreError as error:
        return StoreRow(str(place), error=str(error))
    except OSError as error:
        return StoreRow(str(place), error=f"{error.filename or place}: {error.strerror or error}")


def _rocketmq_row(place: Any, store: RocketMQStore) -> StoreRow:
    from mqstore.rocketmq.summary import summarize

    summary = summarize(store)
    return StoreRow(
        str(place),
        summary.family,
        summary.version,
        "unclean" if summary.unclean else "clean",
        summary.listed,
        summary.end.unqueued if summary.end.walked else None,
        sum(part.files for part in summary.parts),
        sum(part.bytes for part in summary.parts),
        len(summary.findings),
        len(summary.refusals),
        len(summary.unsupported),
    )


def _rabbitmq_row(place: Any, store: RabbitMQStore, options: InspectOptions) -> StoreRow:
    from mqstore.cli.rabbitmq.store import open_rabbitmq
    from mqstore.rabbitmq.summary import summarize

    summary = summarize(store if options.names is None else open_rabbitmq(place, names=options.names))
    shown: Mapping[str, Any] = summary.as_dict()
    return StoreRow(
        str(place),
        "rabbitmq",
        shown["version"],
        summary.shutdown,
        shown["messages"],
        None,
        shown["files"],
        shown["bytes"],
        len(summary.findings),
        sum(bool(vhost.refusals) for vhost in summary.vhosts),
        len(summary.unsupported),
    )


class _Tally:
    """Rows that are counted while they are printed. suspicious: stores with findings or refusals."""

    def __init__(self, rows: Iterator[StoreRow]) -> None:
        self._rows = rows
        self.total = self.messages = self.files = self.bytes = self.unclean = 0
        self.suspicious: list[StoreRow] = []
        self.unreadable: list[StoreRow] = []

    def __iter__(self) -> Iterator[StoreRow]:
        for row in self._rows:
            self.total += 1
            self.messages += (row.messages or 0) + (row.messages_not_listed or 0)
            self.files += row.files or 0
            self.bytes += row.bytes or 0
            self.unclean += row.shutdown == "unclean"
            if row.error is not None:
                self.unreadable.append(row)
            elif not row.clean:
                self.suspicious.append(row)
            yield row


# for a person


def _print_rows(out: Output, rows: _Tally) -> None:
    columns = (
        Column("store", flexible=True, path=True),
        Column("broker"),
        Column("version"),
        Column("shutdown"),
        Column("messages", right=True),
        Column("files", right=True, drop=2),
        Column("size", right=True, drop=1),
        Column("findings", right=True),
    )
    out.table(columns, (_cells(row) for row in rows if row.error is None))
    out.line()
    readable = rows.total - len(rows.unreadable)
    what = f"{count(readable, 'store')}: {count(rows.messages, 'message')}, {size(rows.bytes)} in {count(rows.files, 'file')}"
    out.line(f"{what}; unclean shutdown: {rows.unclean}; with findings: {len(rows.suspicious)}.")
    if rows.unreadable:
        out.line()
        out.line(f"{count(len(rows.unreadable), 'path')} cannot be read as a store:", style="bold")
        shown = out.first(rows.unreadable, SHOWN)
        for row in shown:
            out.line(f"  {row.error}")
        out.more_rows(len(rows.unreadable) - len(shown))
    if rows.suspicious:
        out.line()
        out.next_step("look at a store with findings.", command("mqstore", "inspect", rows.suspicious[0].store))


def _cells(row: StoreRow) -> list[str]:
    messages = "?" if row.messages is None else f"{row.messages + (row.messages_not_listed or 0):,}"
    problems = (row.findings or 0) + (row.refusals or 0)
    return [
        row.store,
        _BROKERS[row.family or ""],
        row.version or "",
        row.shutdown or "",
        messages,
        f"{row.files:,}",
        size(row.bytes or 0),
        f"{problems:,}" if problems else "",
    ]
