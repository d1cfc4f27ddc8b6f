"""The broker's own configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import CASES, GoldenCase, case_id

from mqstore.errors import CannotOpenError, UsageError
from mqstore.rocketmq.config.broker_config import BrokerConfig, load, parse, properties


def test_the_spelling_of_4_3_0_is_read() -> None:
    found = parse(b"mapedFileSizeCommitLog=65536\nmapedFileSizeConsumeQueue=2000\n")
    assert (found.commit_log_file_size, found.consume_queue_file_size) == (65536, 2000)


def test_nothing_given_is_all_none() -> None:
    assert parse(b"# only a comment\nbrokerName=a\n") == BrokerConfig()


def test_the_options_that_decide_how_a_store_is_read() -> None:
    found = parse(
        b"mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2001\nmappedFileSizeConsumeQueueExt=300\nmapperFileSizeBatchConsumeQueue=920\n"
        b"maxHashSlotNum=100\nmaxIndexNum=400\nmaxMsgsNumBatch=10\nenableConsumeQueueExt=true\nenableMultiDispatch=TRUE\nenableLmq=no\n"
        b"messageDelayLevel=1s 5s\nmessageIndexSafe=false\nstorePathCommitLog=/data/log\n"
        b"queueType.b=BatchCQ\nqueueType.a=BatchCQ\nqueueType.c=SimpleCQ\n"
    )
    assert found == BrokerConfig(
        commit_log_file_size=65536,
        consume_queue_file_size=2020,
        consume_queue_ext_file_size=300,
        batch_queue_file_size=920,
        max_hash_slot_num=100,
        max_index_num=400,
        max_msgs_num_batch=10,
        enable_consume_queue_ext=True,
        enable_multi_dispatch=True,
        enable_lmq=False,
        message_delay_level="1s 5s",
        message_index_safe=False,
        store_path_commit_log="/data/log",
        batch_topics=("a", "b"),
    )


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"a=1", {"a": "1"}),
        (b"a : 1\r\nb   2\rc", {"a": "1", "b": "2", "c": ""}),
        (b"! no\n  # no\n\n a=1", {"a": "1"}),
        (b"a=x\\\n   y\\\n z", {"a": "xyz"}),
        (b"a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        (b"a\\=b\\ c=d=e", {"a=b c": "d=e"}),
        (b"a=\\u8ba2\\t.", {"a": "订\t."}),
        (b"a=\xe9", {"a": "é"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"a= # no comment ", {"a": "# no comment "}),
        (b"a=end\\", {"a": "end"}),
    ],
)
def test_properties_are_read_as_java_reads_them(raw: bytes, found: dict[str, str]) -> None:
    assert properties(raw) == found


@pytest.mark.parametrize("value", ["", "0", "-1", "1g", "2147483648", "9" * 5000, "٣"])
def test_a_value_that_is_no_size_is_refused_with_its_line(value: str) -> None:
    with pytest.raises(UsageError, match="maxHashSlotNum"):
        parse(f"maxHashSlotNum={value}".encode())


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotOpenError, match="does not exist"):
        load(tmp_path / "broker.conf")
    with pytest.raises(CannotOpenError, match="does not exist"):
        load(tmp_path / "nowhere" / "broker.conf")
    with pytest.raises(CannotOpenError):
        load(tmp_path)


def test_a_store_in_place_of_a_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2 << 20))
    with pytest.raises(UsageError, match="more than"):
        load(tmp_path / "big")


@given(st.binary(max_size=200))
def test_any_bytes_are_read(raw: bytes) -> None:
    assert isinstance(properties(raw), dict)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_options_of_the_golden_stores(case: GoldenCase) -> None:
    found = load(case.config)
    assert found.commit_log_file_size == int(case.properties["mappedFileSizeCommitLog"])
    assert str(found.max_hash_slot_num or "") == case.properties.get("maxHashSlotNum", "")
