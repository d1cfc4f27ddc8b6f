"""A vhost while this process has it open for writing: its files, lock, queues and message store.

`start_vhost` makes one; `clean_stop` writes its side files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedDirectory
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.live_index_v1 import LiveIndexV1
from mqstore.rabbitmq.engine.live_index_v2 import LiveIndexV2
from mqstore.rabbitmq.engine.live_message_store import LiveMessageStore
from mqstore.rabbitmq.engine.live_queue import LiveQueue
from mqstore.rabbitmq.format.names import parse_queue_name_file, split_priority

__all__ = ["RunningVhost"]


@dataclass(slots=True)
class RunningVhost:
    """A vhost that is open for writing.

    place: its directory, relative to the root. entries: N, the segment entry count of version 1. queues: by directory name.
    notes: what the start dropped or repaired, one sentence each.
    """

    directory: DurableDirectory
    reading: ReadOnlyDirectory
    vhost: bytes
    place: str
    entries: int
    config: EngineConfig
    store: LiveMessageStore
    queues: dict[str, LiveQueue]
    lock: LockedDirectory
    notes: list[str] = field(default_factory=list)
    open: bool = True

    def close(self) -> None:
        """Close the files and release the lock."""
        self.open = False
        self.directory.close()
        self.lock.close()

    def named(self) -> Iterator[tuple[str, int | None, int]]:
        """Yield (name, highest priority level or None, version) of each queue whose `.queue_name` names it."""
        found: dict[bytes, tuple[int | None, int]] = {}
        for directory, queue in self.queues.items():
            content = self.reading.read(f"{queue.index.place}/.queue_name", 4097)
            split = None if content is None else parse_queue_name_file(content, directory)
            if split is None:
                continue
            name, level = split_priority(split.name)
            before = found.get(name, (None, 0))[0]
            found[name] = (None if level is None else max(level, before or 0)), queue.index.version
        for name, (level, version) in sorted(found.items()):
            yield name.decode("utf-8", "surrogateescape"), level, version

    def new_index(self, directory: str, version: int) -> LiveIndexV1 | LiveIndexV2:
        """Return an empty index for the queue directory of this name, which does not exist yet."""
        place = f"{self.place}/queues/{directory}"
        if version == 2:
            return LiveIndexV2(self.directory, self.reading, place, self.config)
        return LiveIndexV1(self.directory, self.reading, place, self.entries, self.config)
