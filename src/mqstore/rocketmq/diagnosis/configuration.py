"""Configuration files at the start of a broker: which are loaded, from which file, and what is forgotten with those that cannot be.

    file usable                                   it is loaded
    missing, empty or not parsable, .bak usable   the .bak is loaded: an older state
    neither, and there is no .bak or it is empty  an empty table
    neither, and the .bak cannot be parsed        the broker does not start

The readable part of a torn offset file shows how far consumers had come, and so what they get again:

    >>> readable_offsets('{"offsetTable":{"orders@billing":{0:29,1:27},"orders@stock":{0:30,1:2')
    {'orders@billing': {0: 29, 1: 27}, 'orders@stock': {0: 30}}

Format: docs/formats/rocketmq.md, sections 1.5 and 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offset_file import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS
from mqstore.rocketmq.format.java_text import decode_utf8

TOPICS = "config/topics.json"
_ALWAYS = (TOPICS, "config/subscriptionGroup.json", "config/consumerFilter.json", DELAY_OFFSETS)
_ONLY_5 = ("config/topicQueueMapping.json", "config/consumerOrderInfo.json")

_TABLE = re.compile(r'"\s*:\s*\{((?:\s*"?-?\d{1,10}"?\s*:\s*-?\d{1,19}\s*[,}])+)')  # from the end of its key
_KEY_SIZE = 700
_PAIR = re.compile(r'"?(-?\d{1,10})"?\s*:\s*(-?\d{1,19})\s*[,}]')


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """What a broker loads of one configuration file.

    outcome: `main`, `bak`, `empty` (there are unusable files, and it starts with an empty table) or `fails` (it does not start).
    """

    file: str
    outcome: Literal["main", "bak", "empty", "fails"]
    size: int  # bytes of the main file
    fault: str  # what is wrong with the main file; empty if nothing is


def loaded_configs(directory: ReadOnlyDirectory, *, further: bool, lmq: bool) -> Iterator[LoadedConfig]:
    """Yield the configuration files that exist, or of which a .bak exists. further: also those of 5.x."""
    for relative in (*_ALWAYS, LMQ_OFFSETS if lmq else CONSUMER_OFFSETS, *(_ONLY_5 if further else ())):
        if not (directory.exists(relative) or directory.exists(f"{relative}.bak")):
            continue
        found = fastjson.load(directory, relative)
        fault = "; ".join(item.detail for item in found.findings if item.file == relative)
        size = len(_raw(directory, relative) or b"")
        if found.used == "main":
            yield LoadedConfig(relative, "main", size, fault)
        elif found.used == "bak":
            yield LoadedConfig(relative, "bak", size, fault)
        else:
            yield LoadedConfig(relative, "fails" if _raw(directory, f"{relative}.bak") else "empty", size, fault)


def _raw(directory: ReadOnlyDirectory, relative: str) -> bytes | None:
    try:
        return directory.read(relative, fastjson.LIMIT)
    except CannotOpenError:
        return None


def torn_text(directory: ReadOnlyDirectory, relative: str) -> str:
    """Return the text of a file that is not a whole document, as far as it can be read."""
    return decode_utf8(_raw(directory, relative) or b"")


def readable_offsets(text: str) -> dict[str, dict[int, int]]:
    """Return key -> queue id -> offset of the whole pairs in a torn offset file. A number that the tear may have cut is left out."""
    tables = {}
    for found in _TABLE.finditer(text):
        end, first = found.start(), max(0, found.start() - _KEY_SIZE)
        start = text.rfind('"', first, end)
        while start > 0 and text[start - 1] == "\\":  # a quotation mark in the key
            start = text.rfind('"', first, start)
        if start >= 0:
            tables[text[start + 1 : end]] = {int(queue_id): int(offset) for queue_id, offset in _PAIR.findall(found[1])}
    return tables
