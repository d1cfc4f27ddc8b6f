"""Salvage: all messages of a store, a damaged store or single files of one, each with its verdict.

    verdict       meaning                                                                       written
    intact        valid, and an index entry references it                                       yes
    consumed      acknowledged, and not yet reclaimed                                           yes
    unindexed     valid, but in no queue: acknowledged and not reclaimed, or its index is lost  yes
    duplicate     a further copy, or a second publish of a sequence id                          yes
    damaged       some of its bytes are invalid                                                 yes
    unreachable   its index entry is valid, its bytes are missing                               counted

An acknowledged message is never `intact`, unless the acknowledgement itself is lost: then the files do not distinguish it from a ready
message. Only bodies in `.qs` files have checksums: a changed byte in any other body cannot be detected.

Format: docs/formats/rabbitmq.md, section 14.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.archive import UnpackedArchive, is_archive
from mqstore.files.directory_views import AliasDirectory
from mqstore.findings import Damage, Verdict
from mqstore.rabbitmq.convert.broker_version import target_version
from mqstore.rabbitmq.convert.convert_vhost import ConvertOptions, ConvertReport, write_stores
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.salvage.arrangement import guess_names, open_parts
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection, rabbitmq_schema
from mqstore.table.row_files import format_of, write_rows
from mqstore.table.text import rabbitmq_columns_for, rename_properties_json

if TYPE_CHECKING:
    import pyarrow as pa

WRITTEN = frozenset({Verdict.INTACT, Verdict.CONSUMED, Verdict.UNINDEXED, Verdict.DUPLICATE, Verdict.DAMAGED})


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """The result of a salvage. verdicts: all rows by verdict; messages: those written; bytes: size of the file."""

    to: str
    format: str
    messages: int
    bytes: int
    verdicts: dict[str, int]
    findings: tuple[Damage, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged or missing."""
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
    """Return the store at path, or the parts of one: a directory, any single file, an archive. It is read carefully.

    Raises CannotOpenError, NotAStoreError.
    """
    keep = None
    if is_archive(path) and path.is_file():
        keep = UnpackedArchive(path)
    elif not path.exists():
        raise CannotOpenError(f"{path} does not exist; give a directory of message stores, or any file of one")
    directory = open_parts(path if keep is None else keep.store_root())
    known = tuple(names)
    store = RabbitMQStore(path, names=known, now=now, keep=keep, directory=directory, careful=True)
    guessed = guess_names(store.vhosts)
    if guessed:
        store = RabbitMQStore(path, names=(*known, *guessed), now=now, keep=keep, directory=directory, careful=True)
    return store


def messages_of(
    store: RabbitMQStore, columns: tuple[str, ...], vhosts: frozenset[str] | None = None, queues: frozenset[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield every message in any state; its lineage has the real names of the files."""
    selection = QueueSelection(vhosts=vhosts, queues=queues, everything=True)
    directory = store.directory
    for batch in store.to_batches(columns, selection):
        yield _originals(batch, directory) if isinstance(directory, AliasDirectory) else batch


def _originals(batch: pa.RecordBatch, directory: AliasDirectory) -> pa.RecordBatch:
    import pyarrow as pa

    place = batch.schema.get_field_index("store_file")
    if place < 0:
        return batch
    real = {_shown(name): _shown(directory.original(name)) for name in directory.files}
    names = [None if name is None else real.get(name, name) for name in batch.column(place).to_pylist()]
    return batch.set_column(place, batch.schema.field(place), pa.array(names, pa.string()))


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def salvage(
    store: RabbitMQStore,
    to: Path,
    *,
    format: str | None = None,  # noqa: A002
    verdicts: Iterable[str] = WRITTEN,
    vhosts: frozenset[str] | None = None,
    queues: frozenset[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SalvageReport:
    """Write every message with these verdicts to a new file. format: `jsonl` or `parquet`; None: by the suffix.

    Raises TargetError, UsageError.
    """
    started = time.monotonic()
    chosen = format_of(to, format)
    if chosen == "jsonl":
        rows = messages_of(store, rabbitmq_columns_for("base64"), vhosts, queues)
        batches: Iterator[pa.RecordBatch] = (rename_properties_json(batch) for batch in rows)
    else:
        batches = messages_of(store, RABBITMQ_COLUMNS, vhosts, queues)
    written = write_rows(batches, rabbitmq_schema(RABBITMQ_COLUMNS), to, chosen, frozenset(verdicts), progress=progress)
    return SalvageReport(str(to), chosen, written.rows, written.bytes, written.verdicts, originals(store), time.monotonic() - started)


def salvage_store(
    store: RabbitMQStore,
    to: Path,
    version: int | None,
    *,
    target: str | None = None,
    into: str | None = None,
    vhost: str = "/",
    entries_v2: int = ENTRY_COUNT,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Write the valid, unacknowledged messages of all queues to a new `msg_stores` directory, from which a broker starts.

    Messages in no queue, and those in files of an unknown queue, are included only if `into` names a queue for them in `vhost`. `vhost` is
    also the name of a vhost directory without one. target: the version of RabbitMQ that will read the new directory, for example "3.10":
    it determines the queue version unless one is given, and up to 3.13 the form of messages. Raises TargetError, UsageError.
    """
    broker = None if target is None else target_version(target, version)
    if version is None:
        version = 2 if broker is None else broker.queue_version
    if version not in (1, 2):
        raise UsageError(f"queue version must be 1 or 2, not {version}")
    names = {each.place.place: each.name or vhost for each in store.vhosts}
    places = {place: f"vhosts/{vhost_directory(name)}" for place, name in names.items()}
    if len(set(places.values())) < len(places):
        raise UsageError("two vhosts of the store would have the same name; salvage their directories one by one")
    place = None if into is None else (vhost, into)
    options = ConvertOptions(version, entries_v2, names=store.names, threads=threads, progress=progress, into=place, broker=broker)
    return write_stores(store.directory, places, to, options)


def originals(store: RabbitMQStore) -> tuple[Damage, ...]:
    """Return the findings of a store, with the real names of the files."""
    directory = store.directory
    if not isinstance(directory, AliasDirectory):
        return store.findings
    return tuple(
        Damage(directory.original(item.file), item.offset, item.length, item.kind, item.detail, item.messages) for item in store.findings
    )
