"""The first page, the page of one store, and the door."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from mqstore.console.jobs import Job, State
from mqstore.console.page import PATIENCE, Asked, Console
from mqstore.console.pages.rule import Rule
from mqstore.console.stores import Opened
from mqstore.errors import MqstoreError, UsageError
from mqstore.findings import Damage, Report
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq.store.store import RocketMQStore

__all__ = ["RULES", "Health", "last_report", "look"]


@dataclass(frozen=True, slots=True)
class Health:
    """A store at a glance, from names, sizes, indexes and small files; bodies are not read. warnings: sentences; facts: name and value."""

    family: str
    kind: str
    shutdown: str
    messages: int
    bytes: int
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Damage, ...]

    @property
    def state(self) -> str:
        """`good`, `warn` or `bad`."""
        if self.findings or any("would not" in sentence for sentence in self.warnings):
            return "bad"
        return "warn" if self.warnings or self.shutdown == "unclean" else "good"


def look(opened: Opened, progress: Callable[[int, int], None]) -> Health:
    """Look at a store."""
    store = opened.store
    return _rocketmq(store) if isinstance(store, RocketMQStore) else _rabbitmq(store, progress)


def _size(store: RocketMQStore | RabbitMQStore) -> int:
    return sum(entry.size for _, entry in store.directory.walk())


def _rocketmq(store: RocketMQStore) -> Health:
    view = store.view("disk")
    low, high = view.log_range()
    queues = view.queues()
    version = store.version_hint
    warnings = [f"not read by mqstore: {name}" for name in store.unsupported]
    if store.unclean:
        warnings.append("the file abort is there: the broker was killed, or is running; it recovers the log when it starts")
    return Health(
        store.family,
        f"RocketMQ {'4.9' if version == '4.9.3' else '5.x'}",
        "unclean" if store.unclean else "clean",
        sum(queue.max_offset - queue.min_offset for queue in queues),
        _size(store),
        tuple(warnings),
        (
            ("Log", f"physical offsets {low:,} to {high:,} in {len(store.log.files):,} files"),
            ("Queues", f"{len(queues):,} of {len({queue.topic for queue in queues}):,} topics"),
            ("Index", f"{sum(max(0, file.index_count - 1) for file in store.index_files()):,} keys in {len(store.index_files()):,} files"),
            ("Groups", f"{len({group for group, _ in store.offset_table.offsets}):,} consumer groups"),
        ),
        tuple(store.findings),
    )


def _rabbitmq(store: RabbitMQStore, progress: Callable[[int, int], None]) -> Health:
    warnings: list[str] = []
    findings: list[Damage] = []
    messages = lost = acknowledged = 0
    vhosts = store.vhosts
    for number, vhost in enumerate(vhosts):
        progress(number, len(vhosts))
        warnings += [f"the broker would not bring up vhost {vhost.name!r}: {sentence}" for sentence in vhost.refusals[:1]]
        for queue in vhost.queues:
            messages += queue.counts.ready
            lost += queue.counts.missing_body + queue.counts.hidden
            acknowledged += queue.counts.acked
        findings += vhost.findings
    if lost:
        warnings.append(f"{lost:,} messages the broker would not bring back")
    versions = sorted({queue.version for queue in store.queues})
    return Health(
        store.family,
        f"RabbitMQ classic queues, version {' and '.join(map(str, versions)) or '-'}",
        "clean" if all(vhost.clean for vhost in vhosts) else "unclean",
        messages,
        _size(store),
        tuple(warnings),
        (
            ("Vhosts", f"{len(vhosts):,}"),
            ("Queues", f"{len({(queue.vhost, queue.name) for queue in store.queues}):,}"),
            ("Acknowledged, still on disk", f"{acknowledged:,}"),
        ),
        tuple(findings),
    )


def _looking(console: Console, opened: Opened) -> Job:
    return console.jobs.start(
        "look", f"Looking at {opened.name}", lambda progress: look(opened, progress), store=opened.number, key=opened.key, unit="vhosts"
    )


def last_report(console: Console, opened: Opened) -> Report | None:
    """The outcome of the last verify of this very state of a store."""
    job = console.jobs.find("verify", opened.key)
    return job.result if job is not None and job.state is State.DONE else None


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    name: str
    place: str
    error: str
    job: Job | None
    report: Report | None

    @property
    def health(self) -> Health | None:
        found: Health | None = self.job.result if self.job is not None and self.job.state is State.DONE else None
        return found


def _line(asked: Asked, number: int, until: float) -> _Line:
    """until: by the monotonic clock, when a health that is not known yet is waited for no longer."""
    console = asked.console
    name, place = console.shelf.names[number], console.shelf.place(number)
    try:
        opened = console.shelf.get(number)
        job = _looking(console, opened)
        job.settled.wait(max(0.0, until - time.monotonic()))
        return _Line(number, name, place, job.error, job, last_report(console, opened))
    except (MqstoreError, OSError) as error:
        return _Line(number, name, place, str(error), None, None)


def home(asked: Asked) -> Response:
    # all begin before one is waited for
    numbers = range(len(asked.console.shelf))
    for number in numbers:
        _line(asked, number, 0.0)
    until = time.monotonic() + PATIENCE
    lines = [_line(asked, number, until) for number in numbers]
    refresh = any(line.job is not None and not line.job.over for line in lines)
    return asked.show("home.html", lines=lines, refresh=refresh, section="stores")


def overview(asked: Asked) -> Response:
    opened = asked.store
    line = _line(asked, opened.number, time.monotonic() + PATIENCE)
    return asked.show("store.html", store=opened, line=line, section="overview", refresh=line.job is not None and not line.job.over)


def reload(asked: Asked) -> Response:
    number = int(asked.request.path_params["number"])
    asked.console.shelf.reload(number)
    return asked.go(f"/stores/{number}")


def door(asked: Asked) -> Response:
    return asked.show("enter.html") if asked.session is None else asked.go("/")


def enter(asked: Asked) -> Response:
    sessions = asked.console.sessions
    if not sessions.may_enter(asked.text("token")):
        return asked.show("enter.html", status=401, wrong=True)
    if asked.session is None:
        asked.request.scope["session"] = sessions.make()
    return asked.go("/")


def enter_by_link(asked: Asked) -> Response:
    """The address that the command prints brings the token along; it is taken out of the address at once."""
    token = asked.text("token")
    if not token:
        return door(asked)
    if not asked.console.sessions.may_enter(token):
        raise UsageError("that is not the token of this console; the command that started it has printed it")
    if asked.session is None:
        asked.request.scope["session"] = asked.console.sessions.make()
    return asked.go("/")


RULES = (
    Rule("/", home),
    Rule("/enter", enter_by_link),
    Rule("/enter", enter, posts=True, csrf=False),
    Rule("/stores/{number:int}", overview),
    Rule("/stores/{number:int}/reload", reload, posts=True),
)
