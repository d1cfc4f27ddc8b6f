"""A test case of `unittest` with a broker in the process of the tests.

    class OrderTest(RocketMQTestCase):
        def test_an_order_is_billed(self):
            self.rocketmq.produce("orders", "paid", keys="o-17")
            self.assertEqual(self.rocketmq.consume("orders", group="billing")[0].text, "paid")

It can be combined with other test cases, asynchronous ones among them: `class OrderTest(RocketMQTestCase, IsolatedAsyncioTestCase)`.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from mqstore.testing.running_broker import RunningBroker


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
    with TemporaryDirectory(prefix="rocketmq-") as place, RunningBroker(Path(place, "store"), **options) as broker:
        yield broker
