"""The next queue offset of every queue, as the append lock protects it.

The offsets of one topic are a separate dictionary, which the compiled fast path of puts (`kernels.rocketmq.put`) shares.
"""

from __future__ import annotations


class QueueOffsets:
    """(topic bytes, queue id) -> queue offset of the next message; 0 for a queue that has none yet."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, dict[int, int]] = {}

    def of_topic(self, topic: bytes) -> dict[int, int]:
        """Return the offsets of one topic: queue id -> next queue offset. Changes to the dictionary count."""
        return self._by_topic.setdefault(topic, {})

    def get(self, key: tuple[bytes, int]) -> int:
        """Return the next offset of a queue."""
        return self._by_topic.get(key[0], {}).get(key[1], 0)

    def forget(self, topic: bytes) -> None:
        """Start all queues of a topic at 0 again. A dictionary that `of_topic` returned before no longer counts."""
        self._by_topic.pop(topic, None)

    def __setitem__(self, key: tuple[bytes, int], offset: int) -> None:
        self.of_topic(key[0])[key[1]] = offset
