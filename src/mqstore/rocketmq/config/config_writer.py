r"""Writes configuration files as a broker does: the text, and the steps that put it in place.

The text is what the brokers' JSON library prints in its pretty form; each line but the last ends in a line feed:

    a value           on a separate line, one tab per level, `"name":value` without a blank
    {}, []            empty maps and lists; a property without a value is left out
    number keys       without quotes and line breaks; only the closing brace is on a separate line
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

The steps are the broker's, which keep the previous file as `<name>.bak`. The syncs between them are added here, so that a
crash of the machine at any moment leaves the old or the new value in the file, or the old one in its `.bak`:

    4.9.3   NAME.tmp written · NAME copied to NAME.bak · NAME deleted · NAME.tmp renamed to NAME
    5.3.3   NAME copied to NAME.bak · NAME emptied, and written in place

A file that a broker could not load is not copied: then its `.bak` holds the value.

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.store_config import now_ms
from mqstore.rocketmq.format.profile import version_rules

if TYPE_CHECKING:
    from mqstore.files.durable import DurableDirectory

_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}"


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def to_text(value: Any, depth: int = 0) -> str:
    """Format a value of dicts, lists, strings, numbers, booleans and None. Keys that are int are written as number keys.

    depth: nesting level of the value. The order of a dict is kept; `bean` sorts the properties of a bean.
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
    """Sort the properties by name, as the brokers write those of a bean."""
    return dict(sorted(properties.items()))


@dataclass(slots=True)
class DataVersion:
    """How often a table has changed, and when it last did (ms). `stateVersion` is written by 5.x only."""

    timestamp: int
    counter: int = 0
    state_version: int = 0

    @classmethod
    def of(cls, value: object, clock: Callable[[], int] = now_ms) -> DataVersion:
        """Read the data version in a parsed file; a value that is not one gives a new version dated now."""
        fields = value if isinstance(value, dict) else {}
        numbers = {name: fields.get(name) for name in ("timestamp", "counter", "stateVersion")}
        timestamp, counter, state = (number if type(number) is int else None for number in numbers.values())
        return cls(clock() if timestamp is None else timestamp, counter or 0, state or 0)

    def next(self, now: int) -> None:
        """Count a change of the table at `now` (ms)."""
        self.timestamp = now
        self.counter += 1

    def value(self, with_state: bool) -> dict[str, int]:
        """Return the bean to write. with_state: stateVersion is in it even if it is 0."""
        state = {"stateVersion": self.state_version} if with_state or self.state_version else {}
        return {"counter": self.counter, **state, "timestamp": self.timestamp}


def save(directory: DurableDirectory, relative: str, text: str, version: str) -> None:
    """Write a configuration file by the steps of that version; on return, the text is on disk.

    Raises TargetError. A lone surrogate, which UTF-8 cannot encode, becomes `?` as in Java.
    """
    above = relative.rpartition("/")[0]
    content = text.encode("utf-8", "replace")
    directory.make_directory(above)
    if not version_rules(version).writes_in_place:
        _replace_file(directory, f"{relative}.tmp", content)
        exists = _keep_previous(directory, relative)
        directory.sync_directory(above)
        if exists:
            directory.remove(relative)
        directory.rename(f"{relative}.tmp", relative)
    else:
        if _keep_previous(directory, relative):
            directory.sync_directory(above)
        _replace_file(directory, relative, content)
    directory.sync_directory(above)
    directory.sync_directory(above.rpartition("/")[0])


def _keep_previous(directory: DurableDirectory, relative: str) -> bool:
    """Copy the file to its .bak if a broker could load it. Returns whether the file exists."""
    if not directory.exists(relative):
        return False
    reading = ReadOnlyDirectory(directory.root)
    if fastjson.load(reading, relative).used == "main":
        _replace_file(directory, f"{relative}.bak", reading.read(relative) or b"")
    return True


def _replace_file(directory: DurableDirectory, relative: str, content: bytes) -> None:
    """Replace the contents of the file and sync it."""
    if not directory.exists(relative):
        with directory.open_new(relative) as file:
            file.write(content)
            file.sync()
        return
    with directory.open(relative) as file:
        # empty on disk before the first byte is written: half of the new text over half of the old might parse as a third one
        file.truncate(0)
        file.sync()
        file.write(content)
        file.sync()


class ConfigWriter:
    """Writes one configuration file repeatedly, from any thread: one write at a time, and only if the text has changed."""

    def __init__(self, relative: str, version: str) -> None:
        self.relative = relative
        self.version = version
        self._lock = threading.Lock()
        self._written: str | None = None

    def write(self, directory: DurableDirectory, text: Callable[[], str]) -> bool:
        """Save what `text` returns, unless the last write was the same. Returns whether it was written."""
        with self._lock:
            content = text()
            if content == self._written:
                return False
            self._written = None  # a write that fails half-way must be repeated by the next
            save(directory, self.relative, content, self.version)
            self._written = content
            return True
