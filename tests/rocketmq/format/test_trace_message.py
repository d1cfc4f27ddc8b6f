"""What a trace message says of the way of another one."""

from __future__ import annotations

import pytest

from mqstore.rocketmq.format.trace_message import Step, steps


def body(*items: tuple[str, ...]) -> bytes:
    return "\x02".join("\x01".join(fields) for fields in items).encode()


SENT = ("Pub", "1000", "region", "group", "topic", "ID", "tags", "keys", "host", "10", "7", "0", "offset")
BEGUN = ("SubBefore", "2000", "region", "null", "REQUEST", "ID", "1", "keys")
ENDED = ("SubAfter", "REQUEST", "ID", "5", "false", "keys", "1", "3000", "readers")


@pytest.mark.parametrize(
    ("items", "found"),
    [
        ([SENT], Step("sent", 1000, "group", 7, None, "")),
        ([(*SENT, "true")], Step("sent", 1000, "group", 7, True, "")),
        ([BEGUN], Step("begun", 2000, "", None, None, "no end was reported")),
        ([BEGUN, ENDED], Step("consumed", 2000, "", 5, False, "try 2, timed out")),
        ([ENDED], Step("consumed", 3000, "readers", 5, False, "timed out")),
    ],
)
def test_a_message_is_sent_and_its_consumption_begins_and_ends(items: list[tuple[str, ...]], found: Step) -> None:
    assert steps(body(*items), "ID") == [found]


def test_items_of_other_messages_and_of_another_form_are_left_out() -> None:
    assert steps(body(SENT, BEGUN, ENDED, ("Pub", "1"), ("Other",)), "OTHER") == []
