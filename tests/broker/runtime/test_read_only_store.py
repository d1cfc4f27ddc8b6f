"""Stores served read-only: every intact message is delivered, nothing changes, and requests for changes are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.golden import GoldenCase, case_named, opened, tree_checksum
from support.wire import Pair, asked, connected

from mqstore.broker import Broker, Settings
from mqstore.broker.protocol.codes import Language
from mqstore.broker.protocol.frames import Frame
from mqstore.broker.runtime.read_only_store import ReadOnlyStore, ViewName
from mqstore.errors import RefusedError
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.format.record import Record, decode, parse_host, parse_message_id
from mqstore.testing.client import Client

CLEAN, KILLED, IPV6 = "4.9.3/f-broker-offsets", "4.9.3/b-kill9", "4.9.3/e-delay-transaction-batch"
CUT, FLIPPED = "4.9.3/m-damaged/07-truncate-last", "4.9.3/m-damaged/01-body-flip"
SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}

LONG = {"producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"}
LONG |= {"bornTimestamp": "0", "flag": "0"}


def store(name: str, view: ViewName = "auto") -> ReadOnlyStore:
    return ReadOnlyStore(opened(case_named(name)), StoreConfig(), None, view)


def drained(served: ReadOnlyStore) -> dict[int, bytes]:
    """Return every message that can be pulled, by physical offset; every pull makes progress."""
    found = {}
    for queue in served.queues():
        at = queue.min_offset
        while at < queue.max_offset:
            pulled = served.get("g", queue.topic, queue.queue_id, at)
            assert pulled.next_begin_offset > at
            found.update({record.physical_offset: record.body for record in pulled.records()})
            at = pulled.next_begin_offset
    return found


def bodies_in_log(served: ReadOnlyStore) -> dict[int, bytes]:
    return {record.physical_offset: record.body for record in map(served.record_at, offsets_in_log(served)) if record is not None}


def offsets_in_log(served: ReadOnlyStore) -> list[int]:
    found: list[int] = []
    for batch in served._store.view().batches(("physical_offset",)):
        found += batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize("view", ["recovered", "disk"])
def test_both_views_of_an_intact_store_deliver_every_message(view: ViewName) -> None:
    served = store(CLEAN, view)
    assert served.view == view
    assert drained(served) == bodies_in_log(served)


def test_messages_that_a_killed_broker_had_not_dispatched_are_delivered() -> None:
    served = store(KILLED)
    assert served.view == "recovered"
    assert drained(served) == bodies_in_log(served)
    assert len(drained(store(KILLED, "disk"))) < len(drained(served))


@pytest.mark.parametrize("name", [CUT, FLIPPED])
def test_every_valid_message_of_a_damaged_store_is_delivered(name: str) -> None:
    served = store(name)
    assert served.view == "disk"
    listed = {
        int(entry["physical_offset"])
        for queue in served._store.view().queues()
        for entry in queue.entries(queue.min_offset, queue.max_offset)
    }
    believable = {offset: body for offset, body in bodies_in_log(served).items() if offset in listed}
    assert believable
    assert drained(served) == believable


@pytest.mark.parametrize(
    "name", ["4.9.3/m-damaged/16-everything", "4.9.3/m-damaged/10-queue-entries", "4.9.3/m-damaged/14-no-consumequeue"]
)
def test_valid_messages_that_no_queue_leads_to_are_delivered_too(name: str) -> None:
    served = store(name)
    bodies = bodies_in_log(served)
    assert len(bodies) > 400
    assert drained(served) == bodies
    if served.view == "disk":
        assert any("that no consume queue leads to" in note for note in served.notes)


def test_a_store_that_a_broker_refuses_is_served_as_on_disk_and_the_notes_give_the_reason() -> None:
    served = store(CUT)
    assert any("refuses to start" in note for note in served.notes)
    with pytest.raises(RefusedError):
        store(CUT, "recovered")


def serving(path: Path, script: Callable[[Broker, Pair], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with Broker(path, **options) as broker:
            pair = await connected(broker)
            await script(broker, pair)
            pair[1].close()

    asyncio.run(run())


def case_path(name: str) -> Path:
    case: GoldenCase = case_named(name)
    return opened(case)


def test_whatever_clients_do_nothing_in_the_directory_changes() -> None:
    path = case_path(CLEAN)
    before = tree_checksum(path)

    async def script(broker: Broker, pair: Pair) -> None:
        topic = next(queue.topic for queue in broker.store.queues() if queue.max_offset > queue.min_offset)
        place = {"consumerGroup": "g", "topic": topic, "queueId": "0"}
        assert (await asked(pair, Frame(15, {**place, "commitOffset": "3"}, opaque=1))).code == 0
        assert (await asked(pair, Frame(14, place, opaque=2))).ext == {"offset": "3"}
        heartbeat = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": []}], "producerDataSet": []}
        assert (await asked(pair, Frame(34, None, json.dumps(heartbeat).encode(), opaque=3))).code == 0
        route = await asked(pair, Frame(105, {"topic": "%RETRY%g"}, opaque=4, version=479))
        assert json.loads(bytes(route.body))["queueDatas"][0]["perm"] & 4

    serving(path, script, read_only=True)
    assert tree_checksum(path) == before


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Frame(310, SEND), 14),
        (Frame(10, LONG), 14),
        (Frame(320, {**SEND, "m": "true"}), 14),
        (Frame(36, {"offset": "0", "group": "g", "delayLevel": "1"}), 14),
        (Frame(17, {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}), 16),
        (Frame(200, None, b'{"groupName":"g"}'), 16),
        (Frame(207, {"groupName": "g"}), 16),
        (Frame(215, {"topic": "T"}), 16),
        (Frame(25, None, b"a=b\n"), 16),
    ],
    ids=["send", "send-1", "batch", "send-back", "topic", "group", "delete-group", "delete-topic", "config"],
)
def test_requests_that_would_change_the_store_are_refused_with_an_error_message(request_: Frame, code: int) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        request_.opaque = 5
        answered = await asked(pair, request_)
        assert answered.code == code
        assert "read-only" in (answered.remark or "")

    serving(case_path(CLEAN), script, read_only=True)


def test_a_producer_finds_a_route_so_that_its_send_is_refused_with_the_reason() -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        listed = json.loads(bytes((await asked(pair, Frame(206, opaque=1))).body))["topicList"]
        assert "TBW102" not in listed
        queues = {queue.topic for queue in broker.store.queues()}
        assert queues <= set(listed)
        for topic in sorted(queues):
            route = await asked(pair, Frame(105, {"topic": topic}, opaque=2, version=479))
            assert [queue["perm"] for queue in json.loads(bytes(route.body))["queueDatas"]] == [6]
        # for a topic that does not exist, a producer asks for the template
        assert (await asked(pair, Frame(105, {"topic": "no-such-topic"}, opaque=3))).code == 17
        template = await asked(pair, Frame(105, {"topic": "TBW102"}, opaque=4, version=479))
        assert [queue["perm"] for queue in json.loads(bytes(template.body))["queueDatas"]] == [7]
        refused = await asked(pair, Frame(310, {**SEND, "b": "no-such-topic"}, b"x", opaque=5))
        assert (refused.code, refused.remark) == (14, broker.store.refusal)

    serving(case_path(CLEAN), script, read_only=True, auto_create_topics=True)


def records_of(body: bytes) -> list[Record]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(decode(memoryview(body)[at : at + size]))
        at += size
    return found


@pytest.mark.parametrize(("language", "plain"), [(Language.CPP, True), (Language.JAVA, False)])
def test_a_cpp_client_gets_records_without_ipv6_hosts_which_it_cannot_read(language: Language, plain: bool) -> None:
    def place(record: Record) -> tuple[str, int, int, bytes]:
        return record.topic, record.queue_id, record.queue_offset, record.body

    async def script(broker: Broker, pair: Pair) -> None:
        found: list[Record] = []
        for queue in broker.store.queues():
            at = queue.min_offset
            while at < queue.max_offset:
                numbers = {"queueId": queue.queue_id, "queueOffset": at, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
                ext = {name: str(value) for name, value in numbers.items()} | {"suspendTimeoutMillis": "0", "subVersion": "0"}
                ext |= {"consumerGroup": "TOOLS_CONSUMER", "topic": queue.topic, "subscription": "*"}
                answered = await asked(pair, Frame(11, ext, opaque=6, language=language))
                assert answered.code == 0
                assert answered.ext is not None
                found += records_of(bytes(answered.body))
                at = int(answered.ext["nextBeginOffset"])
        stored = [record for record in map(broker.store.record_at, offsets_in_log(served)) if record is not None]
        listed = {place(record) for record in found}
        assert listed <= {place(record) for record in stored}
        assert len(found) == sum(queue.max_offset - queue.min_offset for queue in broker.store.queues())
        assert any("[" in record.born_host + record.store_host for record in stored)
        assert any("[" in record.born_host + record.store_host for record in found) is not plain

    served = store(IPV6)
    serving(case_path(IPV6), script, read_only=True)


def test_an_archive_is_served_and_a_client_gets_its_messages() -> None:
    case = case_named(CLEAN)

    async def script(broker: Broker, pair: Pair) -> None:
        queue = next(each for each in broker.store.queues() if each.max_offset - each.min_offset > 3)

        def consumed() -> int:
            with Client(broker.address) as client:
                return len(client.consume(queue.topic, 3))

        assert await asyncio.to_thread(consumed) == 3

    serving(case.archive, script)


def test_with_rewritten_store_hosts_the_ids_point_to_this_broker() -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        queue = next(each for each in broker.store.queues() if each.max_offset - each.min_offset > 3)

        def first() -> str:
            with Client(broker.address) as client:
                [message] = client.consume(queue.topic)
                return message.offset_msg_id

        identity = await asyncio.to_thread(first)
        host, physical = parse_message_id(identity)
        assert host == broker.address
        answered = await asked(pair, Frame(33, {"offset": str(physical)}, opaque=4))
        assert parse_host(host) in bytes(answered.body)

    serving(case_path(CLEAN), script, read_only=True, settings=Settings(rewrite_store_host=True))
