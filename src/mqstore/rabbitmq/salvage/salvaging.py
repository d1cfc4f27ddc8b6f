"""Everything that is whole in a wreck, each message with its verdict: of whole stores, damaged ones, and single files of them.

    verdict       what it says                                                              written
    intact        its bytes are whole, and an index entry leads to it                       yes
    consumed      acknowledged: it is here because nobody has collected it yet              yes
    unindexed     whole, but in no queue: acknowledged and not collected, or its index is lost   yes
    duplicate     a further copy, or a second publish of a sequence id                      yes
    damaged       some of its bytes cannot be believed                                      yes
    unreachable   its index entry is sound, its bytes are nowhere                           counted

A message that was acknowledged never comes out as `intact`, unless the acknowledgement itself is lost: nothing on the disk tells such a
message from one that waits. Bodies have no checksum but in `.qs` files: a changed byte inside one cannot be seen.

Format: docs/formats/rabbitmq.md, section 14.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.alias_directory import AliasDirectory
from mqstore.files.archive import UnpackedArchive, is_archive
from mqstore.findings import Damage, Verdict
from mqstore.rabbitmq.convert.convert_vhost import ConvertOptions, ConvertReport, write_stores
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.salvage.arrangement import guess_names, open_parts
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection, rabbitmq_schema
from mqstore.table.file import format_of, write_rows
from mqstore.table.text import rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WRITTEN", "SalvageReport", "messages_of", "open_wreck", "salvage", "salvage_store"]

WRITTEN = frozenset({Verdict.INTACT, Verdict.CONSUMED, Verdict.UNINDEXED, Verdict.DUPLICATE, Verdict.DAMAGED})


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What came out. verdicts: all rows met, by verdict; messages: those written; bytes: of the file."""

    to: str
    format: str
    messages: int
    bytes: int
    verdicts: dict[str, int]
    findings: tuple[Damage, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing was damaged, and nothing is missing."""
        lost = sum(self.verdicts.get(verdict, 0) for verdict in (Verdict.DAMAGED, Verdict.UNREACHABLE))
        return not self.findings and not lost

    def as_dict(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "format": self.format,
            "ok": self.ok,
            "messages": self.messages,
            "bytes": self.bytes,
            "verdicts": {str(verdict): self.verdicts.get(verdict, 0) for verdict in Verdict},
            "damage": [item.as_dict() for item in self.findings],
            "seconds": round(self.seconds, 3),
        }


def open_wreck(path: Path, *, names: Iterable[tuple[str, str]] = (), now: int | None = None) -> RabbitMQStore:
    """The store at path, or what parts of one are there: a directory, any single file, an archive.

    Raises CannotOpenError, NotAStoreError.
    """
    keep = None
    if is_archive(path) and path.is_file():
        keep = UnpackedArchive(path)
    elif not path.exists():
        raise CannotOpenError(f"{path} does not exist; give a directory of message stores, or any file of one")
    directory = open_parts(path if keep is None else keep.store_root())
    known = tuple(names)
    store = RabbitMQStore(path, names=known, now=now, keep=keep, directory=directory)
    guessed = guess_names(store.vhosts)
    if guessed:
        store = RabbitMQStore(path, names=(*known, *guessed), now=now, keep=keep, directory=directory)
    return store


def messages_of(
    store: RabbitMQStore, columns: tuple[str, ...], vhosts: frozenset[str] | None = None, queues: frozenset[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Every message that is there in any state, its lineage told by the names that files really have."""
    selection = QueueSelection(vhosts=vhosts, queues=queues, everything=True)
    directory = store.directory
    for batch in store.messages(columns, selection):
        yield _originals(batch, directory) if isinstance(directory, AliasDirectory) else batch


def _originals(batch: pa.RecordBatch, directory: AliasDirectory) -> pa.RecordBatch:
    import pyarrow as pa

    place = batch.schema.get_field_index("store_file")
    if place < 0:
        return batch
    names = [None if name is None else directory.original(name) for name in batch.column(place).to_pylist()]
    return batch.set_column(place, batch.schema.field(place), pa.array(names, pa.string()))


def salvage(
    store: RabbitMQStore,
    to: Path,
    *,
    format: str | None = None,  # noqa: A002
    verdicts: Iterable[str] = WRITTEN,
    vhosts: frozenset[str] | None = None,
    queues: frozenset[str] | None = None,
) -> SalvageReport:
    """Write every message of these verdicts to a new file. format: `jsonl` or `parquet`, None: as the name says.

    Raises TargetError, UsageError.
    """
    started = time.monotonic()
    chosen = format_of(to, format)
    if chosen == "jsonl":
        told = messages_of(store, rabbitmq_columns_for("base64"), vhosts, queues)
        batches: Iterator[pa.RecordBatch] = (rename_properties_json(batch) for batch in told)
    else:
        batches = messages_of(store, RABBITMQ_COLUMNS, vhosts, queues)
    written = write_rows(batches, rabbitmq_schema(RABBITMQ_COLUMNS), to, chosen, frozenset(verdicts))
    return SalvageReport(str(to), chosen, written.rows, written.bytes, written.verdicts, originals(store), time.monotonic() - started)


def salvage_store(
    store: RabbitMQStore,
    to: Path,
    version: int,
    *,
    into: str | None = None,
    vhost: str = "/",
    entries_v2: int = ENTRY_COUNT,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write what is whole and waits in a queue into a fresh `msg_stores` directory, from which a broker boots.

    Acknowledged messages are not in it, nor those in no queue, unless `into` names a queue for these (and for the messages of files whose
    queue cannot be told) in a vhost; `vhost` is also the name of one that does not tell its own. Raises TargetError, UsageError.
    """
    if version not in (1, 2):
        raise UsageError(f"there is no queue version {version}; give 1 or 2")
    names = {each.place.place: each.name or vhost for each in store.vhosts}
    places = {place: f"vhosts/{vhost_directory(name)}" for place, name in names.items()}
    if len(set(places.values())) < len(places):
        raise UsageError("two vhosts of the wreck would have the same name; salvage their directories one by one")
    target = None if into is None else (vhost, into)
    options = ConvertOptions(version, entries_v2, names=store.names, threads=threads, progress=progress, into=target)
    return write_stores(store.directory, places, to, options)


def originals(store: RabbitMQStore) -> tuple[Damage, ...]:
    """The findings of a store, by the names that files really have."""
    directory = store.directory
    if not isinstance(directory, AliasDirectory):
        return store.findings
    return tuple(
        Damage(directory.original(item.file), item.offset, item.length, item.kind, item.detail, item.messages) for item in store.findings
    )
