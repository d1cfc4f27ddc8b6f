"""What the handlers of requests share: the store, the settings, and components that live as long as the broker.

A module that answers requests has a table of them, which the server gathers:

    def view_message(context: Context, connection: Connection, request: Frame) -> Frame: ...

    HANDLERS: dict[int, Handler] = {RequestCode.VIEW_MESSAGE_BY_ID: view_message}

A handler returns the answer, or None where none is due now (it was oneway, or it comes later through `connection.send`). It may be a
coroutine function; then other requests go on meanwhile. Plain functions are answered without a task, so what does not wait should be one.
It raises ResponseError, or any MqstoreError, which becomes an answer of its own; a oneway request gets none.

State that outlives a request is a `Component`: a class of which each broker has one, made when it is first asked for.

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
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.connection import Connection, SharedState
from mqstore.broker.runtime.logs import log
from mqstore.broker.served.store_host import rewritten
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
    """State that belongs to a broker as a whole."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def start(self) -> None:
        """Called in the event loop before the first request; components listed in a module's COMPONENTS are made for it."""

    async def stop(self) -> None:
        """Called when no more requests come, before the store is closed."""

    def connection_lost(self, connection: Connection) -> None:
        """Called when a connection is gone."""


class Context:
    """One running broker. address: what clients connect to, `ip:port`. boot: when it started, ms.

    store: for reading, and for all that works on a store that is only read too. clock: ms since the epoch.
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
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> set[Connection]:
        """All that are open."""
        return self.shared.connections

    @staticmethod
    def clock() -> int:
        """The time now in ms since the epoch."""
        return time.time_ns() // 1_000_000

    def component(self, kind: type[P]) -> P:
        """The broker's one component of this kind."""
        found = self._components.get(kind)
        if found is None:
            found = self._components[kind] = kind(self)
        return found  # type: ignore[return-value]

    def components(self) -> list[Component]:
        """All components, in the order in which they were made."""
        return list(self._components.values())

    @property
    def writable(self) -> bool:
        """Whether the store takes messages and settings."""
        return self.store.writable is not None

    def writable_store(self, code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> MessageStore:
        """The store, for what changes it. Raises ResponseError with the code where it is only read."""
        store = self.store.writable
        if store is None:
            raise ResponseError(code, self.store.refusal)
        return store

    def response_body(self, records: Iterable[memoryview]) -> bytes:
        """Records as the body of an answer, with this broker's address in them where that is wanted."""
        if self._host is not None:
            host = self._host
            return b"".join([rewritten(record, host) for record in records])
        return b"".join(records)

    async def run(self, function: Callable[..., T], *given: object) -> T:
        """Run what blocks in a thread."""
        return await self.loop.run_in_executor(self._executor, function, *given)

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run work beside the requests; it is cancelled when the broker stops. What it raises is logged."""

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
        """End what runs beside the requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.loop.run_in_executor(None, self._executor.shutdown)


Handler = Callable[[Context, Connection, Frame], Frame | Awaitable[Frame | None] | None]
