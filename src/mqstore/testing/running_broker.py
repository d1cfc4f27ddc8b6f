"""A broker in the process of a test. Its event loop runs in a thread, so tests are plain functions.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, RunningBroker(place) as rocketmq:
    ...     _ = rocketmq.produce("orders", "paid", keys="o-17")
    ...     [message] = rocketmq.consume("orders")
    ...     message.text, message.keys
    ('paid', 'o-17')

Clients in any language use `address` as their name server. The pytest fixture `rocketmq` is such a broker.

A test case of `unittest` has one, too:

    class OrderTest(RocketMQTestCase):
        def test_an_order_is_billed(self):
            self.rocketmq.produce("orders", "paid", keys="o-17")
            self.assertEqual(self.rocketmq.consume("orders", group="billing")[0].text, "paid")

It can be combined with other test cases, asynchronous ones among them: `class OrderTest(RocketMQTestCase, IsolatedAsyncioTestCase)`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar

from mqstore.broker.runtime.served_store import ServedStore
from mqstore.broker.runtime.settings import Settings
from mqstore.broker.server import Broker
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.testing.client import Client, ReceivedMessage, SendReceipt

T = TypeVar("T")

# a small store for tests: created in milliseconds, a few megabytes on disk
SMALL = StoreConfig(commit_log_file_size=16 << 20, consume_queue_file_size=20_000, max_hash_slot_num=10_000, max_index_num=40_000)
_QUICK = Settings(transaction_check_interval=1000, transaction_timeout=500, property_filter=True)


class RunningBroker:
    """A broker over a directory, with helpers to send and receive. By default, messages to new topics create them.

    options: those of `mqstore.broker.Broker`. By default, half messages older than half a second are checked each second, and a new
    store is a `SMALL` one; one that has files of other sizes keeps them.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(path)
        self._options: dict[str, Any] = {"auto_create_topics": True, "config": _sizes(self.path), "settings": _QUICK} | options
        self._broker: Broker | None = None
        self._client: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # start and stop

    def start(self) -> None:
        """Open the store and listen. Raises whatever prevents the start."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="mqstore-broker", daemon=True)
        self._thread.start()
        ready.wait()
        if self._broker is None:
            self._thread.join()
            if self._failure is not None:
                raise self._failure
            raise RuntimeError("the broker stopped while it started")
        self.address = self._broker.address

    def stop(self) -> None:
        """Stop in order; the store is closed and can be opened again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._thread is None or self._loop is None or self._ended is None:
            return
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._thread = None
        if self._failure is not None:
            raise self._failure

    def restart(self) -> None:
        """Stop, and start again at the same address over the same store."""
        address = self.address
        self.stop()
        self._options["listen"] = address
        self.start()

    def _run(self, ready: threading.Event) -> None:
        self._failure = None
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        finally:
            self._broker = None
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with Broker(self.path, **self._options) as broker:
            self._broker = broker
            ready.set()
            await self._ended.wait()

    # for tests

    @property
    def broker(self) -> Broker:
        """The broker; it runs in another thread, see `inside`."""
        if self._broker is None:
            raise RuntimeError("the broker is not running; start it first")
        return self._broker

    @property
    def store(self) -> ServedStore:
        """The store; it may be read and written from any thread."""
        return self.broker.store

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function in the broker's thread and return what it returns."""
        if self._loop is None:
            raise RuntimeError("the broker is not running; start it first")

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()

    @property
    def client(self) -> Client:
        """A connection to the broker, opened on first use."""
        if self._client is None:
            self._client = Client(self.address)
        return self._client

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic."""
        self.client.create_topic(topic, queues)

    def produce(
        self,
        topic: str,
        body: bytes | str,
        *,
        keys: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        delay: int = 0,
    ) -> SendReceipt:
        """Send a message, see `Client.produce`."""
        return self.client.produce(topic, body, keys=keys, tags=tags, properties=properties, queue_id=queue_id, delay=delay)

    def consume(
        self, topic: str, count: int = 1, *, group: str | None = None, tags: str = "*", timeout: float = 10.0, commit: bool = True
    ) -> list[ReceivedMessage]:
        """Return the next messages of a topic for a group, see `Client.consume`."""
        return self.client.consume(topic, count, group=group, tags=tags, timeout=timeout, commit=commit)


def _sizes(path: Path) -> StoreConfig:
    """Return the sizes of a small store, or, if the log there has files of another size, the defaults, which give way to the files."""
    try:
        sizes = {entry.stat().st_size for entry in os.scandir(path / "commitlog")}
    except OSError:
        sizes = set()
    return SMALL if sizes <= {SMALL.commit_log_file_size} else StoreConfig()


# a test case of unittest


class RocketMQTestCase(unittest.TestCase):
    """A test case whose tests have `self.rocketmq`, a RocketMQ name server and broker over an empty store.

    rocketmq_scope: `function` gives each test a new broker; `class` gives the tests of a class one, which `setUpClass` has as
    `cls.rocketmq`. rocketmq_options: those of `RunningBroker`, such as `{"version": "5.3.3"}`. A subclass that has `setUp` or `setUpClass`
    calls that of this class first.
    """

    rocketmq: RunningBroker
    rocketmq_scope: ClassVar[Literal["function", "class"]] = "function"
    rocketmq_options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        """Start the broker that the tests of the class share, if they share one."""
        super().setUpClass()
        if cls.rocketmq_scope not in ("function", "class"):
            raise ValueError(f"rocketmq_scope is {cls.rocketmq_scope!r}; it must be function or class")
        if cls.rocketmq_scope == "class":
            cls.rocketmq = cls.enterClassContext(_over_an_empty_store(cls.rocketmq_options))

    def setUp(self) -> None:
        """Start the broker of this test, unless the class shares one."""
        super().setUp()
        if self.rocketmq_scope == "function":
            self.rocketmq = self.enterContext(_over_an_empty_store(self.rocketmq_options))


@contextmanager
def _over_an_empty_store(options: Mapping[str, Any]) -> Iterator[RunningBroker]:
    with TemporaryDirectory(prefix="rocketmq-") as directory, RunningBroker(Path(directory, "store"), **options) as broker:
        yield broker
