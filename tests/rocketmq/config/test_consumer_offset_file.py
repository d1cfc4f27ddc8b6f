"""Consumer offsets and delay offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import CASES, GoldenCase, case_id, case_named, groups, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.config.consumer_offsets import load_delay_offsets, load_offset_table, table


def write(root: Path, name: str, text: str) -> ReadOnlyDirectory:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(text)
    return ReadOnlyDirectory(root)


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    found = load_offset_table(ReadOnlyDirectory(tmp_path))
    assert (found.offsets, found.used, found.of_5, found.findings) == ({}, None, False, ())


def test_keys_are_split_at_their_only_at_sign(tmp_path: Path) -> None:
    found = load_offset_table(
        write(tmp_path, "consumerOffset.json", '{"offsetTable":{"%RETRY%g@g":{0:5},"a@b@c":{1:2},"lone":{3:4},"t@":{5:6},"@g":{7:8}}}')
    )
    assert found.offsets == {("g", "%RETRY%g"): {0: 5}, ("g", ""): {7: 8}}
    assert found.unsplit == {"a@b@c": {1: 2}, "lone": {3: 4}, "t@": {5: 6}}


def test_the_lmq_file_takes_the_place_of_the_other(tmp_path: Path) -> None:
    write(tmp_path, "consumerOffset.json", '{"offsetTable":{"t@g":{0:1}}}')
    directory = write(tmp_path, "lmqConsumerOffset.json", '{"lmqOffsetTable":{"%LMQ%t@%LMQ%g":9},"offsetTable":{"t@g":{0:2}}}')
    assert load_offset_table(directory).offsets == {("g", "t"): {0: 2}, ("%LMQ%g", "%LMQ%t"): {0: 9}}
    assert load_offset_table(directory, lmq=False).offsets == {("g", "t"): {0: 1}}


@pytest.mark.parametrize("inner", ['{"x":1}', "{0:-1.5}", "{0:true}", "{0:9223372036854775808}", "{99999999999:1}", "7", "[1]", '"1"'])
def test_what_is_no_offset_is_left_out_and_told(tmp_path: Path, inner: str) -> None:
    found = load_offset_table(write(tmp_path, "consumerOffset.json", '{"offsetTable":{"t@g":' + inner + ',"u@g":{0:3}}}'))
    assert found.offsets == {("g", "t"): {}, ("g", "u"): {0: 3}}
    assert [item.kind for item in found.findings] == [Kind.BAD_CONFIG]


def test_a_table_that_is_none_is_a_finding(tmp_path: Path) -> None:
    assert [item.kind for item in load_offset_table(write(tmp_path, "consumerOffset.json", '{"offsetTable":[]}')).findings] == [
        Kind.BAD_CONFIG
    ]


def test_what_only_5_x_writes_is_noticed() -> None:
    assert load_offset_table(ReadOnlyDirectory(opened(case_named("5.3.3/j-broker-offsets")))).of_5
    assert not load_offset_table(ReadOnlyDirectory(opened(case_named("4.9.3/f-broker-offsets")))).of_5


def test_delay_offsets_are_by_level(tmp_path: Path) -> None:
    assert load_delay_offsets(write(tmp_path, "delayOffset.json", '{\n\t"offsetTable":{1:1,18:7\n\t}\n}')).by_level == {1: 1, 18: 7}
    assert load_delay_offsets(ReadOnlyDirectory(opened(case_named("5.3.3/j-broker-offsets")))).by_level == {1: 1, 2: 1}


@pytest.mark.parametrize("text", ['{"offsetTable":5}', '{"offsetTable":{"x":1}}', "\0\0"])
def test_odd_delay_offsets_are_told(tmp_path: Path, text: str) -> None:
    found = load_delay_offsets(write(tmp_path, "delayOffset.json", text))
    assert found.by_level == {}
    assert len(found.findings) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["offsetTable", "lmqOffsetTable"]), JSON))
def test_any_parsed_file_becomes_a_table(value: dict[str, object]) -> None:
    offsets, unsplit, _ = table(value, "x")
    assert all(isinstance(number, int) for part in (*offsets.values(), *unsplit.values()) for pair in part.items() for number in pair)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_offsets_of_real_stores_are_those_the_broker_loads(case: GoldenCase) -> None:
    found = load_offset_table(ReadOnlyDirectory(opened(case)))
    named = {f"{topic}@{group}": by_queue for (group, topic), by_queue in found.offsets.items()} | found.unsplit
    assert {key: {str(queue): offset for queue, offset in part.items()} for key, part in named.items()} == groups(case)["offset_table"]


def test_garbage_in_the_middle_is_told_and_the_predecessor_used() -> None:
    found = load_offset_table(ReadOnlyDirectory(opened(case_named("4.9.3/m-damaged/11-offsets-garbage"))))
    assert found.used == "bak"
    assert [(item.file, item.kind) for item in found.findings] == [("config/consumerOffset.json", Kind.BAD_CONFIG)]
