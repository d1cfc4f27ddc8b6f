"""Topics and groups that a broker creates on first use: valid names, creation, and durability.

    >>> topic_problem("x" * 128), topic_problem("orders")
    ('The specified topic is longer than topic max length.', None)

A topic or group that a request creates is on disk before the response, so that a killed broker does not lose track of acknowledged
messages. Concurrent requests share one write. In a read-only store new topics exist in memory only, and a topic created for a group
can be read but not written.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.7 and 3.13.
"""

from __future__ import annotations

import asyncio
import re

from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.runtime.context import Component, Context
from mqstore.rocketmq.config.topic_table import SubscriptionGroupConfig, TopicConfig
from mqstore.rocketmq.format.system_topics import SYSTEM_GROUP_PREFIX, retry_topic

READ, WRITE = 4, 2
LONGEST_TOPIC = 127

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_problem(name: str) -> str | None:
    """Return why a topic name is not valid, in the broker's words, or None."""
    if not name.strip():
        return "The specified topic is blank."
    if not _ALLOWED.match(name):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return "The specified topic is longer than topic max length." if len(name) > LONGEST_TOPIC else None


class TopicsAndGroups(Component):
    """The broker's topics and groups, created on first use."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lock = asyncio.Lock()
        self._asked = 0
        self._saved = 0

    # groups

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, creating it if groups are created on first use; None if there is none."""
        groups = self.context.store.groups
        config = groups.get(name)
        if config is None and (self.context.settings.auto_create_groups or name.startswith(SYSTEM_GROUP_PREFIX)):
            self.check_group(name, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            groups.put(SubscriptionGroupConfig(name))
            config = groups.get(name)
        return config

    def check_group(self, name: str, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        """Refuse a new group that is more than the broker holds. Raises ResponseError."""
        self.context.limits.name(name, "consumer group")
        self.context.limits.check("groups", len(self.context.store.groups.names()), 1, code)

    # topics

    def check_topic(self, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        """Refuse a new topic that is more than the broker holds. Raises ResponseError."""
        self.context.limits.check("topics", len(self.context.store.topics.names()), 1, code)

    def retry_topic(self, group: SubscriptionGroupConfig) -> bool:
        """Create a group's retry topic. Returns whether it is new and must be saved."""
        return self.make(retry_topic(group.name), group.retry_queue_nums)

    def make(self, name: str, queues: int, perm: int = READ | WRITE) -> bool:
        """Create a topic if it does not exist. Returns whether it is new and must be saved."""
        topics = self.context.store.topics
        if queues <= 0 or name in topics:
            return False
        self.check_topic(ResponseCode.TOPIC_NOT_EXIST)
        allowed = perm if self.context.writable else perm & ~WRITE
        topics.put(TopicConfig(name, perm=allowed, read_queues=queues, write_queues=queues))
        return True

    # the files

    async def save(self) -> None:
        """Wait until all current topics and groups are on disk; returns at once for a read-only store."""
        store = self.context.store.writable
        if store is None:
            return
        self._asked += 1
        state = self._asked
        async with self._lock:
            if self._saved < state:
                covered = self._asked
                await self.context.run(store.persist)
                self._saved = covered


COMPONENTS = (TopicsAndGroups,)
