"""Whether an index holds the tags of messages, too: since 5.4.0 brokers index them as `topic#T#tags`.

No file says so. The entries do: a record with tags has an entry of that hash, or it has none. A store that was upgraded has both kinds of
records; the newest ones show what its broker does now.

Format: docs/formats/rocketmq.md, section 5.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mqstore.rocketmq.dispatch.dispatcher import TAGS_KEY
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record

WINDOW = 64  # entries that are looked at in one place
NEWEST = 1024  # entries at the end of a file that are looked at until a record with tags is found
PLACES = 32  # files that are looked at


def tags_hash(message: Record) -> int | None:
    """Return the hash under which the tags of a record are indexed; None if it has none, or is rolled back."""
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return None
    tags = message.property_map().get("TAGS")
    return index_hash(message.topic, TAGS_KEY + tags) if tags else None


class TagKeys:
    """What the entries of index files say. files: oldest first."""

    def __init__(self, log: CommitLog, files: Sequence[IndexFile]) -> None:
        self._log = log
        self._files = [file for file in files if file.stop > 1]

    def newest(self) -> bool | None:
        """Return whether the newest record with tags has an entry for them; None if no record shows it."""
        for file in reversed(self._files[-2:]):
            last = True
            for found in self._answers(file, max(1, file.stop - NEWEST), file.stop, newest_first=True):
                # of the last record of a file some keys may be in the next one, or not put yet
                if found or not last:
                    return found
                last = False
        return None

    def anywhere(self) -> bool:
        """Return whether some record near the beginning or the end of a file has an entry for its tags."""
        step = -(-len(self._files) // PLACES) or 1
        for file in self._files[::step]:
            for low in (1, max(1, file.stop - WINDOW)):
                if any(self._answers(file, low, min(low + WINDOW, file.stop))):
                    return True
        return False

    def between(self, start: int, stop: int) -> bool:
        """Return whether some record near the beginning or the end of a range of physical offsets has an entry for its tags."""
        for file in self._files:
            if file.begin_physical_offset < stop and file.end_physical_offset >= start:
                low, high = file.first_at(start), file.first_at(stop)
                for at in (low, max(low, high - WINDOW)):
                    if any(self._answers(file, at, min(at + WINDOW, high))):
                        return True
        return False

    def _answers(self, file: IndexFile, low: int, high: int, *, newest_first: bool = False) -> Iterator[bool]:
        """Yield, for each record with tags that entries low..high-1 point at, whether one of them is for its tags."""
        entries = file.entries(low, high)
        offsets = entries["physical_offset"].astype(np.int64)
        hashes = entries["key_hash"].astype(np.int64)
        distinct = np.unique(offsets)
        for offset in (distinct[::-1] if newest_first else distinct).tolist():
            message = self._log.record(offset) if offset >= self._log.start else None
            wanted = None if message is None else tags_hash(message)
            if wanted is not None:
                yield bool((hashes[offsets == offset] == wanted).any())
