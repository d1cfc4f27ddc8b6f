"""Configuration files at the start of a broker: which are loaded, from which file, and what is forgotten with those that cannot be.

    file usable                                   it is loaded
    missing, empty or not parsable, .bak usable   the .bak is loaded: an older state
    neither, and there is no .bak or it is empty  an empty table
    neither, and the .bak cannot be parsed        the broker does not start

The readable part of a torn offset file shows how far consumers had come, and so what they get again:

    >>> readable_offsets('{"offsetTable":{"orders@billing":{0:29,1:27},"orders@stock":{0:30,1:2')
    {'orders@billing': {0: 29, 1: 27}, 'orders@stock': {0: 30}}

Format: docs/formats/rocketmq.md, sections 1.5, 10.1 and 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mqstore.diagnosis import Evidence
from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS, load_delay_offsets
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import CHECK_GROUP, SCHEDULE_TOPIC
from mqstore.rocketmq.store.recovered_view import RecoveredView
from mqstore.rocketmq.store.store import RocketMQStore

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


# Redelivery: which messages consumers get although they had them, because their progress is lost or lies outside its queue.
#
#     the progress file is torn           the .bak, or nothing, is loaded: each group continues from there
#     an offset after the end of a queue  4.x: the client is sent to 0 if the queue begins there, else to the end; 5.x: to the end
#     the delay offsets are lost          delayed messages that were delivered are delivered again
#
# How far a group had come is read from the torn file, as far as it goes.


@dataclass(frozen=True, slots=True)
class Redelivery:
    """messages: delivered again, each for each group. unknown: what cannot be determined."""

    messages: int
    evidence: tuple[Evidence, ...]
    unknown: tuple[str, ...]


def redelivery(store: RocketMQStore, view: RecoveredView, configs: list[LoadedConfig], last_timestamp: int) -> Redelivery:
    """Return what is delivered again after a start that ends in `view`. last_timestamp: store time of the newest message."""
    evidence: list[Evidence] = []
    unknown: list[str] = []
    for config in configs:
        if config.file in (CONSUMER_OFFSETS, LMQ_OFFSETS) and config.outcome in ("bak", "empty"):
            evidence += _of_groups(store, view, config)
            state = "the older offsets of its .bak" if config.outcome == "bak" else "no offsets at all"
            unknown.append(
                f"{config.file} cannot be parsed, and the broker starts with {state}: how far the groups in its unreadable part had come"
            )
        elif config.file == DELAY_OFFSETS and config.outcome in ("bak", "empty"):
            evidence += _of_delays(store, view, config, last_timestamp)
    evidence += _past_the_end(view)
    return Redelivery(sum(item.messages for item in evidence), tuple(evidence), tuple(unknown))


def _of_groups(store: RocketMQStore, view: RecoveredView, config: LoadedConfig) -> Iterator[Evidence]:
    loaded = store.offset_table.offsets
    for key, by_queue in sorted(readable_offsets(torn_text(store.directory, config.file)).items()):
        topic, _, group = key.partition("@")
        again = 0
        for queue_id, offset in by_queue.items():
            queue = view.queue_or_none(topic, queue_id)
            if queue is not None:
                found = loaded.get((group, topic), {}).get(queue_id, queue.min_offset)
                again += max(0, min(offset, queue.max_offset) - max(found, queue.min_offset))
        if again:
            source = "its .bak" if config.outcome == "bak" else "an empty table"
            sentence = f"group {group!r} continues on topic {topic!r} from {source}: it gets at least {again} messages again"
            yield Evidence("progress-lost", config.file, sentence, 0, config.size, again)


def _of_delays(store: RocketMQStore, view: RecoveredView, config: LoadedConfig, last_timestamp: int) -> Iterator[Evidence]:
    loaded = load_delay_offsets(store.directory).by_level
    readable = readable_offsets(torn_text(store.directory, config.file)).get("offsetTable", {})
    for queue in view.queues():
        if queue.topic != SCHEDULE_TOPIC or queue.batch:
            continue
        level = queue.queue_id + 1
        begin = max(loaded.get(level, 0), queue.min_offset)
        if level in readable:
            again, how = max(0, min(readable[level], queue.max_offset) - begin), "were delivered according to the torn file"
        else:
            due = queue.entries(begin, queue.max_offset)["tags_code"].astype(np.int64)
            again, how = int((due <= last_timestamp).sum()), "were due before the newest message was stored"
        if again:
            sentence = f"delay level {level} continues at {begin}: {again} delayed messages that {how} are delivered again"
            yield Evidence("progress-lost", config.file, sentence, 0, config.size, again)


def _past_the_end(view: RecoveredView) -> Iterator[Evidence]:
    for item in view.consumer_offsets():
        if item.state != "above-max" or item.min_offset is None or item.max_offset is None or item.group == CHECK_GROUP:
            continue
        again = item.max_offset if version_rules(view.version).far_offsets_start_over and item.min_offset == 0 else 0
        what = f"is sent back to 0 and gets {again} messages again" if again else f"continues at its end, {item.max_offset}"
        queue = f"topic {item.topic!r}, queue {item.queue_id}, which ends at {item.max_offset}"
        sentence = f"group {item.group!r} is at {item.offset} of {queue}: it {what}"
        yield Evidence("offset-past-end", CONSUMER_OFFSETS, sentence, messages=again)
