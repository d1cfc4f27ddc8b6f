"""Topics and groups that a broker uses itself, by name: what each is for, and which rules follow from it.

    SCHEDULE_TOPIC_XXXX           messages with a delay level, until it is over
    rmq_sys_wheel_timer           messages with a time of delivery, until it has come (5.x)
    RMQ_SYS_TRANS_HALF_TOPIC      half messages; RMQ_SYS_TRANS_OP_HALF_TOPIC says which of them are settled
    RMQ_SYS_ROCKSDB_TRANS_…       the same with their state in RocksDB (5.5.0)
    TRANS_CHECK_MAX_TIME_TOPIC    half messages whose producer was asked in vain
    RMQ_SYS_TRACE_TOPIC           traces that clients send
    CLUSTER_REPLY_TOPIC           answers to requests of clients
    OFFSET_MOVED_EVENT            offsets that a broker corrected
    SELF_TEST_TOPIC               messages by which a broker was checked
    TBW102                        no messages: the settings of topics that are created on first use
    BenchmarkTest                 messages of the benchmark that comes with the broker
    CLUSTER, BROKER               no messages: topics with the names of cluster and broker, which serve as templates
    rmq_sys_REVIVE_LOG_CLUSTER    what pop consumers took and acknowledged, when its time is over (5.x)
    rmq_sys_…                     further ones of 5.x
    %RETRY%GROUP, %DLQ%GROUP      messages of a group that wait for another attempt, and those whose attempts all failed

`TopicValidator` of a broker has the set of system topics and that of topics that take no messages from clients. What accounts may do,
and what is sent again, follows from what the topics hold.

    >>> is_system_topic("rmq_sys_x", "C", "B"), is_system_topic("C_REPLY_TOPIC", "C", "B"), is_system_topic("orders", "C", "B")
    (True, True, False)
    >>> [(is_shared(name), is_internal(name)) for name in ("TRANS_CHECK_MAX_TIME_TOPIC", "AnyCluster_REPLY_TOPIC", "TBW102", "orders")]
    [(True, True), (True, True), (False, True), (False, False)]

Protocol: docs/formats/rocketmq-remoting.md, sections 2.3 and 3.2.
"""

from __future__ import annotations

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TEMPLATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
RETRY_PREFIX, DEAD_LETTER_PREFIX = "%RETRY%", "%DLQ%"

SCHEDULED_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})  # messages of other topics, until their time has come
HALF_TOPICS = frozenset({HALF_TOPIC, ROCKSDB_HALF_TOPIC})
# NOT_ALLOWED_SEND_TOPIC_SET of TopicValidator in 5.x; 4.9.3 has the first alone, and takes messages that it would misread in the others
FORBIDDEN_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC})

CHECK_GROUP = "CID_RMQ_SYS_TRANS"  # its offsets are the progress of the check of half messages
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"  # its offsets are the progress in REVIVE_PREFIX + cluster
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"

_PREFIX = "rmq_sys_"
_SYSTEM_TOPICS = FORBIDDEN_TOPICS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}  # SYSTEM_TOPIC_SET of TopicValidator


def reply_topic(cluster: str) -> str:
    """Return the topic for answers to requests of clients."""
    return f"{cluster}_REPLY_TOPIC"


def retry_topic(group: str) -> str:
    """Return the topic in which messages of a consumer group wait for another attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic for messages of a consumer group whose attempts all failed."""
    return DEAD_LETTER_PREFIX + group


def is_system_topic(topic: str, cluster: str, broker: str) -> bool:
    """Return whether a topic belongs to the broker, so that clients may not create or delete it: `TopicValidator.isSystemTopic`."""
    return topic in _SYSTEM_TOPICS or topic in (cluster, broker, reply_topic(cluster)) or topic.startswith(_PREFIX)


def is_shared(topic: str) -> bool:
    """Return whether a topic is the broker's own and holds messages of all topics, of whichever cluster: no general permission opens it."""
    return topic in FORBIDDEN_TOPICS or topic.endswith("_REPLY_TOPIC") or topic.lower().startswith(_PREFIX)


def is_internal(topic: str) -> bool:
    """Return whether a topic has no messages of users: it is shown as one of the system, and its messages are not sent again."""
    return is_shared(topic) or topic in (TEMPLATE_TOPIC, BENCHMARK_TOPIC)


def kind_of(topic: str) -> str:
    """Return what a topic is for: `retry`, `dead letters` or `system`; empty for one of users."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead letters"
    return "system" if is_internal(topic) else ""


def is_left_out_of_light_queues(topic: str) -> bool:
    """Return whether 5.x adds no entries to light queues (LMQ) for messages of a topic."""
    return topic.startswith((RETRY_PREFIX, _PREFIX)) or topic == SCHEDULE_TOPIC
