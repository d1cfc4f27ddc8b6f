"""Configuration files in the brokers' dialect, and the way they fall back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.golden import PLAIN, GoldenCase, case_id, opened

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Kind
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.fastjson import load, parse

REAL = '{\n\t"offsetTable":{\n\t\t"%RETRY%g2@g2":{0:5000000000\n\t\t},\n\t\t"TestTopic@TestTopicGroup":{0:0,1:1,2:1,3:0\n\t\t}\n\t}\n}'
TABLE = {"offsetTable": {"%RETRY%g2@g2": {"0": 5000000000}, "TestTopic@TestTopicGroup": {"0": 0, "1": 1, "2": 1, "3": 0}}}


def write(root: Path, main: bytes | None, bak: bytes | None = None) -> ReadOnlyDirectory:
    if main is not None:
        (root / "a.json").write_bytes(main)
    if bak is not None:
        (root / "a.json.bak").write_bytes(bak)
    return ReadOnlyDirectory(root)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (REAL, TABLE),
        ('{"a":{"0":1}}', {"a": {"0": 1}}),
        ("{0:1,-1 : 2}", {"0": 1, "-1": 2}),
        ('{"x{0:1":"{1:2}","\\"3:":[4,5]}', {"x{0:1": "{1:2}", '"3:': [4, 5]}),
        ('{"n":9223372036854775807,"m":-9223372036854775808}', {"n": 2**63 - 1, "m": -(2**63)}),
        ('{"订单@g":{0:1}}', {"订单@g": {"0": 1}}),
        ("{}", {}),
    ],
)
def test_the_dialect_is_read(text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "null",
        '{"a":{0:1}',
        '{"a":{0:1',
        '{"a',
        '{"a":"\\',
        '{"a":1}x',
        '{"a":NaN}',
        "\0\0\0",
        '{"a":' * 5000,
        "[" * 100_000,
        '{"a":' + "9" * 10_000 + "}",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_unterminated_strings_take_linear_time() -> None:
    with pytest.raises(ValueError):
        parse('{"' + '\\"' * 500_000 + "\\")


def test_a_missing_file_without_predecessor_is_empty_and_no_damage(tmp_path: Path) -> None:
    found = load(write(tmp_path, None), "a.json")
    assert (found.value, found.used, found.findings) == ({}, None, ())


@pytest.mark.parametrize(
    "main",
    [None, b"", b"\0" * 300, REAL.encode()[:40], b"\xff\xfe garbage", b"[1]"],
    ids=["missing", "empty", "zeros", "cut", "garbage", "list"],
)
def test_a_file_of_no_use_falls_back_to_its_predecessor(tmp_path: Path, main: bytes | None) -> None:
    found = load(write(tmp_path, main, REAL.encode()), "a.json")
    assert (found.value, found.used) == (TABLE, "bak")
    assert [(item.file, item.kind) for item in found.findings] == [("a.json", Kind.BAD_CONFIG)]


def test_two_files_of_no_use_give_an_empty_table_and_two_findings(tmp_path: Path) -> None:
    found = load(write(tmp_path, b"{", b"\0"), "a.json")
    assert (found.value, found.used) == ({}, None)
    assert [item.file for item in found.findings] == ["a.json", "a.json.bak"]


def test_a_broken_predecessor_of_a_sound_file_is_not_looked_at(tmp_path: Path) -> None:
    found = load(write(tmp_path, REAL.encode(), b"{"), "a.json")
    assert (found.value, found.used, found.findings) == (TABLE, "main", ())


def test_blanks_are_an_empty_table_for_a_broker_too(tmp_path: Path) -> None:
    found = load(write(tmp_path, b" \n\t", REAL.encode()), "a.json")
    assert (found.value, found.used) == ({}, "main")
    assert [item.kind for item in found.findings] == [Kind.BAD_CONFIG]


def test_bytes_that_are_not_utf_8_are_replaced_and_told(tmp_path: Path) -> None:
    found = load(write(tmp_path, b'{"a\xff":1}'), "a.json")
    assert (found.value, found.used) == ({"a�": 1}, "main")
    assert [(item.offset, item.length) for item in found.findings] == [(3, 1)]


def test_a_file_beyond_all_measure_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "LIMIT", 10)
    found = load(write(tmp_path, REAL.encode()), "a.json")
    assert (found.value, found.used) == ({}, None)
    assert [item.kind for item in found.findings] == [Kind.BAD_CONFIG]


def test_a_directory_in_its_place_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    assert [item.kind for item in load(ReadOnlyDirectory(tmp_path), "a.json").findings] == [Kind.UNREADABLE]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), VALUES, max_size=4))
def test_plain_json_is_read_as_it_is(value: dict[str, object]) -> None:
    assert parse(json.dumps(value, ensure_ascii=False)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    assert isinstance(load(write(tmp_path_factory.mktemp("c"), raw), "a.json").value, dict)


@pytest.mark.parametrize("case", [case for case in PLAIN if "broker" in case.name or "delay" in case.name], ids=case_id)
def test_every_configuration_file_of_real_brokers_is_read(case: GoldenCase) -> None:
    directory = ReadOnlyDirectory(opened(case))
    names = [entry.name for entry in directory.entries("config") if entry.name.endswith(".json")]
    assert {"topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json"} <= set(names)
    for name in names:
        found = load(directory, f"config/{name}")
        assert (found.used, found.findings) == ("main", ())
