"""The start page with a line for each store, and what a visitor's session has: sign-in and the time zone."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.responses import Response

from mqstore.console.jobs import State, is_small, result_of, start_check
from mqstore.console.page import JOB_WAIT, PageRequest, PageRoute
from mqstore.console.stores import OpenStore
from mqstore.diagnosis import Diagnosis
from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Report
from mqstore.rabbitmq.listing import StoreTotals
from mqstore.rabbitmq.queue_states import depths_beside
from mqstore.rabbitmq.summary import RabbitMQSummary
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.summary import RocketMQSummary
from mqstore.table.formatting import count, zone_named, zone_names


@dataclass(frozen=True, slots=True)
class Health:
    """A store's summary in a line. shutdown: empty if it is not known. messages: None if that is not known, as a part is not read.

    warnings: sentences. unlisted: messages at the end of the log that no queue lists yet. queues: whether there are any that could.
    """

    kind: str
    shutdown: str
    messages: int | None
    bytes: int
    warnings: tuple[str, ...]
    summary: RocketMQSummary | RabbitMQSummary
    unlisted: int = 0
    queues: bool = True


def health_of(opened: OpenStore, summary: RocketMQSummary | RabbitMQSummary) -> Health:
    size = sum(entry.size for _, entry in opened.store.directory.walk())
    if summary.family == "rabbitmq":
        facts = summary.as_dict()
        sums = StoreTotals(**{name: facts[name] for name in ("lost", "waiting", "transient")})
        warnings = [f"the broker would not start vhost {vhost.name!r}: {vhost.refusals[0]}" for vhost in summary.vhosts if vhost.refusals]
        warnings += sums.sentences if sums.lost or sums.waiting else ()
        versions = " and ".join(map(str, summary.queue_versions))
        kinds = (
            f"classic queues, version {versions}" if versions else "",
            "quorum queues" if opened.rabbitmq.quorum_queues else "",
            "streams" if opened.rabbitmq.streams else "",
        )
        kind = f"RabbitMQ {', '.join(filter(None, kinds)) or ('with queues that are not here' if opened.absent else 'without a queue')}"
        if opened.absent:
            warnings.append(f"not all of the store is here: {opened.absent[0]}")
        beside = any(kinds[1:])  # their messages are only known when their logs have been read
        messages = (
            facts["messages"] + sum(depth.of("ready") for depth in depths_beside(opened.rabbitmq))
            if is_small(opened) or not beside
            else None
        )
        return Health(kind, summary.shutdown, messages if messages or not opened.absent else None, size, tuple(warnings), summary)
    if summary.log_only:
        return Health(
            f"{'One file' if summary.log_files == 1 else count(summary.log_files, 'file')} of a RocketMQ log", "", None, size, (), summary
        )
    warnings = [f"not read by mqstore: {name}" for name in summary.unsupported]
    if summary.unclean:
        warnings.append("the file abort exists: the broker was killed or is running; it recovers the log when it starts")
    shutdown, kind = "unclean" if summary.unclean else "clean", f"RocketMQ {version_rules(summary.version).series}"
    unlisted = summary.end.unqueued if summary.end.walked else 0
    queues = bool(summary.queues or summary.queues_unread or (summary.end.walked and not unlisted))
    return Health(kind, shutdown, summary.listed, size, tuple(warnings), summary, unlisted, queues)


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
        result = result_of(console.jobs, opened, "diagnose")
        diagnosis = result if isinstance(result, Diagnosis) else None
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
