"""Redelivery: which messages consumers get although they had them, because their progress is lost or lies outside its queue.

    the progress file is torn           the .bak, or nothing, is loaded: each group continues from there
    an offset after the end of a queue  4.x: the client is sent to 0 if the queue begins there, else to the end; 5.x: to the end
    the delay offsets are lost          delayed messages that were delivered are delivered again

How far a group had come is read from the torn file, as far as it goes.

Format: docs/formats/rocketmq.md, sections 10.1 and 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mqstore.diagnosis import Evidence
from mqstore.rocketmq.config.consumer_offset_file import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS, load_delay_offsets
from mqstore.rocketmq.diagnosis.configuration import LoadedConfig, readable_offsets, torn_text
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import CHECK_GROUP, SCHEDULE_TOPIC
from mqstore.rocketmq.store.recovered_view import RecoveredView
from mqstore.rocketmq.store.store import RocketMQStore


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
