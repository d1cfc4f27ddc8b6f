"""Custom headers: the fields of a request by name and Java type, which of them its code defines, and its signature.

    >>> from mqstore.broker.protocol.frames import Frame
    >>> asked = Frame(11, ext={"queueId": "3", "queueOffset": "99999999999", "order": "TRUE", "count": "many"})
    >>> int32(asked, "queueId"), int64(asked, "queueOffset"), boolean(asked, "order"), int32_or(asked, "count", 16)
    (3, 99999999999, True, 16)
    >>> text(asked, "topic")
    Traceback (most recent call last):
    mqstore.broker.protocol.frames.ResponseError: the custom field <topic> is null

An invalid number, or one too large for its type, counts as missing. Of booleans only `true`, in any case, is true.

A request may have the fields of its code's header in clients of 4.9.3 and 5.3.3, and those of any request:

    >>> sorted(FIELDS[RequestCode.VIEW_MESSAGE_BY_ID]), "offset" in ANY, "Signature" in ANY
    (['offset', 'topic'], False, True)
    >>> asked = Frame(215, ext={"topic": "orders", "clientAddr": "c@1", "AccessKey": "operator"})
    >>> undefined(asked), defined(asked)
    ('clientAddr', {'topic': 'orders'})

A signature covers the values of a request and neither its code nor the names of its fields. Fields that a code does not define are
therefore refused of accounts, and not forwarded to clients.

A signature is proof that a request was made by a client that knows the secret key of an account:

    content    the values of all extFields except Signature and _UNIQUE_KEY_QUERY, in the order of their names, then the body
    Signature  base64 of the HMAC-SHA1 of the content, under the secret key; names and values are UTF-8

    >>> sign(Frame(105, ext={"topic": "orders", "AccessKey": "publisher"}), "12345678")
    'uWuG7X8Ja0ZOlAkwT1LnwXFSZh0='

Names are sorted by UTF-16 code units, as Java sorts strings. The content has no time or counter: a recorded request can be
sent again, so use TLS where the network is not trusted.

Protocol: docs/formats/rocketmq-remoting.md, sections 1.4, 2.2, 3.1, 10 and 10.1.
Source: Apache RocketMQ 4.9.3, AclUtils, AclSigner, PlainAccessValidator.
"""

from __future__ import annotations

import base64
import hmac
from typing import overload

from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError

_I32, _I64 = 1 << 31, 1 << 63
_SMALL = {str(number): number for number in range(-1, 256)}  # the most frequent numbers in headers: queues, flags, counts


def missing(name: str) -> ResponseError:
    """Return the error of a request without a required field."""
    return ResponseError(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")


def number_or_none(written: str, bound: int = _I64) -> int | None:
    """Parse an integer as Java does. Returns None if it is not a number or is outside [-bound, bound)."""
    small = _SMALL.get(written)
    if small is not None:
        return small
    digits = written[1:] if written[:1] in ("-", "+") else written
    if not digits.isdecimal() or len(digits) > 32:
        return None
    number = int(written)
    return number if -bound <= number < bound else None


def text(frame: Frame, name: str) -> str:
    """Return a required string. Raises ResponseError."""
    value = frame.ext.get(name) if frame.ext is not None else None
    if value is None:
        raise missing(name)
    return value


@overload
def text_or(frame: Frame, name: str) -> str | None: ...
@overload
def text_or(frame: Frame, name: str, default: str) -> str: ...
def text_or(frame: Frame, name: str, default: str | None = None) -> str | None:
    """Return an optional string."""
    return frame.ext.get(name, default) if frame.ext is not None else default


def int32(frame: Frame, name: str) -> int:
    """Return a required int. Raises ResponseError."""
    number = number_or_none(text(frame, name), _I32)
    if number is None:
        raise missing(name)
    return number


def int64(frame: Frame, name: str) -> int:
    """Return a required long. Raises ResponseError."""
    number = number_or_none(text(frame, name))
    if number is None:
        raise missing(name)
    return number


@overload
def int32_or(frame: Frame, name: str) -> int | None: ...
@overload
def int32_or(frame: Frame, name: str, default: int) -> int: ...
def int32_or(frame: Frame, name: str, default: int | None = None) -> int | None:
    """Return an optional int."""
    return _number_or(frame, name, _I32, default)


@overload
def int64_or(frame: Frame, name: str) -> int | None: ...
@overload
def int64_or(frame: Frame, name: str, default: int) -> int: ...
def int64_or(frame: Frame, name: str, default: int | None = None) -> int | None:
    """Return an optional long."""
    return _number_or(frame, name, _I64, default)


def _number_or(frame: Frame, name: str, bound: int, default: int | None) -> int | None:
    value = frame.ext.get(name) if frame.ext is not None else None
    number = None if value is None else number_or_none(value, bound)
    return default if number is None else number


def boolean(frame: Frame, name: str) -> bool:
    """Return a required boolean. Raises ResponseError."""
    return text(frame, name).lower() == "true"


def boolean_or(frame: Frame, name: str, default: bool = False) -> bool:
    """Return an optional boolean."""
    value = frame.ext.get(name) if frame.ext is not None else None
    return default if value is None else value.lower() == "true"


# the fields of each request


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


# signatures


ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})


def sign(request: Frame, secret_key: str) -> str:
    """Return the signature of a request."""
    ext = request.ext or {}
    names = [name for name in ext if name not in UNSIGNED]
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)
    mac = hmac.new(secret_key.encode("utf-8", "replace"), "".join([ext[name] for name in names]).encode("utf-8", "replace"), "sha1")
    mac.update(request.body)
    return base64.b64encode(mac.digest()).decode("ascii")


def is_signed_by(request: Frame, secret_key: str) -> bool:
    """Whether a request has the right signature. Takes the same time for every wrong one."""
    given = (request.ext or {}).get(SIGNATURE, "")
    return hmac.compare_digest(sign(request, secret_key).encode(), given.encode("utf-8", "replace"))


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
