"""Structural states of RocketMQ stores: what `diagnose` says, what a real store delivers, and the same after a repair.

A seed is one state: a golden store with one change or two. The states of a group are loaded in one JVM, and their queues drained by pulls.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from interop.diagnosing import Outcome, Place, outcomes_of
from interop.realbroker import why_not
from proofs.changes import Change, circled, one_file, swapped
from support.golden import GoldenCase, case_named, opened, unpack
from support.repairs import image_of
from support.rocketmq_states import record_starts

from mqstore.places import open_rocketmq
from mqstore.repair.journal import apply, read_journal, undo
from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS, DELAY_OFFSETS
from mqstore.rocketmq.format.batch_consume_queue import UNIT_SIZE
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import ENTRY
from mqstore.rocketmq.format.record import decode_properties
from mqstore.rocketmq.query.index_search import query_offsets
from mqstore.rocketmq.repair.plan import LOCKING, plan
from mqstore.rocketmq.store.store import RocketMQStore

CASES = {
    "4.9.3": ("4.9.3/f-broker-offsets", "4.9.3/d-rolled", "4.9.3/m-damaged/0-clean", "4.9.3/c-index-collisions"),
    "5.3.3": ("5.3.3/j-broker-offsets", "5.3.3/k-rolled", "5.3.3/g-clean-small", "5.3.3/p-upgraded"),
    "5.5.0": ("5.5.0/a-clean", "5.3.3/j-broker-offsets", "5.3.3/k-rolled"),
}
BATCH_CASES = {"5.3.3": "5.3.3/o-batch-queue", "5.5.0": "5.5.0/b-batch-queue"}
VERSIONS = tuple(CASES)
PER_VERSION = 40  # seeds in a row that are states of one version, in one JVM
AT_ONCE = 12  # stores of a JVM
ASKED = 100  # messages of a golden store for which key queries are made
PATIENCE = 20.0  # seconds without a further answer, more under load: a store that waits forever keeps the others waiting


def _on_file(pattern: str, edit: Callable[[bytearray, random.Random], bytes | bytearray | None]) -> Change:
    """Return a change of one file. edit: returns its new content; None removes it."""

    def change(store: Path, dice: random.Random) -> None:
        path = one_file(store, pattern, dice)
        if path is not None:
            edited = edit(bytearray(path.read_bytes()), dice)
            if edited is None:
                path.unlink()
            else:
                path.write_bytes(edited)

    return change


def _removed(raw: bytearray, dice: random.Random) -> None:
    return None


def _cut(raw: bytearray, dice: random.Random) -> bytearray:
    return raw[: dice.choice((0, dice.randrange(len(raw)), len(raw) // 40 * 20))]


def _zeroed(raw: bytearray, dice: random.Random) -> bytearray:
    at = dice.choice((0, dice.randrange(len(raw)), dice.randrange(len(raw)) // 512 * 512))
    length = min(dice.choice((1, 20, 512, 4096, 1 << 20)), len(raw) - at)
    raw[at : at + length] = bytes(length)
    return raw


def _garbage_entries(raw: bytearray, dice: random.Random, entry: int = ENTRY.itemsize) -> bytearray:
    """Overwrite entries: past the end of the log, negative, far below, into the middle of a record, or with no size."""
    first = dice.randrange(len(raw) // entry)
    (lead,) = struct.unpack_from(">q", raw, 0)
    physical = dice.choice((1 << 40, 1 << 20, -5, -70_000, lead + 1, 0))
    size = dice.choice((300, 300, 0, -1, 1 << 30))
    for number in range(first, min(first + dice.choice((1, 2, 40)), len(raw) // entry)):
        struct.pack_into(">qiq", raw, entry * number, physical, size, 0)
    return raw


def _older_queues(store: Path, dice: random.Random, pattern: str = "consumequeue/*/*", entry: int = ENTRY.itemsize) -> None:
    """Give each queue the entries of an earlier time."""
    for queue in sorted(store.glob(pattern)):
        path = sorted(queue.iterdir())[-1]
        raw = path.read_bytes()
        path.write_bytes(raw[: entry * dice.randrange(len(raw) // entry + 1)].ljust(len(raw), b"\0"))


def _directory_removed(pattern: str) -> Change:
    def change(store: Path, dice: random.Random) -> None:
        paths = [path for path in sorted(store.glob(pattern)) if path.is_dir()]
        if paths:
            shutil.rmtree(dice.choice(paths))

    return change


def _marked(store: Path, dice: random.Random) -> None:
    (store / "abort").write_bytes(b"")


def _checkpoint(store: Path, dice: random.Random) -> None:
    """Write any times and offsets into the checkpoint of an unclean store."""
    _marked(store, dice)
    path = store / "checkpoint"
    if path.exists():
        raw = bytearray(path.read_bytes().ljust(48, b"\0"))
        heads = [file.read_bytes()[:64] for file in sorted((store / "commitlog").iterdir())]
        stored = [struct.unpack_from(">q", head, 56)[0] for head in heads if len(head) == 64 and any(head)] or [0]
        struct.pack_into(">qqq", raw, 0, *(dice.choice(stored) + dice.choice((0, 2999, 3001, 1 << 40)) for _ in range(3)))
        struct.pack_into(">q", raw, 40, dice.choice((0, -1, dice.randrange(1 << 20))))
        path.write_bytes(raw)


def _without_offsets(store: Path, dice: random.Random) -> None:
    for path in store.glob(f"{CONSUMER_OFFSETS}*"):
        path.unlink()


def _older_offsets(store: Path, dice: random.Random) -> bool:
    """Set the groups back, and keep the offsets as .bak, where a broker keeps those before. Return whether there are any."""
    path = store / CONSUMER_OFFSETS
    text = path.read_text() if path.exists() else ""
    older = re.sub(r"(?<=[{,])(\s*\d+:)(\d+)", lambda pair: f"{pair[1]}{dice.randrange(int(pair[2]) + 1)}", text)
    if older != text:
        path.with_name(f"{path.name}.bak").write_text(text)
        path.write_text(older)
    return older != text


def _empty_last_queue_file(store: Path, dice: random.Random) -> None:
    path = one_file(store, "consumequeue/*/*/*", dice)
    if path is not None:
        last = sorted(path.parent.iterdir())[-1]
        (last.parent / f"{int(last.name) + last.stat().st_size:020d}").write_bytes(b"")


def _other_header(store: Path, dice: random.Random) -> None:
    """Give an index file the header of another one, or, if there is only one, one of another time."""
    path = one_file(store, "index/*", dice)
    if path is not None:
        raw = bytearray(path.read_bytes())
        others = [other for other in sorted(store.glob("index/*")) if other != path]
        if others:
            raw[:40] = dice.choice(others).read_bytes()[:40]
        else:
            later = dice.choice((-86_400_000, 86_400_000))
            struct.pack_into(">qq", raw, 0, *(time + later for time in struct.unpack_from(">qq", raw, 0)))
        path.write_bytes(raw)


def _garbage_keys(raw: bytearray, dice: random.Random) -> bytearray:
    """Let index entries lead past the end of the log, below it, into the middle of a record, or to another time."""
    slots = next((slots for slots in (100, 50, 5_000_000) if len(raw) > 40 + 4 * slots), 0)
    (count,) = struct.unpack_from(">i", raw, 36)
    first = dice.randrange(1, max(2, count))
    for number in range(first, min(first + dice.choice((1, 3, 60)), count)):
        at = 40 + 4 * slots + 20 * number
        if at + 20 <= len(raw):
            physical = struct.unpack_from(">q", raw, at + 4)[0]
            struct.pack_into(">q", raw, at + 4, dice.choice((1 << 40, 1 << 20, -5, physical + 1)))
    return raw


REPAIRED = "repaired"
MOVED = frozenset({"log-swapped", "log-circled"})  # once repaired, its messages have other physical offsets, by which they are compared
QUEUE = "consumequeue/*/*/*"
CHANGES: dict[str, Change] = {
    "as-it-is": lambda store, dice: None,
    "log-removed": _on_file("commitlog/*", _removed),
    "log-cut": _on_file("commitlog/*", _cut),
    "log-zeroed": _on_file("commitlog/*", _zeroed),
    "log-swapped": swapped("commitlog/*"),
    "queue-file-removed": _on_file(QUEUE, _removed),
    "queue-file-cut": _on_file(QUEUE, _cut),
    "queue-file-zeroed": _on_file(QUEUE, _zeroed),
    "queue-file-swapped": swapped(QUEUE),
    "queue-removed": _directory_removed("consumequeue/*/*"),
    "topic-removed": _directory_removed("consumequeue/*"),
    "queues-removed": _directory_removed("consumequeue"),
    "queues-older": _older_queues,
    "entries-garbage": _on_file(QUEUE, _garbage_entries),
    "last-queue-file-empty": _empty_last_queue_file,
    "index-file-removed": _on_file("index/*", _removed),
    "index-file-cut": _on_file("index/*", _cut),
    "index-removed": _directory_removed("index"),
    "checkpoint-removed": _on_file("checkpoint", _removed),
    "checkpoint-zeroed": _on_file("checkpoint", _zeroed),
    "checkpoint-changed": _checkpoint,
    "configuration-removed": _directory_removed("config"),
    "configuration-file-removed": _on_file("config/*", _removed),
    "configuration-file-cut": _on_file("config/*", _cut),
    "offsets-removed": _without_offsets,
}
FURTHER: dict[str, Change] = {
    "log-circled": circled("commitlog/*"),
    "queue-file-circled": circled(QUEUE),
    "index-file-swapped": swapped("index/*"),
    "index-file-circled": circled("index/*"),
    "index-header-of-another": _other_header,
    "keys-garbage": _on_file("index/*", _garbage_keys),
}
FURTHER_FROM = 60_000  # the seeds from which on one of these is the first change
UNITS = "batchconsumequeue/*/*/*"
BATCHES: dict[str, Change] = {
    "batch-file-removed": _on_file(UNITS, _removed),
    "batch-file-cut": _on_file(UNITS, _cut),
    "batch-file-zeroed": _on_file(UNITS, _zeroed),
    "batch-file-swapped": swapped(UNITS),
    "batch-queue-removed": _directory_removed("batchconsumequeue/*/*"),
    "batch-queues-removed": _directory_removed("batchconsumequeue"),
    "batch-queues-older": partial(_older_queues, pattern="batchconsumequeue/*/*", entry=UNIT_SIZE),
    "batch-units-garbage": _on_file(UNITS, partial(_garbage_entries, entry=UNIT_SIZE)),
    **{name: change for name, change in CHANGES.items() if name.startswith("log")},
}
BATCHES_FROM = 90_000  # the seeds from which on stores have batch queues, and one of these is the first change


def _log_files(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("commitlog/*") if path.is_file())


def _end_of_log_removed(store: Path, dice: random.Random) -> None:
    """Remove the last log files, as one does whose disk is full."""
    files = _log_files(store)
    for path in files[dice.randrange(len(files)) :]:
        path.unlink()


def _begin_of_log_removed(store: Path, dice: random.Random) -> None:
    files = _log_files(store)
    for path in files[: dice.randrange(len(files)) + 1]:
        path.unlink()


def _older_log(store: Path, dice: random.Random) -> None:
    """Bring back the log of an earlier time: it ends after any record, or inside one."""
    files = [path for path in _log_files(store) if any(path.read_bytes())]
    last = dice.randrange(len(files))
    raw = files[last].read_bytes()
    starts = record_starts(raw)
    end = dice.choice(starts) + dice.choice((0, 0, 50)) if starts else 0
    files[last].write_bytes(raw[:end].ljust(len(raw), b"\0"))
    for path in files[last + 1 :]:
        path.unlink()


def _stale_pages(store: Path, dice: random.Random) -> None:
    """Give a run of pages of the log the content of another run, as a file system does that lost its own log."""
    target, source = (dice.choice(_log_files(store)) for _ in range(2))
    raw, other = bytearray(target.read_bytes()), source.read_bytes()
    at, begin = (dice.randrange(max(1, len(part) // 4096)) * 4096 for part in (raw, other))
    pages = other[begin : begin + 4096 * dice.choice((1, 1, 3))][: len(raw) - at]
    raw[at : at + len(pages)] = pages
    target.write_bytes(raw)


def _bytes_after_the_log(store: Path, dice: random.Random) -> None:
    """Write what a disk had before into the part of the last log file that is not yet written."""
    path = [path for path in _log_files(store) if any(path.read_bytes())][-1]
    raw = bytearray(path.read_bytes())
    end = len(raw.rstrip(b"\0")) + dice.choice((8, 512))
    found = dice.choice((dice.randbytes(600), bytes(raw[:600]), struct.pack(">iI", 1 << 30, 0xDAA320A7) + bytes(90)))[
        : max(0, len(raw) - end)
    ]
    raw[end : end + len(found)] = found
    path.write_bytes(raw)


def _more_log_files(store: Path, dice: random.Random) -> None:
    """Add one or two log files that are not yet written, or the last one again under the next name."""
    for _ in range(dice.choice((1, 2))):
        last = _log_files(store)[-1]
        size = last.stat().st_size
        content = dice.choice((bytes(size), bytes(size), last.read_bytes()))
        last.with_name(f"{int(last.name) + size:020d}").write_bytes(content)


def _grown(raw: bytearray, dice: random.Random) -> bytearray:
    return raw + bytes(dice.choice((1, 20, 4096, len(raw))))


def _copied_queue(store: Path, dice: random.Random) -> None:
    """Copy a queue, or rename its topic."""
    queues = sorted(store.glob("consumequeue/*/*"))
    if queues:
        queue = dice.choice(queues)
        if dice.random() < 0.5:
            shutil.copytree(queue, queue.with_name("9"), dirs_exist_ok=True)
        else:
            queue.parent.rename(queue.parent.with_name(f"{queue.parent.name}-old"))


def _later_offsets(store: Path, dice: random.Random) -> None:
    """Set the groups on, past the end of their queues too."""
    path = store / CONSUMER_OFFSETS
    if path.exists():
        text = path.read_text()
        path.write_text(re.sub(r"(?<=[{,])(\s*\d+:)(\d+)", lambda pair: f"{pair[1]}{int(pair[2]) + dice.choice((0, 1, 70, 10**6))}", text))


# what people, disks and file systems do to a store, drawn beside the others from this seed on, before FURTHER_FROM
OPERATORS_FROM = 50_000
OPERATORS: dict[str, Change] = {
    "log-end-removed": _end_of_log_removed,
    "log-begin-removed": _begin_of_log_removed,
    "log-older": _older_log,
    "log-pages-stale": _stale_pages,
    "log-followed": _bytes_after_the_log,
    "log-files-more": _more_log_files,
    "log-grown": _on_file("commitlog/*", _grown),
    "queue-file-grown": _on_file(QUEUE, _grown),
    "queue-copied": _copied_queue,
    "index-file-swapped": swapped("index/*"),
    "index-file-zeroed": _on_file("index/*", _zeroed),
    "offsets-later": _later_offsets,
}


@dataclass
class State:
    """One state. again: messages that the real store's groups get again. error: what was wrong with the answer."""

    seed: int
    version: str
    case: GoldenCase
    changes: tuple[str, ...]
    unclean: bool
    place: Place
    error: str = ""

    @property
    def is_untold(self) -> bool:
        """Whether a part of the log is gone, and of the queues, too: of the messages of both no byte is left."""
        parts = {name.split("-")[0] for name in self.changes if not name.endswith("swapped")}
        return "log" in parts and not parts.isdisjoint(("batch", "queue", "queues", "topic"))

    @property
    def name(self) -> str:
        return f"{self.version} {self.case.id} {'+'.join(self.changes)} {'killed' if self.unclean else 'clean'}"


def version_of(seed: int) -> str:
    versions = VERSIONS if seed < BATCHES_FROM else tuple(BATCH_CASES)
    return versions[seed // PER_VERSION % len(versions)]


def _state(seed: int, base: Path) -> State:
    dice = random.Random(seed)
    version = version_of(seed)
    case = case_named(dice.choice(CASES[version]) if seed < BATCHES_FROM else BATCH_CASES[version])
    store = unpack(case, base / f"{seed}")
    drawn = OPERATORS if OPERATORS_FROM <= seed < FURTHER_FROM and dice.random() >= 0.2 else CHANGES
    changes = tuple(dice.choice(sorted(drawn)) for _ in range(dice.choice((1, 1, 1, 2))))
    if seed >= FURTHER_FROM:
        changes = (dice.choice(sorted(FURTHER if seed < BATCHES_FROM else BATCHES)), *changes[1:])
    for name in changes:
        if name not in OPERATORS or any(any(path.read_bytes()) for path in _log_files(store)):  # those need a log
            (CHANGES | FURTHER | OPERATORS | BATCHES)[name](store, dice)
    if dice.random() < 0.4:
        _marked(store, dice)
    if dice.random() < 0.15 and _older_offsets(store, dice):
        changes += ("offsets-older",)
    unclean = (store / "abort").exists()
    questions = [question for question, _ in _questions(case)]
    return State(seed, version, case, changes, unclean, Place(str(seed), store, opened(case), case.properties, questions))


@cache
def _questions(case: GoldenCase) -> list[tuple[dict[str, Any], set[int]]]:
    """Return key queries about messages of a golden store, at the seconds around their time, and the places that answer each there."""
    store = open_rocketmq(opened(case), config=case.config if case.config.exists() else None)
    files = store.view("recovered").index_files()
    places = [event.file.start + at for event in store.log.scan() if isinstance(event, Records) for at in event.positions.tolist()]
    keyed = [record for record in map(store.log.record, places) if record is not None and decode_properties(record.properties).get("KEYS")]
    found = []
    for record in keyed[:: len(keyed) // ASKED + 1]:
        asked = {"topic": record.topic, "key": decode_properties(record.properties)["KEYS"].split()[0], "max_num": 64}
        asked |= {"begin": record.store_timestamp - 2000, "end": record.store_timestamp + 2000}
        found.append((asked, set(query_offsets(files, **asked).offsets)))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _missed(state: State, report: Path, config: Path) -> int:
    """Count the messages that are delivered, and that a key query finds in the golden store but not in the real one.

    A pull may hand out bytes of a log file that has another one's name: the record there gives its own place, and is not the message there.
    """
    log = open_rocketmq(state.place.store, config=config).log
    handed = {at for queue in _lines(report / "pulled.jsonl") for at in queue["physical_offsets"]}
    answers = zip(_questions(state.case), _lines(report / "queries.jsonl"), strict=True)
    missed = {at for (_, expected), answer in answers for at in expected - set(answer["expected"])} & handed
    return sum(log.record(at) is not None for at in missed)


def again_of(state: State, report: Path, config: Path, *, at_most: bool = False) -> int:
    """Count the messages before the offsets of the golden store that the real one lists after those that it loads, each for each group.

    at_most: all that it lists if the loaded one is past the end, from where a broker may send a group back to the beginning, also messages
    that the group had from another queue.
    """
    store, base = (open_rocketmq(place, config=config) for place in (state.place.store, state.place.base))
    offsets = base.offset_table.offsets
    rows = json.loads((report / "groups.json").read_text())["offset_table"]
    loaded = {(key, int(queue_id)): int(offset) for key, by_queue in rows.items() for queue_id, offset in by_queue.items()}
    listed = {}
    for queue in _lines(report / "queues.jsonl"):
        if "batch" in queue:
            continue
        listed[queue["topic"], queue["queue_id"]] = (queue["min_offset"], [int(entry[0]) for entry in queue["entries"]])
    total = 0
    had = {key: {number: _had(base, key[1], number, offset) for number, offset in by_queue.items()} for key, by_queue in offsets.items()}
    for (group, topic), by_queue in had.items():
        of_group = set[int]().union(*(of_queue for (other, _), of_topic in had.items() if other == group for of_queue in of_topic.values()))
        for queue_id, of_queue in by_queue.items():
            low, entries = listed.get((topic, queue_id), (0, []))
            after = max(0, loaded.get((f"{topic}@{group}", queue_id), low) - low)
            if at_most and after > len(entries):
                after = 0
            places = of_group if at_most else of_queue
            total += sum(physical in places and store.log.record(physical) is not None for physical in set(entries[after:]))
    return total


def _had(base: RocketMQStore, topic: str, queue_id: int, offset: int) -> set[int]:
    """Return the physical offsets that a queue of the golden store lists before a queue offset."""
    queue = base.view("recovered").queue_or_none(topic, queue_id)
    if queue is None:
        return set()
    return {int(entry["physical_offset"]) for entry in queue.entries(queue.min_offset, min(offset, queue.max_offset))}


def _judge(state: State, outcome: Outcome, when: str, report: Path, config: Path) -> None:
    said = outcome.predicted
    if said.starts != outcome.starts:
        state.error += f"{when}: said to {'start' if said.starts else 'fail'}, and it does not: {outcome.error[:300]}\n"
        return
    if not outcome.starts or outcome.lost is None or (when == REPAIRED and not MOVED.isdisjoint(state.changes)):
        return
    if outcome.lost > said.loses and not (said.unknown or state.is_untold):
        state.error += f"{when}: {outcome.lost} lost, {said.loses} said\n"
    if outcome.lost < said.loses and not said.unknown:
        state.error += f"{when}: false alarm: {outcome.lost} lost, {said.loses} said\n"
    again = again_of(state, report, config)
    if again > said.redelivers and not said.unknown:
        state.error += f"{when}: {again} delivered again, {said.redelivers} said\n"
    if when != REPAIRED and "offsets-later" not in state.changes and not said.unknown:
        # of these other proofs are made
        further = sum(item.messages for item in said.evidence if item.finding == "in-hand" or item.file == DELAY_OFFSETS)
        most = again_of(state, report, config, at_most=True)
        if said.redelivers - further > most:
            state.error += f"{when}: false alarm: {most} delivered again, {said.redelivers - further} said\n"
    if said.status == 0 and (again or (outcome.lost and not state.is_untold)):
        state.error += f"{when}: {outcome.lost} lost and {again} again, and `diagnose` says that all are kept\n"
    # a broker that indexes again begins other files, and times the first message of each by the end of the one before it
    missed = _missed(state, report, config) if any(name.startswith(("index", "keys")) for name in state.changes) else 0
    if missed and not said.unknown and not any(item.finding == "keys-lost" or item.file.startswith("index") for item in said.evidence):
        state.error += f"{when}: key queries miss {missed} messages, and nothing is said of the index\n"
    if said.status and not (outcome.lost or again or missed or said.evidence or said.unknown):
        state.error += f"{when}: exit status {said.status} without a reason\n"


def check(version: str, seeds: Sequence[int], base: Path) -> Iterator[State]:
    """Yield the states of these seeds, which are of one version, judged: before and after a repair."""
    yield from check_states(version, [_state(seed, base) for seed in seeds], base)


def check_states(version: str, states: Sequence[State], base: Path) -> Iterator[State]:
    """Yield states of one version, judged: before and after a repair."""
    seeds = [state.seed for state in states]
    before = _boot(version, states, base / "before", "as it is")
    repaired = []
    for state in states:
        config = base / "before" / f"{states.index(state)}" / "store.properties"
        image = image_of(state.place.store)
        try:
            steps = [step for step in plan(open_rocketmq(state.place.store, config=config)) if step.possible]
        except Exception as error:  # a refusal is an answer
            if type(error).__module__ != "mqstore.errors":
                state.error += f"plan: {type(error).__name__}: {error}\n"
            continue
        if before[state.seed].predicted.next.startswith("mqstore repair") and not steps:
            state.error += "`repair` is advised, and its plan is empty\n"
        if not steps:
            continue
        journal = base / f"{state.seed}.undo"
        apply(state.place.store, journal, steps, LOCKING)
        shutil.copytree(state.place.store, base / f"{state.seed}.repaired")
        kept = read_journal(journal)
        assert kept is not None
        undo(state.place.store, kept, LOCKING)
        if image_of(state.place.store) != image:
            state.error += "undo does not give back every byte\n"
        place = Place(f"{state.seed}", base / f"{state.seed}.repaired", state.place.base, state.place.options, state.place.questions)
        repaired.append(State(state.seed, version, state.case, state.changes, state.unclean, place))
    after = _boot(version, repaired, base / "after", REPAIRED)
    for mended in repaired:
        state = states[seeds.index(mended.seed)]
        state.error += mended.error
        was, now = before[state.seed], after[state.seed]
        if was.starts and not now.starts:
            state.error += "it does not start any more after the repair\n"
        if now.lost is not None and was.lost is not None and now.lost > was.lost and MOVED.isdisjoint(state.changes):
            state.error += f"the repair loses {now.lost}, {was.lost} without\n"
    yield from states


def _boot(version: str, states: Sequence[State], work: Path, when: str) -> dict[int, Outcome]:
    if not states:
        return {}
    outcomes = outcomes_of(version, [state.place for state in states], work, threads=AT_ONCE, patience=PATIENCE)
    for number, (state, outcome) in enumerate(zip(states, outcomes, strict=True)):
        _judge(state, outcome, when, work / f"{number}" / "report", work / f"{number}" / "store.properties")
    return {state.seed: outcome for state, outcome in zip(states, outcomes, strict=True)}


def check_seeds(seeds: range, deadline: float) -> Iterator[State]:
    """Yield the states of a range of seeds, by version, until it is too late to begin another group."""
    at = seeds.start
    while at < seeds.stop and time.time() < deadline:
        stop = min(seeds.stop, (at // PER_VERSION + 1) * PER_VERSION)
        with tempfile.TemporaryDirectory(prefix="mqstore-states-") as place:
            yield from check(version_of(at), range(at, stop), Path(place))
        at = stop


def missing_brokers() -> str | None:
    """Return why the real stores cannot be run; None if they can."""
    return next((reason for reason in map(why_not, VERSIONS) if reason), None)
