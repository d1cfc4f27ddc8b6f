"""Delay offsets: how far each delay level of SCHEDULE_TOPIC_XXXX was delivered, stored in `config/delayOffset.json`.

    >>> table = DelayOffsetTable("4.9.3")
    >>> table.update(3, 29)
    >>> table.text()
    '{\\n\\t"offsetTable":{3:29\\n\\t}\\n}'

5.3.3 also writes a `dataVersion`, incremented on every 200th update. The file is written every 10 s and at shutdown.

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.findings import Damage
from mqstore.rocketmq.config import consumer_offset_file, fastjson
from mqstore.rocketmq.config.config_writer import ConfigWriter, DataVersion, bean, to_text
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.profile import version_rules

UPDATES_PER_VERSION = 200


class DelayOffsetTable:
    """Delay level -> next queue offset in that level's queue. Thread-safe. findings: invalid parts of the file."""

    def __init__(self, version: str, *, clock: Callable[[], int] = now_ms) -> None:
        self.version = version
        self.findings: tuple[Damage, ...] = ()
        self._rules = version_rules(version)
        self._clock = clock
        self._lock = threading.Lock()
        self._by_level: dict[int, int] = {}
        self._data_version = DataVersion(clock())
        self._updates = 0
        self._others: dict[str, Any] = {}
        self._writer = ConfigWriter(consumer_offset_file.DELAY_OFFSETS, version)

    @classmethod
    def load(cls, reading: ReadOnlyDirectory, version: str, *, clock: Callable[[], int] = now_ms) -> DelayOffsetTable:
        """Load the table of a store; a missing file gives an empty one."""
        made = cls(version, clock=clock)
        found = consumer_offset_file.load_delay_offsets(reading)
        value = fastjson.load(reading, consumer_offset_file.DELAY_OFFSETS).value
        made.findings = found.findings
        made._by_level = dict(found.by_level)
        made._data_version = DataVersion.of(value.get("dataVersion"), clock)
        made._others = {name: part for name, part in value.items() if name not in ("dataVersion", "offsetTable")}
        return made

    def get(self, level: int) -> int | None:
        """Return the next queue offset of a delay level; None if it has delivered nothing yet."""
        with self._lock:
            return self._by_level.get(level)

    def update(self, level: int, offset: int) -> None:
        """Record that the messages before a queue offset have been delivered."""
        with self._lock:
            self._by_level[level] = offset
            self._updates += 1
            if self._updates % UPDATES_PER_VERSION == 0:
                self._data_version.next(self._clock())

    def levels(self) -> dict[int, int]:
        """Return a copy of the table."""
        with self._lock:
            return dict(self._by_level)

    def text(self) -> str:
        """Return the text of the file in the dialect of the version."""
        with self._lock:
            own: dict[str, Any] = {"dataVersion": self._data_version.value(True)} if self._rules.writes_every_field else {}
            return to_text(bean({**self._others, **own, "offsetTable": dict(sorted(self._by_level.items()))}))

    def persist(self, directory: DurableDirectory) -> bool:
        """Write the file unless it already has this content. Returns whether it was written."""
        return self._writer.write(directory, self.text)
