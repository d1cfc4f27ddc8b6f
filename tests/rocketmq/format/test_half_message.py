"""Half messages: which ones an op record settles, and how a check puts one again."""

from __future__ import annotations

import pytest

from mqstore.rocketmq.format.half_message import op_message, renewed, settled_by
from mqstore.rocketmq.format.record import Record, encode_properties


@pytest.mark.parametrize(
    ("tags", "body", "settled"),
    [("d", b"7", (7,)), ("d", b"7,12,", (7, 12)), ("d", b"x,-3,5", (5,)), ("d", b"", ()), ("e", b"7", ())],
)
def test_an_op_record_settles_the_half_messages_that_it_names(tags: str, body: bytes, settled: tuple[int, ...]) -> None:
    assert settled_by(Record("RMQ_SYS_TRANS_OP_HALF_TOPIC", body, properties=encode_properties({"TAGS": tags}))) == settled
    assert settled_by(Record("RMQ_SYS_TRANS_OP_HALF_TOPIC", body)) == ()


@pytest.mark.parametrize(("version", "offsets"), [("4.9.3", [7]), ("5.3.3", [7]), ("5.3.3", [7, 12])])
def test_an_op_message_settles_what_it_is_made_of(version: str, offsets: list[int]) -> None:
    made = op_message(offsets, version)
    assert settled_by(Record(made.topic, bytes(made.body), properties=made.properties)) == tuple(offsets)


def test_a_half_message_that_is_put_again_keeps_its_topic_and_body_and_counts_its_checks() -> None:
    half = Record("RMQ_SYS_TRANS_HALF_TOPIC", b"body", properties=encode_properties({"REAL_TOPIC": "t", "REAL_QID": "3"}))
    for prepared, stated in ((None, None), (7, "7")):
        made = renewed(half, "5.3.3", check_times=2, prepared_queue_offset=prepared)
        assert (made.topic, made.body) == ("RMQ_SYS_TRANS_HALF_TOPIC", b"body")
        properties = Record(made.topic, b"", properties=made.properties).property_map()
        names = ("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "REAL_TOPIC")
        assert [properties.get(name) for name in names] == ["2", stated, "t"]
