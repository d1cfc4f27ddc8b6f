"""Why a key query answers as it does.

The broker's answer and the user's question differ: the index returns records whose key has the right *hash* (index hits), the
user wants records that really have the *key* (messages). If messages that exist are missing from the answer, or it is empty, the
commit log is scanned for the key, and the reason is found for each message that the index did not return. The reasons are a
fixed list (`Reason`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.dispatcher import DispatchRules, dispatch_positions
from mqstore.rocketmq.format.commit_log import EndOfFile, Records
from mqstore.rocketmq.format.index_file import SearchStep
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.format.record import Record, split_keys
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS, IndexAnswer, IndexFileLike, query_offsets, search, time_matches
from mqstore.rocketmq.store.log_site import lacks_of_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.view import View
from mqstore.table.columns import Selection
from mqstore.table.formatting import count, did_you_mean

DATABASE = "rocksdbstore"  # in place of the name of an index file
KEYS_READ = 16 << 20  # bytes at the end of the log with whose keys a misspelt one is compared


# Why a key query or a lookup found nothing, or not everything: the fixed list of reasons.
#
# A query explains its answer with one reason; a lookup gives one for each key without a message. The order is the rank:
# where several reasons apply to the same number of messages, the first one is given.


class Reason(StrEnum):
    """Why an answer is empty or short. The first one that applies is given."""

    AFTER_INDEX_END = "after-index-end"  # the message was stored after the last entry of the index
    INDEX_FILE_DROPPED = "index-file-dropped"  # recovery deletes the index file that has the entry and does not recreate it
    INDEX_FILE_MISSING = "index-file-missing"  # no index file covers the message
    INDEX_FILE_UNSOUND = "index-file-unsound"  # in the covering index file a slot, chain or entry on the way to the message is broken
    OUTSIDE_TIME_WINDOW = "outside-time-window"  # the entry's time, as the index computes it, is outside the requested range
    CUT_BY_MAX = "cut-by-max"  # there are more hits than were requested, or than the broker's limit
    RECORD_DAMAGED = "record-damaged"  # the index points at bytes that are not a valid record
    REMOVED_BY_RETENTION = "removed-by-retention"  # the index points before the first log file
    HASH_COLLISIONS_ONLY = "hash-collisions-only"  # every hit is a record with another topic or key of the same hash
    NO_INDEX_ENTRY = "no-index-entry"  # neither the index nor the log that it does not cover has an entry of the hash
    TOPIC_NEVER_SEEN = "topic-never-seen"  # no record, queue or configuration has the topic
    NOT_IN_STORE = "not-in-store"  # the whole log was read without damage: no record has the key in the topic
    KEY_NEVER_SEEN = "key-never-seen"  # no readable record has the key in the topic


_ADVICE = {
    Reason.AFTER_INDEX_END: "`mqstore rebuild` makes an index of the whole log; a broker indexes what it dispatches again at start",
    Reason.INDEX_FILE_DROPPED: "query with --view disk, or make a complete index with `mqstore rebuild`",
    Reason.INDEX_FILE_MISSING: "`mqstore rebuild` makes the index from the log",
    Reason.INDEX_FILE_UNSOUND: "`mqstore verify` names the broken entries; `mqstore rebuild` makes the index from the log",
    Reason.OUTSIDE_TIME_WINDOW: "widen --begin and --end: the index keeps whole seconds only",
    Reason.CUT_BY_MAX: "raise --max (a broker returns at most 64), or page with --end set to the oldest message's store time minus 1",
    Reason.RECORD_DAMAGED: "`mqstore verify` maps the damage",
    Reason.REMOVED_BY_RETENTION: "the log file was deleted by the broker's retention; a backup may have it",
    Reason.HASH_COLLISIONS_ONLY: "check the key's spelling: the hits belong to other keys",
    Reason.KEY_NEVER_SEEN: "check the key's spelling, and whether the producer set KEYS",
    Reason.TOPIC_NEVER_SEEN: "`mqstore topics` lists the topics; the topic may be on another broker",
}
# reasons after which the answer may lack messages that nothing shows any more
_LOST = frozenset({Reason.RECORD_DAMAGED, Reason.REMOVED_BY_RETENTION})


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """The answer to a key query.

    index_hits: physical offsets in the order of the broker's index search. messages: those that really have the key, ascending.
    missing: physical offsets of messages that have the key and are not in the answer (known only if the log was scanned).
    complete: the answer misses nothing, as far as was checked; never of one file of a log, because other files may hold the key.
    """

    topic: str
    key: str
    view: str
    index_hits: tuple[int, ...]
    messages: tuple[int, ...]
    complete: bool
    reason: str | None
    detail: str
    advice: str
    index_last_update_timestamp: int
    index_last_update_phyoffset: int
    scanned: bool
    missing: tuple[int, ...] = ()
    steps: tuple[SearchStep, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are messages, and none that is known to be missing."""
        return self.reason is None and bool(self.messages)

    def as_dict(self, rows: Sequence[dict[str, Any]], *, explained: bool = False) -> dict[str, Any]:
        """Return the document that `query -o json` prints. rows: of the messages; explained: with the steps of the search."""
        document: dict[str, Any] = {
            "topic": self.topic,
            "key": self.key,
            "view": self.view,
            "index_hits": list(self.index_hits),
            "messages": rows,
            "complete": self.complete,
            "reason": self.reason,
            "detail": self.detail,
            "advice": self.advice,
            "missing": list(self.missing),
            "scanned": self.scanned,
            "index_last_update_timestamp": self.index_last_update_timestamp,
            "index_last_update_phyoffset": self.index_last_update_phyoffset,
        }
        return document | ({"steps": [step.as_dict() for step in self.steps]} if explained else {})


def has_key(message: Record, topic: str, key: str) -> bool:
    """Return whether a record has the topic, and the key among KEYS or as UNIQ_KEY."""
    if message.topic != topic:
        return False
    properties = message.property_map()
    return properties.get("UNIQ_KEY") == key or key in split_keys(properties.get("KEYS", ""))


def query(
    store: RocketMQStore,
    view: View,
    topic: str,
    key: str,
    max_num: int = MAX_RESULTS,
    begin: int = 0,
    end: int = END_OF_TIME,
    *,
    explain: bool = False,
    scan: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> KeyAnswer:
    """Answer as the broker would, and report what the answer misses.

    begin, end: store time in milliseconds, both included. explain: record every step, and scan the log even if there is an answer.
    scan: allow the scan that the reason for an empty answer needs.
    """
    steps: list[SearchStep] | None = [] if explain else None
    files = view.index_files()
    answer = query_offsets(files, topic, key, max_num, begin, end, cap=store.config.max_msgs_num_batch or MAX_RESULTS, steps=steps)
    limit = min(max_num, store.config.max_msgs_num_batch or MAX_RESULTS)
    answer = _with_database(store, answer, topic, key, limit, begin, end, steps)
    low, _ = view.log_range()
    matches, damaged, removed = [], [], []
    for offset in dict.fromkeys(answer.offsets):
        if offset < low:
            removed.append(offset)
            continue
        message = view.record(offset)
        if message is None:
            damaged.append(offset)
        elif has_key(message, topic, key):
            matches.append(offset)
    scanned = scan and (explain or not matches)
    seen = _Scan(store, view, topic, key, progress) if scanned else None
    unanswered = {offset: stored for offset, stored in seen.found.items() if offset not in matches} if seen else {}
    # messages stored outside the requested range are not missing from an answer; they only explain an empty one
    missing = tuple(offset for offset, stored in unanswered.items() if begin <= stored <= end)
    if not matches and not missing:
        missing = tuple(unanswered)
    reason: Reason | None = None
    detail = ""
    if missing:
        reason, detail = _why_missing(store, view, files, topic, key, missing, begin, end)
    elif damaged:
        reason, detail = Reason.RECORD_DAMAGED, f"the index points at physical offset {damaged[0]}, where no valid record starts"
    elif matches and removed:
        reason, detail = Reason.REMOVED_BY_RETENTION, f"the index points at physical offset {removed[0]}, but the log now starts at {low}"
    elif not matches and seen is not None:
        reason, detail = _why_nothing(store, view, topic, key, answer.offsets, removed, seen)
    elif not seen and len(answer.offsets) >= limit:
        reason, detail = Reason.CUT_BY_MAX, f"the maximum of {limit} hits was reached; there may be more"
    advice = "" if reason is None else _ADVICE[reason]
    if reason is Reason.TOPIC_NEVER_SEEN and store.log_only:
        advice = "`mqstore messages` lists the messages with their topics; the topic may be in other files of the log"
    whole = not (store.log_only or (not matches and lacks_of_log(store, expired=False)))
    lacks = "" if matches or reason is None else lacks_of_log(store)
    if lacks:
        detail = f"{detail}; {lacks}"
        advice = f"what is not here cannot be found, and `mqstore inspect` lists what is; {advice}"
    return KeyAnswer(
        topic,
        key,
        view.name,
        answer.offsets,
        tuple(sorted(matches)),
        # without a scan, an answer is complete as far as the index knows; damage found by a scan may hide a message with the key
        whole and (reason is None if seen is None else not seen.damage and not missing and reason not in _LOST),
        None if reason is None else str(reason),
        detail,
        advice,
        answer.last_update_timestamp,
        answer.last_update_physical_offset,
        scanned,
        missing,
        tuple(steps or ()),
    )


def _with_database(
    store: RocketMQStore, answer: IndexAnswer, topic: str, key: str, limit: int, begin: int, end: int, steps: list[SearchStep] | None
) -> IndexAnswer:
    """Return the answer of the index files, and what else the index in RocksDB has."""
    index = store.database_index
    if index is None:
        return answer
    hits = index.hits(topic, key, limit, begin, end)
    if steps is not None:
        steps.extend(SearchStep(DATABASE, 0, 0, hit.physical_offset, hit.stored, "taken") for hit in hits)
        if not hits:
            steps.append(SearchStep(DATABASE, 0, 0, None, None, "the database has no entry of the key in the time range"))
    offsets = tuple(dict.fromkeys((*answer.offsets, *(hit.physical_offset for hit in hits))))[: max(limit, len(answer.offsets))]
    if (index.last_offset or 0) <= answer.last_update_physical_offset:
        return answer._replace(offsets=offsets)
    return IndexAnswer(offsets, index.last_store_timestamp or 0, index.last_offset or 0, answer.looping)


class _Scan:
    """One walk over the log for a key: where the key is found, whether the topic occurs, and which ranges could not be read."""

    def __init__(self, store: RocketMQStore, view: View, topic: str, key: str, progress: Callable[[int, int], None] | None) -> None:
        self.found: dict[int, int] = {}  # physical offset -> store time
        self.topic_seen = False
        self.damage: list[Damage] = []
        self.records = 0
        low, high = view.log_range()
        target = index_hash(topic, key)
        rules = DispatchRules(delays=())
        for event in store.log.scan(low, high):
            if isinstance(event, Records):
                self._take(event, view, rules, target, topic, key)
                if progress is not None:
                    progress(event.file.start + int(event.positions[-1]) - low, high - low)
            elif not isinstance(event, EndOfFile):
                self.damage.append(event)

    def _take(self, records: Records, view: View, rules: DispatchRules, target: int, topic: str, key: str) -> None:
        self.records += len(records)
        dispatched = dispatch_positions(records.data, records.positions, rules)
        self.topic_seen = self.topic_seen or any(run.topic == topic for run in dispatched.runs)
        keys = dispatched.keys
        for offset in np.unique(keys["physical_offset"][keys["hash"] == target]).tolist():
            message = view.record(int(offset))
            if message is not None and has_key(message, topic, key):
                self.found[int(offset)] = message.store_timestamp


def _why_missing(
    store: RocketMQStore,
    view: View,
    files: Sequence[IndexFileLike],
    topic: str,
    key: str,
    missing: Sequence[int],
    begin: int,
    end: int,
) -> tuple[Reason, str]:
    """Return the reason that most messages missing from the answer share, and of equally frequent ones the first in rank."""
    reasons = {offset: _why(store, view, files, topic, key, offset, begin, end) for offset in missing}
    order = list(Reason)
    counts = Counter(reasons.values())
    reason = min(counts, key=lambda each: (-counts[each], order.index(each)))
    offset = next(offset for offset, each in reasons.items() if each is reason)
    many = (
        f"the log has {count(len(missing), 'message')} with the key that the query does not find; "
        if len(missing) > 1
        else "the log has a message with the key that the query does not find; "
    )
    ends = [file.end_physical_offset for file in files]
    if store.database_index is not None:
        ends.append(store.database_index.last_offset or 0)
    newest = max(ends, default=None)
    sentences = {
        Reason.AFTER_INDEX_END: f"{'it' if len(missing) == 1 else 'the first'} is at physical offset {offset}, the index ends at {newest}",
        Reason.INDEX_FILE_DROPPED: f"recovery deletes the index file with the entry for physical offset {offset}, and does not recreate it",
        Reason.INDEX_FILE_MISSING: _no_cover(store, offset, files),
        Reason.INDEX_FILE_UNSOUND: f"the index file that covers physical offset {offset} has no intact chain to it",
        Reason.OUTSIDE_TIME_WINDOW: (
            f"the time of the entry for physical offset {offset}, as the index computes it, is outside {begin} to {end}, "
            "or an older entry ends the search before it"
        ),
        Reason.CUT_BY_MAX: f"the search ended with enough hits before it came to physical offset {offset}",
    }
    return reason, many + sentences[reason]


def _why(
    store: RocketMQStore, view: View, files: Sequence[IndexFileLike], topic: str, key: str, offset: int, begin: int, end: int
) -> Reason:
    """Return why the search did not return the message at a physical offset."""
    used = [file for file in files if file.index_count > 1]
    covering = [file for file in used if file.begin_physical_offset <= offset <= file.end_physical_offset]
    if not covering:
        on_disk = [file for file in store.index_files() if file.index_count > 1]
        if view.name == "recovered" and any(file.begin_physical_offset <= offset <= file.end_physical_offset for file in on_disk):
            return Reason.INDEX_FILE_DROPPED
        in_database = store.database_index.last_offset if store.database_index is not None else None
        ends = [*(file.end_physical_offset for file in used[-1:]), *([] if in_database is None else [in_database])]
        return Reason.AFTER_INDEX_END if ends and offset > max(ends) else Reason.INDEX_FILE_MISSING
    for file in covering:
        # without limits and with any time: does the chain lead there at all?
        steps: list[SearchStep] = []
        search(file, index_hash(topic, key), file.index_count + 1, -(2**63), END_OF_TIME, [], steps)
        entry = next((step for step in steps if step.outcome == "taken" and step.physical_offset == offset), None)
        if entry is not None and entry.timestamp is not None:
            inside = time_matches(file, begin, end) and begin <= entry.timestamp <= end
            older = any(step.timestamp is not None and step.timestamp < begin for step in steps[: steps.index(entry)])
            return Reason.CUT_BY_MAX if inside and not older else Reason.OUTSIDE_TIME_WINDOW
    return Reason.INDEX_FILE_UNSOUND


def _no_cover(store: RocketMQStore, offset: int, files: Sequence[IndexFileLike]) -> str:
    if store.database_index is not None:
        return f"neither an index file nor the index in RocksDB has the entry for physical offset {offset}"
    if store.unread_index_sentence is not None:
        return f"no index file covers physical offset {offset}; {store.unread_index_sentence}"
    return f"no index file covers physical offset {offset}" if files else "there is no index file at all"


def _why_nothing(
    store: RocketMQStore, view: View, topic: str, key: str, hits: Sequence[int], removed: Sequence[int], seen: _Scan
) -> tuple[Reason, str]:
    """Return the reason for an empty answer when no valid record of the log has the key."""
    damaged = _damage_with(store, key, seen.damage)
    if damaged is not None:
        return Reason.RECORD_DAMAGED, f"the key is in damaged bytes of {damaged.file} at {damaged.offset}"
    low, _ = view.log_range()
    if removed:
        return Reason.REMOVED_BY_RETENTION, f"the index points at physical offset {removed[0]}, but the log now starts at {low}"
    older = _entries_below(view, topic, key, low)
    if older is not None:
        return (
            Reason.REMOVED_BY_RETENTION,
            f"the index has an entry of this hash for physical offset {older}, but the log now starts at {low}",
        )
    if hits:
        return Reason.HASH_COLLISIONS_ONLY, f"all {len(hits)} hits have other keys or topics with the same 32-bit hash"
    searched = "file" if store.one_file else "files" if store.log_only else "log"
    known = seen.topic_seen or any(queue.topic == topic for queue in view.queues()) or topic in store.topics.names
    if known:
        return Reason.KEY_NEVER_SEEN, f"none of the {seen.records} records of the {searched} has this key in topic {topic!r}"
    named = "" if store.log_only else ", and no queue or configuration names it"
    return Reason.TOPIC_NEVER_SEEN, f"none of the {seen.records} records of the {searched} has topic {topic!r}{named}"


def _entries_below(view: View, topic: str, key: str, low: int) -> int | None:
    """Return the newest entry of the key's hash that points before the log, whatever its time."""
    if low <= 0:
        return None
    for file in reversed(view.index_files()):
        hits: list[int] = []
        search(file, index_hash(topic, key), file.index_count + 1, -(2**63), END_OF_TIME, hits)
        below = next((offset for offset in hits if offset < low), None)
        if below is not None:
            return below
    return None


def _damage_with(store: RocketMQStore, key: str, damage: Sequence[Damage]) -> Damage | None:
    """Return the first damaged range of the log that contains the bytes of the key."""
    needle = key.encode("utf-8", "surrogateescape")
    for item in damage:
        file = next((file for file in store.log.files if file.relative == item.file), None)
        if file is not None and needle and store.log.mapped(file).find(needle, item.offset, item.offset + item.length) >= 0:
            return item
    return None


def meant(store: RocketMQStore, view: View, answer: KeyAnswer) -> str:
    """Return what may have been meant by a key, or a topic, that was never seen; empty if nothing is alike."""
    if answer.reason == Reason.KEY_NEVER_SEEN:
        return did_you_mean(answer.key, _keys_like(view, answer.topic, answer.key))
    known = {*store.topics.names, *(queue.topic for queue in store.view().queues())}
    return did_you_mean(answer.topic, known) if answer.reason == Reason.TOPIC_NEVER_SEEN else ""


def _keys_like(view: View, topic: str, key: str) -> set[str]:
    """Return keys of the newest messages of a topic that may have been meant: with other digits, a key is that of another order."""
    low, high = view.log_range()
    newest = Selection(topics=frozenset({topic}), from_offset=max(low, high - KEYS_READ))
    known = {each for batch in view.batches(("keys",), newest) for keys in batch.column(0).to_pylist() for each in keys or ()}
    digits = re.sub(r"\D", "", key)
    return {each for each in known if abs(len(each) - len(key)) <= 2 and re.sub(r"\D", "", each) == digits}
