"""Connected clients."""

from __future__ import annotations

import pytest

from mqstore.broker.protocol.heartbeats import ConsumerGroupData, Heartbeat, Subscription, parse
from mqstore.broker.runtime.clients import Clients
from mqstore.errors import UsageError


def beat(client_id: str, *topics: Subscription, producers: tuple[str, ...] = (), without: bool = False) -> Heartbeat:
    data = ConsumerGroupData("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", topics)
    return Heartbeat(client_id, producers, (data,), without_subscriptions=without)


def test_consumers_of_one_group_overwrite_each_others_topics() -> None:
    clients: Clients[str] = Clients()
    assert clients.heartbeat("1", beat("a", Subscription("T")), "JAVA", 399, 0) == ["g"]
    assert clients.heartbeat("2", beat("b", Subscription("U")), "JAVA", 399, 0) == ["g"]
    assert clients.subscription("g", "T") is None
    assert clients.subscribers("U") == ["g"]


def test_only_a_newer_version_of_a_subscription_counts() -> None:
    clients: Clients[str] = Clients()
    for version, expression in ((5, "A"), (4, "B"), (6, "C")):
        clients.heartbeat("1", beat("a", Subscription.of("T", expression, version=version)), "JAVA", 399, 0)
    found = clients.subscription("g", "T")
    assert found is not None
    assert (found.expression, found.version) == ("C", 6)


def test_a_heartbeat_without_subscriptions_keeps_those_that_are_known() -> None:
    clients: Clients[str] = Clients()
    clients.heartbeat("1", beat("a", Subscription("T")), "JAVA", 479, 0)
    assert clients.heartbeat("1", beat("a", without=True), "JAVA", 479, 0) == []
    assert clients.subscription("g", "T") is not None


def test_a_lost_connection_leaves_all_its_groups_and_only_those() -> None:
    clients: Clients[str] = Clients()
    clients.heartbeat("1", beat("a", Subscription("T"), producers=("p",)), "JAVA", 399, 0)
    clients.heartbeat("2", beat("b", Subscription("T")), "JAVA", 399, 0)
    assert clients.close("1") == ["g"]
    assert clients.producer_group("p") == []
    group = clients.consumer_group("g")
    assert group is not None
    assert group.client_ids() == ["b"]
    assert clients.close("1") == []


def test_a_client_that_is_silent_too_long_is_reported_once() -> None:
    clients: Clients[str] = Clients(expires=100)
    clients.heartbeat("1", beat("a", Subscription("T"), producers=("p", "q")), "JAVA", 399, 0)
    assert clients.silent(100) == []
    assert clients.silent(101) == ["1"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"clientID":""}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":7}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":null}]}]}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_heartbeat_gives_an_error_message(body: bytes) -> None:
    with pytest.raises(UsageError, match=r"[a-z]"):
        parse(body)
