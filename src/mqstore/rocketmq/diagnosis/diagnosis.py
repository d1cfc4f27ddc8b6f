"""Diagnosis of a RocketMQ store: what a broker of a version would make of it, and what to do first.

    1  what keeps a broker from starting: files of the wrong size, foreign names, configuration that cannot be parsed, a held lock
    2  the broker's load and start, simulated (`recovery.broker_recovery`)
    3  one pass of `verify`, which counts the messages that the outcome of 2 does not deliver (`survival`)
    4  the progress of consumers against the outcome of 2 (`redelivery`)

`advise` answers from 1 and the report of `verify` alone, as far as they go.

Nothing is written. If the broker does not start, nothing is lost by it, and what would happen after the cause is removed is not said.

Format: docs/formats/rocketmq.md, section 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mqstore.diagnosis import Diagnosis, Evidence, Way, second_name
from mqstore.errors import MqstoreError, RefusedError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import is_archive
from mqstore.files.directory_views import MountedDirectory
from mqstore.files.location import Url
from mqstore.findings import Advice, Damage, Kind, Remedy, Report, Subject
from mqstore.kernels.rocketmq import frames
from mqstore.repair.change import Change, renames
from mqstore.repair.changed_directory import ChangedDirectory
from mqstore.rocketmq.config.consumer_offsets import LMQ_OFFSETS
from mqstore.rocketmq.config.topic_table import TOPICS_FILE
from mqstore.rocketmq.diagnosis.misplaced import QUEUES, directories_for_files, misnamed_files, unwritable_queues
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.consume_queue import usable_topic
from mqstore.rocketmq.format.mapped_file_queue import NAME_DIGITS
from mqstore.rocketmq.format.profile import Profile, profile, version_rules
from mqstore.rocketmq.format.system_topics import SCHEDULE_TOPIC
from mqstore.rocketmq.loaded_config import (
    LoadedConfig,
    loaded_configs,
    of_a_group,
    redelivery,
    sizes_not_known,
    unread_logs,
    without_offsets,
)
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.compacted import compacted_queues, compacted_topics
from mqstore.rocketmq.store.log_site import log_elsewhere, renamed_log_files, swapped_log_files
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.unread_parts import static_topics
from mqstore.table.formatting import command, count, real_copy

if TYPE_CHECKING:
    from mqstore.repair.change import Step
    from mqstore.rocketmq.diagnosis.database_queues import DatabaseQueues
    from mqstore.rocketmq.diagnosis.survival import SurvivalCheck
    from mqstore.rocketmq.store.known_ranges import KnownRanges

START = "sh bin/mqbroker -c conf/broker.conf"
KEEPS = "start the broker: it keeps everything that is there"
UNTOLD = "start the broker: it keeps everything that is there; what its consumers get is not known"
BEFORE_A_SLAVE = "save every message that can be read first: a broker that becomes a slave in its group cuts what the master lacks"
FOR_GOOD = "start the broker: what is damaged or gone cannot be brought back, and it keeps everything else"
WITHOUT_KEYS = "start the broker: it keeps every message; key queries miss some of them, unless a rebuild makes a new index first"

_ABOUT_A_FILE = re.compile(r"((?:commitlog|consumequeue|batchconsumequeue).*?) (?:is a directory|is empty|has \d+ bytes|has the size)")
_REPAIRED = frozenset(kind for kind in Kind if kind.remedy is Remedy.REPAIR)
_FOR_GOOD = frozenset(kind for kind in Kind if kind.subject is Subject.RECORD and kind.remedy is Remedy.BACKUP) | {
    "gone",
    "note",
    "offset-past-end",
}
_OF_GONE = frozenset(kind for kind in Kind if kind.subject is Subject.QUEUE_ENTRY)
_WRITTEN_AT_START = {"lock": "`lock` over the first four bytes", "abort": "its process number", "checkpoint": "its times"}
_DERIVED = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint")
_MADE_NEW = frozenset(
    kind
    for kind in Kind
    if kind.remedy is Remedy.REBUILD and kind.noticed and kind.subject in (Subject.QUEUE_ENTRY, Subject.QUEUE, Subject.INDEX)
    if kind is not Kind.MISSING_INDEX_ENTRY  # of a few messages, such as those that a repair has brought back
) | {"keys-lost"}
_MADE_AGAIN = frozenset({Kind.MISSING_QUEUE_ENTRY})  # by a start, as far as it lists the log again
_LEFT_TO_A_REBUILD = frozenset({"frame", "length", "end-of-file", "torn-end", "filler", "checksum"})  # steps in the log
_HEADER = frames.ENTRY_HEADER_SIZE
_INDEX_AT = 8


def _in_log(item: Damage, store: RocketMQStore) -> bool:
    return item.file.startswith(f"{store.log.queue.relative}/")


def _is_of_log(item: Damage) -> bool:
    return item.kind.subject is Subject.RECORD or item.kind.unread


def _can_be_made(path: str) -> bool:
    """Return whether a path is not that of a queue whose topic can have none, as that of a damaged record may."""
    above, _, below = path.partition("/")
    return above != QUEUES or not below or usable_topic(below.rpartition("/")[0] or below)


def diagnose(
    store: RocketMQStore,
    version: str | None = None,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
    rebuilt: int | None = None,
    known: KnownRanges | None = None,
) -> Diagnosis:
    """Return what a broker makes of a store. version: of the broker, by default the one that the files suggest. Raises MqstoreError.

    rebuilt: the messages in the queues of a store that a rebuild has just made of intact records: these are not read again.
    known: what a job that wrote the log of this store has read of it.
    """
    from mqstore.rocketmq.diagnosis.database_queues import DatabaseQueues, keeps_queues_in_database, require_configuration
    from mqstore.rocketmq.verify.verification import verify

    of = store.evidence.profile if version is None else profile(version)
    store = store if known is None else store.remembering(known)
    store.require_directory_for("a diagnosis")
    if store.dledger is not None:
        raise cannot_be_determined(store, verify(store, threads=threads, progress=progress))
    require_configuration(store)
    database = DatabaseQueues(store, of) if keeps_queues_in_database(store) else None
    return _Work(store, of, version, database).run(threads, progress, rebuilt)


def advise(store: RocketMQStore, report: Report | None = None) -> Advice:
    """Return what to do next with a store, from names, sizes and small files, and the report of `verify` if there is one."""
    if store.queue_database is not None:
        return Advice(None, store.command("diagnose"), "see whether a broker starts on it, and what that loses")
    if store.dledger is not None or store.log_only:
        return _advise_without_diagnosis(store, report)
    return _Work(store, store.evidence.profile, None).advice_after(report)


def worthwhile_steps(store: RocketMQStore, *, threads: int = 2) -> list[Step]:
    """Return the steps of a repair after which a broker starts that did not, or keeps as much of the log as before; else none."""
    from mqstore.rocketmq.repair.plan import plan

    store = store.remembering()
    steps = [step for step in plan(store, threads=threads) if step.possible]
    if not steps:
        return []
    after = _after(store, [change for step in steps for change in step.changes], threads)
    if after.obstacles or not after.lost:
        return [] if after.obstacles else steps
    before = _after(store, [], threads)
    return steps if before.obstacles or after.lost <= before.lost else []


def _after(store: RocketMQStore, changes: list[Change], threads: int) -> _Work:
    work = _Work(store.seen_in(ChangedDirectory(store.directory, changes)), store.evidence.profile, None)
    work.run(threads, None)
    return work


def _advise_without_diagnosis(store: RocketMQStore, report: Report | None) -> Advice:
    if report is None:
        return Advice(None, store.command("verify"), "check every byte; what a broker makes of it cannot be determined")
    if report.damage:
        return Advice(None, store.command("messages"), "list the messages that can be read, each with its verdict")
    shows = "messages" if store.log_only else "topics"
    return Advice(None, store.command(shows), "nothing is damaged; list what is there")


class _Work:
    def __init__(self, store: RocketMQStore, of: Profile, asked: str | None, database: DatabaseQueues | None = None) -> None:
        self.store = store
        self.database = database
        self.profile = of
        self.asked = asked
        self.version = of.version
        self.rules = of.rules
        self.obstacles: list[Evidence] = []
        self.evidence: list[Evidence] = []
        self.renamed_sizes: list[tuple[Evidence, str]] = []
        self.changes: list[str] = []
        self.unknown: list[str] = []
        self.of_clients: list[str] = []  # of what is unknown, what new queues and a new index leave unknown
        self.harmless = True
        self.configs: list[LoadedConfig] = []
        self.locked = False
        self.threads: int | None = None  # those of a whole diagnosis
        self.lost = 0  # messages of the log that the start does not keep
        self.missing = 0  # messages of which only the places in their queues are left
        self._first_unindexed: int | None = None  # physical offset of the first record before the end of the index that lacks an entry
        self.unlisted = 0  # messages that are lost, and that new queues would list
        self.elsewhere = log_elsewhere(store) if database is None else None
        self._repaired: Diagnosis | None = None  # what a broker makes of the store after a repair, if it was asked for
        self._repair_in_copy = False  # a repair would help, and a rebuild makes its changes, too, or they cannot be made in these files

    def advice_after(self, report: Report | None) -> Advice:
        """Return what is known before the load is simulated. report: of `verify`; None: the log has not been read."""
        self._prepare()
        if self.locked:
            why = "a broker has the store open: leave its files alone; see what it holds"
            return Advice(False, self.store.command("topics"), why)
        if report is not None:
            configs = self._config_files()
            self.evidence += [
                Evidence.of(item)
                for item in report.damage
                if item.file not in configs and not (item.kind is Kind.WRONG_SIZE and self._is_removed(item.file))
            ]
        if self.elsewhere is not None:
            return Advice(None, *self._advice(0, 0))
        # what a broker makes of a checksum after a kill decides between a repair and a rebuild
        open_ = self.store.unclean and any(item.finding == Kind.BAD_CHECKSUM for item in self.evidence)
        repairable = any(self._repairable(item) and item.finding not in _MADE_AGAIN for item in self.evidence)
        files = [*(file.relative for file in self.store.log.files), *(item.file for item in self.evidence if self._repairable(item))]
        refused = report is not None and self._refuses([Change("write", file) for file in files])
        if (self.obstacles and not refused) or (report is not None and repairable and not open_ and not refused):
            return Advice(False if self.obstacles else None, *self._advice(0, 0))
        if report is not None and self._all_well(report):
            return Advice(True, START, KEEPS)
        what = "the broker's load is simulated" if report is not None else "every message is looked up"
        return Advice(None, self._command("diagnose"), f"see whether a broker starts on it, and what that loses; {what}")

    def _all_well(self, report: Report) -> bool:
        """Return whether the load of a broker has nothing to do: a clean exit, nothing damaged or skipped, no group past the end.

        Where there are delayed messages or no offsets, what is delivered again is a question for the whole diagnosis.
        """
        settled = (
            report.ok
            and report.coverage.complete
            and not (report.cautions or self.evidence or self.unknown or self.of_clients or self.store.unclean)
        )
        elsewhere = (without_offsets(self.store, self.configs), unread_logs(self.store), static_topics(self.store.directory))
        if not (settled and self.harmless) or any(map(any, elsewhere)):
            return False
        view = self.store.view("disk")
        delayed = any(queue.topic == SCHEDULE_TOPIC for queue in view.queues())
        return not delayed and all(item.state != "above-max" for item in view.consumer_offsets())

    def _prepare(self) -> Recovery | None:
        """Look for what keeps a broker from starting; return the load, which is yet to be run, if names and sizes allow one."""
        self._check_lock()
        if self.elsewhere is not None:
            self.unknown.append(f"what the broker has after its start: that {self.elsewhere.sentence}")
        self._check_configs()
        return self._recover()

    def run(self, threads: int, progress: Callable[[int, int], None] | None, rebuilt: int | None = None) -> Diagnosis:
        from mqstore.rocketmq.diagnosis.database_queues import RULES
        from mqstore.rocketmq.diagnosis.survival import SurvivalCheck
        from mqstore.rocketmq.store.recovered_view import RecoveredView

        self.threads = threads
        recovery = self._prepare()
        recovery = self._load(recovery) if self.elsewhere is None else None  # that of a part of a log shows nothing
        check = SurvivalCheck(self.store, None if self.obstacles else recovery)
        report = check.trust(rebuilt) or check.run(threads, progress)
        loses = redelivers = in_hand = 0
        if recovery is not None and not self.obstacles:
            missing = check.count_missing()
            self.lost, self.missing = check.lost, missing
            self.unlisted = max(0, check.lost - check.unbuilt)
            loses = check.lost + missing
            seen, whole = check, report  # of the log in which each file has its own name
            if self._swapped is not None:
                seen, whole = self._in_own_names()
                loses += self._add_swapped(seen.listed - check.listed - missing)
            self._add_damage([item for item in report.damage if _is_of_log(item)])
            of_files = sum(item.messages for item in report.damage if item.kind is Kind.MISSING_FILE and _in_log(item, self.store))
            self._add_losses(check, missing, of_files, seen.after_damage)
            self._add_unlisted_ranges(whole.damage)
            self.unknown += unwritable_queues(self.store, {*check.unqueued, *check.queues})
            self.unknown += misnamed_files(self.store)
            self.of_clients += (
                f"which messages of topic {topic!r} consumers get: it is compacted, and what a broker keeps of each key is not read"
                for topic in sorted({*self.store.topics.compacted} - {queue.topic for queue in compacted_queues(self.store.directory)})
            )
            self.of_clients += compacted_topics(self.store.directory)
            self.of_clients += unread_logs(self.store)
            self.of_clients += (f"what clients get of {sentence}" for sentence in static_topics(self.store.directory))
            self._add_changes(recovery)
            self._add_missing_index(recovery, check.unindexed)
            self._add_keys_after_index(recovery, check.first_after_index)
            self._first_unindexed = check.first_unindexed
            self._add_database(recovery)
            self._add_damage([item for item in report.damage if not _is_of_log(item)])
            view = RecoveredView(self.store, recovery, self.profile)
            again = redelivery(self.store, view, self.configs, check.last_timestamp, check.shifted, check.had_before, check.had_elsewhere)
            said = {item.detail.partition(", which ")[0] for item in again.evidence if item.finding == "offset-past-end"}
            self.evidence += [Evidence("note", ".", note) for note in report.notes if note.partition(", which ")[0] not in said]
            redelivers = again.messages
            self.harmless &= not redelivers
            in_hand = again.in_hand
            self.evidence += again.evidence
            self.of_clients += again.unknown
        else:
            configs = self._config_files()  # said by what the broker loads
            self.evidence += [Evidence.of(item) for item in report.damage if item.file not in configs]
            if self.elsewhere is not None and not self.obstacles:
                loses = self.elsewhere.messages
                if self.elsewhere.state == "absent":
                    self.unknown.append("how many of these messages had expired before the log was lost")
                self.evidence += [Evidence("note", ".", note) for note in report.notes]
        self.unknown += self.of_clients
        self.evidence += self._written_links()
        next_, why = self._advice(check.lost, redelivers, loaded=recovery is not None)
        if self.elsewhere is None:
            self.evidence += [Evidence("note", ".", sentence) for sentence in self._assumed()]
        if next_ == START and self.store.directory.root == Path(self.store.path):
            written = [*(file.relative for file in self.store.log.files[-1:]), "checkpoint"]
            self.evidence += second_name(self.store.directory.root, written, "broker", real_copy(self.store.path)[0])
        named = {(each.finding, each.file) for each in self.obstacles}  # the refusal says what the check of the file says, and more
        return Diagnosis(
            store=str(self.store.path),
            family="rocketmq",
            version=self.version,
            rules=self.rules if self.database is None else RULES,
            starts=not self.obstacles,
            loses=loses,
            redelivers=redelivers + in_hand,
            next=next_,
            why=why,
            changes=tuple(self.changes),
            harmless=self.harmless,
            unknown=tuple(dict.fromkeys(self.unknown)),
            evidence=(*self.obstacles, *(each for each in self.evidence if (each.finding, each.file) not in named)),
            without="" if self.elsewhere is None or self.elsewhere.state == "absent" else self.elsewhere.without,
            ways=self._ways(Way(next_, why), check),
        )

    def _ways(self, advised: Way, check: SurvivalCheck) -> tuple[Way, ...]:
        """Return the possible next commands with what each keeps of the messages that queues list, the advised one first."""
        if self.locked or self.elsewhere is not None or self.database is not None or isinstance(self.store.path, Url):
            return ()
        path = self.store.path
        ways = [advised]
        keeps: dict[str, int | None] = {}
        if self._swapped is not None:
            return (advised, Way(START, "start the broker on it as it is", check.listed - check.lost)) if not self.obstacles else (advised,)
        if self._repaired is not None:
            ways.append(Way(self.store.command("repair"), "list what can be repaired; nothing is changed"))
            keeps[ways[-1].next] = next((way.keeps for way in self._repaired.ways if way.next == START), None)
        if check.lost or self.obstacles:
            target = ("--for", self.version) if self.asked else ()
            words = command("mqstore", "salvage", path, "--as", "rocketmq", "--to", f"{path}.new", *target)
            ways += [self._rebuild, Way(words, "write all that is intact into a new store, with new queue offsets")]
            # of a damaged log, a rebuild mends what a repair does
            mended = (
                [] if self._repaired is None else [way.keeps or 0 for way in self._repaired.ways if way.next in (START, self._rebuild.next)]
            )
            keeps[self._rebuild.next] = max([check.listed - check.unbuilt, *mended])
        elif self._lacks_keys_alone():
            ways.append(self._rebuild)
            keeps[self._rebuild.next] = check.listed
        if not self.obstacles:
            ways.append(Way(START, "start the broker on it as it is"))
            keeps[START] = check.listed - check.lost
        by_command = {way.next: way for way in reversed(ways)}
        return tuple(Way(each, by_command[each].why, keeps.get(each)) for each in dict.fromkeys(way.next for way in ways))

    # 1: what keeps a broker from starting

    def _check_lock(self) -> None:
        from mqstore.files.locking import is_locked

        if not self.store.directory.exists("lock"):
            return
        held = None if isinstance(self.store.path, Url) else is_locked(self.store.directory.path("lock"))
        self.locked = held is True
        if held:
            sentence = "a process has the store open; a second broker cuts its files before it notices that, and then does not start"
            self.obstacles.append(Evidence("lock-held", "lock", sentence))
        elif held is None:
            self.unknown.append("whether a broker has the store open")

    def _written_links(self) -> Iterator[Evidence]:
        """Yield a note on each small file that is a link to a file, which a broker changes when it starts."""
        if type(self.store.directory) is not ReadOnlyDirectory or self.obstacles:
            return
        for name, what in _WRITTEN_AT_START.items():
            path = self.store.directory.path(name)
            if path.is_symlink() and path.is_file():
                sentence = f"it is a symbolic link: a broker that starts writes {what} into {path.resolve()}, as seen with 5.3.3"
                yield Evidence("note", name, f"{sentence}; put a file in its place before")

    def _check_configs(self) -> None:
        table = self.store.offset_table
        lmq = table.file == LMQ_OFFSETS
        if table.doubt:
            self.of_clients.append(f"where the groups continue: {table.doubt}")
        for config in loaded_configs(self.store.directory, further=version_rules(self.rules).has_further_files, lmq=lmq):
            self.configs.append(config)
            fault = config.fault or "the file is missing"
            if config.outcome == "fails":
                sentence = f"{fault}, and its .bak cannot be parsed either: the broker does not start"
                self.obstacles.append(Evidence("bad-config", config.file, sentence, 0, config.size))
            elif config.outcome == "bak":
                self.harmless = False
                sentence = f"{fault}: the broker loads the .bak, an older state"
                self.evidence.append(Evidence("bad-config", config.file, sentence, 0, config.size))
            elif config.outcome == "empty":
                self.harmless = False
                sentence = f"{fault}, and there is no .bak with content: the broker starts without what was in it"
                self.evidence.append(Evidence("bad-config", config.file, sentence, 0, config.size))
                if config.file == TOPICS_FILE and config.fault:
                    self.of_clients.append("which messages consumers get: of a topic that it does not know, a broker delivers nothing")

    def _recover(self) -> Recovery | None:
        store = self.store
        for item in store.unread_directories:
            self.unknown.append(f"what is in {item.file}: {item.detail}")
        self._check_queue_types()
        self.renamed_sizes = list(sizes_not_known(store, self.version))
        self.obstacles += [evidence for evidence, _ in self.renamed_sizes]
        for taken in directories_for_files(store, version_rules(self.rules)):
            if taken.finding == "keys-lost":
                self.harmless = False
                self.evidence.append(taken)
            else:
                self.obstacles.append(taken)
        if self.database is not None and self.database.obstacle is not None:
            self.obstacles.append(self.database.obstacle)
            return None
        make = Recovery if self.database is None else self.database.recovery
        try:
            recovery = make(
                store.directory,
                store.log,
                store.index_files(),
                store.checkpoint,
                store.config,
                store.rules(self.asked),
                self.rules,
                unclean=store.unclean,
                of=self.profile,
            )
        except RefusedError as error:
            self._refuse(error)
            return None
        return recovery

    def _load(self, recovery: Recovery | None) -> Recovery | None:
        if recovery is not None:
            recovery.touched_queues = set()
            try:
                recovery.load()
                recovery.start()
            except RefusedError as error:
                self._refuse(error)
                return None
        return recovery

    def _refuse(self, error: RefusedError) -> None:
        self.obstacles += [self._refusal(sentence) for sentence in error.reasons or (str(error),)]

    def _refusal(self, sentence: str) -> Evidence:
        """Return a refusal of the simulated load as evidence: the sentence begins with the file, if it is about one."""
        match = _ABOUT_A_FILE.match(sentence)
        file = match[1] if match is not None else self.store.log.queue.relative
        detail = f"{sentence}; the broker does not start"
        for item in self.store.findings:
            if item.file == file:
                return replace(Evidence.of(item), detail=detail)
        return Evidence("refused" if match is None else "wrong-size", file, detail)

    def _check_queue_types(self) -> None:
        """5.x compares the directory of a queue with the configured type of its topic."""
        if not version_rules(self.rules).has_batch_queues:
            return
        batch = {*self.store.topics.batch_topics, *self.store.config.batch_topics}
        known = self.store.directory.exists("config/topics.json") or bool(self.store.config.batch_topics)
        for path, topics in (
            ("consumequeue", {queue.topic for queue in self.store.consume_queues()} & batch),
            ("batchconsumequeue", {queue.topic for queue in self.store.batch_queues()} - batch),
        ):
            for topic in sorted(topics):
                sentence = f"topic {topic!r} has queues in {path}, but its queue.type is {'BatchCQ' if topic in batch else 'SimpleCQ'}"
                if known:
                    self.obstacles.append(Evidence("queue-type", f"{path}/{topic}", f"{sentence}: the broker does not start"))
                else:
                    self.of_clients.append(f"the queue.type of topic {topic!r}, which has queues in {path}: there is no config/topics.json")

    # 2, 3: what the start does, and what it loses

    def _add_losses(self, check: SurvivalCheck, missing: int, of_files: int, after_damage: Sequence[tuple[str, int]]) -> None:
        """Say what is lost. missing: messages of which only places in queues are left; of_files: those of them in missing files.

        after_damage: queues that may have had messages in damaged bytes.
        """
        assert check.recovery is not None
        end = check.recovery.log_max
        log, queues = self.store.log.queue.relative, "consumequeue"
        for finding, file, sentence, numbers in (
            (
                "cut-off",
                log,
                f"after {end}, where the log is cut",
                {key: loss.lost - loss.before_end for key, loss in check.by_queue.items()},
            ),
            (
                "unlisted",
                queues,
                "in the log, but not in their queues when the broker has started",
                {key: loss.before_end - loss.skipped for key, loss in check.by_queue.items()},
            ),
            (
                "skipped",
                queues,
                "not delivered: pulls of 32 pass over all in the log file of an entry without bytes, end at a gap, or fail in a database",
                {key: loss.skipped for key, loss in check.by_queue.items()},
            ),
            ("moved", queues, "at another queue offset than before", {key: loss.moved for key, loss in check.by_queue.items()}),
        ):
            affected = {key: number for key, number in numbers.items() if number}
            if not affected:
                continue
            self.harmless &= finding != "moved"
            total = sum(affected.values())
            (topic, queue_id), _ = max(affected.items(), key=lambda item: (item[1], item[0]))
            first = min((check.by_queue[key].first for key in affected if check.by_queue[key].first >= 0), default=0)
            where = f"topic {topic!r}, queue {queue_id}" if len(affected) == 1 else f"{len(affected)} queues, most of topic {topic!r}"
            self.evidence.append(Evidence(finding, file, f"{count(total, 'message')} of {where} {sentence}", first, messages=total))
        for topic, queue_id in check.uncounted:
            self.of_clients.append(
                f"how many messages of topic {topic!r}, queue {queue_id} are gone: it has no files, and a record of it has a queue offset "
                "that cannot be right"
            )
        if after_damage:
            topic, queue_id = after_damage[0]
            queue = f"topic {topic!r}, queue {queue_id}"
            many = f"{len(after_damage)} queues, {queue} among them," if len(after_damage) > 1 else queue
            self.of_clients.append(
                f"how many messages of {many} were in damaged bytes of the log before their first one: no file lists them"
            )
        if check.expired:
            sentence = (
                f"not counted: {count(check.expired, 'place')} after the end of the queues' files and before the log: "
                f"the log begins at {self.store.log.start}, and what was before it has expired, or is in files that are not here: "
                "look for these in a backup, a replica or on another disk before anything is changed"
            )
            self.evidence.append(Evidence("gone", log, sentence))
        if missing:
            renamed = renamed_log_files(self.store)
            after = 0 if renamed else min(missing, check.listed_after_end)
            if after:
                sentence = (
                    f"of {count(after, 'message')} only the places in their queues are left, after the end of the log at {check.log_end}: "
                    "the log is older than the queues, or what was written last did not reach the disk"
                )
                self.evidence.append(Evidence("gone", log, sentence, messages=after))
                missing -= after
            left = f"of {count(missing, 'message')} only the places in their queues are"
            if renamed:
                names = ", ".join(file.relative for file in renamed)
                sentence = (
                    f"{left} found under the names of a log: {names} holds records of it, and a broker does not read them in their place"
                )
                self.evidence.append(Evidence("log-renamed", log, sentence, messages=missing))
                return
            without = min(missing, of_files)
            if without:
                sentence = (
                    f"of {count(without, 'message')} only the places in their queues are left, because files of the log are not here: look "
                    "for these files in a backup, a replica or on another disk before anything is changed"
                )
                self.evidence.append(Evidence("gone", log, sentence, messages=without))
                missing -= without
            if missing:
                reason = "the bytes are lost, whatever is done"
                if (begin := self.store.log.start) > 0:
                    reason = f"the log, which begins at {begin}, has no whole record there: look for them in a backup or a replica"
                sentence = f"of {count(missing, 'message')} only the places in their queues are left: {reason}"
                self.evidence.append(Evidence("gone", log, sentence, messages=missing))

    def _in_own_names(self) -> tuple[SurvivalCheck, Report]:
        """Return a check of the log in which each file has its own name again, and what it reports."""
        from mqstore.rocketmq.diagnosis.survival import SurvivalCheck

        assert self.threads is not None
        check = SurvivalCheck(self.store.seen_in(ChangedDirectory(self.store.directory, self._renames)), None)
        return check, check.run(self.threads, None)

    def _add_swapped(self, more: int) -> int:
        """Say how many more messages are in log files that have each other's names, where a broker finds no record. Returns the number."""
        if more <= 0:
            return 0
        sentence = f"{count(more, 'message')} more, which no queue lists, are in log files that have each other's names"
        self.evidence.append(Evidence("log-renamed", self.store.log.queue.relative, sentence, messages=more))
        return more

    def _add_unlisted_ranges(self, damage: Iterable[Damage]) -> None:
        """Say that messages may be lost in bytes that no queue has reached: nothing else counts them."""
        listed = max((queue.max_physical_offset for queue in self.store.view("disk").queues()), default=-1)
        starts = {file.relative: file.start for file in self.store.log.files}
        for item in damage:
            lost = item.kind.unread and item.kind.noticed and item.length
            if lost and item.file in starts and starts[item.file] + item.offset > listed:
                self.of_clients.append(f"how many messages were in the {count(item.length, 'byte')} at {item.offset} of {item.file}")

    def _add_changes(self, recovery: Recovery) -> None:
        store = self.store
        if store.unclean:
            self.evidence.append(Evidence("abort", "abort", "the last broker did not exit cleanly: the log is recovered as after a crash"))
            self.changes.append(f"parses the log from {recovery.recovered_from}, and dispatches what it finds again")
        listed = {file.file.relative: file for file in recovery.log_files}
        for file in store.log.files:
            if file.relative not in listed and not self._is_removed(file.relative):
                self.changes.append(f"removes {file.relative}")
        last = recovery.log_files[-1] if recovery.log_files else None
        if last is not None and last.written < last.file.size and not any(store.log.queue.out_of_place()):
            self.changes.append(f"continues the log at {last.end} in {last.file.relative}")
        point = store.checkpoint
        dropped = [file for file in store.index_files() if store.unclean and file.end_timestamp > point.index]
        for index in dropped:
            self.changes.append(f"deletes {index.relative}, and indexes again what it dispatches")
            header = index.header
            if header.index_count > 1 and header.begin_physical_offset < recovery.recovered_from:
                self.harmless = False
                sentence = (
                    f"it is deleted, and only records from {recovery.recovered_from} on are indexed again: key queries miss the messages "
                    f"from {header.begin_physical_offset} to there"
                )
                self.evidence.append(Evidence("keys-lost", index.relative, sentence, 0, 40))
        for note in recovery.notes:
            self.evidence.append(Evidence("recovery", store.log.queue.relative, note))
            if note.startswith("dispatch skips"):
                self.harmless = False
        if recovery.touched_queues:
            self.changes.append(f"adds entries to {count(len(recovery.touched_queues), 'queue')}, as far as they lack them")

    def _add_missing_index(self, recovery: Recovery, keyed: int) -> None:
        """Say that key queries find nothing. keyed: messages with keys after the end of the index, which are all if there is none."""
        store = self.store
        has_index = store.index_files() or store.unread_index or store.database_index is not None or store.unread_index_sentence is not None
        if has_index or not keyed or store.config.message_index_enable is False or store.log_only:
            return
        if store.unclean and recovery.recovered_from <= max(0, recovery.log_min):
            self.changes.append("makes a new index from all of the log")
            return
        self.harmless = False
        since = f" stored before {recovery.recovered_from}" if store.unclean else ""
        sentence = f"there is no index, and a broker does not make one of what is there: no key query finds a message{since}"
        self.evidence.append(Evidence("keys-lost", "index", sentence))

    def _add_keys_after_index(self, recovery: Recovery, first: int | None) -> None:
        """Say that a recovery begins after the end of the index files that it keeps. first: the first record with a key that none has."""
        files, point = self.store.index_files(), self.store.checkpoint
        if not (self.store.unclean and files) or any(file.end_timestamp > point.index for file in files):
            return  # said of the file that it deletes
        if first is not None and first < recovery.recovered_from:
            self.harmless = False
            since = recovery.recovered_from
            sentence = f"only records from {since} on are indexed again: key queries miss the messages from {first} to there"
            self.evidence.append(Evidence("keys-lost", "index", sentence))

    def _add_database(self, recovery: Recovery) -> None:
        from mqstore.rocketmq.diagnosis.database_queues import unknown_of_index

        if self.database is not None:
            self.changes += self.database.changes()
            self.unknown += self.database.unknown(recovery)
        elif self._may_lack_database():
            self.unknown.append(
                "whether the broker keeps its queues in RocksDB (storeType=defaultRocksDB), and there is nothing of them: it then lists "
                "the log again, except its first message"
            )
        self.unknown += unknown_of_index(self.store)

    def _may_lack_database(self) -> bool:
        """Return whether the broker may have kept queues in a database that is lost: a 5.4 or later broker, and no queue of any kind."""
        newer = self.profile.indexes_tags and self.store.config.store_type is None
        return newer and not self.store.unclean and not self.store.log.start and bool(self.store.log.files) and not self.store.all_queues()

    def _add_damage(self, damage: Iterable[Damage]) -> None:
        point = self.store.checkpoint
        files = [file for file in self.store.index_files() if self.store.unclean and file.end_timestamp > point.index]
        dropped = {file.relative for file in files}
        if self._first_unindexed is None or self._first_unindexed >= min((file.header.begin_physical_offset for file in files), default=0):
            dropped |= {"index"} if files else set()
        configs = self._config_files()
        for item in damage:
            if item.file in configs:
                continue  # said by what the broker loads
            if item.kind is Kind.WRONG_SIZE and self._is_removed(item.file):
                self.changes.append(f"removes {item.file}, which is empty")
                continue
            self.evidence.append(Evidence.of(item))
            if item.kind is Kind.UNREADABLE:
                self.unknown.append(f"what is in {item.file}: {item.detail}")
            elif self._stays(item, dropped):
                self.harmless = False

    def _is_removed(self, relative: str) -> bool:
        """Return whether a broker removes a file at its start, as 5.x does with the last one of a queue or of the log if it is empty."""
        folder, _, name = relative.rpartition("/")
        last = max(self.store.directory.entries(folder), key=lambda entry: entry.name, default=None)
        empty = last is not None and last.name == name and len(name) == NAME_DIGITS and not last.is_directory and last.size == 0
        return empty and version_rules(self.rules).deletes_empty_last_file

    def _config_files(self) -> set[str]:
        """Return the files of which it is already said what the broker loads."""
        return {config.file for config in self.configs} | {f"{config.file}.bak" for config in self.configs}

    def _stays(self, item: Damage, dropped: set[str]) -> bool:
        """Return whether clients notice damage after the start: what is derived may be made again, and a torn end was never promised."""
        if item.kind.subject is Subject.INDEX and item.file in dropped:
            return False
        return item.kind.noticed

    # what to do

    def _assumed(self) -> Iterator[str]:
        """Yield what `repair` and `rebuild` take for the form of new files where no file shows it."""
        from mqstore.repair.repair import ask_for_configuration
        from mqstore.rocketmq.rebuild_steps import lines_that_decide, settings_of

        settings = settings_of(self.store)
        if settings.assumed_queue_size and self.store.log.last_written() >= 0:
            yield ask_for_configuration(settings.assumed_queue_size)
        yield from lines_that_decide(self.store)

    def _advice(self, lost: int, redelivers: int, *, loaded: bool = False) -> tuple[str, str]:
        """Return the next command, and for what. loaded: whether it is known what the start makes again."""
        store = self.store.path
        if self.locked:
            return self.store.command("inspect"), "a broker has the store open; look at it, and leave it alone"
        if self.elsewhere is not None:
            why = f"{self.elsewhere.remedy}: what to do {self.elsewhere.sentence}"
            return self._command("diagnose"), why
        if self.renamed_sizes:
            return self._command("diagnose"), " and ".join(remedy for _, remedy in self.renamed_sizes)
        if self.database is not None and (lost or redelivers or self.obstacles or not self.harmless or self.unknown):
            target = self.store.path.name if isinstance(store, Url) else store
            why = "make an intact store from the log, with queues in RocksDB again"
            return self._command("rebuild", "--to", f"{target}.new", "--queues", "rocksdb"), why
        if isinstance(store, Url) or is_archive(store):
            return self._advice_on_copy(lost, redelivers)
        if self._swapped is not None:
            return self._swapped.next, self._swapped.why
        if not (lost or redelivers) and self._is_for_good():
            return START, FOR_GOOD
        keeps = loaded and self.harmless and not (lost or redelivers or self.missing or self.obstacles or self.unknown)
        if keeps and not any(self._repairable(item) and item.finding not in _MADE_AGAIN for item in self.evidence):
            return START, KEEPS
        mounted = isinstance(self.store.directory, MountedDirectory)  # which a repair refuses
        repairable = not mounted and any(map(self._repairable, (*self.obstacles, *self.evidence)))
        if repairable if self.threads is None else self._repair_is_next():
            return self.store.command("repair"), "list what can be repaired before a broker starts; nothing is changed"
        if self._rebuild_helps():
            return self._rebuild.next, self._rebuild.why
        if of_a_group(self.store):
            return command("mqstore", "salvage", store, "--to", f"{store}.jsonl"), BEFORE_A_SLAVE
        if lost or redelivers or self.missing or not self.harmless:
            return START, WITHOUT_KEYS if self._lacks_keys_alone() else FOR_GOOD
        return START, UNTOLD if self.unknown else KEEPS

    def _command(self, verb: str, *words: object) -> str:
        """Return the command line of a verb that takes the version that was asked for."""
        return self.store.command(verb, *words, *(() if self.asked is None else ("--for", self.asked)))

    def _lacks_keys_alone(self) -> bool:
        """Return whether nothing else is wrong but that keys of messages are in no index file."""
        return not self.missing and {item.finding for item in self.evidence} - {"note"} == {Kind.MISSING_INDEX_ENTRY}

    @cached_property
    def _renames(self) -> list[Change]:
        """The renames that give log files their own names that have each other's."""
        return renames({own: relative for relative, own in swapped_log_files(self.store)})

    @cached_property
    def _swapped(self) -> Way | None:
        """How to give log files their own names that have each other's; None if there are none."""
        if not self._renames:
            return None
        root = Path(self.store.directory.root)
        commands = [command("mv", root / change.file, root / change.to) for change in self._renames]
        files = ", ".join(change.to for change in self._renames if not change.to.endswith(".swapped"))
        return Way(" && ".join(commands), f"give each of these files the name of its records before anything else: {files}")

    @property
    def _rebuild(self) -> Way:
        from mqstore.rocketmq.rebuild_steps import settings_of

        words = ["--assume-defaults"] if settings_of(self.store).assumed_queue_size and self.store.log.last_written() >= 0 else []
        if any("checksum" in item.finding for item in self.evidence):
            words.append("--check-crc")  # a rebuild repairs what it has noticed
        path = self.store.path
        why = "make an intact store from the log before a broker starts"
        return Way(self._command("rebuild", "--to", f"{path}.new", *words), why)

    def _repair_is_next(self) -> bool:
        """Return whether `repair` can change something in this store for the better, and a rebuild would not make the same new after it."""
        from mqstore.rocketmq.repair.plan import plan

        if isinstance(self.store.directory, ChangedDirectory):
            return False
        assert self.threads is not None
        store = self.store.remembering()
        try:
            steps = plan(store, threads=self.threads)
        except MqstoreError:
            return False
        changes = [change for step in steps for change in step.changes]
        if not changes:
            return False
        after = _Work(store.seen_in(ChangedDirectory(store.directory, changes)), self.profile, self.asked).run(self.threads, None)
        better = bool(self.obstacles) or after.loses <= self.lost + self.missing
        if self._refuses(changes):
            self._repair_in_copy = better
            return False
        self._repaired = after
        if not better:
            return False
        # where new files are needed after it, too, a rebuild does both, unless files are to be renamed or made before
        log = f"{self.store.log.queue.relative}/"
        before = any(step.possible and step.file.startswith(log) and step.kind not in _LEFT_TO_A_REBUILD for step in steps)
        self._repair_in_copy = not before and after.next.startswith("mqstore rebuild ")
        return not self._repair_in_copy

    def _refuses(self, changes: Sequence[Change]) -> bool:
        """Return whether a repair would not make changes: a file has a second name, or something else is in its place."""
        from mqstore.repair.journal import why_refused
        from mqstore.rocketmq.repair.plan import LOCKING

        return bool(why_refused(Path(self.store.directory.root), changes, LOCKING))

    def _rebuild_helps(self) -> bool:
        """Return whether new queues, a new index and a clean end would give more than the files as they are.

        New queues do not have the places of messages that are gone, so that consumers get what comes after them again.
        """
        if self.obstacles or self.unlisted or self._repair_in_copy or any(sentence not in self.of_clients for sentence in self.unknown):
            return True
        return not self.missing and any(item.finding in _MADE_NEW and _can_be_made(item.file) for item in self.evidence)

    def _is_for_good(self) -> bool:
        """Return whether there is damage that neither `repair` nor `rebuild` can mend, and no other: in bodies and properties, or gone.

        The places of messages that are gone stay in their queues: there are as many findings about them.
        """
        if self.obstacles or self.unknown or self.store.unclean:
            return False
        kinds = [item.finding for item in self.evidence]
        entries = sum(finding in _OF_GONE for finding in kinds)
        known = _FOR_GOOD | (_OF_GONE | {Kind.QUEUE_ORDER} if entries <= self.missing else frozenset())
        return any(finding in known for finding in kinds) and all(finding in known for finding in kinds) and not self.harmless

    def _advice_on_copy(self, lost: int, redelivers: int) -> tuple[str, str]:
        """Return what to do with an archive or a store at a URL, which cannot be repaired in place."""
        if not (lost or redelivers or self.obstacles or not self.harmless or self.unknown):
            return START, KEEPS
        target = self.store.path.name if isinstance(self.store.path, Url) else self.store.path
        return (
            self._command("rebuild", "--to", f"{target}.new"),
            "make an intact store from the log, or unpack it where `mqstore repair` can change it",
        )

    @staticmethod
    def _repairable(item: Evidence) -> bool:
        """Return whether `repair` has a step for this. Entries after the end of the log are left to the broker, which drops them."""
        if item.finding == "stray-file" and item.file.startswith("index/"):
            return False
        return item.finding in _REPAIRED or (item.finding == "bad-queue-entry" and "after the end of the log" not in item.detail)


# The log of a DLedger group: what is certain of it from the files of one member, although nothing shows whether a broker starts.
#
# What a broker has after its start depends on the other members: they may send what this one lacks, or let it cut what they never had. As
# 5.5.0 loads the files of one member, seen with its real store:
#
#     the header of an entry is damaged (magic, size, index, position, size of the body)    the log ends before that entry
#     a record is damaged, and the header of its entry is not                               the log is kept, with that record


def cannot_be_determined(store: RocketMQStore, report: Report) -> UnsupportedError:
    """Return the answer for a store whose log DLedger keeps. report: of `verify`."""
    facts = "; ".join(_facts(store, report))
    return UnsupportedError(
        f"it cannot be determined whether a broker starts on {store.path}, and what it has then: DLedger keeps the log in {store.dledger}, "
        f"and the other members of the group decide that, too. What is certain of this member: {facts}"
    )


def _facts(store: RocketMQStore, report: Report) -> Iterator[str]:
    yield f"{count(report.checked.messages, 'message')} of its log can be read"
    starts = {file.relative: file.start for file in store.log.files}
    in_log = [item for item in report.damage if item.file in starts]
    broken = [starts[item.file] + item.offset for item in in_log if item.length == _HEADER]
    cut = min([*broken, *_out_of_order(store)], default=None)
    if cut is not None:
        yield f"the header of the entry at {cut} is damaged, and a broker loads the log up to there: what follows only others can send"
    lost = sum(item.messages for item in in_log if _is_before(starts[item.file], item, cut))
    if lost:
        yield f"{count(lost, 'message')} of what a broker loads {'is' if lost == 1 else 'are'} damaged"
    if cut is None and not in_log:
        yield "nothing of its log is damaged"


def _is_before(start: int, item: Damage, cut: int | None) -> bool:
    return item.length != _HEADER and (cut is None or start + item.offset < cut)


def _out_of_order(store: RocketMQStore) -> Iterator[int]:
    """Yield the place of the first entry whose index is not that of the entry before it plus one."""
    before: int | None = None
    for file in store.log.files:
        for event in store.log.scan_file(file, 0, file.size):
            if not isinstance(event, Records):
                before = None
                continue
            at = event.positions - _HEADER
            indexes = event.data[(at + _INDEX_AT)[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64)
            steps = np.diff(indexes, prepend=indexes[0] - 1 if before is None else before)
            wrong = np.flatnonzero(steps != 1)
            if len(wrong):
                yield file.start + int(at[wrong[0]])
                return
            before = int(indexes[-1])
