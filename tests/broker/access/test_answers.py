"""What answers may contain: no credentials of others, no record of another topic or key, no name without a permission."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from broker.access.test_control import ACCOUNTS, OPERATOR, PULL, SEND, SHOP, guarded, heartbeat, put, signed
from support.wire import Pair, asked, connected, received

from mqstore.broker import Broker
from mqstore.broker.access.answers import LISTS, RECORDS
from mqstore.broker.protocol.frames import RESPONSE, Frame, encode
from mqstore.broker.protocol.headers import CREDENTIALS
from mqstore.rocketmq.config.topic_table import SubscriptionGroupConfig, TopicConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.message import Message
from mqstore.testing.running_broker import SMALL

# credentials


def consumer_of(version: int, group: str, *topics: str) -> Frame:
    return signed(OPERATOR, 34, None, heartbeat(group, *topics), opaque=1, version=version)


async def exchanged(pair: Pair, consumer: Pair, request: Frame, pushed: list[Frame]) -> Frame | None:
    """Send a request; record what the consumer gets meanwhile, and answer it; return the answer, if there is one within a second."""
    pair[1].write(encode(request))

    async def serve() -> None:
        while True:
            told = await received(consumer[0])
            if told.is_response:
                continue
            pushed.append(told)
            if not told.is_oneway:
                consumer[1].write(encode(Frame(0, None, b'{"messageQueueTable":{}}', flag=RESPONSE, opaque=told.opaque)))

    serving = asyncio.ensure_future(serve())
    try:
        return await received(pair[0], 2.0)
    except TimeoutError:
        return None
    finally:
        await asyncio.sleep(0.2)
        serving.cancel()


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_credentials_are_not_handed_on_to_clients(version: str, tmp_path: Path) -> None:
    """Of all requests that make the broker ask or tell a client something: 307, 309, 222, 223, 324, 325, 34, 37."""
    pushed: list[Frame] = []

    async def run() -> None:
        async with guarded(tmp_path, version=version) as (broker, pair):
            consumer = await connected(broker)
            assert (await asked(consumer, consumer_of(399, "billing", "orders"))).code == 0
            at = put(broker, "orders")
            half = put(broker, "orders", properties={"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u"})
            assert half
            store = broker.store.writable
            assert store is not None
            record = store.record_at(at)
            assert record is not None
            broker.store.offsets.commit("billing", "orders", 0, 0)
            common = {"topic": "orders", "group": "billing"}
            reply = {"a": "p", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
            reply["i"] = "REPLY_TO_CLIENT\x01c@1\x02CORRELATION_ID\x01x\x02"
            long = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag")
            msg_id = "7F0000010000270F" + at.to_bytes(8, "big").hex().upper()
            requests = [
                (307, {"consumerGroup": "billing", "clientId": "c@1", "jstackEnable": "false", "bname": "broker-a"}, b""),
                (309, {"consumerGroup": "billing", "clientId": "c@1", "msgId": msg_id, "SecurityToken": "t", "OnsChannel": "x"}, b""),
                (222, {**common, "timestamp": "-1", "isForce": "true"}, b""),
                (223, {**common, "clientAddr": "c@1"}, b""),
                (324, {**dict(zip(long, reply.values(), strict=False)), "properties": reply["i"]}, b"reply"),
                (325, reply, b"reply"),
                (34, None, heartbeat("billing", "orders", "prices")),
            ]
            for number, (code, ext, body) in enumerate(requests):
                answer = await exchanged(pair, consumer, signed(OPERATOR, code, ext, body, opaque=100 + number), pushed)
                assert answer is not None, code

    asyncio.run(run())
    codes = {frame.code for frame in pushed}
    assert codes >= {40, 221, 307, 309, 326}
    assert 220 in codes or version == "5.3.3"
    for frame in pushed:
        raw = encode(frame)
        assert not CREDENTIALS & (frame.ext or {}).keys(), frame
        for secret in (b"operator", b"Signature", b"AccessKey"):
            assert secret not in raw, frame


# records


def test_a_key_with_the_hash_of_a_key_of_another_topic_finds_the_messages_that_were_asked_for_only(tmp_path: Path) -> None:
    ours, theirs = "ordersAa", "ordersBB"
    assert index_hash(ours, "k") == index_hash(theirs, "k")
    assert index_hash(ours, "keyAa") == index_hash(ours, "keyBB")
    accounts = ACCOUNTS.replace("[orders=", f"[{ours}=PUB|SUB, {theirs}=DENY, orders=")

    async def run() -> None:
        async with guarded(tmp_path, accounts) as (broker, pair):
            store = broker.store.writable
            assert store is not None
            for topic, keys in ((ours, "k"), (theirs, "k"), (theirs, "keyBB"), (ours, "keyBB other"), (ours, "keyAa")):
                put(broker, topic, properties={"KEYS": keys, "UNIQ_KEY": f"id of {keys}"})
            assert await asyncio.to_thread(store.wait_dispatched)
            wanted = {"topic": ours, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
            for key, count in (("k", 1), ("keyAa", 1), ("keyBB", 1), ("other", 1), ("id of keyBB other", 1), ("keyBB other", 0)):
                assert len(store.query(ours, "k").slices) == 2  # of both topics
                answer = await asked(pair, signed(SHOP, 12, {**wanted, "key": key}, opaque=1))
                assert answer.code == (0 if count else 22), key
                assert bytes(answer.body).count(b"body") == count, key
                assert theirs.encode() not in bytes(answer.body)
                past = {**wanted, "key": key, "endTimestamp": str(broker.context.clock() - 1)}  # in a thread
                assert theirs.encode() not in bytes((await asked(pair, signed(SHOP, 12, past, opaque=2))).body)

    asyncio.run(run())


def _store_with_a_stale_entry(root: Path) -> None:
    """A store whose queue of `orders` has two entries, the first of which leads to a message of `secrets`."""
    with MessageStore(root, SMALL) as store:
        for topic in ("orders", "secrets"):
            store.topics.put(TopicConfig(topic, read_queues=1, write_queues=1))
        puts = [store.put(Message(topic, b"the body of " + topic.encode(), queue_id=0)) for topic in ("orders", "secrets", "orders")]
        store.wait_dispatched()
        secret = puts[1]
    file = root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    with file.open("r+b") as opened:
        opened.write(struct.pack(">qiq", secret.physical_offset, secret.size, 0))


def test_a_stale_entry_of_a_queue_does_not_lead_to_a_message_of_another_topic(tmp_path: Path) -> None:
    _store_with_a_stale_entry(tmp_path / "store")

    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            wanted = {**PULL, "topic": "orders", "consumerGroup": "billing"}
            answer = await asked(pair, signed(SHOP, 11, wanted, opaque=1))
            assert answer.code == 0
            assert b"the body of orders" in bytes(answer.body)
            assert b"secrets" not in bytes(answer.body)
            answer = await asked(pair, signed(SHOP, 11, {**wanted, "maxMsgNums": "1"}, opaque=2))
            assert (answer.code, bytes(answer.body)) == (20, b"")
            assert answer.ext is not None
            assert answer.ext["nextBeginOffset"] == "1"
            operators = await asked(pair, signed(OPERATOR, 33, {"offset": "0"}, opaque=3))
            assert operators.code == 0

    asyncio.run(run())


@pytest.mark.parametrize("property_of_waiting", ["DELAY\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"])
def test_a_producer_does_not_name_the_topic_that_its_message_waits_for(property_of_waiting: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            forged = f"REAL_TOPIC\x01secrets\x02{property_of_waiting}REAL_TOPIC\x01secrets\x02REAL_QID\x010\x02UNIQ_KEY\x01u\x02"
            answer = await asked(pair, signed(SHOP, 310, {**SEND, "b": "orders", "i": forged}, b"body", opaque=1))
            assert answer.code == 0, answer.remark
            assert answer.ext is not None
            found = broker.store.record_by_id(answer.ext["msgId"])  # type: ignore[attr-defined]
            assert found.topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
            assert found.property_map()["REAL_TOPIC"] == "orders"
            assert b"secrets" not in found.properties

    asyncio.run(run())


# lists

REQUESTS: dict[int, dict[str, str]] = {
    21: {},
    43: {},
    201: {},
    203: {"consumerGroup": "billing"},
    206: {},
    208: {"consumerGroup": "billing"},
    224: {"cluster": "DefaultCluster"},
    300: {"topic": "orders"},
    343: {"group": "billing"},
}


async def filled(broker: Broker, pair: Pair) -> Pair:
    """Groups `billing` and `audit` with offsets and subscriptions of `orders` and `secrets`."""
    for group in ("billing", "audit"):
        broker.store.groups.put(SubscriptionGroupConfig(group))
        for topic in ("orders", "secrets"):
            broker.store.offsets.commit(group, topic, 0, 0)
    consumer = await connected(broker)
    assert (await asked(consumer, signed(OPERATOR, 34, None, heartbeat("billing", "orders", "secrets"), opaque=1))).code == 0
    return consumer


@pytest.mark.parametrize("version", [399, 479])
@pytest.mark.parametrize("code", sorted(LISTS))
def test_a_list_names_what_the_account_has_a_permission_on(code: int, version: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            consumer = await filled(broker, pair)
            seen, whole = [
                bytes((await asked(pair, signed(who, code, REQUESTS[code], opaque=5, version=version))).body).decode()
                for who in (SHOP, OPERATOR)
            ]
            hidden = {name for name in ("secrets", "audit") if name in whole}
            assert hidden, whole
            assert not [name for name in hidden if name in seen], seen
            assert "orders" in seen or "billing" in seen
            assert ("orders" in seen) is ("orders" in whole)
            consumer[1].close()

    asyncio.run(run())


def test_each_code_with_a_filter_is_tested_here() -> None:
    assert REQUESTS.keys() == LISTS.keys()
    assert {11, 12, 361} == RECORDS.keys()


def test_a_white_listed_address_sees_everything(tmp_path: Path) -> None:
    accounts = ACCOUNTS.replace("secretKey: the shop's key", "secretKey: the shop's key\n  whiteRemoteAddress: 127.0.0.1")

    async def run(text: str, who: tuple[str, str] | None) -> None:
        async with guarded(tmp_path, text) as (_, pair):
            answer = await asked(pair, signed(who, 206, {}, opaque=5))
            assert "secrets" in json.loads(bytes(answer.body))["topicList"]

    asyncio.run(run(accounts, ("shopkeeper", "wrong")))
    asyncio.run(run(ACCOUNTS.replace("192.0.2.7", "127.0.0.1"), None))


def test_an_answer_that_cannot_be_filtered_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            monkeypatch.setattr("mqstore.broker.access.answers.filtered", fails)
            answer = await asked(pair, signed(SHOP, 206, {}, opaque=5))
            assert (answer.code, answer.remark, bytes(answer.body)) == (1, "RuntimeError: a bug", b"")

    asyncio.run(run())
