"""Settings of a store, overridden by those of a broker's file."""

from __future__ import annotations

import pytest

from mqstore.errors import UsageError
from mqstore.rocketmq.config.store_config import StoreConfig


def test_settings_of_each_kind_are_read_and_unknown_ones_are_not() -> None:
    named = {"mappedFileSizeCommitLog": " 65536 ", "messageIndexEnable": "FALSE", "enableLmq": "True", "checkCRCOnRecover": "yes"}
    config = StoreConfig(enable_lmq=False).with_broker(
        named | {"messageDelayLevel": " 1s 5s ", "brokerName": "b", "queueType.t": "SimpleCQ"}
    )
    assert config == StoreConfig(
        commit_log_file_size=65536, message_index_enable=False, enable_lmq=True, check_crc_on_recover=False, message_delay_level="1s 5s"
    )


def test_topics_with_queues_of_batches_are_added() -> None:
    config = StoreConfig(batch_topics=frozenset({"a"})).with_broker({"queueType.b": "BatchCQ", "queueType.c": "SimpleCQ"})
    assert config.batch_topics == {"a", "b"}


@pytest.mark.parametrize(("size", "taken"), [(20, 20), (21, 40), (39, 40), (40, 40), (1, 20)])
def test_a_file_of_a_queue_holds_whole_entries(size: int, taken: int) -> None:
    assert StoreConfig().with_broker({"mappedFileSizeConsumeQueue": str(size)}).consume_queue_file_size == taken


def test_what_should_be_a_number_and_is_none_is_named() -> None:
    with pytest.raises(UsageError, match=r"^maxMessageSize=4M is not a number; correct it or remove the line$"):
        StoreConfig().with_broker({"maxMessageSize": "4M"})
