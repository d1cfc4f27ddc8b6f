"""The fields that a request may have: those of its code's header in clients of 4.9.3 and 5.3.3, and those of any request.

    >>> sorted(FIELDS[RequestCode.VIEW_MESSAGE_BY_ID]), "offset" in ANY, "Signature" in ANY
    (['offset', 'topic'], False, True)
    >>> from mqstore.broker.protocol.frames import Frame
    >>> asked = Frame(215, ext={"topic": "orders", "clientAddr": "c@1", "AccessKey": "operator"})
    >>> undefined(asked), defined(asked)
    ('clientAddr', {'topic': 'orders'})

A signature covers the values of a request and neither its code nor the names of its fields. Fields that a code does not define are
therefore refused of accounts, and not forwarded to clients.

Protocol: docs/formats/rocketmq-remoting.md, sections 2.2, 3.1 and 10.1.
"""

from __future__ import annotations

from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame

# what hooks of clients add: the keys and the signature, and the channel that some clients name
CREDENTIALS = frozenset({"AccessKey", "Signature", "SecurityToken", "OnsChannel"})
# bname, ns, nsd, oway, lo: of every header of 5.x (RpcRequestHeader, TopicRequestHeader); ReqT, __ZONE_…: of its hooks
ANY = CREDENTIALS | {"bname", "ns", "nsd", "oway", "lo", "ReqT", "__ZONE_NAME", "__ZONE_MODE"}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SEND = _names(
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes unitMode batch"
    " maxReconsumeTimes"
)
_SEND_V2 = frozenset("abcdefghijklmn")
_PULL = _names(
    "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subscription subVersion expressionType"
    " maxMsgBytes requestSource proxyFrowardClientId"
)
_QUEUE = _names("topic queueId")
_GROUP_IN_TOPIC = _names("group topic")
_BROKER = _names("brokerName brokerAddr clusterName brokerId")

FIELDS: dict[int, frozenset[str]] = {
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: _names("topic key maxNum beginTimestamp endTimestamp _UNIQUE_KEY_QUERY"),
    RequestCode.QUERY_CONSUMER_OFFSET: _names("consumerGroup topic queueId setZeroIfNotFound"),
    RequestCode.UPDATE_CONSUMER_OFFSET: _names("consumerGroup topic queueId commitOffset"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: _names(
        "topic defaultTopic readQueueNums writeQueueNums perm topicFilterType topicSysFlag order attributes force"
    ),
    RequestCode.GET_ALL_TOPIC_CONFIG: frozenset(),
    RequestCode.UPDATE_BROKER_CONFIG: frozenset(),
    RequestCode.GET_BROKER_CONFIG: frozenset(),
    RequestCode.GET_BROKER_RUNTIME_INFO: frozenset(),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _QUEUE | {"timestamp", "boundaryType"},
    RequestCode.GET_MAX_OFFSET: _QUEUE | {"committed"},
    RequestCode.GET_MIN_OFFSET: _QUEUE,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    RequestCode.VIEW_MESSAGE_BY_ID: _names("offset topic"),
    RequestCode.HEART_BEAT: frozenset(),
    RequestCode.UNREGISTER_CLIENT: _names("clientID producerGroup consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _names("offset group delayLevel originMsgId originTopic unitMode maxReconsumeTimes"),
    RequestCode.END_TRANSACTION: _names(
        "topic producerGroup tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck msgId transactionId"
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _names("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: frozenset(),
    RequestCode.UNLOCK_BATCH_MQ: frozenset(),
    RequestCode.GET_ALL_CONSUMER_OFFSET: frozenset(),
    RequestCode.GET_ALL_DELAY_OFFSET: frozenset(),
    RequestCode.CHECK_CLIENT_CONFIG: frozenset(),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _names(
        "accessKey secretKey whiteRemoteAddress admin defaultTopicPerm defaultGroupPerm topicPerms groupPerms"
    ),
    RequestCode.DELETE_ACL_CONFIG: _names("accessKey"),
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: frozenset(),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _names("globalWhiteAddrs"),
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: frozenset(),
    RequestCode.PUT_KV_CONFIG: _names("namespace key value"),
    RequestCode.GET_KV_CONFIG: _names("namespace key"),
    RequestCode.DELETE_KV_CONFIG: _names("namespace key"),
    RequestCode.REGISTER_BROKER: _BROKER | _names("haServerAddr compressed bodyCrc32 heartbeatTimeoutMillis enableActingMaster"),
    RequestCode.UNREGISTER_BROKER: _BROKER,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _names("topic acceptStandardJsonOnly"),
    RequestCode.GET_BROKER_CLUSTER_INFO: frozenset(),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: frozenset(),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: frozenset(),
    RequestCode.GET_TOPIC_STATS_INFO: _names("topic"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _names("consumerGroup"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _names("producerGroup"),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _names("brokerName"),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: frozenset(),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _names("groupName removeOffset cleanOffset"),
    RequestCode.GET_CONSUME_STATS: _names("consumerGroup topic topicList"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _names("topic"),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _names("topic clusterName"),
    RequestCode.GET_KVLIST_BY_NAMESPACE: _names("namespace"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _GROUP_IN_TOPIC | {"timestamp", "isForce", "queueId", "offset"},
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _GROUP_IN_TOPIC | {"clientAddr"},
    RequestCode.GET_TOPICS_BY_CLUSTER: _names("cluster"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _names("topic"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: _GROUP_IN_TOPIC,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: frozenset(),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: frozenset(),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: frozenset(),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _names("consumerGroup clientId jstackEnable"),
    RequestCode.QUERY_CORRECTION_OFFSET: _names("topic compareGroup filterGroups"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _names("consumerGroup clientId msgId brokerName topic topicSysFlag groupSysFlag"),
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.GET_UNIT_TOPIC_LIST: frozenset(),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: frozenset(),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: frozenset(),
    RequestCode.CLONE_GROUP_OFFSET: _names("srcGroup destGroup topic offline"),
    RequestCode.VIEW_BROKER_STATS_DATA: _names("statsName statsKey"),
    RequestCode.CLEAN_UNUSED_TOPIC: frozenset(),
    RequestCode.GET_BROKER_CONSUME_STATS: _names("isOrder"),
    RequestCode.UPDATE_NAMESRV_CONFIG: frozenset(),
    RequestCode.GET_NAMESRV_CONFIG: frozenset(),
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.QUERY_CONSUME_QUEUE: _names("topic queueId index count consumerGroup"),
    RequestCode.QUERY_DATA_VERSION: _BROKER,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _names("msgId topic"),
    RequestCode.SEND_REPLY_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _names("brokerName"),
    RequestCode.GET_ALL_PRODUCER_INFO: frozenset(),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _names("group"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUP_IN_TOPIC,
    RequestCode.GET_TOPIC_CONFIG: _names("topic"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _names("group"),
    RequestCode.LITE_PULL_MESSAGE: _PULL,
}


def undefined(request: Frame) -> str | None:
    """Return the first field that the request's code does not define, or None. A code that is not served defines no fields to check."""
    known = FIELDS.get(request.code)
    if known is None or request.ext is None:
        return None
    return next((name for name in request.ext if name not in known and name not in ANY), None)


def defined(request: Frame) -> dict[str, str]:
    """Return the fields of the request's own header: without credentials, and without those that its code does not define."""
    known = FIELDS.get(request.code, frozenset())
    return {name: value for name, value in (request.ext or {}).items() if name in known}
