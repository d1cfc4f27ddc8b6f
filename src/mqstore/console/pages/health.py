"""The start page, the summary of a store, and the sign-in page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mqstore.console.checkup import result_of
from mqstore.console.jobs import Job, State
from mqstore.console.page import JOB_WAIT, Console, PageRequest
from mqstore.console.pages.route import PageRoute
from mqstore.console.stores import OpenStore
from mqstore.diagnosis import Diagnosis
from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Damage, Report
from mqstore.rabbitmq.store import listing
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.store.queue_totals import messages_of
from mqstore.rocketmq.store.store import RocketMQStore


@dataclass(frozen=True, slots=True)
class Health:
    """Summary of a store, without reading bodies.

    shutdown: `clean` or `unclean`; empty if it is not known. messages: None if that is not known, as the queues or the log are not read.
    warnings: sentences; facts: (name, value) pairs.
    """

    family: str
    kind: str
    shutdown: str
    messages: int | None
    bytes: int
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Damage, ...]
    lost: int = 0

    @property
    def state(self) -> str:
        """`good`, `warn` or `bad`."""
        if self.findings or self.lost or any("would not" in sentence for sentence in self.warnings):
            return "bad"
        return "warn" if self.warnings or self.shutdown == "unclean" else "good"


def look(opened: OpenStore, progress: Callable[[int, int], None]) -> Health:
    """Return the summary of a store."""
    store = opened.store
    return _rocketmq(store) if isinstance(store, RocketMQStore) else _rabbitmq(opened, progress)


def _store_size(store: RocketMQStore | RabbitMQStore) -> int:
    return sum(entry.size for _, entry in store.directory.walk())


def _rocketmq(store: RocketMQStore) -> Health:
    view = store.view("disk")
    low, high = view.log_range()
    queues = view.queues()
    if store.log_only:
        return Health(
            store.family,
            "One file of a RocketMQ log",
            "",
            None,
            _store_size(store),
            (),
            (
                ("Log", f"physical offsets {low:,} to {high:,}"),
                ("Queues, index, groups, shutdown", "not known; give the directory of the store"),
            ),
            tuple(store.findings),
        )
    warnings = [f"not read by mqstore: {name}" for name in store.unsupported]
    if store.unclean:
        warnings.append("the file abort exists: the broker was killed or is running; it recovers the log when it starts")
    return Health(
        store.family,
        f"RocketMQ {version_rules(store.version_hint).series}",
        "unclean" if store.unclean else "clean",
        None if store.unread_queues is not None else messages_of(view, queues),
        _store_size(store),
        tuple(warnings),
        (
            ("Log", f"physical offsets {low:,} to {high:,} in {len(store.log.files):,} files"),
            (
                "Queues",
                "not read" if store.unread_queues is not None else f"{len(queues):,} of {len({queue.topic for queue in queues}):,} topics",
            ),
            ("Index", f"{sum(max(0, file.index_count - 1) for file in store.index_files()):,} keys in {len(store.index_files()):,} files"),
            ("Groups", f"{len({group for group, _ in store.offset_table.offsets}):,} consumer groups"),
        ),
        tuple(store.findings),
    )


def queue_rows(opened: OpenStore) -> list[dict[str, Any]]:
    """Return the rows of all queues of a RabbitMQ store, as `topics` prints them."""
    return opened.cached("queues", lambda: list(listing.queue_rows(opened.rabbitmq)))


def _rabbitmq(opened: OpenStore, progress: Callable[[int, int], None]) -> Health:
    store = opened.rabbitmq
    warnings: list[str] = []
    findings: list[Damage] = []
    vhosts = store.vhosts
    for number, vhost in enumerate(vhosts):
        progress(number, len(vhosts))
        warnings += [f"the broker would not start vhost {vhost.name!r}: {sentence}" for sentence in vhost.refusals[:1]]
        findings += vhost.findings
    rows = queue_rows(opened)
    sums = listing.totals(rows)
    warnings += sums.sentences if sums.lost or sums.waiting else ()
    versions = sorted({queue.version for queue in store.queues})
    return Health(
        store.family,
        f"RabbitMQ classic queues, version {' and '.join(map(str, versions)) or '-'}",
        "clean" if all(vhost.clean for vhost in vhosts) else "unclean",
        sums.messages,
        _store_size(store),
        tuple(warnings),
        (
            ("Not recovered", f"{sums.not_recovered:,}: {sums.lost:,} lost, {sums.waiting:,} waiting, {sums.transient:,} transient"),
            ("Vhosts", f"{len(vhosts):,}"),
            ("Queues", f"{sums.queues:,}"),
            ("Acknowledged, still on disk", f"{sums.acknowledged:,}"),
        ),
        tuple(findings),
        sums.lost,
    )


def _health_job(console: Console, opened: OpenStore) -> Job:
    return console.jobs.start(
        "look", f"Examining {opened.name}", lambda progress: look(opened, progress), store=opened.number, key=opened.key, unit="vhosts"
    )


def last_report(console: Console, opened: OpenStore) -> Report | None:
    """Return the report of the last verify of this state of the store, or None."""
    found: Report | None = result_of(console.jobs, opened, "verify")
    return found


@dataclass(frozen=True, slots=True)
class StoreLine:
    """What is known of a store. error: why it cannot be opened; job: of its summary; report, diagnosis: of this state of the store."""

    number: int
    name: str
    place: str
    error: str
    job: Job | None
    report: Report | None
    diagnosis: Diagnosis | None

    @property
    def health(self) -> Health | None:
        found: Health | None = self.job.result if self.job is not None and self.job.state is State.DONE else None
        return found


def store_line(request: PageRequest, number: int, until: float) -> StoreLine:
    """Return a store's line. until: monotonic time after which an unfinished summary is no longer waited for."""
    console = request.console
    name, place = console.stores.names[number], console.stores.place(number)
    try:
        opened = console.stores.get(number)
        job = _health_job(console, opened)
        job.settled.wait(max(0.0, until - time.monotonic()))
        found = result_of(console.jobs, opened, "diagnose")
        diagnosis = found if isinstance(found, Diagnosis) else None
        return StoreLine(number, name, place, job.error, job, last_report(console, opened), diagnosis)
    except (MqstoreError, OSError) as error:
        return StoreLine(number, name, place, str(error), None, None, None)


def home(request: PageRequest) -> Response:
    # start all jobs before waiting for one
    numbers = range(len(request.console.stores))
    for number in numbers:
        store_line(request, number, 0.0)
    until = time.monotonic() + JOB_WAIT
    lines = [store_line(request, number, until) for number in numbers]
    refresh = any(line.job is not None and not line.job.over for line in lines)
    return request.show("home.html", lines=lines, refresh=refresh, section="stores")


def reload(request: PageRequest) -> Response:
    number = int(request.http.path_params["number"])
    request.console.stores.reload(number)
    return request.go(f"/stores/{number}")


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
    if request.session is None:
        request.http.scope["session"] = request.console.sessions.make()
    return request.go("/")


ROUTES = (
    PageRoute("/", home),
    PageRoute("/enter", enter_by_link),
    PageRoute("/enter", enter, posts=True, csrf=False),
    PageRoute("/stores/{number:int}/reload", reload, posts=True),
)
