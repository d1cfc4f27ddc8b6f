"""Directory names and `.queue_name`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import golden as goldenkit
from support.golden import GoldenCase, case_id

from mqstore.rabbitmq.format.names import (
    QueueName,
    base36,
    parse_queue_name_file,
    priority_name,
    queue_directory,
    queue_name_file,
    split_priority,
    vhost_directory,
)


def test_names_in_the_specification_have_the_directories_given_there() -> None:
    assert vhost_directory("/") == vhost_directory(b"/") == "628WB79CIFDYO9LJI6DKMI09L"
    assert queue_directory("/", "small.embedded") == "8GAFI66390KAQ1U33NFI8WMTF"
    assert queue_directory("/", priority_name("prio.q", 5)) == "6CKYUS6H636JZ0V8X4SQO0KT5"


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_every_golden_directory_has_the_name_in_its_file(case: GoldenCase) -> None:
    queues = set()
    for vhost in (goldenkit.opened(case) / "msg_stores" / "vhosts").iterdir():
        assert vhost_directory((vhost / ".vhost").read_bytes()) == vhost.name
        for directory in (vhost / "queues").iterdir():
            content = (directory / ".queue_name").read_bytes()
            found = parse_queue_name_file(content, directory.name)
            assert found is not None
            assert parse_queue_name_file(content, directory.name, b"other") is None
            assert queue_name_file(*found) == content
            name, level = split_priority(found.name)
            queues.add((found.vhost.decode(), name.decode(), level))
            assert found.v2 == case.name.startswith("g")
    assert queues >= {(row["vhost"], row["queue"], row["priority_level"]) for row in goldenkit.expected(case)}


names = st.text().map(str.encode) | st.binary(max_size=50) | st.sampled_from([b"\nQUEUE: ", b"a\nINDEX: v2", b"\nQUEUE: \nQUEUE: ", b""])


@given(names, names, st.booleans())
@example(b"v\nQUEUE: x", b"y\nQUEUE: z", True)
@example(b"v", b"q\nINDEX: v2", False)
def test_any_name_is_read_from_its_file(vhost: bytes, name: bytes, v2: bool) -> None:
    found = parse_queue_name_file(queue_name_file(vhost, name, v2), queue_directory(vhost, name), vhost)
    assert found == QueueName(vhost, name, v2)


@pytest.mark.parametrize(
    "content", [b"", b"VHOST: ", b"VHOST: /\nQUEUE: small", b"VHOST: /\nQUEUE: other\n", b"VHOST: /" + b"\nQUEUE: " * 100_000 + b"\n"]
)
def test_a_file_that_does_not_match_its_directory_is_ignored(content: bytes) -> None:
    assert parse_queue_name_file(content, "8GAFI66390KAQ1U33NFI8WMTF") is None


def test_a_level_is_split_from_a_name() -> None:
    assert split_priority(b"q\x00\x05") == (b"q", 5)
    assert split_priority(b"q") == (b"q", None)
    assert base36(0) == "0"
    assert base36(35) == "Z"
