"""What a put ends with."""

from __future__ import annotations

from mqstore.rocketmq.format.message import PutStatus


def test_a_message_is_in_the_log_although_a_flush_took_too_long_and_not_if_it_was_refused() -> None:
    assert PutStatus.PUT_OK.stored
    assert PutStatus.FLUSH_DISK_TIMEOUT.stored
    assert not PutStatus.MESSAGE_ILLEGAL.stored
