"""`inspect`: what a directory holds, from names, sizes, headers and the end of the log; of several stores, one row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.command import open_either, verb
from mqstore.cli.common.options import InspectOptions
from mqstore.cli.common.output import Output
from mqstore.errors import CannotOpenError
from mqstore.report.parts import Gap, Headline, NextStep, Parts, Sentence, Sentences
from mqstore.table.formatting import command, count, size

if TYPE_CHECKING:
    from mqstore.files.location import Location
    from mqstore.store import StorePlace
    from mqstore.stores.fleet import StoreRow


def inspect(out: Output, store: Store, options: InspectOptions) -> int:
    """Show what a directory holds: broker and version, files, settings, shutdown, counts, times, and whether a broker starts on it.

    Only names, sizes, headers and the end of the log are read, so a store of any size is shown at once; `verify` checks every byte.
    """
    from mqstore.places import SeveralStoresError
    from mqstore.report.summary import summary_parts

    try:
        summary = open_either(store, options).summary()
    except SeveralStoresError as several:
        return _show_rows(out, several.places, options, several.complete)
    if out.is_text:
        out.show(summary_parts(summary))
    else:
        out.report(summary.as_dict())
    return 0 if summary.ok else 1


def _inspect_several(out: Output, store: Sequence[Path], options: InspectOptions) -> int:
    """Show one row for each store: broker and version, shutdown, counts, and the number of findings."""
    from mqstore.stores.fleet import matches

    return _show_rows(out, matches(store), options)


def _show_rows(out: Output, places: Sequence[Location | StorePlace], options: InspectOptions, complete: bool = True) -> int:
    """Show one row for each place. complete: whether these are all stores that there are."""
    from mqstore.rabbitmq.definitions.document import read_queue_names
    from mqstore.stores.fleet import StoreRow, fleet_rows

    names = () if options.names is None else tuple(read_queue_names(options.names))
    rows = _Tally(fleet_rows(places, config=options.config, names=names))
    if not complete:
        out.note("there are more directories than were looked at, so that there may be more stores: give one of the directories")
    if out.is_text:
        out.show(_fleet_parts(rows, () if options.config is None else ("--config", options.config)))
    else:
        out.records([field.name for field in fields(StoreRow)], map(asdict, rows))
    if len(rows.unreadable) == rows.total:
        several = f"none of the {rows.total} paths can be read as a store; of the first: " if rows.total > 1 else ""
        raise CannotOpenError(f"{several}{rows.unreadable[0].error}")
    return 1 if rows.unreadable or rows.suspicious or not complete else 0


def _is_pattern(path: Path) -> bool:
    from mqstore.stores.fleet import is_pattern

    return is_pattern(path)


class _Tally:
    """Rows that are counted while they are printed. suspicious: stores with findings or refusals."""

    def __init__(self, rows: Iterator[StoreRow]) -> None:
        self._rows = rows
        self.total = self.messages = self.files = self.bytes = self.unclean = 0
        self.least = ""  # "at least " once a store has messages that cannot be counted
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
            else:
                self.least = "at least " if row.messages is None else self.least
                if not row.clean:
                    self.suspicious.append(row)
            yield row


def _fleet_parts(rows: _Tally, given: tuple[object, ...]) -> Parts:
    from mqstore.report.summary import SHOWN, fleet_table

    yield fleet_table(rows)
    yield Gap()
    readable = rows.total - len(rows.unreadable)
    messages = f"{rows.least}{count(rows.messages, 'message')}"
    what = f"{count(readable, 'store')}: {messages}, {size(rows.bytes)} in {count(rows.files, 'file')}"
    yield Sentence(f"{what}; unclean shutdown: {rows.unclean}; with findings: {len(rows.suspicious)}.")
    if rows.unreadable:
        yield Gap()
        yield Headline(f"{count(len(rows.unreadable), 'path')} cannot be read as a store:")
        yield Sentences([str(row.error) for row in rows.unreadable], SHOWN)
    if rows.suspicious:
        yield Gap()
        yield NextStep("look at a store with findings.", (command("mqstore", "inspect", rows.suspicious[0].store, *given),))


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    verb(app, example="inspect /backup/store", several=_inspect_several, is_pattern=_is_pattern)(inspect)
