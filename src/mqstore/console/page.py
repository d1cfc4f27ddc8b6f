"""What pages share: the console's state, rendering, and parsing of requests.

A page is a function of a `PageRequest` that returns a response. It runs in a thread, so that a long read does not block other pages. An
error that it raises becomes a page with the error's sentence.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mqstore.console.guard import Session, Sessions
from mqstore.console.jobs import Job, Jobs, State
from mqstore.console.settings import Settings
from mqstore.console.stores import OpenStore, StoreList
from mqstore.errors import CannotOpenError, MqstoreError, NotFoundError, RefusedError, UsageError
from mqstore.report import html
from mqstore.report.parts import Part
from mqstore.table import formatting

HERE = Path(__file__).parent
MAX_FORM_SIZE = 2 << 20
THREADS = 12
JOB_WAIT = 1.5  # seconds that a page waits for a job before it shows its progress

_LOG = logging.getLogger("mqstore.console")
_HIGHEST = 2**63 - 1


def address(path: str, **values: object) -> str:
    """Return a path with a query of the values that are not None or empty.

    >>> address("/stores/0/messages", topic="a b", since=None, newest=0)
    '/stores/0/messages?topic=a+b&newest=0'
    """
    query = {name: str(value) for name, value in values.items() if value is not None and value != ""}
    return f"{path}?{urlencode(query, errors='surrogatepass')}" if query else path


def _harmless(value: object) -> object:
    """Remove control characters and direction marks from text of a store."""
    return formatting.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ticks(sentence: str) -> Markup:
    """Return a sentence as markup, with backticked parts as code."""
    return Markup(html.prose(sentence))


@pass_context
def _moment(context: Context, milliseconds: int | None) -> str:
    """Format a time in the time zone of the session: in UTC without an offset, otherwise with it, so that a field accepts it."""
    return formatting.moment(milliseconds, context["request"].zone)


class Console:
    """One running console."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stores = StoreList(settings.places, settings.now)
        self.jobs = Jobs()
        self.sessions = Sessions(settings.token)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
        self.templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_harmless,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "size": formatting.size,
            "moment": _moment,
            "clock": formatting.clock,
            "count": formatting.count,
        }
        # newlines and tabs stay; `bodies.plain_text` has replaced other control characters
        self.templates.filters |= {"shorten": formatting.shorten, "safe_lines": escape, "ticks": _ticks}
        self.templates.globals |= {"address": address, "settings": settings, "names": self.stores.names}

    def close(self) -> None:
        self.jobs.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request as pages see it. http: Starlette's request. form: the fields of a POST, whose form token has been checked."""

    console: Console
    http: Request
    session: Session | None
    form: Mapping[str, list[str]]

    def text(self, name: str, default: str = "", longest: int = 4096) -> str:
        """Return a stripped value of the query or the form. Raises UsageError if it is too long."""
        given = self.form.get(name, [""])[0] if self.http.method == "POST" else self.http.query_params.get(name, "")
        text = given.strip()
        if len(text) > longest:
            raise UsageError(f"{name} has {len(text):,} characters; {longest:,} is the maximum")
        return text or default

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = _HIGHEST) -> int | None:
        """Return a whole number, or the default if it is missing. Raises UsageError."""
        given = self.text(name, longest=40)
        if not given:
            return default
        digits = given.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 19 or not low <= int(given) <= high:
            raise UsageError(f"{name} must be a whole number from {low} to {high}, not {formatting.printable(given)!r}")
        return int(given)

    def needed(self, name: str, low: int = 0) -> int:
        """Return a required number. Raises UsageError."""
        number = self.number(name, low=low)
        if number is None:
            raise UsageError(f"the address lacks {name}; use a link of this console")
        return number

    def moment(self, name: str) -> int | None:
        """Return a time as milliseconds since 1970, or None. Raises UsageError."""
        given = self.text(name, longest=60)
        return None if not given else max(-_HIGHEST, min(_HIGHEST, formatting.parse_time(given, name)))

    @property
    def store(self) -> OpenStore:
        """The store of the address. Raises NotFoundError, and whatever opening raises."""
        return self.console.stores.get(int(self.http.path_params["number"]))

    @property
    def view(self) -> str:
        """The requested view of the store."""
        return self.text("view", "disk")

    @property
    def zone(self) -> str:
        """The time zone of the session."""
        return "UTC" if self.session is None else self.session.zone

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render a template."""
        shown = {
            "request": self,
            "session": self.session,
            "csrf": self.session.csrf if self.session else "",
            "path": self.http.url.path,
            "here": address(self.http.url.path, **dict(self.http.query_params)),
            "store": None,
            "section": "",
            "wide": False,
            "refresh": False,
            **values,
        }
        text = self.console.templates.get_template(template).render(shown)
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)

    def parts(self, parts: Iterable[Part]) -> Markup:
        """Return parts of a report of this store as markup, with links to what they name."""
        base = f"/stores/{self.http.path_params['number']}"

        def target(kind: str, row: Mapping[str, str]) -> str | None:
            if kind == "topic":
                return address(f"{base}/messages", topic=row["topic"], queue=row.get("queue id", row.get("queue")))
            if kind == "file" and "message file" in row:
                return address(f"{base}/file", name=row["message file"])
            return address(f"{base}/queue", vhost=row["vhost"], queue=row["queue"]) if kind == "queue" else None

        return Markup(html.render(parts, target))

    def go(self, path: str) -> Response:
        """Redirect to another page of this console."""
        return RedirectResponse(path, 303)

    def back(self, fallback: str) -> Response:
        """Redirect to the page of the form, if it is one of the console's."""
        target = self.text("back")
        ours = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
        return self.go(target if ours else fallback)

    def waited(self, job: Job) -> Job:
        """Return the job after a short wait: most finish at once."""
        job.settled.wait(JOB_WAIT)
        return job

    def outcome(self, job: Job) -> Any:
        """Return the result of a finished job. Raises UsageError with the error of a failed one."""
        if job.state is not State.DONE:
            raise UsageError(job.error or f"{job.title} was cancelled; start it again")
        return job.result


PageFunction = Callable[[PageRequest], Response]


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page and its address. posts: it changes something and is only reached by a form. csrf: the form must carry the session's token."""

    path: str
    page: PageFunction
    posts: bool = False
    csrf: bool = True


_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotFoundError, 404),
    (UsageError, 400),
    (RefusedError, 409),
    (CannotOpenError, 503),
    (MqstoreError, 422),
)


def _error_page(request: PageRequest, error: Exception) -> Response:
    if isinstance(error, MqstoreError):
        status = next(code for kind, code in _STATUS if isinstance(error, kind))
        return request.show("error.html", status=status, sentence=str(error), status_code=status)
    if isinstance(error, MemoryError):
        return request.show("error.html", status=503, sentence="out of memory; narrow the question", status_code=503)
    if isinstance(error, OSError):
        sentence = f"a file of the store cannot be read: {error.strerror or error}"
        return request.show("error.html", status=503, sentence=sentence, status_code=503)
    _LOG.error("a page failed: %s", request.http.url.path, exc_info=error)
    sentence = f"a bug in mqstore, not in the store: {type(error).__name__}; please report it with the traceback in the console's log"
    return request.show("error.html", status=500, sentence=sentence, status_code=500)


async def _form(request: Request) -> Mapping[str, list[str]]:
    """Read the fields of a form. Raises UsageError."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_FORM_SIZE:
            raise UsageError(f"the form is larger than {formatting.size(MAX_FORM_SIZE)}; select fewer messages at a time")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise UsageError("the request body is not a form; submit it from a page of this console")
    try:
        return parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=20_000)
    except ValueError:
        raise UsageError("the form has too many fields; select fewer messages at a time") from None


def endpoint(console: Console, page: PageFunction, *, csrf: bool = True) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a page as a Starlette endpoint."""

    async def answer(http: Request) -> Response:
        session: Session | None = http.scope.get("session")
        request = PageRequest(console, http, session, {})

        def made() -> Response:
            try:
                return page(request)
            except Exception as error:
                return _error_page(request, error)

        if http.method == "POST":
            try:
                form = await _form(http)
            except UsageError as error:
                return _error_page(request, error)
            given = form.get("csrf", [""])[0]
            if csrf and (session is None or not hmac.compare_digest(given.encode("utf-8", "replace"), session.csrf.encode())):
                return request.show(
                    "error.html", status=403, sentence="the form does not belong to this session; reload the page", status_code=403
                )
            request = PageRequest(console, http, session, form)
        return await asyncio.get_running_loop().run_in_executor(console.threads, made)

    return answer
