"""Topics and groups as a broker makes them on its way: names that are allowed, what is created on first use, and when it is on disk.

    >>> topic_problem("x" * 128), topic_problem("orders")
    ('The specified topic is longer than topic max length.', None)
    >>> is_system_topic("SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"), is_system_topic("rmq_sys_x", "DefaultCluster", "broker-a")
    (True, True)

A topic or group that a request creates is on disk before the request is answered: a broker that is killed then still knows where its
acknowledged messages are. Requests that create several at once share one write. In a store that is only read they exist in memory, and
a topic made for a group can be read, not written.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3, 3.2, 3.7 and 3.13.
"""

from __future__ import annotations

import asyncio
import re

from mqstore.broker.runtime.context import Component, Context
from mqstore.rocketmq.append.send_path import retry_topic
from mqstore.rocketmq.config.topic_table import SubscriptionGroupConfig, TopicConfig, system_topics

__all__ = ["COMPONENTS", "READ", "WRITE", "TopicsAndGroups", "is_system_topic", "topic_problem"]

READ, WRITE = 4, 2
LONGEST_TOPIC = 127

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_OTHERS = frozenset({"RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"})


def topic_problem(name: str) -> str | None:
    """Why a topic cannot have this name, in the words of a broker; None if it can."""
    if not name.strip():
        return "The specified topic is blank."
    if not _ALLOWED.match(name):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return "The specified topic is longer than topic max length." if len(name) > LONGEST_TOPIC else None


def is_system_topic(name: str, cluster: str, broker: str) -> bool:
    """Whether a topic is the broker's own, which no client may make or delete."""
    own = {config.name for config in system_topics("5.3.3", cluster=cluster, broker=broker)}
    return name in own or name in _OTHERS or name.startswith("rmq_sys_")


class TopicsAndGroups(Component):
    """The broker's topics and groups, with what is created on first use."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lock = asyncio.Lock()
        self._asked = 0
        self._saved = 0

    # groups

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """A group's configuration, made now where groups are made on first use; None where it has none."""
        groups = self.context.store.groups
        found = groups.get(name)
        if found is None and (self.context.settings.auto_create_groups or name.startswith("CID_RMQ_SYS_")):
            groups.put(SubscriptionGroupConfig(name))
            found = groups.get(name)
        return found

    # topics

    def retry_topic(self, group: SubscriptionGroupConfig) -> bool:
        """Make a group's retry topic. Returns whether it is new; then it is to be saved."""
        return self.make(retry_topic(group.name), group.retry_queue_nums)

    def make(self, name: str, queues: int, perm: int = READ | WRITE) -> bool:
        """Make a topic that is not there yet. Returns whether it is new; then it is to be saved."""
        topics = self.context.store.topics
        if queues <= 0 or name in topics:
            return False
        allowed = perm if self.context.writable else perm & ~WRITE
        topics.put(TopicConfig(name, perm=allowed, read_queues=queues, write_queues=queues))
        return True

    # the files

    async def save(self) -> None:
        """Return once all topics and groups of this moment are on disk; in a store that is only read at once."""
        store = self.context.store.writable
        if store is None:
            return
        self._asked += 1
        wanted = self._asked
        async with self._lock:
            if self._saved < wanted:
                covered = self._asked
                await self.context.run(store.persist)
                self._saved = covered


COMPONENTS = (TopicsAndGroups,)
