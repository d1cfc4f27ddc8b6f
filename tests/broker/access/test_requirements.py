"""Every request that is served: refused without the permission that it needs, admitted with it, and with its own fields only."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.access.test_control import SHOP, guarded, heartbeat, put, signed
from support.broker import BrokerThread
from support.wire import asked

from mqstore.broker.access.accounts import AccessRules, Account, Permission
from mqstore.broker.access.control import refusal
from mqstore.broker.access.requirements import ACCOUNT, ADMIN, RESOURCES, needed
from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame
from mqstore.broker.protocol.headers import ANY, FIELDS, sign
from mqstore.broker.runtime.context import Context
from mqstore.broker.server import handler_table
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import Record, encode
from mqstore.rocketmq.format.system_topics import RETRY_PREFIX

PUB, SUB, DENY, BOTH = Permission.PUB, Permission.SUB, Permission.DENY, Permission.PUB | Permission.SUB
CODES = sorted(handler_table())
VALUES = {"statsKey": "orders@billing", "statsName": "GROUP_GET_NUMS", "topicList": "orders;prices", "clientID": "c@1"}
VALUES |= dict.fromkeys(("topic", "b", "originTopic", "defaultTopic"), "orders")
VALUES |= dict.fromkeys(("consumerGroup", "group", "srcGroup", "destGroup"), "billing")
BODIES = {
    RequestCode.HEART_BEAT: heartbeat("billing", "orders"),
    RequestCode.LOCK_BATCH_MQ: json.dumps({"consumerGroup": "billing", "mqSet": [{"topic": "orders"}]}).encode(),
    RequestCode.UNLOCK_BATCH_MQ: json.dumps({"consumerGroup": "billing", "mqSet": [{"topic": "orders"}]}).encode(),
}
FREE = {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("store") / "store", version="4.9.3") as running:
        yield running


@pytest.fixture(scope="module")
def offset(running: BrokerThread) -> int:
    """The physical offset of a message of `orders`."""
    store = running.broker.store.writable
    assert store is not None
    found = store.put(Message("orders", b"body", queue_id=0)).physical_offset
    assert store.wait_dispatched()
    return found


def request_of(code: int, offset: int, names: frozenset[str] | None = None) -> Frame:
    """A request with all fields of its code, or those named."""
    ext = {name: VALUES.get(name, "1") for name in (FIELDS[code] if names is None else names)}
    for name in {"offset", "commitLogOffset"} & ext.keys():
        ext[name] = str(offset)
    return Frame(code, ext, BODIES.get(code, b""))  # type: ignore[call-overload]


def told(account: Account, request: Frame, context: Context) -> str | None:
    """Why the account is refused, or None."""
    request.ext = {**(request.ext or {}), "AccessKey": account.access_key}
    request.ext["Signature"] = sign(request, account.secret_key)
    return refusal(AccessRules({account.access_key: account}), request, "192.0.2.1", context)


def account(permissions: dict[str, Permission], **more: Any) -> Account:
    return Account("shopkeeper", "the shop's key", permissions=permissions, **more)


def is_enough(permission: Permission, needs: Permission) -> bool:
    return needs in permission if needs & BOTH else bool(permission & BOTH)


@pytest.mark.parametrize("code", sorted(RESOURCES))
def test_a_request_needs_each_permission_that_it_states_and_no_other(code: int, running: BrokerThread, offset: int) -> None:
    context = running.broker.context
    needs = needed(request_of(code, offset), context.settings.cluster, context.store.record_at).resources
    assert needs
    for found in itertools.product((DENY, PUB, SUB, BOTH), repeat=len(needs)):
        given = dict(zip(needs, found, strict=True))
        why = told(account(given), request_of(code, offset), context)
        missing = [name for name in needs if not is_enough(given[name], needs[name])]
        assert (why is not None) == bool(missing), (given, why)
        if missing:
            assert why is not None
            assert why.startswith("No default permission for ")
            assert any(why.endswith(f":{name.removeprefix(RETRY_PREFIX)}") for name in missing)
    nobody = told(account({}), request_of(code, offset), context)
    assert nobody is not None
    assert nobody.startswith("No default permission for ")


@pytest.mark.parametrize("code", sorted(ADMIN))
def test_an_administrators_request_needs_an_administrator(code: int, running: BrokerThread, offset: int) -> None:
    context, request = running.broker.context, request_of(code, offset)
    all_but_that = account({"unused": BOTH}, default_topic=BOTH, default_group=BOTH)
    assert told(all_but_that, request, context) == f"Need admin permission for request code={code}, but accessKey=shopkeeper is not"
    assert told(account({"orders": DENY}, admin=True), request_of(code, offset), context) is None


@pytest.mark.parametrize("code", sorted(ACCOUNT))
def test_the_others_need_an_account(code: int, running: BrokerThread, offset: int) -> None:
    context, request = running.broker.context, request_of(code, offset)
    assert refusal(AccessRules({}), request, "192.0.2.1", context) == "No accessKey is configured"
    assert told(account({}), request, context) is None


@pytest.mark.parametrize("code", CODES)
def test_a_field_that_the_code_does_not_define_is_refused(code: int, running: BrokerThread, offset: int) -> None:
    context, operator = running.broker.context, Account("operator", "the operator's key", admin=True)
    for names in (frozenset(), FIELDS[code], FIELDS[code] | ANY - {"AccessKey", "Signature"}):
        assert told(operator, request_of(code, offset, names), context) is None
    for strange in ("zzz", "", "Topic", "x" * 500):
        why = told(operator, request_of(code, offset, FIELDS[code] | {strange}), context)
        assert why is not None
        assert why.startswith("The field ")
        assert why.endswith(f" is not one of request code={code}")
        assert len(why) < 200


def test_every_code_has_its_fields() -> None:
    assert FIELDS.keys() == handler_table().keys()


def test_a_signature_for_one_request_does_not_delete_a_topic(running: BrokerThread) -> None:
    """The consumer chose its client id so that the content that the operator signed for 307 begins with the name of a topic."""
    context, operator = running.broker.context, Account("operator", "the operator's key", admin=True)
    signed_one = Frame(307, {"clientId": "orders", "consumerGroup": "billing", "jstackEnable": "false"})
    assert told(operator, signed_one, context) is None
    assert signed_one.ext is not None
    forged = Frame(215, {"topic": "orders", "z": "billingfalse", "AccessKey": "operator", "Signature": signed_one.ext["Signature"]})
    assert sign(forged, "the operator's key") == forged.ext["Signature"]  # type: ignore[index]
    why = refusal(AccessRules({"operator": operator}), forged, "192.0.2.1", context)
    assert why == "The field z is not one of request code=215"


# sums


@pytest.mark.parametrize("given", [PUB, SUB])
@pytest.mark.parametrize("origin", [{}, {"originTopic": "mine"}, {"originTopic": "orders"}])
def test_sending_back_needs_both_permissions_on_the_topic_of_the_message(
    given: Permission, origin: dict[str, str], running: BrokerThread, offset: int
) -> None:
    """With PUB alone the message could be read from the retry topic; with SUB alone it would be written."""
    ext = {"offset": str(offset), "group": "billing", "delayLevel": "0", **origin}
    owned = {"orders": given, "mine": BOTH, "%RETRY%billing": BOTH}
    assert told(account(owned), Frame(36, dict(ext)), running.broker.context) == "No default permission for topic:orders"
    assert told(account({**owned, "orders": BOTH}), Frame(36, dict(ext)), running.broker.context) is None


def test_a_message_that_was_sent_back_before_needs_the_permission_on_the_topic_it_came_from(running: BrokerThread) -> None:
    store = running.broker.store.writable
    assert store is not None
    at = store.put(Message("%RETRY%billing", b"body", properties={"RETRY_TOPIC": "orders"})).physical_offset
    asked_for = Frame(36, {"offset": str(at), "group": "billing", "delayLevel": "0"})
    owned = {"orders": BOTH, "%RETRY%billing": SUB}
    assert told(account(owned), asked_for, running.broker.context) is None
    assert told(account({**owned, "orders": SUB}), asked_for, running.broker.context) == "No default permission for topic:orders"
    owned["%RETRY%other"] = SUB
    other = Frame(36, {"offset": str(at), "group": "other", "delayLevel": "0"})
    assert told(account({**owned, "%RETRY%billing": DENY}), other, running.broker.context) == "No default permission for group:billing"


def test_a_message_that_names_further_queues_needs_the_permission_on_their_topics(running: BrokerThread) -> None:
    context = running.broker.context
    properties = "INNER_MULTI_DISPATCH\x01orders,secrets\x02"
    inner = properties.encode()
    body = bytes(12) + (7).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"x" + len(inner).to_bytes(2, "big") + inner
    for request in (
        Frame(10, {"topic": "orders", "properties": properties}),
        Frame(310, {"b": "orders", "i": properties}),
        Frame(320, {"b": "orders"}, body),
        Frame(310, {"b": "orders", "m": "true"}, body),
        Frame(324, {"topic": "DefaultCluster_REPLY_TOPIC", "properties": properties}),
    ):
        assert told(account({"orders": PUB}), request, context) == "No default permission for topic:secrets"
        assert told(account({"orders": PUB, "secrets": PUB}), request, context) is None


# topics of groups and of the broker


def test_a_dead_letter_topic_has_the_permission_of_its_group() -> None:
    owner = account({"%RETRY%billing": SUB, "%DLQ%other": PUB}, default_topic=BOTH, default_group=DENY)
    assert owner.allows("%DLQ%billing", SUB)
    assert not owner.allows("%DLQ%billing", PUB)
    assert not owner.allows("%DLQ%audit", SUB)
    assert not owner.allows("%DLQ%audit", PUB)
    assert owner.allows("%DLQ%other", PUB)  # an entry of its own
    assert account({"unused": SUB}, default_group=SUB).allows("%DLQ%audit", SUB)


@pytest.mark.parametrize(
    "topic",
    [
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "DefaultCluster_REPLY_TOPIC",
        "FormerCluster_REPLY_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
    ],
)
def test_a_topic_of_the_broker_is_read_by_those_only_whose_entry_names_it(topic: str, running: BrokerThread) -> None:
    context = running.broker.context
    trusting = account({"unused": SUB}, default_topic=BOTH, default_group=BOTH)
    numbers = () if topic == "RMQ_SYS_TRACE_TOPIC" else (30, 202, 351)  # PUB is enough for offsets and settings
    for code in (11, 12, 14, 321, 361, *numbers):
        request = Frame(code, {"topic": topic})
        assert told(trusting, request, context) == f"No default permission for topic:{topic}", code
    assert trusting.allows(topic, PUB) is (topic == "RMQ_SYS_TRACE_TOPIC")  # where clients with tracing send to
    assert account({topic: SUB}).allows(topic, SUB)


# offsets


def test_an_offset_within_a_message_names_no_message(tmp_path: Path) -> None:
    """A body that looks like a message, with its own checksum and offset, would otherwise reach over messages of other topics."""

    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            store = broker.store.writable
            assert store is not None
            first = put(broker, "orders")
            place = first + len(store.raw_record_at(first) or b"") + 88 + 4  # behind four bytes of the body of the next message
            forged = encode(Record("orders", b"all of it", physical_offset=place, queue_offset=0))
            second = store.put(Message("orders", b"head" + forged, queue_id=0)).physical_offset
            found = store.record_at(place)
            assert found is not None, second
            assert (found.topic, found.body, found.physical_offset) == ("orders", b"all of it", place)
            assert await asyncio.to_thread(store.wait_dispatched)
            for number, (code, name) in enumerate(((33, "offset"), (36, "offset"), (37, "commitLogOffset"))):
                asked_for = {name: str(place), **({"group": "billing"} if code == 36 else {})}
                answer = await asked(pair, signed(SHOP, code, asked_for, opaque=number))
                assert answer.remark == f"no message begins at the offset {place}", code
            assert (await asked(pair, signed(SHOP, 33, {"offset": str(second)}, opaque=9))).code == 0

    asyncio.run(run())


def test_the_head_of_a_message_in_a_body_does_not_reach_over_messages_of_other_topics(tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            store = broker.store.writable
            assert store is not None
            tail = bytes((6,)) + b"orders" + bytes(2)  # topic and properties: the end of a message
            record = encode(Record("orders", b""))
            head = record[: len(record) - len(tail)]

            def put_three(forged: bytes) -> tuple[int, ...]:
                bodies = (("orders", forged), ("secrets", b"the secret"), ("orders", tail))
                return tuple(store.put(Message(topic, body, queue_id=0)).physical_offset for topic, body in bodies)

            first, _, third = put_three(bytes(len(head)))  # to see how far apart they lie
            width = third - first
            start = store.log_max
            place = start + len(head)
            size = width + len(tail)
            length = size - len(head) - len(tail)
            forged = bytearray(head)
            forged[0:4] = size.to_bytes(4, "big")
            forged[28:36] = place.to_bytes(8, "big")
            forged[-4:] = length.to_bytes(4, "big")
            assert put_three(bytes(forged))[0] == start
            found = store.record_at(place)
            assert found is not None
            assert (found.topic, found.physical_offset) == ("orders", place)
            assert b"the secret" in found.body
            answer = await asked(pair, signed(SHOP, 33, {"offset": str(place)}, opaque=1))
            assert (answer.remark, bytes(answer.body)) == (f"no message begins at the offset {place}", b"")

    asyncio.run(run())
