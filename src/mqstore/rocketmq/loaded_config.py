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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from mqstore.diagnosis import Evidence
from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS, LMQ_OFFSETS, load_delay_offsets
from mqstore.rocketmq.config.topic_table import TOPICS_FILE
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import DEFAULT_FILE_SIZE
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.profile import profile, version_rules
from mqstore.rocketmq.format.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, Record, decode_properties
from mqstore.rocketmq.format.system_topics import CHECK_GROUP, RETRY_PREFIX, is_internal
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.unread_parts import EPOCHS, IDENTITY
from mqstore.table.formatting import count, moment

if TYPE_CHECKING:
    from mqstore.rocketmq.store.recovered_view import RecoveredView
    from mqstore.rocketmq.store.view import QueueView

_ALWAYS = (TOPICS_FILE, "config/subscriptionGroup.json", "config/consumerFilter.json", DELAY_OFFSETS)
_ONLY_BROKERS = ("config/consumerFilter.json", "config/subscriptionGroup.json")
CLUSTER = "CLUSTER"  # a property that a broker adds to what producers send
SAMPLED = 100  # messages
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
        file = fastjson.load(directory, relative)
        fault = "; ".join(item.detail for item in file.findings if item.file == relative)
        size = len(_raw(directory, relative) or b"")
        if file.used == "main":
            yield LoadedConfig(relative, "main", size, fault)
        elif file.used == "bak":
            yield LoadedConfig(relative, "bak", size, fault)
        else:
            yield LoadedConfig(relative, "fails" if _raw(directory, f"{relative}.bak") else "empty", size, fault)


_OLD_NAMES = ("mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue")


def sizes_not_known(store: RocketMQStore, version: str) -> Iterator[tuple[Evidence, str]]:
    """Yield what a version makes of a file size that the configuration has under another version's name, and what to do first.

    It takes the default, and does not load files of another size.
    """
    is_old = profile(version).spells_maped
    if is_old is None:
        return
    config = store.paths_config
    given = dict(config.lines)
    queues = max((queue.file_size for queue in store.consume_queues() if queue.files), default=0)
    for old, size, default in zip(_OLD_NAMES, (store.log.file_size, queues), (1 << 30, DEFAULT_FILE_SIZE), strict=True):
        new = old.replace("mapedF", "mappedF")
        name, known = (new, old) if is_old else (old, new)
        if name in given and known not in given and size not in (0, default):
            sentence = f"{config.where(name)} is a name that {version} does not know: it takes {default}, and does not load files of {size}"
            yield Evidence("refused", ".", sentence), f"write {known} instead of {config.where(name)}"


def of_a_group(store: RocketMQStore) -> bool:
    """Return whether the broker is one of a controller's group."""
    return store.paths_config.store_path_epoch_file is not None or any(map(store.directory.exists, (EPOCHS, IDENTITY)))


def unread_logs(store: RocketMQStore) -> Iterator[str]:
    """Yield what is not known of a store because messages are elsewhere: in a DLedger log, in tiered storage, at the master of a group."""
    config = store.paths_config
    if of_a_group(store):
        yield "what of the end of the log a broker keeps that becomes a slave in its controller's group: it cuts what the master lacks"
    ledger, tier = config.store_path_dledger_commit_log, config.tiered_store_file_path
    if ledger is not None and store.dledger is None:
        yield f"which messages are in the DLedger log at {ledger}, which {config.where('storePathDLedgerCommitLog')} names: it is not read"
    if tier is not None:
        yield f"which messages are in tiered storage at {tier}, which {config.where('tieredStoreFilePath')} names: it is not read"


def _raw(directory: ReadOnlyDirectory, relative: str) -> bytes | None:
    try:
        return directory.read(relative, fastjson.LIMIT)
    except CannotOpenError:
        return None


def torn_text(directory: ReadOnlyDirectory, relative: str) -> str:
    """Return the text of a file that is not a whole document, as far as it can be read."""
    return decode_utf8(_raw(directory, relative) or b"")


def readable_offsets(text: str) -> dict[str, dict[int, int]]:
    """Return key -> queue id -> offset of the whole pairs in a torn offset file. A number that the tear may have cut is left out.

    The offsets that are pulled, which 5.x keeps after those that are consumed, are not among them.
    """
    tables = {}
    text = text.partition('"pullOffsetTable"')[0]
    for match in _TABLE.finditer(text):
        end, first = match.start(), max(0, match.start() - _KEY_SIZE)
        start = text.rfind('"', first, end)
        while start > 0 and text[start - 1] == "\\":  # a quotation mark in the key
            start = text.rfind('"', first, start)
        if start >= 0:
            tables[text[start + 1 : end]] = {int(queue_id): int(offset) for queue_id, offset in _PAIR.findall(match[1])}
    return tables


# Redelivery: which messages consumers get although they had them, because their progress is lost or lies outside its queue.
#
#     the progress file is torn           the .bak, or nothing, is loaded: each group continues from there
#     the progress file is an older one   as far as its .bak is ahead of it
#     messages have other queue offsets   those that a group had, and that are now listed after its place
#     an offset after the end of a queue  4.x: the client is sent to 0 if the queue begins there, else to the end; 5.x: to the end
#     messages in hand of pop consumers   they come again when their time is over, unless they are acknowledged first: no harm
#     the delay offsets are lost or old   delayed messages whose copy is in their topic are delivered again
#
# How far a group had come is read from the torn file, as far as it goes. Places from which no message comes do not count.


@dataclass(frozen=True, slots=True)
class Redelivery:
    """messages: delivered again, each for each group. in_hand: further ones that pop consumers have in hand, which always come again.

    unknown: what cannot be determined.
    """

    messages: int
    in_hand: int
    evidence: tuple[Evidence, ...]
    unknown: tuple[str, ...]


Shifted = Mapping[tuple[str, int], Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]]
Reached = Mapping[tuple[str, int], int]  # offsets of a group, by queue
HadElsewhere = Callable[[tuple[str, int], int, int, Reached], int]
HadBefore = Callable[[tuple[str, int], int, int, Reached], int]


def redelivery(
    store: RocketMQStore,
    view: RecoveredView,
    configs: list[LoadedConfig],
    last_timestamp: int,
    shifted: Shifted,
    had_before: HadBefore,
    had_elsewhere: HadElsewhere,
) -> Redelivery:
    """Return what is delivered again after a start that ends in `view`. last_timestamp: store time of the newest message.

    shifted: by queue, queue offsets and physical offsets of the records that are listed elsewhere than at their queue offsets. had_before:
    returns how many messages that it had a group gets from the places between two queue offsets; had_elsewhere: how many further ones of
    other places it gets from the second of two on.
    """
    evidence: list[Evidence] = []
    unknown: list[str] = []
    reached = _furthest(store, configs)
    for config in configs:
        if config.file in (CONSUMER_OFFSETS, LMQ_OFFSETS) and config.outcome in ("bak", "empty"):
            evidence += _of_groups(store, view, config, reached, had_before)
            state = "the older offsets of its .bak" if config.outcome == "bak" else "no offsets at all"
            there = store.directory.exists(config.file)
            why, whose = ("cannot be parsed", "the groups in its unreadable part") if there else ("is missing", "its groups")
            unknown.append(f"{config.file} {why}, and the broker starts with {state}: how far {whose} had come")
    doubts = list(without_offsets(store, configs))
    unknown += doubts
    if not doubts and store.directory.is_directory("config") and _lacks_offsets(store, configs):
        why = f"there is no {CONSUMER_OFFSETS}: if consumer groups read from this store, where they continue cannot be told"
        evidence.append(Evidence("note", CONSUMER_OFFSETS, why))
    evidence += _of_delays(store, view, last_timestamp, unknown)
    evidence += _past_the_end(view, reached, had_before)
    evidence += _of_older_offsets(store, view, configs, reached, had_before)
    evidence += _of_shifted(view, shifted, reached, had_elsewhere)
    in_hand = [Evidence("in-hand", "commitlog", sentence, messages=number) for sentence, number in _in_hand(view)]
    unknown += (f"which messages pop consumers have in hand: {note}" for note in view.pops.notes)
    messages = sum(item.messages for item in evidence)
    return Redelivery(messages, sum(item.messages for item in in_hand), (*evidence, *in_hand), tuple(unknown))


def _in_hand(view: RecoveredView) -> Iterator[tuple[str, int]]:
    """Yield (sentence, number) of the messages that each group has popped and not acknowledged."""
    for (group, topic, queue_id), held in sorted(view.pops.held.items()):
        queue = view.queue_or_none(topic, queue_id)
        number = 0 if queue is None else sum(queue.min_offset <= at < queue.max_offset for at in held)
        if number:
            what = f"{count(number, 'message')} of topic {topic!r}, queue {queue_id}"
            last = f"the last after {moment(max(held.values()))} UTC" if number > 1 else f"after {moment(max(held.values()))} UTC"
            yield f"group {group!r} popped {what} and did not acknowledge {'them' if number > 1 else 'it'}: delivered again, {last}", number


def without_offsets(store: RocketMQStore, configs: list[LoadedConfig]) -> Iterator[str]:
    """Yield what is not known if there is no offset file at all, although a broker has written the store, with groups or not.

    A broker writes the file every few seconds, also without groups; a store that was never a broker's has none.
    """
    if not _lacks_offsets(store, configs):
        return
    groups = sorted(topic.removeprefix(RETRY_PREFIX) for topic in store.topics.names if topic.startswith(RETRY_PREFIX))
    if groups:
        named = f"{count(len(groups), 'group')}, {groups[0]!r} among them," if len(groups) > 1 else f"group {groups[0]!r}"
        yield (
            f"{CONSUMER_OFFSETS} and its .bak are not there: how far {named} had come; "
            "a group without an offset begins where its clients say, and may get every message again"
        )
        return
    why = next(_signs_of_a_broker(store), None)
    if why is not None:
        yield (
            f"how far the consumer groups had come, if there were any: this cannot be told without {CONSUMER_OFFSETS}, which is not there, "
            f"nor its .bak, although {why}; a group without an offset begins where its clients say, and may get every message again"
        )


def _lacks_offsets(store: RocketMQStore, configs: list[LoadedConfig]) -> bool:
    return store.offset_table.used is None and all(config.file not in (CONSUMER_OFFSETS, LMQ_OFFSETS) for config in configs)


def _signs_of_a_broker(store: RocketMQStore) -> Iterator[str]:
    """Yield what only a broker writes, as the end of a sentence: other files, or a property that it adds to each message."""
    yield from (
        f"a broker wrote {path}" for path in (*_ONLY_BROKERS, *(f"{path}.bak" for path in _ONLY_BROKERS)) if store.directory.exists(path)
    )
    yield from (f"there is {name}, which a broker makes" for name in ("timerwheel", "compaction") if store.directory.has_entry(name))
    clusters = {decode_properties(record.properties).get(CLUSTER) for record in _first_of_clients(store)}
    if len(clusters) == 1 and clusters != {None}:
        yield f"a broker of cluster {clusters.pop()!r} took the messages"


def _first_of_clients(store: RocketMQStore) -> Iterator[Record]:
    """Yield some of the first messages that clients sent."""
    for file in store.log.files:
        for event in store.log.scan_file(file):
            if not isinstance(event, Records) or not len(event):
                continue
            for at in event.positions[:SAMPLED].tolist():
                record = store.log.record(file.start + at)
                if record is None or record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:  # as the fillers of a repair are
                    continue
                if not is_internal(record.topic) and not record.topic.startswith("%"):
                    yield record
            return


def _between(queue: QueueView, low: int, high: int, reached: Reached, had_before: HadBefore) -> int:
    """Count the messages that a group had and gets from one queue offset to before another."""
    low, high = max(low, queue.min_offset), min(high, queue.max_offset)
    return had_before((queue.topic, queue.queue_id), low, max(low, high), reached)


def _readable_table(directory: ReadOnlyDirectory, relative: str) -> dict[tuple[str, str], dict[int, int]]:
    """Return (group, topic) -> queue id -> offset of the readable part of an offset file."""
    tables = {}
    for key, by_queue in sorted(readable_offsets(torn_text(directory, relative)).items()):
        topic, _, group = key.partition("@")
        tables[group, topic] = by_queue
    return tables


def _furthest(store: RocketMQStore, configs: list[LoadedConfig]) -> dict[str, dict[tuple[str, int], int]]:
    """Return how far each group had come, by queue, as far as an offset file or its .bak shows."""
    tables: list[Mapping[tuple[str, str], Mapping[int, int]]] = [store.offset_table.offsets]
    files = [config.file for config in configs if config.file in (CONSUMER_OFFSETS, LMQ_OFFSETS)]
    tables += (_readable_table(store.directory, f"{file}{suffix}") for file in files for suffix in ("", ".bak"))
    reached: dict[str, dict[tuple[str, int], int]] = {}
    for table in tables:
        for (group, topic), by_queue in table.items():
            of_group = reached.setdefault(group, {})
            for queue_id, offset in by_queue.items():
                of_group[topic, queue_id] = max(offset, of_group.get((topic, queue_id), 0))
    return reached


def _of_groups(
    store: RocketMQStore, view: RecoveredView, config: LoadedConfig, reached: Mapping[str, Reached], had_before: HadBefore
) -> Iterator[Evidence]:
    loaded = store.offset_table.offsets
    for (group, topic), by_queue in _readable_table(store.directory, config.file).items():
        again = 0
        for queue_id, offset in by_queue.items():
            queue = view.queue_or_none(topic, queue_id)
            if queue is not None:
                committed = loaded.get((group, topic), {}).get(queue_id, queue.min_offset)
                again += _between(queue, committed, offset, reached[group], had_before)
        if again:
            source = "its .bak" if config.outcome == "bak" else "an empty table"
            sentence = f"group {group!r} continues on topic {topic!r} from {source}: it gets at least {again} messages again"
            yield Evidence("progress-lost", config.file, sentence, 0, config.size, again)


def _of_older_offsets(
    store: RocketMQStore, view: RecoveredView, configs: list[LoadedConfig], reached: Mapping[str, Reached], had_before: HadBefore
) -> Iterator[Evidence]:
    """A broker keeps the offsets before the last change as .bak: where these are ahead, the file is an older one, or was set back."""
    for config in configs:
        if config.file not in (CONSUMER_OFFSETS, LMQ_OFFSETS) or config.outcome != "main":
            continue
        for (group, topic), by_queue in _readable_table(store.directory, f"{config.file}.bak").items():
            again = 0
            for queue_id, before in by_queue.items():
                queue, offset = view.queue_or_none(topic, queue_id), store.offset_table.offsets.get((group, topic), {}).get(queue_id)
                if queue is not None and offset is not None:
                    again += _between(queue, offset, before, reached[group], had_before)
            if again:
                sentence = (
                    f"group {group!r} continues before its place in the .bak on topic {topic!r}: the file is an older one, or its "
                    f"offsets were set back; it gets {count(again, 'message')} again"
                )
                yield Evidence("progress-lost", config.file, sentence, 0, config.size, again)


def _of_shifted(view: RecoveredView, shifted: Shifted, reached: Mapping[str, Reached], had_elsewhere: HadElsewhere) -> Iterator[Evidence]:
    """Messages that a group had, by their queue offsets, and that are listed after the place where it continues; and the reverse."""
    for item in view.consumer_offsets():
        key = (item.topic, item.queue_id)
        queue, parts = view.queue_or_none(*key), shifted.get(key, ())
        if queue is None or item.state not in ("ok", "below-min") or item.group == CHECK_GROUP:
            continue
        of_group = reached[item.group]
        furthest = max(item.offset, of_group[key])  # what is before that counts as progress that is lost
        again = had_elsewhere(key, item.offset, furthest, of_group)
        passed = 0
        if parts:
            offsets, physical = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
            rows = queue.entries(max(item.offset, queue.min_offset), queue.max_offset)
            passed = int(((offsets >= item.offset) & ~np.isin(physical, rows["physical_offset"].astype(np.int64))).sum())
        if what := [f"gets {count(again, 'message')} again"] * bool(again) + [f"does not get {count(passed, 'message')}"] * bool(passed):
            sentence = (
                f"group {item.group!r} continues at {item.offset} of topic {item.topic!r}, queue {item.queue_id}, where messages have "
                f"other queue offsets than before: it {' and '.join(what)}"
            )
            yield Evidence("moved", CONSUMER_OFFSETS, sentence, messages=again)


def _of_delays(store: RocketMQStore, view: RecoveredView, last_timestamp: int, unknown: list[str]) -> Iterator[Evidence]:
    from mqstore.rocketmq.delayed import delay_levels

    untold = 0
    for level in delay_levels(view, store.log, load_delay_offsets(store.directory).by_level, last_timestamp):
        untold += level.untold
        if level.again:
            sentence = (
                f"delay level {level.level} continues at {level.begin}: {count(level.again, 'delayed message')}, delivered before as the "
                f"{'copy in its topic shows, is' if level.again == 1 else 'copies in their topics show, are'} delivered again"
            )
            yield Evidence("progress-lost", DELAY_OFFSETS, sentence, messages=level.again)
    if untold:
        unknown.append(
            f"whether {count(untold, 'delayed message')} had been delivered before: the time had come, and no unique key can be read by "
            "which to find the copy"
        )


def _past_the_end(view: RecoveredView, reached: Mapping[str, Reached], had_before: HadBefore) -> Iterator[Evidence]:
    for item in view.consumer_offsets():
        if item.state != "above-max" or item.min_offset is None or item.max_offset is None or item.group == CHECK_GROUP:
            continue
        starts_over = bool(item.max_offset) and item.min_offset == 0 and version_rules(view.version).far_offsets_start_over
        again = had_before((item.topic, item.queue_id), 0, item.max_offset, reached[item.group]) if starts_over else 0
        what = f"is sent back to 0 and gets {again} messages again" if starts_over else f"continues at its end, {item.max_offset}"
        queue = f"topic {item.topic!r}, queue {item.queue_id}, which ends at {item.max_offset}"
        sentence = f"group {item.group!r} is at {item.offset} of {queue}: it {what}"
        yield Evidence("offset-past-end", CONSUMER_OFFSETS, sentence, messages=again)
