"""Steps for the small files: tables that cannot be parsed, offsets after the end of their queue, a checkpoint later than the log.

    a table that cannot be parsed   its .bak, with what the readable part of an offset file adds to it; without a usable .bak what
                                    the readable part and the queues say; else both are taken out, so that the broker starts
    an offset after its queue       the end of the queue
    a delay offset before the copy  after the leading messages of the level that have a copy in their topic, which proves that
    of a delivered message          they were delivered
    a checkpoint after the log      no times: a broker that recovers then begins with the oldest file

Format: docs/formats/rocketmq.md, sections 1.5, 7.1 and 11.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from mqstore.repair.change import Change, Step
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.config_writer import bean, to_text
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS, load_delay_offsets
from mqstore.rocketmq.config.topic_table import TOPICS_FILE
from mqstore.rocketmq.delayed import delay_levels
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.loaded_config import LoadedConfig, loaded_configs, readable_offsets, torn_text
from mqstore.rocketmq.store.store import RocketMQStore

Ends = Mapping[tuple[str, int], int]

_OFFSETS = (CONSUMER_OFFSETS, LMQ_OFFSETS, DELAY_OFFSETS)
_DIGITS = re.compile(r"\d{1,9}")
_LOADS = {
    "bak": "it loads the .bak, an older state",
    "empty": "it starts with an empty table",
    "fails": "it does not start",
}


def config_steps(store: RocketMQStore, version: str, last_timestamp: int, ends: Ends) -> Iterator[Step]:
    """Yield the steps for the configuration and the checkpoint. last_timestamp: store time of the last message; ends: of the queues."""
    lmq = store.offset_table.file == LMQ_OFFSETS
    torn: set[str] = set()
    loaded = load_delay_offsets(store.directory).by_level
    levels = delay_levels(store.view(), store.log, loaded, last_timestamp)
    delivered = {each.level: each.proved for each in levels if each.proved > each.begin}
    for config in loaded_configs(store.directory, further=version_rules(version).has_further_files, lmq=lmq):
        if config.outcome == "main" or (config.outcome != "fails" and not store.directory.exists(config.file)):
            continue
        if config.outcome == "empty" and not config.size:
            continue  # nothing to restore from, and the broker starts
        torn.add(config.file)
        yield _restored(store, config, ends, delivered)
    if not torn & {CONSUMER_OFFSETS, LMQ_OFFSETS}:
        yield from _offsets_past_the_end(store, store.offset_table.file, ends)
    if delivered and DELAY_OFFSETS not in torn:
        yield _delivered(store, loaded, delivered)
    point = store.checkpoint
    if store.unclean and last_timestamp and max(point.physic, point.logics) > last_timestamp:
        yield Step(
            "checkpoint",
            "checkpoint",
            0,
            24,
            f"its times are after the last message of the log, stored at {last_timestamp}: they are set to zero",
            "it recovers the newest log file only",
            "",
            (Change("write", "checkpoint", 0, bytes(24)),),
        )


def _delivered(store: RocketMQStore, loaded: Mapping[int, int], delivered: Mapping[int, int]) -> Step:
    """Return the step that writes how far the levels were delivered. delivered: where a level continues, if that is after `loaded`."""
    value = dict(fastjson.load(store.directory, DELAY_OFFSETS).value)
    value["offsetTable"] = dict(sorted({**loaded, **delivered}.items()))
    shown = ", ".join(f"level {level} from {loaded.get(level, 0)} to {offset}" for level, offset in sorted(delivered.items()))
    why = f"it is older than the log, where copies of delayed messages show that they were delivered: {shown}"
    content = to_text(bean(value)).encode("utf-8", "replace")
    folder = DELAY_OFFSETS.rpartition("/")[0]
    made = () if store.directory.is_directory(folder) else (Change("mkdir", folder),)
    changes = (*made, Change("put", DELAY_OFFSETS, content=content))
    return Step("offsets", DELAY_OFFSETS, 0, 0, why, "it delivers them a second time", "", changes)


def _restored(store: RocketMQStore, config: LoadedConfig, ends: Ends, delivered: Mapping[int, int]) -> Step:
    bak = f"{config.file}.bak"
    value = dict(fastjson.load(store.directory, config.file).value)
    text = torn_text(store.directory, config.file)
    sources = ["the .bak"] if config.outcome == "bak" else []
    if config.file in _OFFSETS and (readable := readable_offsets(text)):
        sources.append("what can be read of it")
        table: dict[str, Any] = dict(value.get("offsetTable") or {})
        if config.file == DELAY_OFFSETS:
            table |= {str(level): offset for level, offset in readable.get("offsetTable", {}).items()}
        else:
            for key, by_queue in readable.items():
                table[key] = {**(table.get(key) or {}), **{str(queue): offset for queue, offset in by_queue.items()}}
        value["offsetTable"] = table
    if config.file == DELAY_OFFSETS and delivered:
        sources.append("the copies of delivered messages")
        table = dict(value.get("offsetTable") or {})
        value["offsetTable"] = table | {str(level): max(at, table.get(str(level), 0)) for level, at in delivered.items()}
    if config.file in (CONSUMER_OFFSETS, LMQ_OFFSETS):
        _clip(value.get("offsetTable"), ends)
    if config.file == TOPICS_FILE and not sources:
        sources.append("the queues that there are")
        value = {"topicConfigTable": _topics_of_queues(store)}
    why = f"{config.fault or 'it is missing'}"
    if not sources:
        files = [name for name in (config.file, bak) if store.directory.exists(name)]
        loss = "what was in it; the broker starts with its defaults"
        changes = tuple(Change("remove", name) for name in files)
        return Step("config", config.file, 0, config.size, f"{why}: taken out with its .bak", _LOADS[config.outcome], loss, changes)
    loss = "" if config.file in _OFFSETS and config.outcome != "bak" else "what was changed since the .bak was written"
    if config.file == TOPICS_FILE and config.outcome != "bak":
        loss = "permissions, attributes and topics without queues"
    content = to_text(_numbers(bean(value))).encode("utf-8", "replace")
    changes = (Change("put", config.file, content=content),)
    if config.outcome == "fails":
        changes = (*changes, Change("remove", bak))
    return Step(
        "config", config.file, 0, config.size, f"{why}: written again from {' and '.join(sources)}", _LOADS[config.outcome], loss, changes
    )


def _topics_of_queues(store: RocketMQStore) -> dict[str, Any]:
    highest: dict[str, int] = defaultdict(int)
    for queue in store.all_queues():
        highest[queue.topic] = max(highest[queue.topic], queue.queue_id + 1)
    return {
        topic: {
            "order": False,
            "perm": 6,
            "readQueueNums": number,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": number,
        }
        for topic, number in sorted(highest.items())
    }


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Return an offset table with queue ids as numbers, which the brokers write without quotes."""
    table = value.get("offsetTable")
    if not isinstance(table, dict):
        return value
    return {**value, "offsetTable": _as_numbers(table)}


def _as_numbers(table: dict[str, Any]) -> dict[Any, Any]:
    if table and all(isinstance(part, int) and key.lstrip("-").isdigit() for key, part in table.items()):
        return {int(key): part for key, part in table.items()}
    return {
        key: {int(queue) if queue.lstrip("-").isdigit() else queue: offset for queue, offset in part.items()}
        if isinstance(part, dict)
        else part
        for key, part in table.items()
    }


def _clip(table: object, ends: Ends) -> list[str]:
    """Move every offset after the end of its queue there, in place. Returns which, for a person."""
    moved: list[str] = []
    for key, part in table.items() if isinstance(table, dict) else ():
        topic, _, group = key.partition("@")
        for queue, offset in part.items() if isinstance(part, dict) else ():
            end = ends.get((topic, int(queue))) if _DIGITS.fullmatch(queue) else None
            if end is not None and isinstance(offset, int) and offset > end:
                part[queue] = end
                moved.append(f"{group} on {topic} {queue} ({offset} to {end})")
    return moved


def _offsets_past_the_end(store: RocketMQStore, relative: str, ends: Ends) -> Iterator[Step]:
    """Yield one step that moves every offset after the end of its queue there."""
    table = fastjson.load(store.directory, relative)
    if table.used != "main":
        return
    moved = _clip(table.value.get("offsetTable"), ends)
    if moved:
        content = to_text(_numbers(bean(table.value))).encode("utf-8", "replace")
        shown = ", ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
        yield Step(
            "offsets",
            relative,
            0,
            0,
            f"offsets after the end of their queue are set to it: {shown}",
            "4.x sends these groups to the start of the queue, 5.x to its end",
            "where those groups claimed to be",
            (Change("put", relative, content=content),),
        )
