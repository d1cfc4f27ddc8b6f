"""Many stores: one row a store, of either broker; a path that is not a store is a row with the reason.

The stores are opened in threads, and rows come in the order of the paths.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.errors import A_STORE, MqstoreError, UsageError
from mqstore.files.location import Location, Url
from mqstore.store import StorePlace

if TYPE_CHECKING:
    from mqstore.rabbitmq.summary import RabbitMQSummary
    from mqstore.rocketmq.summary import RocketMQSummary

THREADS = 8  # opening a store waits for the disk, or for a server, more than it computes


@dataclass(frozen=True, slots=True)
class StoreRow:
    """What `inspect` reports of one of many stores; of a path that is not a store, only `store` and `error`.

    suggested_version, shutdown, messages, messages_not_listed: as in the report of a single store. files, bytes: all of the store.
    findings: from names, sizes and small files alone. refusals: versions, or vhosts, of which a broker would not start. unsupported: parts
    that are not read.
    """

    store: str
    family: str | None = None
    version: str | None = None
    suggested_version: str | None = None
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


def is_pattern(path: Location) -> bool:
    """Return whether a path, or a URL, is a pattern of paths and not itself the name of one."""
    return glob.has_magic(str(path)) and not os.path.lexists(str(path))


def matches(places: Iterable[Location]) -> list[Location]:
    """Return the paths that are given, and for a pattern those that match it, each once. Raises UsageError if none matches."""
    every = [match for place in places for match in _matches(place)]
    return list({str(place): place for place in every}.values())


def _matches(place: Location) -> list[Location]:
    from mqstore.files.remote import matching

    if not is_pattern(place):
        return [place]
    paths = matching(place) if isinstance(place, Url) else [Path(each) for each in sorted(glob.glob(str(place)))]
    if not paths:
        raise UsageError(f"nothing matches {place}; give a pattern of stores; each is the directory that contains {A_STORE}")
    return list(paths)


def fleet_rows(
    places: Sequence[Location | StorePlace], *, config: Path | None = None, names: Sequence[tuple[str, str]] = ()
) -> Iterator[StoreRow]:
    """Yield a row per path, or per store that is recognized already. config, names: as for `mqstore.stores.open_store`.

    Raises an error if the configuration cannot be read.
    """
    from mqstore.jobs.runner import ThreadRunner

    if config is not None:  # it would be an error of every store
        from mqstore.rocketmq.config import broker_config

        broker_config.load(config)
    return ThreadRunner(min(THREADS, len(places))).each(places, partial(_row_of, config=config, names=names))


def _row_of(at: Location | StorePlace, *, config: Path | None, names: Sequence[tuple[str, str]]) -> StoreRow:
    from mqstore.stores import open_at, open_store

    place = at.path if isinstance(at, StorePlace) else at
    try:
        opened = open_at(at, config=config, names=names) if isinstance(at, StorePlace) else open_store(at, config=config, names=names)
        summary = opened.summary()
        return _log_row(place, summary) if summary.family == "rocketmq" else _queues_row(place, summary)
    except MqstoreError as error:
        return StoreRow(str(place), error=str(error))
    except OSError as error:
        return StoreRow(str(place), error=f"{error.filename or place}: {error.strerror or error}")


def _log_row(place: Location, summary: RocketMQSummary) -> StoreRow:
    return StoreRow(
        str(place),
        summary.family,
        summary.version,
        summary.suggested,
        summary.shutdown,
        summary.listed,
        summary.end.unqueued if summary.end.walked else None,
        sum(part.files for part in summary.parts),
        sum(part.bytes for part in summary.parts),
        len(summary.findings),
        len(summary.refusals),
        len(summary.unsupported),
    )


def _queues_row(place: Location, summary: RabbitMQSummary) -> StoreRow:
    shown = summary.as_dict()
    return StoreRow(
        str(place),
        summary.family,
        shown["version"],
        summary.written_by.version,
        summary.shutdown,
        shown["messages"] + sum(sums.messages for _, sums in summary.others),
        None,
        shown["files"],
        shown["bytes"],
        len(summary.findings),
        sum(bool(vhost.refusals) for vhost in summary.vhosts),
        len(summary.unsupported),
    )
