r"""Configuration files written as a broker writes them: the text, and the steps that put it in place.

The text is that of the brokers' JSON library in its pretty form; each line but the last ends in a line feed:

    a value           on a line of its own, one tab per level, `"name":value` without a blank
    {}, []            what is empty; a property without a value is left out
    number keys       without quotes and line breaks; only the closing brace stands on a line of its own
    ["a","b"]         sets and arrays, on one line
    escapes           \" \\ \b \f \n \r \t; \u00XX for other control characters (00-1F, 7F-9F), \u2028, \u2029

    >>> print(to_text({"offsetTable": {"orders@billing": {0: 29, 1: 27}, "bills@billing": {}}}).expandtabs(2))
    {
      "offsetTable":{
        "orders@billing":{0:29,1:27
        },
        "bills@billing":{}
      }
    }

The steps are the broker's, which keep the predecessor as `<name>.bak`; the syncs between them are added here, so that a
machine that dies at any moment leaves the old or the new value in the file, or the old one in its `.bak`:

    4.9.3   NAME.tmp written · NAME copied to NAME.bak · NAME deleted · NAME.tmp renamed to NAME
    5.3.3   NAME copied to NAME.bak · NAME emptied, and written in place

A file that a broker could not load is not copied: its `.bak` is what holds the value then.

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.store_config import now_ms

__all__ = ["ConfigWriter", "DataVersion", "bean", "save", "to_text"]

_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04X}"


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def to_text(value: Any, depth: int = 0) -> str:
    """The text of a value made of dicts, lists, texts, numbers, booleans and None. Keys that are int are number keys.

    depth: levels above the value. The order of a dict is kept; `bean` gives the order of a bean's properties.
    """
    if isinstance(value, Mapping):
        return _map(value, depth)
    if isinstance(value, list | tuple):
        return f"[{','.join(to_text(item, depth) for item in value)}]"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _map(value: Mapping[Any, Any], depth: int) -> str:
    inner = "\n" + "\t" * (depth + 1)
    shown = [
        f"{key}:{to_text(item, depth + 1)}" if isinstance(key, int) else f"{inner}{_string(key)}:{to_text(item, depth + 1)}"
        for key, item in value.items()
        if item is not None
    ]
    if not shown:
        return "{}"
    return "{" + ",".join(shown) + "\n" + "\t" * depth + "}"


def bean(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties by name, as the brokers write those of a bean."""
    return dict(sorted(properties.items()))


@dataclass(slots=True)
class DataVersion:
    """How often a table has changed, and when last (ms). `stateVersion` is written by 5.x only."""

    timestamp: int
    counter: int = 0
    state_version: int = 0

    @classmethod
    def of(cls, value: object, clock: Callable[[], int] = now_ms) -> DataVersion:
        """The one in a parsed file; a new one of now for what is none."""
        found = value if isinstance(value, dict) else {}
        numbers = {name: found.get(name) for name in ("timestamp", "counter", "stateVersion")}
        timestamp, counter, state = (number if type(number) is int else None for number in numbers.values())
        return cls(clock() if timestamp is None else timestamp, counter or 0, state or 0)

    def next(self, now: int) -> None:
        """The table has changed at `now` (ms)."""
        self.timestamp = now
        self.counter += 1

    def value(self, is_v5: bool) -> dict[str, int]:
        """The bean to be written."""
        state = {"stateVersion": self.state_version} if is_v5 or self.state_version else {}
        return {"counter": self.counter, **state, "timestamp": self.timestamp}


def save(directory: DurableDirectory, relative: str, text: str, version: str) -> None:
    """Put a configuration file in place by the steps of that version; when it returns, the text is on the disk.

    Raises TargetError. A lone surrogate, which has no UTF-8, becomes `?` as in Java.
    """
    above = relative.rpartition("/")[0]
    content = text.encode("utf-8", "replace")
    directory.make_directory(above)
    if version == "4.9.3":
        _write(directory, f"{relative}.tmp", content)
        there = _keep_predecessor(directory, relative)
        directory.sync_directory(above)
        if there:
            directory.remove(relative)
        directory.rename(f"{relative}.tmp", relative)
    else:
        if _keep_predecessor(directory, relative):
            directory.sync_directory(above)
        _write(directory, relative, content)
    directory.sync_directory(above)
    directory.sync_directory(above.rpartition("/")[0])


def _keep_predecessor(directory: DurableDirectory, relative: str) -> bool:
    """Copy the file to its .bak if a broker could load it. Returns whether the file is there."""
    if not directory.exists(relative):
        return False
    reading = ReadOnlyDirectory(directory.root)
    if fastjson.load(reading, relative).used == "main":
        _write(directory, f"{relative}.bak", reading.read(relative) or b"")
    return True


def _write(directory: DurableDirectory, relative: str, content: bytes) -> None:
    """Make the file hold just that, synced."""
    if not directory.exists(relative):
        with directory.open_new(relative) as file:
            file.write(content)
            file.sync()
        return
    with directory.open(relative) as file:
        # empty on the disk before the first byte comes: half of the new text over half of the old might be a text of its own
        file.truncate(0)
        file.sync()
        file.write(content)
        file.sync()


class ConfigWriter:
    """Writes one configuration file again and again, from any thread: never two writes at once, and none that changes nothing."""

    def __init__(self, relative: str, version: str) -> None:
        self.relative = relative
        self.version = version
        self._lock = threading.Lock()
        self._written: str | None = None

    def write(self, directory: DurableDirectory, text: Callable[[], str]) -> bool:
        """Save what `text` returns unless the last write was of the same text. Returns whether something was written."""
        with self._lock:
            wanted = text()
            if wanted == self._written:
                return False
            self._written = None  # a write that fails half-way has to be made good by the next
            save(directory, self.relative, wanted, self.version)
            self._written = wanted
            return True
