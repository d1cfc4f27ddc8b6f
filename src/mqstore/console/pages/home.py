"""The start page with a line for each store, and what a visitor's session has: sign-in and the time zone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mqstore.console.jobs import State, result_of, start_check
from mqstore.console.page import JOB_WAIT, PageRequest, PageRoute
from mqstore.console.stores import OpenStore
from mqstore.diagnosis import Diagnosis
from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Damage, Report
from mqstore.rabbitmq.store import listing
from mqstore.rabbitmq.summary import RabbitMQSummary
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.summary import RocketMQSummary
from mqstore.table.formatting import zone_named, zone_names


@dataclass(frozen=True, slots=True)
class Health:
    """A store's summary in a few words. shutdown: empty if it is not known. messages: None if that is not known, as a part is not read.

    warnings: sentences.
    """

    kind: str
    shutdown: str
    messages: int | None
    bytes: int
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    findings: Sequence[Damage]


def health_of(opened: OpenStore, summary: RocketMQSummary | RabbitMQSummary) -> Health:
    size = sum(entry.size for _, entry in opened.store.directory.walk())
    if isinstance(summary, RabbitMQSummary):
        return _rabbitmq(opened, summary, size)
    log = f"physical offsets {summary.log_start:,} to {summary.end.offset:,}"
    if summary.log_only:
        unknown = "not known; give the directory of the store"
        facts: tuple[tuple[str, str], ...] = (("Log", log), ("Queues, index, groups, shutdown", unknown))
        return Health("One file of a RocketMQ log", "", None, size, (), facts, summary.findings)
    warnings = [f"not read by mqstore: {name}" for name in summary.unsupported]
    if summary.unclean:
        warnings.append("the file abort exists: the broker was killed or is running; it recovers the log when it starts")
    facts = (
        ("Log", f"{log} in {summary.log_files:,} files"),
        ("Queues", "not read" if summary.queues_unread else f"{summary.queues:,} of {summary.topics:,} topics"),
        ("Index", f"{summary.index_entries:,} keys in {summary.index_files:,} files"),
        ("Groups", f"{summary.groups:,} consumer groups"),
    )
    shutdown, kind = "unclean" if summary.unclean else "clean", f"RocketMQ {version_rules(summary.version).series}"
    return Health(kind, shutdown, summary.listed, size, tuple(warnings), facts, summary.findings)


def queue_rows(opened: OpenStore) -> list[dict[str, Any]]:
    """Return the rows of all queues of a RabbitMQ store, as `topics` prints them."""
    return opened.cached("queues", lambda: list(listing.queue_rows(opened.rabbitmq)))


def _rabbitmq(opened: OpenStore, summary: RabbitMQSummary, size: int) -> Health:
    sums = listing.totals(queue_rows(opened))
    warnings = [
        f"the broker would not start vhost {vhost.name!r}: {sentence}" for vhost in summary.vhosts for sentence in vhost.refusals[:1]
    ]
    warnings += sums.sentences if sums.lost or sums.waiting else ()
    facts = (
        ("Not recovered", f"{sums.not_recovered:,}: {sums.lost:,} lost, {sums.waiting:,} waiting, {sums.transient:,} transient"),
        ("Vhosts", f"{len(summary.vhosts):,}"),
        ("Queues", f"{sums.queues:,}"),
        ("Acknowledged, still on disk", f"{sums.acknowledged:,}"),
    )
    kind = f"RabbitMQ classic queues, version {' and '.join(map(str, summary.queue_versions)) or '-'}"
    return Health(kind, summary.shutdown, sums.messages, size, tuple(warnings), facts, summary.findings)


@dataclass(frozen=True, slots=True)
class StoreLine:
    """What is known of a store. error: why it cannot be opened; job: of its summary; report, diagnosis: of this state of the store."""

    number: int
    name: str
    place: str
    error: str
    health: Health | None = None
    over: bool = True
    report: Report | None = None
    diagnosis: Diagnosis | None = None


def store_line(request: PageRequest, number: int, until: float) -> StoreLine:
    """Return a store's line. until: monotonic time after which an unfinished summary is no longer waited for."""
    console = request.console
    name, place = console.stores.names[number], console.stores.place(number)
    try:
        opened = console.stores.get(number)
        job = start_check(console.jobs, opened, "look")
        job.settled.wait(max(0.0, until - time.monotonic()))
        summary = job.result if job.state is State.DONE else None
        health = None if summary is None else opened.cached("health", lambda: health_of(opened, summary))
        found = result_of(console.jobs, opened, "diagnose")
        diagnosis = found if isinstance(found, Diagnosis) else None
        return StoreLine(number, name, place, job.error, health, job.over, result_of(console.jobs, opened, "verify"), diagnosis)
    except (MqstoreError, OSError) as error:
        return StoreLine(number, name, place, str(error))


def home(request: PageRequest) -> Response:
    # start all jobs before waiting for one
    numbers = range(len(request.console.stores))
    for number in numbers:
        store_line(request, number, 0.0)
    until = time.monotonic() + JOB_WAIT
    lines = [store_line(request, number, until) for number in numbers]
    return request.show("home.html", lines=lines, refresh=not all(line.over for line in lines), section="stores")


def reload(request: PageRequest) -> Response:
    number = int(request.http.path_params["number"])
    request.console.stores.reload(number)
    return request.go(f"/stores/{number}")


# the visitor's session


def entry(request: PageRequest) -> Response:
    return request.show("enter.html") if request.session is None else request.go("/")


def enter(request: PageRequest) -> Response:
    sessions = request.console.sessions
    if not sessions.may_enter(request.text("token")):
        return request.show("enter.html", status=401, wrong=True)
    if request.session is None:
        request.http.scope["session"] = sessions.make()
    return request.go("/")


def enter_by_link(request: PageRequest) -> Response:
    """Sign in by the address that the command prints, and redirect at once so that the token leaves the address bar."""
    token = request.text("token")
    if not token:
        return entry(request)
    if not request.console.sessions.may_enter(token):
        raise UsageError("wrong token; the command that started the console printed the right one")
    return enter(request)


def zone(request: PageRequest) -> Response:
    return request.show("zone.html", section="zone", names=zone_names(), back=request.text("back"))


def choose_zone(request: PageRequest) -> Response:
    if request.session is None:
        raise UsageError("the time zone belongs to a session, and this request has none; allow the browser to keep the cookie")
    request.session.zone = zone_named(request.text("zone", "UTC", longest=100))
    return request.back("/")


ROUTES = (
    PageRoute("/", home),
    PageRoute("/enter", enter_by_link),
    PageRoute("/enter", enter, posts=True, csrf=False),
    PageRoute("/stores/{number:int}/reload", reload, posts=True),
    PageRoute("/zone", zone),
    PageRoute("/zone", choose_zone, posts=True),
)
