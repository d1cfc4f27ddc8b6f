"""Settings of a writable store: the broker's own, in snake_case, with the broker's defaults.

    >>> StoreConfig(version="4.9.3").with_broker({"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "65536"}).flush_disk_type
    'SYNC_FLUSH'

Format: docs/formats/rocketmq.md, section 1.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.rocketmq.dispatch.dispatcher import DEFAULT_DELAYS

if TYPE_CHECKING:
    from mqstore.files.recorder import Recorder


def now_ms() -> int:
    """Return the current time in ms since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How a store is written. Sizes in bytes, times in ms unless the name says otherwise.

    version: the broker version whose rules are followed, from 4.3.0 to 5.5.0; None: inferred from an existing store, else `5.3.3`.
    Geometry (file sizes, slots, positions) that is None is taken from the files of an existing store, else from the broker's
    defaults. store_host: for messages that do not name one. clock: returns ms. disk_ratio: returns the used fraction of the disk
    that holds a path, 0 to 1, or None if the path does not exist; by default the file system is queried. recorder: receives every
    write (crash tests). services: whether threads for dispatch, flush and retention run; without them the caller drives the
    store (`dispatch_now`, `flush`, …).
    """

    version: str | None = None
    commit_log_file_size: int | None = None
    consume_queue_file_size: int | None = None
    consume_queue_ext_file_size: int | None = None
    batch_queue_file_size: int | None = None
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None
    max_message_size: int = 4 << 20
    max_msgs_num_batch: int = 64
    default_query_max_num: int = 32
    message_delay_level: str = DEFAULT_DELAYS
    message_index_enable: bool = True
    message_index_safe: bool = False
    enable_consume_queue_ext: bool = False
    enable_multi_dispatch: bool = False
    enable_lmq: bool = False
    check_crc_on_recover: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False
    auto_message_version_on_topic_len: bool = True
    recheck_reput_offset_from_cq: bool = False
    batch_topics: frozenset[str] = frozenset()
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    delete_when: str = "04"
    file_reserved_hours: float = 72
    clean_resource_interval: int = 10_000
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: float = 0.90
    disk_space_clean_forcibly_ratio: float = 0.85
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: int = 10
    access_message_in_memory_max_ratio: int = 40
    travel_cq_file_num_when_get_message: int = 1
    flush_consumer_offset_interval: int = 5000
    flush_delay_offset_interval: int = 10_000
    store_host: str = "127.0.0.1:10911"
    clock: Callable[[], int] = now_ms
    disk_ratio: Callable[[str], float | None] | None = None
    recorder: Recorder | None = field(default=None, compare=False)
    services: bool = True

    def with_broker(self, named: Mapping[str, str]) -> StoreConfig:
        """Override settings by the broker's own `name=value` pairs; unknown names are ignored. Raises UsageError."""
        kinds = {each.name: each.type for each in fields(self)}
        changes: dict[str, Any] = {}
        batch = set(self.batch_topics)
        for name, text in named.items():
            value = text.strip()
            if name.startswith("queueType.") and value == "BatchCQ":
                batch.add(name.removeprefix("queueType."))
            own = BROKER_NAMES.get(name)
            if own is None:
                continue
            kind = str(kinds[own])
            try:
                changes[own] = value.lower() == "true" if kind == "bool" else _parse_number(value, kind) if kind != "str" else value
            except ValueError:
                raise UsageError(f"{name}={text} is not a number; correct it or remove the line") from None
        size = changes.get("consume_queue_file_size")
        if size is not None:
            changes["consume_queue_file_size"] = -(-size // 20) * 20
        return replace(self, **changes, batch_topics=frozenset(batch))


def _parse_number(value: str, kind: str) -> int | float:
    return float(value) if "float" in kind else int(value)


BROKER_NAMES = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "mappedFileSizeConsumeQueue": "consume_queue_file_size",
    "mappedFileSizeConsumeQueueExt": "consume_queue_ext_file_size",
    "mapedFileSizeCommitLog": "commit_log_file_size",  # as 4.3.0 spells it
    "mapedFileSizeConsumeQueue": "consume_queue_file_size",
    "mapperFileSizeBatchConsumeQueue": "batch_queue_file_size",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "maxMessageSize": "max_message_size",
    "maxMsgsNumBatch": "max_msgs_num_batch",
    "defaultQueryMaxNum": "default_query_max_num",
    "messageDelayLevel": "message_delay_level",
    "messageIndexEnable": "message_index_enable",
    "messageIndexSafe": "message_index_safe",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "enableMultiDispatch": "enable_multi_dispatch",
    "enableLmq": "enable_lmq",
    "checkCRCOnRecover": "check_crc_on_recover",
    "enabledAppendPropCRC": "enabled_append_prop_crc",
    "forceVerifyPropCRC": "force_verify_prop_crc",
    "autoMessageVersionOnTopicLen": "auto_message_version_on_topic_len",
    "recheckReputOffsetFromCq": "recheck_reput_offset_from_cq",
    "flushDiskType": "flush_disk_type",
    "flushIntervalCommitLog": "flush_interval_commit_log",
    "flushCommitLogLeastPages": "flush_commit_log_least_pages",
    "flushCommitLogThoroughInterval": "flush_commit_log_thorough_interval",
    "flushIntervalConsumeQueue": "flush_interval_consume_queue",
    "flushConsumeQueueLeastPages": "flush_consume_queue_least_pages",
    "flushConsumeQueueThoroughInterval": "flush_consume_queue_thorough_interval",
    "syncFlushTimeout": "sync_flush_timeout",
    "deleteWhen": "delete_when",
    "fileReservedTime": "file_reserved_hours",
    "cleanResourceInterval": "clean_resource_interval",
    "diskMaxUsedSpaceRatio": "disk_max_used_space_ratio",
    "cleanFileForciblyEnable": "clean_file_forcibly_enable",
    "deleteFileBatchMax": "delete_file_batch_max",
    "accessMessageInMemoryMaxRatio": "access_message_in_memory_max_ratio",
    "travelCqFileNumWhenGetMessage": "travel_cq_file_num_when_get_message",
    "flushConsumerOffsetInterval": "flush_consumer_offset_interval",
    "flushDelayOffsetInterval": "flush_delay_offset_interval",
}
