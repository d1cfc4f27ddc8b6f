"""Topic names."""

from __future__ import annotations


def usable_topic(topic: str) -> bool:
    """Return whether a topic can name a directory, as its queues require."""
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(raw) <= 255 and topic not in (".", "..") and "/" not in topic and "\0" not in topic
