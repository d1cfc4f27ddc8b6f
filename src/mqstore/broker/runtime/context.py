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

A profile holds the differences between 4.9.3 and 5.3.3 brokers that clients can see:

    >>> profile("4.9.3").number, profile("5.3.3").parameter_code.name
    (399, 'INVALID_PARAMETER')

Both handle all requests; those that only 5.3.3 clients send (361, 351, 352) work with the 4.9.3 profile too.

Protocol: docs/formats/rocketmq-remoting.md, section 7.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mqstore.broker.protocol.codes import V4_9_3, V5_3_3, Language, ResponseCode, release_name
from mqstore.broker.protocol.frames import Frame, ResponseError
from mqstore.broker.runtime.connection import Connection, SharedState
from mqstore.broker.runtime.limits import Limits
from mqstore.broker.runtime.logs import log
from mqstore.broker.runtime.served_store import rewritten, with_ipv4_hosts
from mqstore.errors import UsageError
from mqstore.rocketmq.format.profile import VersionRules, version_rules
from mqstore.rocketmq.format.record import parse_host

if TYPE_CHECKING:
    from mqstore.broker.runtime.served_store import ServedStore
    from mqstore.broker.runtime.settings import Settings
    from mqstore.rocketmq.engine.message_store import MessageStore

# versions


@dataclass(frozen=True, slots=True)
class Profile:
    """The version whose behaviour clients see. number: the release number in every frame.

    parameter_code: response code for an illegal topic or queue id. refusal_code: for a request that access control refuses.
    offline_code: for a group without members. What follows says what a broker does; the values here are those of 5.3.3. What the stores of
    both versions do differently is in `rules`.
    """

    version: str
    number: int
    parameter_code: ResponseCode
    refusal_code: ResponseCode
    offline_code: ResponseCode
    has_topic_attributes: bool = True  # topics have attributes, and clients set their order
    tells_acting_master: bool = True  # in routes
    tells_timers: bool = True  # among its runtime information
    tells_put_rate: bool = True  # of a topic, and all of its queues, whether they are for writing or for reading
    tells_pull_offset: bool = True  # of a group, by queue
    tells_transaction_id: bool = True  # in the answer to a message that was sent
    tells_size_limit: bool = True  # the one that is configured, when a message is too large
    limits_time_of_decision: bool = True  # CHECK_IMMUNITY_TIME_IN_SECONDS of a half message
    names_broker_in_check: bool = True  # of a half message
    compares_commits: bool = True  # of offsets, with the queue
    forgets_offsets: bool = True  # with a topic that is deleted
    marks_dead_letters: bool = True  # with the topic and the id that the message had
    knows_fingerprints: bool = True  # of heartbeats

    @property
    def rules(self) -> VersionRules:
        """What a store of this version does."""
        return version_rules(self.version)

    @property
    def release(self) -> str:
        """The name of the release, such as `V4_9_3`."""
        return release_name(self.number)


PROFILE_4_9_3 = Profile(
    "4.9.3",
    V4_9_3,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_ERROR,
    has_topic_attributes=False,
    tells_acting_master=False,
    tells_timers=False,
    tells_put_rate=False,
    tells_pull_offset=False,
    tells_transaction_id=False,
    tells_size_limit=False,
    limits_time_of_decision=False,
    names_broker_in_check=False,
    compares_commits=False,
    forgets_offsets=False,
    marks_dead_letters=False,
    knows_fingerprints=False,
)
PROFILE_5_3_3 = Profile("5.3.3", V5_3_3, ResponseCode.INVALID_PARAMETER, ResponseCode.NO_PERMISSION, ResponseCode.CONSUMER_NOT_ONLINE)


def profile(version: str) -> Profile:
    """Return the profile of a version. Raises UsageError."""
    for each in (PROFILE_4_9_3, PROFILE_5_3_3):
        if each.version == version:
            return each
    raise UsageError(f"there is no profile {version!r}; the profiles are {PROFILE_4_9_3.version} and {PROFILE_5_3_3.version}")


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
        component = self._components.get(kind)
        if component is None:
            component = self._components[kind] = kind(self)
        return component  # type: ignore[return-value]

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

    def repeat(self, seconds: float, work: Callable[[], Awaitable[object] | None]) -> None:
        """Do something in the background each time that this time has passed."""

        async def repeated() -> None:
            while True:
                await asyncio.sleep(seconds)
                waiting = work()
                if waiting is not None:
                    await waiting

        self.spawn(repeated())

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
