"""State shared by request handlers: the store, the settings, and components that live as long as the broker.

A module of handlers has a table of them, which the server merges:

    def view_message(context: Context, connection: Connection, request: Frame) -> Frame: ...

    HANDLERS: dict[int, Handler] = {RequestCode.VIEW_MESSAGE_BY_ID: view_message}

A handler returns the response, or None if there is none yet (the request was oneway, or `connection.send` is called later). It may be a
coroutine function, so that other requests proceed meanwhile. Plain functions need no task, so handlers that do not wait should be plain.
A ResponseError or other MqstoreError that it raises becomes the response, unless the request was oneway.

State that outlives a request is a `Component`: a class with one instance per broker, created on first use.

    >>> from mqstore.broker.runtime.settings import Settings
    >>> class Count(Component):
    ...     number = 0
    >>> context = Context.__new__(Context)
    >>> context._components = {}
    >>> context.component(Count) is context.component(Count)
    True
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from mqstore.broker.protocol.codes import Language, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection, SharedState
from mqstore.broker.runtime.limits import Limits
from mqstore.broker.runtime.logs import log
from mqstore.broker.served.store_host import rewritten, with_ipv4_hosts
from mqstore.rocketmq.format.record import parse_host

if TYPE_CHECKING:
    from mqstore.broker.runtime.profile import Profile
    from mqstore.broker.runtime.settings import Settings
    from mqstore.broker.served.served_store import ServedStore
    from mqstore.rocketmq.engine.message_store import MessageStore

__all__ = ["Component", "Connection", "Context", "Frame", "Handler", "ResponseError", "make_response"]

P = TypeVar("P", bound="Component")
T = TypeVar("T")


class Component:
    """State of a broker as a whole."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def start(self) -> None:
        """Start in the event loop, before the first request; called for the components in a module's COMPONENTS."""

    async def stop(self) -> None:
        """Stop after the last request, before the store is closed."""

    def connection_lost(self, connection: Connection) -> None:
        """Handle the loss of a connection."""


class Context:
    """A running broker. address: for clients to connect to, `ip:port`. boot: start time, ms.

    store: for reading, and for whatever also works on a read-only store. clock: ms since the epoch.
    """

    def __init__(self, store: ServedStore, profile: Profile, settings: Settings, address: str) -> None:
        self.store = store
        self.profile = profile
        self.settings = settings
        self.address = address
        self.shared = SharedState(settings, profile.number)
        self.loop = asyncio.get_running_loop()
        self.boot = self.clock()
        self.accepting = True
        self._components: dict[type[Component], Component] = {}
        self._executor = ThreadPoolExecutor(settings.workers, thread_name_prefix="mqstore-broker")
        self._host = parse_host(address) if settings.rewrite_store_host else None
        self._own_host = _packed(address)
        self._tasks: set[asyncio.Task[None]] = set()
        self.limits = Limits(settings)

    @property
    def connections(self) -> set[Connection]:
        """The open connections."""
        return self.shared.connections

    @staticmethod
    def clock() -> int:
        """Return the time in ms since the epoch."""
        return time.time_ns() // 1_000_000

    def component(self, kind: type[P]) -> P:
        """Return the broker's component of this class, creating it on first use."""
        found = self._components.get(kind)
        if found is None:
            found = self._components[kind] = kind(self)
        return found  # type: ignore[return-value]

    def components(self) -> list[Component]:
        """Return all components in order of creation."""
        return list(self._components.values())

    @property
    def writable(self) -> bool:
        """Whether the store accepts messages and settings."""
        return self.store.writable is not None

    def writable_store(self, code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> MessageStore:
        """Return the store for changing it. Raises ResponseError with the code if it is read-only."""
        store = self.store.writable
        if store is None:
            raise ResponseError(code, self.store.refusal)
        return store

    def response_body(self, records: Sequence[memoryview], language: Language) -> bytes:
        """Return records as the body of a response to a client: `response_parts` in one piece."""
        return b"".join(self.response_parts(records, language))

    def response_parts(self, records: Sequence[memoryview], language: Language) -> Sequence[bytes | memoryview]:
        """Return records as they are sent: with this broker's address if `rewrite_store_host` is set, and to C++ without IPv6 hosts."""
        parts: Sequence[bytes | memoryview] = records
        if language is Language.CPP:
            parts = [with_ipv4_hosts(record, self._own_host) for record in records]
        if self._host is not None:
            host = self._host
            parts = [rewritten(memoryview(record), host) for record in parts]
        return parts

    async def run(self, function: Callable[..., T], *given: object) -> T:
        """Run a blocking function in a worker thread."""
        return await self.loop.run_in_executor(self._executor, function, *given)

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run a background task, which is cancelled when the broker stops. Its errors are logged."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                log("background-failed", logging.ERROR, error=error, why=str(error))

        task = self.loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def release(self) -> None:
        """Cancel the background tasks and wait for the worker threads."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.loop.run_in_executor(None, self._executor.shutdown)


Handler = Callable[[Context, Connection, Frame], Frame | Awaitable[Frame | None] | None]


def _packed(address: str) -> bytes:
    """Return an address as host bytes; empty if it names a host."""
    try:
        return parse_host(address)
    except ValueError:
        return b""
