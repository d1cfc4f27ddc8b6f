"""Topics and subscription groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import case_named, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.config.topic_table import load_topics_config, topic_of


def write(root: Path, topics: str | None = None, groups: str | None = None) -> ReadOnlyDirectory:
    (root / "config").mkdir()
    for name, text in (("topics.json", topics), ("subscriptionGroup.json", groups)):
        if text is not None:
            (root / "config" / name).write_text(text)
    return ReadOnlyDirectory(root)


def test_no_files_are_empty_tables(tmp_path: Path) -> None:
    found = load_topics_config(ReadOnlyDirectory(tmp_path))
    assert (found.topics, found.groups, found.of_5, found.findings) == ({}, (), False, ())


def test_the_attributes_that_change_how_a_topic_is_kept(tmp_path: Path) -> None:
    found = load_topics_config(
        write(
            tmp_path,
            '{"topicConfigTable":{"b":{"attributes":{"queue.type":"BatchCQ"}},"c":{"attributes":{"+cleanup.policy":"COMPACTION"}},"d":{}}}',
        )
    )
    assert found.names == {"b", "c", "d"}
    assert found.batch_topics == ("b",)
    assert found.compacted == ("c",)
    assert found.of_5


def test_a_topic_of_4_9(tmp_path: Path) -> None:
    found = load_topics_config(
        write(
            tmp_path,
            '{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"t":{"order":true,"perm":4,"readQueueNums":16,'
            '"topicFilterType":"MULTI_TAG","topicName":"t","topicSysFlag":1,"writeQueueNums":8}}}',
            '{"subscriptionGroupTable":{"g2":{},"g1":{"groupName":"g1"}}}',
        )
    )
    config = found.topics["t"]
    assert (config.order, config.perm, config.read_queues, config.write_queues, config.filter_type, config.sys_flag) == (
        True,
        4,
        16,
        8,
        "MULTI_TAG",
        1,
    )
    assert (config.queue_type, config.cleanup_policy) == ("SimpleCQ", "DELETE")
    assert found.groups == ("g1", "g2")
    assert not found.of_5


@pytest.mark.parametrize("text", ['{"topicConfigTable":[]}', '{"topicConfigTable":{"t":3}}', "{"])
def test_odd_tables_are_told(tmp_path: Path, text: str) -> None:
    found = load_topics_config(write(tmp_path, text))
    assert found.topics == {}
    assert [item.kind for item in found.findings] == [Kind.BAD_CONFIG]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
)
FIELDS = st.sampled_from(["attributes", "perm", "order", "topicFilterType", "readQueueNums", "topicSysFlag"])


@given(st.dictionaries(FIELDS, JSON))
def test_any_parsed_topic_is_read(value: dict[str, object]) -> None:
    found = topic_of("t", value)
    assert isinstance(found.perm, int)
    assert isinstance(found.queue_type, str)


@pytest.mark.parametrize(("identity", "five"), [("4.9.3/f-broker-offsets", False), ("5.3.3/j-broker-offsets", True)])
def test_the_topics_and_groups_of_real_brokers(identity: str, five: bool) -> None:
    found = load_topics_config(ReadOnlyDirectory(opened(case_named(identity))))
    assert found.of_5 is five
    assert found.findings == ()
    assert {"SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC"} <= found.names
    assert {"TOOLS_CONSUMER", "SELF_TEST_C_GROUP"} <= set(found.groups)
    assert found.topics["SCHEDULE_TOPIC_XXXX"].read_queues == 18
