"""The summary of a RabbitMQ store that `inspect` shows: vhosts, queues and message files, the shutdown, whether a broker would start.

Indexes are read, stored messages are not; message files are walked only if a queue has messages in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mqstore.rabbitmq.definitions.document import encrypted_values
from mqstore.rabbitmq.diagnosis import advise
from mqstore.rabbitmq.listing import empty_queues, quorum_rows, stream_rows, totals, unread_parts, vhost_rows
from mqstore.rabbitmq.site import site_of
from mqstore.rabbitmq.version import version_evidence
from mqstore.store import StorePart
from mqstore.table.columns import QUORUM, STREAM

if TYPE_CHECKING:
    from mqstore.findings import Advice, Damage
    from mqstore.rabbitmq.listing import StoreTotals
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost
    from mqstore.rabbitmq.version import VersionEvidence
    from mqstore.site import Site

FITS = {
    (): "any version: there is no queue index yet",
    (1,): "RabbitMQ 3.8 to 4.2; brokers from 4.3 on do not read version 1 queues",
    (2,): "RabbitMQ 3.10 and later",
    (1, 2): "RabbitMQ 3.10 to 4.2; brokers from 4.3 on do not read version 1 queues",
}
# sums of a vhost besides queues, messages and bytes
_OTHER_COUNTS = ("queues", "messages", "bytes", "not_recovered", "lost", "waiting")
_COUNTS = ("not_recovered", "transient", "lost", "waiting", "acknowledged")


@dataclass(frozen=True, slots=True)
class VhostSummary:
    """One vhost. shutdown: `clean` if the broker would use the store as it is. entries_from: how the segment entry count is known."""

    name: str | None
    directory: str
    shutdown: str
    segment_entry_count: int
    entries_from: str
    totals: StoreTotals
    refusals: tuple[str, ...]
    parts: tuple[StorePart, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "vhost": self.name,
            "directory": self.directory,
            "shutdown": self.shutdown,
            "segment_entry_count": self.segment_entry_count,
            **{name: getattr(self.totals, name) for name in ("queues", "messages", "bytes", *_COUNTS)},
            "broker_would_refuse": list(self.refusals),
            "parts": [part.as_dict() for part in self.parts],
        }


@dataclass(frozen=True, slots=True)
class RabbitMQSummary:
    """What `inspect` reports of a RabbitMQ store. first, last: modification times of the oldest and the newest file."""

    family: ClassVar[Literal["rabbitmq"]] = "rabbitmq"

    store: str
    queue_versions: tuple[int, ...]
    vhosts: tuple[VhostSummary, ...]
    quorum: StoreTotals
    streams: StoreTotals
    first: int | None
    last: int | None
    unsupported: tuple[str, ...]
    findings: tuple[Damage, ...]
    written_by: VersionEvidence
    advice: Advice
    site: Site

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and a broker would start each vhost."""
        return not self.findings and not any(vhost.refusals for vhost in self.vhosts)

    @property
    def shutdown(self) -> str:
        if not self.vhosts:
            return "unknown"
        return "clean" if all(vhost.shutdown == "clean" for vhost in self.vhosts) else "unclean"

    @property
    def others(self) -> tuple[tuple[str, StoreTotals], ...]:
        """The sums of the queues of other types."""
        return ("quorum", self.quorum), ("streams", self.streams)

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `inspect -o json` prints."""
        parts = [part for vhost in self.vhosts for part in vhost.parts]
        counts = {vhost.directory: vhost.segment_entry_count for vhost in self.vhosts}
        same = set(counts.values())
        return {
            "store": self.store,
            "family": self.family,
            "version": ", ".join(map(str, self.queue_versions)),
            "queue_versions": list(self.queue_versions),
            "fits": FITS[self.queue_versions],
            "suggested_version": self.written_by.version,
            "version_known_from": self.written_by.why,
            "shutdown": self.shutdown,
            "settings": {"segment_entry_count": same.pop() if len(same) == 1 else counts},
            "settings_known_from": {"segment_entry_count": "; ".join(sorted({vhost.entries_from for vhost in self.vhosts}))},
            "vhosts": [vhost.as_dict() for vhost in self.vhosts],
            "files": sum(part.files for part in parts),
            "bytes": sum(part.bytes for part in parts),
            "queues": sum(vhost.totals.queues for vhost in self.vhosts),
            "messages": sum(vhost.totals.messages for vhost in self.vhosts),
            "message_bytes": sum(vhost.totals.bytes for vhost in self.vhosts),
            **{name: sum(getattr(vhost.totals, name) for vhost in self.vhosts) for name in _COUNTS},
            **{kind: {name: getattr(sums, name) for name in _OTHER_COUNTS} for kind, sums in self.others},
            "first_written": self.first,
            "last_written": self.last,
            "unsupported": list(self.unsupported),
            "broker_would_refuse": {vhost.name or vhost.directory: vhost.refusals[0] for vhost in self.vhosts if vhost.refusals},
            "findings": [item.as_dict() for item in self.findings],
            "site": self.site.as_dicts(),
            **self.advice.as_dict(),
        }


def summarize(store: RabbitMQStore) -> RabbitMQSummary:
    """Summarize an open store."""
    others = [place for place in (QUORUM, STREAM) if store.directory.is_directory(place)]
    places = [*(vhost.place.place for vhost in store.vhosts), *others]
    times = [entry.mtime_ms for place in places for _, entry in store.directory.walk(place)]
    return RabbitMQSummary(
        store=str(store.path),
        queue_versions=tuple(sorted({queue.version for queue in store.queues})),
        vhosts=tuple(_summarize_vhost(store, vhost) for vhost in store.vhosts),
        quorum=totals(quorum_rows(store)),
        streams=totals(stream_rows(store)),
        first=min(times, default=None),
        last=max(times, default=None),
        unsupported=(*unread_parts(store), *encrypted_values(store.definitions)),
        findings=(*store.findings, *store.definitions.damage),
        written_by=version_evidence(store),
        advice=advise(store),
        site=site_of(store),
    )


def _summarize_vhost(store: RabbitMQStore, vhost: Vhost) -> VhostSummary:
    return VhostSummary(
        name=vhost.name,
        directory=vhost.directory,
        shutdown="clean" if vhost.clean else "unclean",
        segment_entry_count=vhost.entry_count,
        entries_from=_entries_from(vhost),
        totals=totals(vhost_rows(vhost, None, empty_queues(store, vhost))),
        refusals=vhost.refusals,
        parts=tuple(_parts(store, vhost)),
    )


def _entries_from(vhost: Vhost) -> str:
    if vhost.config_crash is not None:
        return (
            "the broker's default, as .config does not state it"
            if vhost.inferred_count is None
            else "the segments, as .config does not state it"
        )
    if vhost.config_stated:
        return ".config"
    return "the broker's default, as .config cannot be read" if vhost.config_there else "the absence of .config: 3.8.16 or older"


def _parts(store: RabbitMQStore, vhost: Vhost) -> Iterator[StorePart]:
    kinds: dict[str, list[Any]] = {}
    titles = {
        ".jif": ("journals", "entries not yet moved to segments"),
        ".idx": ("segments", "index of version 1 queues, and their small messages"),
        ".qi": ("version 2 indexes", "index of version 2 queues"),
        ".qs": ("version 2 stores", "small messages of version 2 queues"),
        "msg_store_persistent": ("msg_store_persistent", "messages shared between queues, and larger ones"),
        "msg_store_transient": ("msg_store_transient", "the same for transient messages; discarded at startup"),
    }
    prefix = f"{vhost.place.place}/" if vhost.place.place else ""
    for path, entry in store.directory.walk(vhost.place.place):
        top = path.removeprefix(prefix).split("/")[0]
        key = top if top in titles else entry.name[entry.name.rfind(".") :] if "." in entry.name else ""
        kinds.setdefault(key if key in titles else "", []).append(entry)
    for key, (name, what) in (*titles.items(), ("", ("side files", "names, settings, notes of a clean shutdown"))):
        entries = kinds.get(key, [])
        if entries:
            yield StorePart(name, what, len(entries), sum(each.size for each in entries), sum(each.blocks for each in entries) * 512)
