"""A client cannot make a broker grow without bound: beyond its limits, requests are refused with a remark that says which."""

from __future__ import annotations

import gc
import json
import os
import re
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.broker import OPEN, Answer, BrokerThread, Wire, held_by, until

from mqstore.broker.handlers.membership import LockComponent, Membership
from mqstore.broker.handlers.metrics import samples
from mqstore.broker.runtime.limits import Quota, held_size
from mqstore.broker.runtime.settings import LIMITS, Settings

MANY = 40_000
HOSTILE_GROWTH = 64 << 20
SMALL = replace(
    OPEN,
    max_topics=400,
    max_groups=100,
    max_offsets=500,
    max_client_groups=50,
    max_memberships=80,
    max_subscriptions=120,
    max_queue_locks=60,
    max_kv_values=40,
    max_registered_topics=30,
    max_address_share=100,
)
Request = tuple[int, dict[str, Any] | None, bytes]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "store", settings=SMALL, version="4.9.3") as running:
        yield running


@pytest.fixture
def wire(served: BrokerThread) -> Iterator[Wire]:
    with Wire(served.address) as connection:
        yield connection


def sent(wire: Wire, requests: Iterable[Request], at_once: int = 500) -> Counter[tuple[int, str]]:
    """Send requests, many before the first answer is read. Returns how often each pair of code and remark came, without numbers."""
    found: Counter[tuple[int, str]] = Counter()
    waiting: list[int] = []

    def take() -> None:
        opaques = set(waiting)
        while opaques:
            answer = wire.read()
            if answer.opaque in opaques and answer.flag & 1:
                opaques.discard(answer.opaque)
                found[answer.code, "".join(letter for letter in answer.remark or "" if not letter.isdigit())] += 1
        waiting.clear()

    for request in requests:
        waiting.append(wire.post(*request))
        if len(waiting) == at_once:
            take()
    take()
    return found


def resident() -> int:
    """Return the bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def refused(found: Counter[tuple[int, str]], setting: str) -> int:
    """Return how many requests were refused for a setting."""
    return sum(count for (code, remark), count in found.items() if code != 0 and setting in remark)


def new_group(number: int) -> Request:
    return 200, None, json.dumps({"groupName": f"group-{number}"}).encode()


def heartbeat(client: str, consumers: dict[str, list[dict[str, Any]]], producers: Iterable[str] = ()) -> Request:
    data = {
        "clientID": client,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [{"groupName": name, "subscriptionDataSet": topics} for name, topics in consumers.items()],
    }
    return 34, None, json.dumps(data).encode()


def one(wire: Wire, request: Request) -> Answer:
    return wire.call(*request)


@pytest.mark.long
def test_forty_thousand_groups_of_one_client_are_refused_beyond_the_limit_in_bounded_memory(served: BrokerThread, wire: Wire) -> None:
    store = served.broker.context.store
    sent(wire, map(new_group, range(200)))  # what the first requests allocate once is not counted
    before = resident()
    found = sent(wire, map(new_group, range(MANY)))
    commits = (
        (15, {"consumerGroup": f"g-{number}", "topic": "orders", "queueId": "0", "commitOffset": "1"}, b"") for number in range(MANY)
    )
    found += sent(wire, commits)
    found += sent(wire, (heartbeat("c", {f"h-{number}": []}) for number in range(MANY // 10)))
    assert refused(found, "raise maxGroups (--config)") >= MANY - 100
    assert refused(found, "raise maxConsumerOffsets (--config)") == MANY - 500
    assert len(store.groups.names()) == 100
    assert len(store.offsets) == 500
    assert resident() - before < HOSTILE_GROWTH
    # what is there already goes on working
    assert one(wire, new_group(0)).code == 0
    assert wire.call(15, {"consumerGroup": "g-0", "topic": "orders", "queueId": "0", "commitOffset": "2"}).code == 0


def test_one_heartbeat_of_forty_thousand_groups_is_refused_as_a_whole(served: BrokerThread, wire: Wire) -> None:
    known = set(served.broker.context.store.groups.names())
    answer = one(wire, heartbeat("c@1", {f"group-{number}": [] for number in range(MANY)}))
    assert answer.code == 1
    assert "maxClientGroups=50 groups (--config)" in str(answer.remark)
    assert set(served.broker.context.store.groups.names()) == known
    assert served.broker.context.component(Membership).clients.memberships == 0


def test_memberships_and_subscriptions_are_counted_over_all_clients(served: BrokerThread, wire: Wire) -> None:
    clients = served.broker.context.component(Membership).clients
    assert one(wire, heartbeat("c@1", {}, [f"p-{number}" for number in range(50)])).code == 0
    with Wire(served.address) as second:
        assert one(second, heartbeat("c@2", {}, [f"p-{number}" for number in range(30)])).code == 0
        answer = one(second, heartbeat("c@2", {}, ["one-more"]))
        assert answer.code == 1
        assert "raise maxMemberships" in str(answer.remark)
        assert clients.memberships == 80
    topics = [{"topic": f"topic-{number}", "subString": "*"} for number in range(121)]
    assert one(wire, (35, {"clientID": "c@1", "producerGroup": "p-0"}, b"")).code == 0
    for count, code in ((121, 1), (120, 0), (120, 0), (10, 0), (120, 0)):
        answer = one(wire, heartbeat("c@1", {"group": topics[:count]}))
        assert answer.code == code, answer
        assert code == 0 or "raise maxSubscriptions" in str(answer.remark)
    assert clients.subscriptions == 120
    assert one(wire, (35, {"clientID": "c@1", "consumerGroup": "group"}, b"")).code == 0
    assert clients.subscriptions == 0


def test_the_broker_forgets_the_memberships_of_a_client_that_left(served: BrokerThread) -> None:
    clients = served.broker.context.component(Membership).clients
    for _ in range(5):
        with Wire(served.address) as client:
            assert one(client, heartbeat("c", {"g": [{"topic": "t"}]}, [f"p-{number}" for number in range(40)])).code == 0
            served.run(_closed(served, client))
    assert (clients.memberships, clients.subscriptions, clients.producers, clients.consumers) == (0, 0, {}, {})


async def _closed(served: BrokerThread, client: Wire) -> None:
    """Let the broker handle the loss of all connections."""
    context = served.broker.context
    for connection in list(context.connections):
        context.component(Membership).clients.close(connection)


def test_topics_have_a_limit_whoever_creates_them(served: BrokerThread, wire: Wire) -> None:
    def topic(number: int) -> Request:
        fields = {"topic": f"topic-{number}", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        return 17, fields | {"topicFilterType": "SINGLE_TAG"}, b""

    found = sent(wire, map(topic, range(2000)))
    assert refused(found, "raise maxTopics") > 1500
    assert len(served.broker.context.store.topics.names()) == 400
    header = {"producerGroup": "p", "topic": "late", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0"}
    more = {"sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false"}
    answer = wire.call(10, header | more, b"body")
    assert answer.code == 17
    assert "raise maxTopics" in str(answer.remark)


def test_locks_values_and_brokers_have_limits(served: BrokerThread, wire: Wire) -> None:
    def lock(number: int) -> Request:
        queue = {"topic": "orders", "brokerName": "broker-a", "queueId": number}
        return 41, None, json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}).encode()

    assert refused(sent(wire, map(lock, range(1000))), "raise maxQueueLocks") == 940
    assert one(wire, lock(3)).code == 0
    assert len(served.broker.context.component(LockComponent).table) == 60
    values = ((100, {"namespace": f"n{number}", "key": "k", "value": "v"}, b"") for number in range(1000))
    assert refused(sent(wire, values), "raise maxKvValues") >= 960
    topics = {f"t{number}": {"topicName": f"t{number}", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1} for number in range(40)}
    fields = {"clusterName": "C", "brokerName": "b", "brokerAddr": "127.0.0.1:1", "brokerId": "0"}
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": topics, "dataVersion": {}}, "filterServerList": []}
    answer = wire.call(103, fields, json.dumps(body).encode())
    assert answer.code == 1
    assert "raise maxRegisteredTopics" in str(answer.remark)


@pytest.mark.parametrize(
    ("request_", "setting"),
    [
        ((200, None, json.dumps({"groupName": "g" * 300}).encode()), "maxNameLength=255"),
        ((200, None, json.dumps({"groupName": "g", "attributes": {f"+a{n}": "b" for n in range(100)}}).encode()), "maxAttributes=64"),
        (heartbeat("c" * 300, {}), "maxNameLength=255"),
        (heartbeat("c", {"g": [{"topic": "t", "subString": "a" * 10_000}]}), "maxExpressionLength=8192"),
        ((100, {"namespace": "n", "key": "k", "value": "v" * 10_000}, b""), "maxExpressionLength=8192"),
        ((25, None, b"regionId=" + b"r" * 10_000), "maxExpressionLength=8192"),
        ((34, None, heartbeat("c", {"g": [{"topic": f"t-{n}"} for n in range(6000)]})[2]), "maxClientSubscriptions=5000"),
        ((15, {"consumerGroup": "g" * 300, "topic": "t", "queueId": "0", "commitOffset": "1"}, b""), "maxNameLength=255"),
    ],
    ids=["group", "attributes", "client", "expression", "value", "settings", "subscriptions", "commit"],
)
def test_long_names_values_and_lists_are_refused(wire: Wire, request_: Request, setting: str) -> None:
    answer = one(wire, request_)
    assert answer.code != 0
    assert f"{setting}" in str(answer.remark)


def test_clients_cannot_raise_the_limits_but_the_configuration_can(wire: Wire, served: BrokerThread) -> None:
    answer = one(wire, (25, None, b"maxGroups=1000000"))
    assert answer.code == 1
    assert "maxGroups cannot change while the broker runs" in str(answer.remark)
    assert served.broker.context.settings.max_groups == 100
    assert Settings().with_broker({"maxGroups": "7"}).max_groups == 7
    assert {getattr(Settings(), own) > 0 for own in LIMITS.values()} == {True}


# held pulls


def test_held_pulls_keep_nothing_of_their_frames(served: BrokerThread, wire: Wire) -> None:
    wire.make_topic("orders")
    body = bytes(15 << 20)
    fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6"}
    fields |= {"commitOffset": "0", "suspendTimeoutMillis": "20000", "subVersion": "0", "subscription": "*"}
    more = {f"field-{number}": "v" * 1000 for number in range(500)}
    wire.post(11, fields | more, body)
    until(lambda: held_by(served) == 1)
    tracemalloc.start()  # the process itself may keep memory of the frame that it has read last
    try:
        for _ in range(80):
            wire.post(11, fields | more, body)
        until(lambda: held_by(served) == 81)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 80 * held_size("*")  # bytes; the frames have 1.2 GB
    finally:
        tracemalloc.stop()
    wire.send("orders", b"news")
    assert [wire.read().code for _ in range(81)] == [0] * 81
    assert [quota.held for name, quota in served.broker.context.shared.quotas if name.startswith("held")] == [0, 0]


def test_an_expression_of_a_pull_is_bounded_as_that_of_a_heartbeat(served: BrokerThread, wire: Wire) -> None:
    wire.make_topic("orders")
    for kind, text in (("TAG", "tag || " * 130_000), ("SQL92", "a > 1 OR " * 100_000)):
        answer = wire.pull("orders", 0, flag=6, subscription=text, kind=kind)
        assert answer.code == 1
        assert "more than maxExpressionLength=8192" in str(answer.remark)
    assert held_by(served) == 0


def test_a_pull_is_not_held_longer_than_the_limit_whatever_it_asks_for(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, max_hold_time=300)) as served, Wire(served.address) as wire:
        wire.make_topic("orders")
        for asked in (1 << 62, 9_000_000_000_000_000_000, 40_000):
            began = time.monotonic()
            assert wire.pull("orders", 0, flag=6, suspend=asked).code == 19
            assert 0.2 < time.monotonic() - began < 10


HELD = {
    "connection": ({"max_client_held_pulls": 5}, "held pulls: the limit of one connection is 5", 5),
    "address": ({"max_held_pulls": 12}, "held pulls from 127.0.0.1: the limit of one address is 6", 6),
    "broker": ({"max_held_pulls": 7, "max_address_share": 100}, "held pulls: the limit of this broker is 7", 7),
    "bytes": ({"held_limit": 256 << 10}, "bytes of held pulls from 127.0.0.1: the limit of one address is 131,072", 2),
}


@pytest.mark.parametrize("limit", HELD)
def test_held_pulls_beyond_a_limit_are_told_that_the_broker_is_busy_and_others_stay(tmp_path: Path, limit: str) -> None:
    changes, remark, most = HELD[limit]
    expression = " OR ".join(f"a > {number}" for number in range(150)) if limit == "bytes" else "a > 1"
    with BrokerThread(tmp_path / "store", settings=replace(OPEN, **changes)) as served, Wire(served.address) as wire:
        wire.make_topic("orders")
        for _ in range(most):
            wire.post_pull("orders", 0, flag=6, subscription=expression, kind="SQL92")
        until(lambda: held_by(served) == most)
        answer = wire.pull("orders", 0, flag=6, subscription=expression, kind="SQL92")
        assert answer.code == 2
        assert str(answer.remark).endswith(remark)
        if limit != "connection":
            assert [name for name, quota in served.broker.context.shared.quotas if quota.refused] == [
                "held_bytes" if limit == "bytes" else "held_pulls"
            ]
            found = {
                sample.labels["quota"]: sample.value for sample in samples(served.broker.context) if sample.name == "mqstore_broker_refused"
            }
            assert sum(found.values()) == 1
        wire.send("orders", b"news", properties="a\x015\x02")
        assert [wire.read().code for _ in range(most)] == [0] * most
        assert held_by(served) == 0


def test_subscriptions_are_bounded_in_bytes_and_memberships_by_address(tmp_path: Path) -> None:
    limits = replace(OPEN, max_subscription_bytes=1 << 20, max_memberships=20)
    with BrokerThread(tmp_path / "store", settings=limits) as served, Wire(served.address) as wire:
        long = [{"topic": "t", "subString": " || ".join(f"tag-{number}" for number in range(700))}]
        told = [one(wire, heartbeat("c", {f"g-{number}": long})) for number in range(8)]
        assert [answer.code for answer in told] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert "raise maxSubscriptionBytes (--config)" in str(told[-1].remark)
        assert one(wire, heartbeat("c", {"g-0": []})).code == 0
        with Wire(served.address) as second:
            told = [one(second, heartbeat("d", {}, [f"p-{number}"])) for number in range(9)]
            assert [answer.code for answer in told].count(0) == 6
            assert "clients at 127.0.0.1 are in 10 groups, the limit of one address: raise maxAddressShare" in str(told[-1].remark)


def test_the_guide_states_every_limit_with_its_default() -> None:
    guide = Path(__file__).parents[2].joinpath("docs/guide/who-may-connect.md").read_text()
    units = {"": 1, " %": 1, " s": 1000, " MiB": 1 << 20}
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+)( MiB| s| %|) \|", guide, re.MULTILINE)
    stated = {name: int(number.replace(",", "")) * units[unit] for name, number, unit in rows}
    assert stated == {name: getattr(Settings(), own) for name, own in LIMITS.items()}


def test_refusals_by_either_limit_are_counted() -> None:
    quota = Quota("connections", most=3, share=67)
    assert [bool(quota.take(host)) for host in "aaabb"] == [False, False, True, False, True]
    assert (quota.refused, quota.held) == (2, 3)
