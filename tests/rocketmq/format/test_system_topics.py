"""System topics: what follows from each name, for a broker, accounts, replay and the console, and that the names stand once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqstore.broker.access.accounts import Account, Permission
from mqstore.rocketmq.config.topic_table import system_topics
from mqstore.rocketmq.format import system_topics as names
from mqstore.rocketmq.format.system_topics import FORBIDDEN_TOPICS, is_internal, is_shared, is_system_topic, kind_of

SRC = Path(__file__).parents[3] / "src" / "mqstore"
# topic, nobody creates or deletes it, nobody sends to it, accounts need an entry for it, it has no messages of users
TABLE = [
    ("SCHEDULE_TOPIC_XXXX", True, True, True, True),
    ("RMQ_SYS_TRANS_HALF_TOPIC", True, True, True, True),
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True, True, True, True),
    ("TRANS_CHECK_MAX_TIME_TOPIC", True, True, True, True),
    ("SELF_TEST_TOPIC", True, True, True, True),
    ("OFFSET_MOVED_EVENT", True, True, True, True),
    ("RMQ_SYS_TRACE_TOPIC", True, False, True, True),
    ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", False, False, True, True),
    ("rmq_sys_wheel_timer", True, False, True, True),
    ("C_REPLY_TOPIC", True, False, True, True),
    ("Former_REPLY_TOPIC", False, False, True, True),
    ("TBW102", True, False, False, True),
    ("BenchmarkTest", True, False, False, True),
    ("C", True, False, False, False),
    ("B", True, False, False, False),
    ("orders", False, False, False, False),
    ("%RETRY%g", False, False, False, False),
    ("%DLQ%g", False, False, False, False),
]


@pytest.mark.parametrize(
    ("topic", "system", "forbidden", "shared", "internal"), TABLE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_follows_from_a_name(topic: str, system: bool, forbidden: bool, shared: bool, internal: bool) -> None:
    assert (is_system_topic(topic, "C", "B"), topic in FORBIDDEN_TOPICS, is_shared(topic), is_internal(topic)) == (
        system,
        forbidden,
        shared,
        internal,
    )
    assert (kind_of(topic) == "system") is internal
    if not topic.startswith("%"):
        assert Account("k", "s", default_topic=Permission.SUB).allows(topic, Permission.SUB) is not shared


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_every_topic_that_a_broker_makes_is_one_of_the_system(version: str) -> None:
    for config in system_topics(version, cluster="C", broker="B"):
        assert is_system_topic(config.name, "C", "B")


def test_no_other_module_spells_the_name_of_a_system_topic() -> None:
    known = [value for name, value in vars(names).items() if isinstance(value, str) and re.match("[A-Z].*_(TOPIC|PREFIX|GROUP)$", name)]
    assert len(known) > 10
    spelt = re.compile(f'"({"|".join(map(re.escape, known))})"|"rmq_sys_"')
    for path in SRC.rglob("*.py"):
        code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert path.name == "system_topics.py" or not spelt.search(code), path
