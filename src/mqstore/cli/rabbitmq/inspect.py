"""`inspect` on a RabbitMQ store: vhosts, queues and message files, how the node was shut down, and whether a broker would start on it.

Indexes are read, stored messages are not; message files are walked only if a queue has messages in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.cli.common.arguments import Store
from mqstore.cli.common.diagnoses import show_advice
from mqstore.cli.common.output import Output
from mqstore.cli.common.read_options import InspectOptions
from mqstore.cli.common.store_parts import StorePart, print_parts
from mqstore.cli.rabbitmq.store import open_rabbitmq
from mqstore.table.formatting import count, moment, size

if TYPE_CHECKING:
    from mqstore.findings import Damage
    from mqstore.rabbitmq.store.listing import StoreTotals
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

__all__ = ["RabbitMQSummary", "VhostSummary", "inspect", "summarize"]

SHOWN = 12

_FITS = {
    (): "any version: there is no queue index yet",
    (1,): "RabbitMQ 3.8 to 4.2; brokers from 4.3 on do not read version 1 queues",
    (2,): "RabbitMQ 3.10 and later",
    (1, 2): "RabbitMQ 3.10 to 4.2; brokers from 4.3 on do not read version 1 queues",
}
# sums of a vhost besides queues, messages and bytes
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

    store: str
    queue_versions: tuple[int, ...]
    vhosts: tuple[VhostSummary, ...]
    first: int | None
    last: int | None
    unsupported: tuple[str, ...]
    findings: tuple[Damage, ...]
    suggested_version: str | None
    version_known_from: str

    @property
    def shutdown(self) -> str:
        return "clean" if all(vhost.shutdown == "clean" for vhost in self.vhosts) else "unclean"

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `inspect -o json` prints."""
        parts = [part for vhost in self.vhosts for part in vhost.parts]
        counts = {vhost.directory: vhost.segment_entry_count for vhost in self.vhosts}
        same = set(counts.values())
        return {
            "store": self.store,
            "family": "rabbitmq",
            "version": ", ".join(map(str, self.queue_versions)),
            "queue_versions": list(self.queue_versions),
            "fits": _FITS[self.queue_versions],
            "suggested_version": self.suggested_version,
            "version_known_from": self.version_known_from,
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
            "first_written": self.first,
            "last_written": self.last,
            "unsupported": list(self.unsupported),
            "broker_would_refuse": {vhost.name or vhost.directory: vhost.refusals[0] for vhost in self.vhosts if vhost.refusals},
            "findings": [item.as_dict() for item in self.findings],
        }


def summarize(store: RabbitMQStore) -> RabbitMQSummary:
    """Summarize an open store."""
    from mqstore.rabbitmq.diagnosis.version_evidence import evidence
    from mqstore.rabbitmq.store.defined_queues import unread_parts

    version, why = evidence(store)
    times = [entry.mtime_ms for vhost in store.vhosts for _, entry in store.directory.walk(vhost.place.place)]
    return RabbitMQSummary(
        store=str(store.path),
        queue_versions=tuple(sorted({queue.version for queue in store.queues})),
        vhosts=tuple(_summarize_vhost(store, vhost) for vhost in store.vhosts),
        first=min(times, default=None),
        last=max(times, default=None),
        unsupported=tuple(unread_parts(store)),
        findings=(*store.findings, *store.definitions.damage),
        suggested_version=version,
        version_known_from=why,
    )


def _summarize_vhost(store: RabbitMQStore, vhost: Vhost) -> VhostSummary:
    from mqstore.rabbitmq.store.defined_queues import empty_queues
    from mqstore.rabbitmq.store.listing import totals, vhost_rows

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
        found = kinds.get(key, [])
        if found:
            yield StorePart(name, what, len(found), sum(each.size for each in found), sum(each.blocks for each in found) * 512)


def inspect(out: Output, store: Store, options: InspectOptions) -> int:
    """Show versions, vhosts, files, settings, shutdown state, counts, and whether a broker would start on the store."""
    from mqstore.rabbitmq.diagnosis.diagnosis import advise

    opened = open_rabbitmq(store, names=options.names)
    summary, advice = summarize(opened), advise(opened)
    if out.is_text:
        _print_summary(out, summary)
        out.line()
        show_advice(out, advice)
    else:
        out.report(summary.as_dict() | advice.as_dict())
    return 1 if summary.findings or any(vhost.refusals for vhost in summary.vhosts) else 0


def _print_summary(out: Output, summary: RabbitMQSummary) -> None:
    versions = " and ".join(map(str, summary.queue_versions))
    out.line(f"RabbitMQ store {summary.store}", style="bold")
    out.line(f"Classic queues of version {versions}, as of {_FITS[summary.queue_versions]}." if versions else "No queue directory.")
    known = "The version of the node is not known" if summary.suggested_version is None else f"Node: {summary.suggested_version}"
    out.line(f"{known}: {summary.version_known_from}.")
    if summary.shutdown == "clean":
        out.line("Clean shutdown: the broker would use everything as it is.")
    else:
        out.line("Unclean shutdown: the broker was killed or is still running; it reads and checks everything at startup.", style="yellow")
    if summary.first is not None:
        out.line(f"Files written {moment(summary.first)} to {moment(summary.last)} (UTC).")
    for vhost in summary.vhosts:
        out.line()
        out.line(f"vhost {vhost.name or '?'} ({vhost.directory})", style="bold")
        sums = vhost.totals
        out.fact("queues", f"{count(sums.messages, 'message')}, {size(sums.bytes)}, in {count(sums.queues, 'queue')}")
        for sentence in sums.sentences:
            out.fact("", f"besides, {sentence}")
        if sums.acknowledged:
            out.fact("", f"{count(sums.acknowledged, 'acknowledged message')} still in the files; `mqstore messages --all` lists them")
        out.fact("shutdown", vhost.shutdown)
        out.fact("segments", f"{vhost.segment_entry_count} entries each, known from {vhost.entries_from}")
        out.line()
        print_parts(out, vhost.parts)
    _print_problems(out, summary)


def _print_problems(out: Output, summary: RabbitMQSummary) -> None:
    for vhost in summary.vhosts:
        for sentence in vhost.refusals:
            out.line()
            out.line(f"A broker would not start vhost {vhost.name or vhost.directory}: {sentence}.", style="red")
    if summary.findings:
        out.line()
        out.line(f"{count(len(summary.findings), 'finding')}:", style="yellow")
        shown = out.first(summary.findings, SHOWN)
        for item in shown:
            out.line(f"  {item.file} at {item.offset}: {item.detail}")
        if len(shown) < len(summary.findings):
            out.line(f"  … {len(summary.findings) - len(shown):,} more; -v lists all", style="dim")
    for part in summary.unsupported:
        out.line()
        out.line(f"Not read: {part}.", style="yellow")
