"""The name server: changes by other brokers and administrators, beyond the checklist."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.wire import Pair, asked, connected, running

from mqstore.broker import Broker, Settings
from mqstore.broker.handlers.nameserver import NameServer
from mqstore.broker.protocol.frames import Frame

OTHER = {
    "brokerName": "broker-b",
    "brokerAddr": "127.0.0.9:10911",
    "clusterName": "Second",
    "haServerAddr": "127.0.0.9:10912",
    "brokerId": "0",
}
TOPIC = {"topicName": "T", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "order": False, "topicSysFlag": 0}


def scenario(tmp_path: Path, script: Callable[[Broker, Pair], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with running(tmp_path, **options) as broker:
            pair = await connected(broker)
            await script(broker, pair)
            pair[1].close()

    asyncio.run(run())


def registration(version: int = 1, **topics: dict[str, Any]) -> bytes:
    wrapper = {"dataVersion": {"counter": version, "timestamp": 5}, "topicConfigTable": topics}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def body(frame: Frame) -> Any:
    assert frame.code == 0, frame.remark
    return json.loads(bytes(frame.body))


async def route(pair: Pair, topic: str) -> Frame:
    return await asked(pair, Frame(105, {"topic": topic}, opaque=11, version=479))


def test_another_broker_registers_is_routed_to_and_leaves(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        assert (await route(pair, "T")).code == 17
        raw = registration(T=TOPIC)
        checksum = {"bodyCrc32": str((zlib.crc32(raw) ^ 0x80000000) - 0x80000000)}
        assert (await asked(pair, Frame(103, {**OTHER, **checksum}, raw, opaque=1))).code == 0
        found = body(await route(pair, "T"))
        assert found["brokerDatas"] == [{"brokerAddrs": {"0": "127.0.0.9:10911"}, "brokerName": "broker-b", "cluster": "Second"}]
        assert body(await asked(pair, Frame(224, {"cluster": "Second"}, opaque=2)))["topicList"] == ["T"]
        names = body(await asked(pair, Frame(304, opaque=3)))
        assert names["topicList"] == ["DefaultCluster", "Second", "broker-a", "broker-b"]
        slave = {**OTHER, "brokerId": "1", "brokerAddr": "127.0.0.9:20911"}
        assert (await asked(pair, Frame(103, slave, registration(), opaque=4))).ext == {
            "haServerAddr": "127.0.0.9:10912",
            "masterAddr": "127.0.0.9:10911",
        }
        assert body(await route(pair, "T"))["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.9:10911", "1": "127.0.0.9:20911"}
        assert (await asked(pair, Frame(104, OTHER, opaque=5))).code == 0
        assert (await asked(pair, Frame(104, slave, opaque=6))).code == 0
        assert (await route(pair, "T")).code == 17

    scenario(tmp_path, script)


def test_a_registration_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        answered = await asked(pair, Frame(103, {**OTHER, "bodyCrc32": "7"}, registration(T=TOPIC), opaque=1))
        assert (answered.code, answered.remark) == (1, "crc32 not match")
        assert (await route(pair, "T")).code == 17

    scenario(tmp_path, script)


def test_no_other_broker_can_register_under_the_name_of_this_one(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        own = {**OTHER, "brokerName": "broker-a", "clusterName": "DefaultCluster"}
        assert (await asked(pair, Frame(103, own, registration(T=TOPIC), opaque=1))).code == 1
        assert (await route(pair, "T")).code == 17

    scenario(tmp_path, script)


def test_a_broker_that_falls_silent_is_dropped(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        await asked(pair, Frame(103, OTHER, registration(T=TOPIC), opaque=1))
        server = broker.context.component(NameServer)
        server.others()[0].heard_at -= 110_000
        assert (await route(pair, "T")).code == 0
        server.others()[0].heard_at -= 11_000
        assert (await route(pair, "T")).code == 17

    scenario(tmp_path, script)


def test_the_data_version_shows_whether_a_registration_is_due(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        version = {"counter": 1, "timestamp": 5}
        ask = Frame(322, OTHER, json.dumps(version).encode(), opaque=1)
        assert (await asked(pair, ask)).ext == {"changed": "true"}
        await asked(pair, Frame(103, OTHER, registration(T=TOPIC), opaque=2))
        answered = await asked(pair, ask)
        assert (answered.ext, body(answered)) == ({"changed": "false"}, version)
        await asked(pair, Frame(103, OTHER, registration(2, T=TOPIC), opaque=3))
        assert (await asked(pair, ask)).ext == {"changed": "true"}

    scenario(tmp_path, script)


def test_write_permission_is_taken_from_a_broker_and_given_back(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        topics = len(body(await asked(pair, Frame(206, opaque=1)))["topicList"])
        assert (await asked(pair, Frame(205, {"brokerName": "broker-a"}, opaque=2))).ext == {"wipeTopicCount": str(topics)}
        assert body(await route(pair, "BenchmarkTest"))["queueDatas"][0]["perm"] == 4
        assert (await asked(pair, Frame(205, {"brokerName": "nobody"}, opaque=3))).ext == {"wipeTopicCount": "0"}
        assert (await asked(pair, Frame(327, {"brokerName": "broker-a"}, opaque=4))).ext == {"addTopicCount": str(topics)}
        assert body(await route(pair, "BenchmarkTest"))["queueDatas"][0]["perm"] == 6

    scenario(tmp_path, script)


def test_a_deleted_topic_returns_with_the_next_registration(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        server = broker.context.component(NameServer)
        assert (await asked(pair, Frame(216, {"topic": "BenchmarkTest"}, opaque=1))).code == 0
        assert (await route(pair, "BenchmarkTest")).code == 17
        when, counter = server._forgotten["BenchmarkTest"]
        server._forgotten["BenchmarkTest"] = (when - 30_001, counter)
        assert (await route(pair, "BenchmarkTest")).code == 0

    scenario(tmp_path, script)


def test_the_order_of_a_topic_is_returned_if_the_name_server_is_configured_to(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        place = {"namespace": "ORDER_TOPIC_CONFIG", "key": "BenchmarkTest", "value": "broker-a:4"}
        assert (await asked(pair, Frame(100, place, opaque=1))).code == 0
        assert "orderTopicConf" not in body(await route(pair, "BenchmarkTest"))
        assert (await asked(pair, Frame(318, None, b"orderMessageEnable=true\nlistenPort=1\nunknown=2\n", opaque=2))).code == 0
        settings = bytes((await asked(pair, Frame(319, opaque=3))).body).decode().splitlines()
        assert "orderMessageEnable=true" in settings
        assert f"listenPort={broker.port}" in settings
        assert not [line for line in settings if line.startswith("unknown")]
        assert body(await route(pair, "BenchmarkTest"))["orderTopicConf"] == "broker-a:4"

    scenario(tmp_path, script)


def test_without_auto_creation_there_is_no_template(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        assert (await route(pair, "TBW102")).code == 17
        assert "TBW102" not in body(await asked(pair, Frame(206, opaque=1)))["topicList"]

    scenario(tmp_path, script, auto_create_topics=False)


def test_names_of_cluster_and_broker_are_settings(tmp_path: Path) -> None:
    async def script(broker: Broker, pair: Pair) -> None:
        found = body(await asked(pair, Frame(206, opaque=1)))["topicList"]
        assert {"Mine", "one", "Mine_REPLY_TOPIC"} <= set(found)
        assert body(await route(pair, "one"))["brokerDatas"][0]["cluster"] == "Mine"

    scenario(tmp_path, script, settings=Settings(cluster="Mine", broker_name="one"))
