"""Topics, subscription groups and delay offsets of a writable store."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import case_named, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.append.delay import DelayOffsetTable
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.topic_table import (
    SubscriptionGroupConfig,
    SubscriptionGroups,
    TopicConfig,
    Topics,
    built_in_groups,
    load_topics_config,
    system_topics,
)

VERSIONS = ("4.9.3", "5.3.3")
BROKERS = {"4.9.3": "4.9.3/f-broker-offsets", "5.3.3": "5.3.3/j-broker-offsets"}
both = pytest.mark.parametrize("version", VERSIONS)


def config_of(version: str, name: str) -> dict[str, dict[str, dict[str, object]]]:
    return fastjson.load(ReadOnlyDirectory(opened(case_named(BROKERS[version]))), f"config/{name}").value


def written(root: Path, name: str, text: str) -> ReadOnlyDirectory:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(text)
    return ReadOnlyDirectory(root)


@both
def test_the_system_topics_are_those_a_real_broker_made(version: str) -> None:
    topics = Topics(version, clock=lambda: 1)
    topics.add_system_topics()
    made = fastjson.parse(topics.text())["topicConfigTable"]
    real = config_of(version, "topics.json")["topicConfigTable"]
    assert made == {name: value for name, value in real.items() if not name.startswith(("s6", "%RETRY%"))}
    assert topics.counter == 0
    assert {config.name for config in system_topics(version, cluster="c", broker="b")} - set(made) >= {"c", "b", "c_REPLY_TOPIC"}


@both
def test_the_built_in_groups_are_those_a_real_broker_made(version: str) -> None:
    groups = SubscriptionGroups(version, clock=lambda: 1)
    groups.add_built_in()
    made = fastjson.parse(groups.text())["subscriptionGroupTable"]
    real = config_of(version, "subscriptionGroup.json")["subscriptionGroupTable"]
    assert made == {name: value for name, value in real.items() if not name.startswith("s6")}
    assert groups.names() == built_in_groups(version)


@both
def test_system_topics_and_groups_do_not_replace_what_is_configured(version: str) -> None:
    topics = Topics(version)
    topics.put(TopicConfig("TBW102", perm=6, read_queues=2, write_queues=2))
    topics.add_system_topics()
    assert topics.get("TBW102") == TopicConfig("TBW102", perm=6, read_queues=2, write_queues=2)
    groups = SubscriptionGroups(version)
    groups.put(SubscriptionGroupConfig("TOOLS_CONSUMER", retry_max_times=3))
    groups.add_built_in()
    assert groups.get("TOOLS_CONSUMER") == SubscriptionGroupConfig("TOOLS_CONSUMER", retry_max_times=3)


@both
def test_what_is_put_is_got_saved_and_loaded(version: str, tmp_path: Path) -> None:
    topics = Topics(version, clock=lambda: 5)
    config = TopicConfig("orders", perm=4, read_queues=3, write_queues=2, order=True, sys_flag=1, attributes={"queue.type": "BatchCQ"})
    assert topics.put(config) is None
    assert topics.put(config) == config
    groups = SubscriptionGroups(version, clock=lambda: 5)
    group = SubscriptionGroupConfig("billing", consume_enable=False, retry_queue_nums=2, broker_id=1, attributes={"a": "b"})
    assert groups.put(group) is None
    with DurableDirectory(tmp_path) as directory:
        assert topics.persist(directory)
        assert groups.persist(directory)
        assert not topics.persist(directory)
    reading = ReadOnlyDirectory(tmp_path)
    assert Topics.load(reading, version).get("orders") == config
    assert SubscriptionGroups.load(reading, version).get("billing") == group
    assert load_topics_config(reading).topics == {"orders": config}
    assert load_topics_config(reading).groups == ("billing",)


@both
def test_each_change_counts_and_nothing_else_does(version: str) -> None:
    now = 10
    topics = Topics(version, clock=lambda: now)
    topics.put(TopicConfig("a"))
    now = 20
    assert topics.delete("a")
    assert topics.counter == 2
    assert '"timestamp":20\n' in topics.text()
    now = 30
    assert not topics.delete("a")
    assert topics.get("a") is None
    assert "a" not in topics
    assert topics.counter == 2
    assert '"timestamp":20\n' in topics.text()


def test_unknown_fields_survive_a_change_and_a_save(tmp_path: Path) -> None:
    topics = Topics.load(
        written(tmp_path, "topics.json", '{"newer":1,"topicConfigTable":{"t":{"perm":6,"zeal":[1],"topicName":"t"}}}'), "4.9.3"
    )
    topics.put(TopicConfig("t", perm=4))
    value = fastjson.parse(topics.text())
    assert value["newer"] == 1
    assert list(value["topicConfigTable"]["t"])[-1] == "zeal"
    assert (value["topicConfigTable"]["t"]["zeal"], value["topicConfigTable"]["t"]["perm"]) == ([1], 4)


def test_the_forbidden_table_and_a_retry_policy_survive(tmp_path: Path) -> None:
    text = (
        '{"forbiddenTable":{"g":{"t":1}},"subscriptionGroupTable":{"g":{"groupName":"g",'
        '"groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5}}}}}'
    )
    reading = written(tmp_path, "subscriptionGroup.json", text)
    for version in VERSIONS:
        groups = SubscriptionGroups.load(reading, version)
        groups.put(SubscriptionGroupConfig("g", retry_max_times=1))
        value = fastjson.parse(groups.text())
        assert value["forbiddenTable"] == {"g": {"t": 1}}
        assert value["subscriptionGroupTable"]["g"]["groupRetryPolicy"] == {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5}}


def test_what_5_x_adds_is_left_out_by_4_9_3_and_added_to_what_4_9_3_wrote() -> None:
    four, five = (ReadOnlyDirectory(opened(case_named(BROKERS[version]))) for version in VERSIONS)
    downgraded = fastjson.parse(Topics.load(five, "4.9.3").text())
    assert "stateVersion" not in downgraded["dataVersion"]
    assert all("attributes" not in value for value in downgraded["topicConfigTable"].values())
    upgraded = fastjson.parse(Topics.load(four, "5.3.3").text())
    assert upgraded["dataVersion"]["stateVersion"] == 0
    assert all(next(iter(value)) == "attributes" for value in upgraded["topicConfigTable"].values())
    names = {
        version: set(next(iter(config_of(version, "subscriptionGroup.json")["subscriptionGroupTable"].values()))) for version in VERSIONS
    }
    groups = fastjson.parse(SubscriptionGroups.load(five, "4.9.3").text())
    assert set(groups) == {"dataVersion", "subscriptionGroupTable"}
    assert all(set(value) == names["4.9.3"] for value in groups["subscriptionGroupTable"].values())
    groups = fastjson.parse(SubscriptionGroups.load(four, "5.3.3").text())
    assert groups["forbiddenTable"] == {}
    assert all(set(value) == names["5.3.3"] for value in groups["subscriptionGroupTable"].values())


@pytest.mark.parametrize("text", ['{"topicConfigTable":[]}', '{"topicConfigTable":{"a":{},"b":7}}', "{", "\0\0"])
def test_what_is_no_table_is_a_finding(text: str, tmp_path: Path) -> None:
    topics = Topics.load(written(tmp_path, "topics.json", text), "5.3.3")
    assert [item.kind for item in topics.findings] == [Kind.BAD_CONFIG]
    assert set(topics.names()) <= {"a"}


def test_fields_of_a_wrong_type_count_as_not_given(tmp_path: Path) -> None:
    text = '{"subscriptionGroupTable":{"g":{"consumeEnable":1,"retryMaxTimes":true,"brokerId":"x","retryQueueNums":4}}}'
    groups = SubscriptionGroups.load(written(tmp_path, "subscriptionGroup.json", text), "5.3.3")
    assert groups.get("g") == SubscriptionGroupConfig("g", retry_queue_nums=4)
    assert groups.get("h") is None


# delay offsets


@both
def test_delay_offsets_are_kept_by_level(version: str, tmp_path: Path) -> None:
    table = DelayOffsetTable(version, clock=lambda: 7)
    table.update(10, 4)
    table.update(2, 1)
    table.update(2, 2)
    five = '\n\t"dataVersion":{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":7\n\t},' if version == "5.3.3" else ""
    assert table.text() == "{" + five + '\n\t"offsetTable":{2:2,10:4\n\t}\n}'
    with DurableDirectory(tmp_path) as directory:
        assert table.persist(directory)
    again = DelayOffsetTable.load(ReadOnlyDirectory(tmp_path), version, clock=lambda: 8)
    assert (again.levels(), again.get(2), again.get(3), again.text()) == ({2: 2, 10: 4}, 2, None, table.text())


def test_the_delay_offsets_version_counts_on_with_every_200th_update() -> None:
    table = DelayOffsetTable("5.3.3", clock=lambda: 7)
    for number in range(399):
        table.update(1, number)
    assert '"counter":1,' in table.text()
    table.update(1, 399)
    assert '"counter":2,' in table.text()


def test_odd_delay_offsets_are_told(tmp_path: Path) -> None:
    table = DelayOffsetTable.load(written(tmp_path, "delayOffset.json", '{"offsetTable":{1:2,"x":3},"more":4}'), "4.9.3")
    assert (table.levels(), [item.kind for item in table.findings]) == ({1: 2}, [Kind.BAD_CONFIG])
    assert table.text() == '{\n\t"more":4,\n\t"offsetTable":{1:2\n\t}\n}'
