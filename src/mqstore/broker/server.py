"""The broker: a store, a listening socket, and one handler per request code.

    >>> import asyncio
    >>> from tempfile import TemporaryDirectory
    >>> from mqstore.broker.protocol.frames import decode, encode
    >>> async def unknown() -> tuple[int, str | None]:
    ...     with TemporaryDirectory() as place:
    ...         async with Broker(place) as broker:
    ...             reader, writer = await asyncio.open_connection(broker.host, broker.port)
    ...             writer.write(encode(Frame(9999, opaque=7)))
    ...             length = int.from_bytes(await reader.readexactly(4), "big")
    ...             answered = decode(await reader.readexactly(length))
    ...             writer.close()
    ...             return answered.code, answered.remark
    >>> asyncio.run(unknown())
    (3, ' request type 9999 not supported')

Everything runs in one event loop. Stopping follows an order that loses nothing: refuse connections, refuse requests, finish those in
flight, stop the components, close the connections, close the store.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self

from mqstore.broker.handlers import (
    broker_info,
    long_polling,
    membership,
    metrics,
    nameserver,
    offsets,
    pull,
    queries,
    send,
    statistics,
    topic_creation,
    topics,
)
from mqstore.broker.handlers.metrics import check_metrics
from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_response
from mqstore.broker.runtime.acceptor import TlsAcceptor
from mqstore.broker.runtime.address import advertised_address, bind_listener, check_exposure
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import PROFILE_4_9_3, Context, Handler, profile
from mqstore.broker.runtime.logs import log
from mqstore.broker.runtime.served_store import LiveStore, ServedStore
from mqstore.broker.runtime.settings import Settings
from mqstore.errors import MqstoreError, RefusedError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.location import refuse_address
from mqstore.files.locking import bind_to_process
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.format.system_topics import TEMPLATE_TOPIC, TRACE_TOPIC
from mqstore.tls import TlsFiles, TlsMode, tls_mode

if TYPE_CHECKING:
    from mqstore.broker.access.control import AccessControl
    from mqstore.broker.runtime.read_only_store import ViewName


HANDLER_MODULES: tuple[ModuleType, ...] = (
    topic_creation,
    nameserver,
    membership,
    statistics,
    topics,
    broker_info,
    metrics,
    long_polling,
    send,
    pull,
    queries,
    offsets,
)


_DEFAULTS = StoreConfig()
_SWEEP = 5.0  # seconds between checks for idle connections


class Broker:
    """Name server and broker over one store, at one address. An async context manager; `start` and `stop` do the same.

    store: a directory, created if it does not exist. listen: `host:port`, port 0 for any. read_only: serve pulls and queries and refuse
    writes; a store that is not writable is always served so. view: state of a read-only store to serve, `recovered` (as a broker would
    load it) or `disk`; auto: recovered unless that loses part of the log. version: the broker that clients see, 4.9.3 or 5.3.3; by
    default that of the store, 4.9.3 for a new one. Raises MqstoreError if it cannot start.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        listen: str = "127.0.0.1:0",
        read_only: bool = False,
        view: ViewName = "auto",
        auto_create_topics: bool = False,
        version: str | None = None,
        settings: Settings | None = None,
        config: StoreConfig = _DEFAULTS,
    ) -> None:
        self._path = store
        self._listen = listen
        self._read_only = read_only
        self._view: ViewName = view
        self._version = version
        self._settings = settings or Settings()
        if auto_create_topics:
            self._settings = replace(self._settings, auto_create_topics=True)
        self._config = config
        self._context: Context | None = None
        self._access: AccessControl | None = None
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[None]] = set()
        self.handlers: dict[int, Handler] = handler_table()
        self.host = ""
        self.port = 0

    @property
    def context(self) -> Context:
        """State shared by the handlers. Raises UsageError before the start."""
        if self._context is None:
            raise UsageError("the broker is not running; start it first")
        return self._context

    @property
    def address(self) -> str:
        """The address for clients to use as their name server, `ip:port`."""
        return self.context.address

    @property
    def store(self) -> ServedStore:
        """The served store."""
        return self.context.store

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # start and stop

    async def start(self) -> None:
        """Open the store and listen."""
        listener = bind_listener(self._listen)
        try:
            self.host, self.port = listener.getsockname()[:2]
            if self._settings.metrics is not None:
                check_metrics(self._settings.metrics)  # before a new store is made
            if self._settings.acl is not None:
                from mqstore.broker.access.control import check_accounts  # most brokers have no accounts

                check_accounts(self._settings.acl)
            mode = _tls_mode(self._settings)
            check_exposure(self.host, self._settings, mode)
            tls = None if mode == "disabled" else _tls_files(self._settings)
            address = self._settings.address or advertised_address(self.host, self.port)
            config = replace(self._config, store_host=address)
            store = open_served_store(self._path, config, self._version, read_only=self._read_only, view=self._view)
        except BaseException:
            listener.close()
            raise
        try:
            add_broker_topics_and_groups(store, self._settings)
            context = Context(store, profile(self._version or store.version), self._settings, address)
            if self._settings.acl is not None:
                from mqstore.broker.access.control import AccessControl

                self._access = context.component(AccessControl)
                self._access.start()
            self._context = context
            for module in HANDLER_MODULES:
                for kind in getattr(module, "COMPONENTS", ()):
                    context.component(kind).start()
            loop = asyncio.get_running_loop()
            if tls is None:
                self._server = await loop.create_server(self._connection, sock=listener, backlog=4096)
            else:
                self._server = TlsAcceptor(listener, self._connection, context.shared, tls, enforcing=mode == "enforcing")
                self._server.start()
        except BaseException:
            listener.close()
            store.close()
            raise
        bind_to_process(self)
        self._sweeper = loop.create_task(self._sweep())
        for note in store.notes:
            log("store-note", note=note)
        log("started", address=address, store=str(self._path), version=context.profile.version, writable=context.writable)

    def forked(self) -> None:
        """Give the broker up in a forked child: connections, event loop and store belong to the parent. `stop` does nothing."""
        self._context = None

    async def stop(self) -> None:
        """Stop in order: finish requests in flight, and close the store."""
        context, self._context = self._context, None
        if context is None:
            return
        context.accepting = False
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        try:
            for connection in list(context.connections):
                connection.drain()
            if self._working:
                await asyncio.wait(self._working, timeout=context.settings.stop_timeout / 1000)
            for component in reversed(context.components()):
                await component.stop()
            await context.release()
            await self._hang_up(context)
        finally:
            await asyncio.to_thread(context.store.close)
            log("stopped", address=context.address)

    async def _hang_up(self, context: Context) -> None:
        """Close the connections, with one second for unsent data."""
        for connection in list(context.connections):
            connection.close()
        end = context.loop.time() + 1.0
        while context.connections and context.loop.time() < end:
            await asyncio.sleep(0.005)
        for task in self._working:
            task.cancel()
        for connection in list(context.connections):
            connection.abort()

    async def serve_forever(self) -> None:
        """Run until cancelled."""
        if self._server is None:
            await self.start()
        await asyncio.Event().wait()

    # connections and requests

    def _connection(self) -> Connection:
        return Connection(self.context.shared, self._on_request, self._on_lost)

    def _on_lost(self, connection: Connection) -> None:
        if self._context is not None:
            for component in self._context.components():
                component.connection_lost(connection)

    async def _sweep(self) -> None:
        """Close idle connections."""
        context = self.context
        limit = context.settings.idle_timeout / 1000
        while True:
            await asyncio.sleep(min(_SWEEP, limit / 4))
            now = context.loop.time()
            for connection in list(context.connections):
                if connection.is_stalled(now, limit):
                    connection.close(f"the connection was idle for {limit:g} s", now=True)

    def _on_request(self, connection: Connection, request: Frame) -> None:
        context = self._context
        if context is None:
            return
        if self._access is not None:
            refused = self._refused(self._access, connection, request)
            if refused is not None:
                if not request.is_oneway:
                    connection.send(refused)
                return
        handler = self.handlers.get(request.code)
        if handler is None:
            if not request.is_oneway:
                remark = f" request type {request.code} not supported"
                connection.send(make_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        try:
            answered = handler(context, connection, request)
        except Exception as error:
            answered = error_response(connection, request, error)
        if answered is None:
            return
        if isinstance(answered, Frame):
            if not request.is_oneway:
                connection.send(self._visible(connection, request, answered))
            return
        size = request.size
        why = connection.request_started(size)
        if why:
            if inspect.iscoroutine(answered):
                answered.close()  # it has not begun
            if not request.is_oneway:
                connection.send(make_response(request, ResponseCode.SYSTEM_BUSY, f"broker busy, start flow control for a while: {why}"))
            return
        task = context.loop.create_task(self._finish(connection, request, answered, size))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _refused(self, access: AccessControl, connection: Connection, request: Frame) -> Frame | None:
        """Return the response to a request that is not admitted, or None. A request that cannot be checked is not admitted."""
        try:
            why = access.refuse(connection, request)
        except Exception as error:
            return error_response(connection, request, error)
        return None if why is None else make_response(request, self.context.profile.refusal_code, why)

    def _visible(self, connection: Connection, request: Frame, answered: Frame) -> Frame:
        """Return what the client may see of an answer. One that cannot be filtered is not sent."""
        if self._access is None:
            return answered
        try:
            return self._access.filtered(connection, request, answered)
        except Exception as error:
            return error_response(connection, request, error)

    async def _finish(self, connection: Connection, request: Frame, work: Awaitable[Frame | None], size: int) -> None:
        try:
            answered = await work
        except Exception as error:
            answered = error_response(connection, request, error)
        finally:
            connection.request_finished(size)
        if answered is not None and not request.is_oneway:
            connection.send(self._visible(connection, request, answered))


def _tls_mode(settings: Settings) -> TlsMode:
    return tls_mode(settings.tls, settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def _tls_files(settings: Settings) -> TlsFiles:
    """Return the files of TLS, which can be used. Raises UsageError."""
    assert settings.tls_cert is not None  # `tls_mode` has seen to it
    files = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    files.load()
    return files


def handler_table() -> dict[int, Handler]:
    """Return the handlers of all modules by request code."""
    handlers: dict[int, Handler] = {}
    for module in HANDLER_MODULES:
        for code, handler in getattr(module, "HANDLERS", {}).items():
            if code in handlers:
                raise RuntimeError(f"two modules handle request {code}; the second is {module.__name__}")
            handlers[int(code)] = handler
    return handlers


def error_response(connection: Connection, request: Frame, error: Exception) -> Frame:
    """Return the response to a request whose handler raised."""
    if isinstance(error, ResponseError):
        return make_response(request, error.code, error.remark, error.ext)
    if isinstance(error, MqstoreError):
        return make_response(request, ResponseCode.SYSTEM_ERROR, str(error))
    log("request-failed", logging.ERROR, error=error, peer=connection.peer, code=request.code)
    return make_response(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def open_served_store(
    path: str | os.PathLike[str], config: StoreConfig, version: str | None, *, read_only: bool, view: ViewName
) -> ServedStore:
    """Open the store to serve: read-only if requested, if it may not be written, or if a broker would not start on it.

    Without a version, a new store is of 4.9.3.
    """
    exists = Path(path).exists()
    if not exists:
        refuse_address(os.fspath(path), "give a store's directory, and the address to listen on with --listen")
    if read_only or (exists and (not Path(path).is_dir() or not is_writable(Path(path)))):
        return open_read_only(path, config, version, view)
    root = store_root(Path(path)) if exists else Path(path)
    chosen = version or config.version
    if chosen is None and not root.joinpath("commitlog").exists():
        chosen = PROFILE_4_9_3.version
    try:
        return LiveStore(root, replace(config, version=chosen))
    except (RefusedError, UnsupportedError) as error:
        log("store-not-writable", logging.WARNING, why=str(error))
        return open_read_only(path, config, version, view)


def open_read_only(path: str | os.PathLike[str], config: StoreConfig, version: str | None, view: ViewName) -> ServedStore:
    """Open a store read-only. The code for that is imported on demand, since most brokers write."""
    from mqstore.broker.runtime.read_only_store import ReadOnlyStore

    return ReadOnlyStore(path, config, version, view)


def store_root(path: Path) -> Path:
    """Return the root of an existing or new store: the directory if it is a store or empty, else the store in it. Raises NotAStoreError."""
    from mqstore.places import open_rocketmq
    from mqstore.rocketmq.store.store_files import looks_like_rocketmq

    directory = ReadOnlyDirectory(path)
    if looks_like_rocketmq(directory) or {entry.name for entry in directory.entries()} <= {"lock"}:
        return path
    store = open_rocketmq(path)
    store.require_directory_for("a broker")
    return store.directory.root


def is_writable(root: Path) -> bool:
    """Return whether this process may write to a store's directories."""
    paths = [root, *(root / name for name in ("commitlog", "consumequeue", "index", "config"))]
    return all(os.access(path, os.W_OK) for path in paths if path.exists())


def add_broker_topics_and_groups(store: ServedStore, settings: Settings) -> None:
    """Add the topics and groups that a broker creates itself."""
    written = store.writable
    if written is None:
        return
    topics = store.topics
    before = set(topics.names())
    queues = settings.default_topic_queue_nums
    topics.add_system_topics(cluster=settings.cluster, broker=settings.broker_name, template_queues=queues)
    if not settings.auto_create_topics and TEMPLATE_TOPIC not in before:
        topics.delete(TEMPLATE_TOPIC)
    if settings.trace_topic and TRACE_TOPIC not in before:
        topics.put(TopicConfig(TRACE_TOPIC, read_queues=1, write_queues=1))
    store.groups.add_built_in()
    written.persist()
