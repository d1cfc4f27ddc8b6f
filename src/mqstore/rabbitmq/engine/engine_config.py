"""Settings of the queue engine, under RabbitMQ's own names where it has them.

>>> EngineConfig().queue_index_embed_msgs_below, EngineConfig(msg_store_file_size_limit=262144).msg_store_file_size_limit
(4096, 262144)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mqstore.errors import UsageError
from mqstore.files.recorder import Recorder
from mqstore.rabbitmq.format.segment import MAX_ENTRIES

MAX_FILE_BYTES = 1 << 31


def microseconds() -> int:
    """Return the current time in microseconds since the epoch."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a vhost is written.

    queue_index_segment_entry_count: N of a new vhost; an existing one keeps its own. queue_index_max_journal_entries: number of actions
    after which a queue's journal is flushed to segments; queue_index_max_journal_bytes: the same by size, which bounds memory.
    classic_queue_index_v2_segment_entry_count: M, which is stored only in the headers of a queue's files.
    classic_queue_default_version: of a queue declared without `x-queue-version`. clock: microseconds since the epoch.
    recorder: receives every write.
    """

    queue_index_embed_msgs_below: int = 4096
    queue_index_segment_entry_count: int = 2048
    queue_index_max_journal_entries: int = 65536
    queue_index_max_journal_bytes: int = 64 << 20
    msg_store_file_size_limit: int = 16777216
    classic_queue_index_v2_segment_entry_count: int = 4096
    classic_queue_default_version: int = 1
    clock: Callable[[], int] = microseconds
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if not 0 < self.queue_index_segment_entry_count <= MAX_ENTRIES:
            raise UsageError(f"queue_index_segment_entry_count must be 1 to {MAX_ENTRIES}, not {self.queue_index_segment_entry_count}")
        if self.classic_queue_default_version not in (1, 2):
            raise UsageError(f"a classic queue has version 1 or 2, not {self.classic_queue_default_version}")
        if min(self.queue_index_max_journal_entries, self.msg_store_file_size_limit, self.classic_queue_index_v2_segment_entry_count) < 1:
            raise UsageError("the limits of the journal, of message store files and of version 2 segments must be at least 1")
        if self.msg_store_file_size_limit > MAX_FILE_BYTES:
            raise UsageError(f"msg_store_file_size_limit must be at most {MAX_FILE_BYTES} bytes, not {self.msg_store_file_size_limit}")
