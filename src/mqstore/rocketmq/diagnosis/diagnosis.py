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
from collections.abc import Callable, Iterable, Iterator, Set

import numpy as np

from mqstore.diagnosis import Advice, Diagnosis, Evidence
from mqstore.errors import RefusedError, UnsupportedError
from mqstore.files.archive import is_archive
from mqstore.files.location import Url
from mqstore.files.locking import is_locked
from mqstore.findings import Damage, Kind, Remedy, Report, Subject
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.diagnosis.configuration import LoadedConfig, loaded_configs, redelivery
from mqstore.rocketmq.diagnosis.database_queues import (
    RULES,
    DatabaseQueues,
    keeps_queues_in_database,
    require_configuration,
    unknown_of_index,
)
from mqstore.rocketmq.diagnosis.log_site import log_elsewhere, renamed_log_files
from mqstore.rocketmq.diagnosis.survival import SurvivalCheck
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.profile import Profile, profile, version_rules
from mqstore.rocketmq.recovery.broker_recovery import Recovery
from mqstore.rocketmq.store.recovered_view import RecoveredView
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.formatting import command, count

START = "sh bin/mqbroker -c conf/broker.conf"
KEEPS = "start the broker: it keeps everything that is there"
FOR_GOOD = "start the broker: what is damaged or gone cannot be brought back, and it keeps everything else"

_ABOUT_A_FILE = re.compile(r"((?:commitlog|consumequeue|batchconsumequeue).*?) (?:is a directory|is empty|has \d+ bytes|has the size)")
_REPAIRED = frozenset(kind for kind in Kind if kind.remedy is Remedy.REPAIR)
_FOR_GOOD = frozenset(kind for kind in Kind if kind.subject is Subject.RECORD and kind.remedy is Remedy.BACKUP) | {
    "gone",
    "note",
    "offset-past-end",
}
_OF_GONE = frozenset(kind for kind in Kind if kind.subject is Subject.QUEUE_ENTRY)
_HEADER = frames.ENTRY_HEADER_SIZE
_INDEX_AT = 8
QUEUES = "consumequeue"
NAME_DIGITS = 20  # of a queue file
_JAVA_LONG = re.compile(r"[+-]?[0-9]{1,19}")


def _is_of_log(item: Damage) -> bool:
    return item.kind.subject is Subject.RECORD or item.kind.unread


def rules_of(version: str) -> str:
    """Return the version whose rules a broker follows, `4.9.3` or `5.3.3`. Raises UsageError for an unknown version."""
    return profile(version).rules


def diagnose(
    store: RocketMQStore, version: str | None = None, *, threads: int = 2, progress: Callable[[int, int], None] | None = None
) -> Diagnosis:
    """Return what a broker makes of a store. version: of the broker, by default the one that the files suggest. Raises MqstoreError."""
    of = store.evidence.profile if version is None else profile(version)
    store.require_directory_for("a diagnosis")
    if store.dledger is not None:
        raise cannot_be_determined(store, verify(store, threads=threads, progress=progress))
    require_configuration(store)
    database = DatabaseQueues(store, of) if keeps_queues_in_database(store) else None
    return _Work(store, of, version, database).run(threads, progress)


def advise(store: RocketMQStore, report: Report | None = None) -> Advice:
    """Return what to do next with a store, from names, sizes and small files, and the report of `verify` if there is one."""
    if store.queue_database is not None:
        return Advice(None, command("mqstore", "diagnose", store.path), "see whether a broker starts on it, and what that loses")
    if store.dledger is not None or store.log_only:
        return _advise_without_diagnosis(store, report)
    return _Work(store, store.evidence.profile, None).advice_after(report)


def _advise_without_diagnosis(store: RocketMQStore, report: Report | None) -> Advice:
    if report is None:
        return Advice(None, command("mqstore", "verify", store.path), "check every byte; what a broker makes of it cannot be determined")
    if report.damage:
        return Advice(None, command("mqstore", "messages", store.path), "list the messages that can be read, each with its verdict")
    shows = "messages" if store.log_only else "topics"
    return Advice(None, command("mqstore", shows, store.path), "nothing is damaged; list what is there")


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
        self.changes: list[str] = []
        self.unknown: list[str] = []
        self.harmless = True
        self.configs: list[LoadedConfig] = []
        self.locked = False
        self.missing = 0  # messages of which only the places in their queues are left
        self.elsewhere = log_elsewhere(store) if database is None else None

    def advice_after(self, report: Report | None) -> Advice:
        """Return what is known before the load is simulated. report: of `verify`; None: the log has not been read."""
        store = self.store.path
        self._prepare()
        if self.locked:
            why = "a broker has the store open: leave its files alone; see what it holds"
            return Advice(False, command("mqstore", "topics", store), why)
        if report is not None:
            configs = self._config_files()
            self.evidence += [Evidence.of(item) for item in report.damage if item.file not in configs]
        if self.elsewhere is not None:
            return Advice(None, *self._advice(0, 0))
        if self.obstacles or (report is not None and any(self._repairable(item) for item in self.evidence)):
            return Advice(False if self.obstacles else None, *self._advice(0, 0))
        if report is not None and self._all_well(report):
            return Advice(True, START, KEEPS)
        what = "the broker's load is simulated" if report is not None else "every message is looked up"
        return Advice(None, command("mqstore", "diagnose", store), f"see whether a broker starts on it, and what that loses; {what}")

    def _all_well(self, report: Report) -> bool:
        """Return whether the load of a broker has nothing to do: a clean exit, nothing damaged or skipped, and no group past the end."""
        settled = report.ok and report.coverage.complete and not (report.cautions or self.evidence or self.unknown or self.store.unclean)
        return settled and self.harmless and all(item.state != "above-max" for item in self.store.view("disk").consumer_offsets())

    def _prepare(self) -> Recovery | None:
        """Look for what keeps a broker from starting; return the load, which is yet to be run, if names and sizes allow one."""
        self._check_lock()
        if self.elsewhere is not None:
            self.unknown.append(f"what the broker has after its start: that {self.elsewhere.sentence}")
        self._check_configs()
        return self._recover()

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> Diagnosis:
        recovery = self._load(self._prepare())
        check = SurvivalCheck(self.store, None if self.obstacles else recovery)
        report = check.run(threads, progress)
        loses = redelivers = 0
        if recovery is not None and not self.obstacles:
            missing = check.count_missing()
            self.missing = missing
            loses = check.lost + missing
            self._add_damage([item for item in report.damage if _is_of_log(item)])
            self._add_losses(check, missing)
            self._add_unlisted_ranges(report.damage)
            self.unknown += unwritable_queues(self.store, {*check.unqueued, *check.queues})
            self.unknown += misnamed_files(self.store)
            self._add_changes(recovery)
            self._add_database(recovery)
            self._add_damage([item for item in report.damage if not _is_of_log(item)])
            self.evidence += [Evidence("note", ".", note) for note in report.notes]
            again = redelivery(self.store, RecoveredView(self.store, recovery, self.profile), self.configs, check.last_timestamp)
            redelivers = again.messages
            self.harmless &= not redelivers
            self.evidence += again.evidence
            self.unknown += again.unknown
        else:
            self.evidence += [Evidence.of(item) for item in report.damage]
        next_, why = self._advice(check.lost, redelivers)
        return Diagnosis(
            store=str(self.store.path),
            family="rocketmq",
            version=self.version,
            rules=self.rules if self.database is None else RULES,
            starts=not self.obstacles,
            loses=loses,
            redelivers=redelivers,
            next=next_,
            why=why,
            changes=tuple(self.changes),
            harmless=self.harmless,
            unknown=tuple(dict.fromkeys(self.unknown)),
            evidence=(*self.obstacles, *self.evidence),
        )

    # 1: what keeps a broker from starting

    def _check_lock(self) -> None:
        if not self.store.directory.exists("lock"):
            return
        held = None if isinstance(self.store.path, Url) else is_locked(self.store.directory.path("lock"))
        self.locked = held is True
        if held:
            sentence = "a process has the store open; a second broker cuts its files before it notices that, and then does not start"
            self.obstacles.append(Evidence("lock-held", "lock", sentence))
        elif held is None:
            self.unknown.append("whether a broker has the store open")

    def _check_configs(self) -> None:
        lmq = self.store.config.enable_lmq
        if lmq is None:
            lmq = self.store.directory.exists("config/lmqConsumerOffset.json")
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

    def _recover(self) -> Recovery | None:
        store = self.store
        for item in store.unread_directories:
            self.unknown.append(f"what is in {item.file}: {item.detail}")
        self._check_queue_types()
        for place in directories_in_index(store) if store.config.message_index_enable is not False else ():
            sentence = f"{place} is a directory, and the broker takes it for an index file"
            if version_rules(self.rules).starts_with_directory_in_index:
                self.harmless = False
                self.evidence.append(Evidence("keys-lost", place, f"{sentence}: it does not load the index files after it"))
            else:
                self.obstacles.append(Evidence("refused", place, f"{sentence}: it does not start"))
        if store.directory.is_directory("checkpoint"):
            sentence = "it is a directory, in which a broker cannot keep its checkpoint"
            self.obstacles.append(Evidence("bad-checkpoint", "checkpoint", sentence))
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
                recovered_files=self.profile.recovered_files,
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
        found = _ABOUT_A_FILE.match(sentence)
        file = found[1] if found is not None else self.store.log.queue.relative
        kind = next((str(item.kind) for item in self.store.findings if item.file == file), "refused" if found is None else "wrong-size")
        return Evidence(kind, file, f"{sentence}; the broker does not start")

    def _check_queue_types(self) -> None:
        """5.x compares the directory of a queue with the configured type of its topic."""
        if not version_rules(self.rules).has_batch_queues:
            return
        batch = {*self.store.topics.batch_topics, *self.store.config.batch_topics}
        known = self.store.directory.exists("config/topics.json") or bool(self.store.config.batch_topics)
        for place, topics in (
            ("consumequeue", {queue.topic for queue in self.store.consume_queues()} & batch),
            ("batchconsumequeue", {queue.topic for queue in self.store.batch_queues()} - batch),
        ):
            for topic in sorted(topics):
                sentence = f"topic {topic!r} has queues in {place}, but its queue.type is {'BatchCQ' if topic in batch else 'SimpleCQ'}"
                if known:
                    self.obstacles.append(Evidence("queue-type", f"{place}/{topic}", f"{sentence}: the broker does not start"))
                else:
                    self.unknown.append(f"the queue.type of topic {topic!r}, which has queues in {place}: there is no config/topics.json")

    # 2, 3: what the start does, and what it loses

    def _add_losses(self, check: SurvivalCheck, missing: int) -> None:
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
                {key: loss.before_end for key, loss in check.by_queue.items()},
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
            place = f"topic {topic!r}, queue {queue_id}" if len(affected) == 1 else f"{len(affected)} queues, most of topic {topic!r}"
            self.evidence.append(Evidence(finding, file, f"{count(total, 'message')} of {place} {sentence}", first, messages=total))
        for topic, queue_id in check.uncounted:
            self.unknown.append(
                f"how many messages of topic {topic!r}, queue {queue_id} are gone: it has no files, and a record of it has a queue offset "
                "that cannot be right"
            )
        if missing:
            renamed = renamed_log_files(self.store)
            left = f"of {count(missing, 'message')} only the places in their queues are"
            if self.elsewhere is not None:
                sentence = f"{left} here: what became of them {self.elsewhere.sentence}"
                self.evidence.append(Evidence("log-elsewhere", log, sentence, messages=missing))
            elif renamed:
                names = ", ".join(file.relative for file in renamed)
                sentence = f"{left} found under the names of a log: {names} holds records of it, and a broker does not read that"
                self.evidence.append(Evidence("log-renamed", log, sentence, messages=missing))
            else:
                self.evidence.append(Evidence("gone", log, f"{left} left: the bytes are lost, whatever is done", messages=missing))
            if not self.store.log.files:
                self.unknown.append("how many of the messages in the queues had expired before the log was lost")

    def _add_unlisted_ranges(self, damage: Iterable[Damage]) -> None:
        """Say that messages may be lost in bytes that no queue has reached: nothing else counts them."""
        listed = max((queue.max_physical_offset for queue in self.store.view("disk").queues()), default=-1)
        starts = {file.relative: file.start for file in self.store.log.files}
        for item in damage:
            lost = item.kind.unread and item.kind.noticed and item.length
            if lost and item.file in starts and starts[item.file] + item.offset > listed:
                self.unknown.append(f"how many messages were in the {count(item.length, 'byte')} at {item.offset} of {item.file}")

    def _add_changes(self, recovery: Recovery) -> None:
        store = self.store
        if store.unclean:
            self.evidence.append(Evidence("abort", "abort", "the last broker did not exit cleanly: the log is recovered as after a crash"))
            self.changes.append(f"parses the log from {recovery.recovered_from}, and dispatches what it finds again")
        kept = {file.file.relative: file for file in recovery.log_files}
        for file in store.log.files:
            if file.relative not in kept:
                self.changes.append(f"removes {file.relative}")
        last = recovery.log_files[-1] if recovery.log_files else None
        if last is not None and last.written < last.file.size:
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

    def _add_database(self, recovery: Recovery) -> None:
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
        dropped = {file.relative for file in self.store.index_files() if self.store.unclean and file.end_timestamp > point.index}
        configs = self._config_files()
        for item in damage:
            if item.file in configs:
                continue  # said by what the broker loads
            self.evidence.append(Evidence.of(item))
            if item.kind is Kind.UNREADABLE:
                self.unknown.append(f"what is in {item.file}: {item.detail}")
            elif self._stays(item, dropped):
                self.harmless = False

    def _config_files(self) -> set[str]:
        """Return the files of which it is already said what the broker loads."""
        return {config.file for config in self.configs} | {f"{config.file}.bak" for config in self.configs}

    def _stays(self, item: Damage, dropped: set[str]) -> bool:
        """Return whether clients notice damage after the start: what is derived may be made again, and a torn end was never promised."""
        if item.kind.subject is Subject.INDEX and (item.file in dropped or (item.file == "index" and dropped)):
            return False
        return item.kind.noticed

    # what to do

    def _advice(self, lost: int, redelivers: int) -> tuple[str, str]:
        store = self.store.path
        if self.locked:
            return command("mqstore", "inspect", store), "a broker has the store open; look at it, and leave it alone"
        if self.elsewhere is not None:
            return command("mqstore", "inspect", store), f"see what is here; what to do {self.elsewhere.sentence}; {self.elsewhere.remedy}"
        if self.database is not None and (lost or redelivers or self.obstacles or not self.harmless or self.unknown):
            target = self.store.path.name if isinstance(store, Url) else store
            why = "make an intact store from the log, with queues in RocksDB again"
            return command("mqstore", "rebuild", store, "--to", f"{target}.new", "--queues", "rocksdb"), why
        if isinstance(store, Url) or is_archive(store):
            return self._advice_on_copy(lost, redelivers)
        if not (lost or redelivers) and self._is_for_good():
            return START, FOR_GOOD
        if lost or redelivers or any(self._repairable(item) for item in (*self.obstacles, *self.evidence)):
            return command("mqstore", "repair", store), "list what can be repaired before a broker starts; nothing is changed"
        if self.obstacles or not self.harmless or self.unknown:
            return command("mqstore", "rebuild", store, "--to", f"{store}.new"), "make an intact store from the log before a broker starts"
        return START, KEEPS

    def _is_for_good(self) -> bool:
        """Return whether there is damage that neither `repair` nor `rebuild` can mend, and no other: in bodies and properties, or gone.

        The places of messages that are gone stay in their queues: there are as many findings about them.
        """
        if self.obstacles or self.unknown or self.store.unclean:
            return False
        found = [item.finding for item in self.evidence]
        entries = sum(finding in _OF_GONE for finding in found)
        known = _FOR_GOOD | (_OF_GONE | {Kind.QUEUE_ORDER} if entries <= self.missing else frozenset())
        return any(finding in known for finding in found) and all(finding in known for finding in found) and not self.harmless

    def _advice_on_copy(self, lost: int, redelivers: int) -> tuple[str, str]:
        """Return what to do with an archive or a store at a URL, which cannot be repaired in place."""
        if not (lost or redelivers or self.obstacles or not self.harmless or self.unknown):
            return START, KEEPS
        target = self.store.path.name if isinstance(self.store.path, Url) else self.store.path
        return (
            command("mqstore", "rebuild", self.store.path, "--to", f"{target}.new"),
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


# Places that are not as a broker needs them: it does not start, or it cannot be determined which messages consumers get.
#
#     a directory in `index/` with a number for    5.x does not start; 4.x does not load the index files after it
#     its name
# a file where a queue's directory must be,    the broker cannot write that queue; dispatch fails at the first such message, again and
# a directory where its file must be           again, and lists nothing more in any queue
# a file name that is not a multiple of the    the broker computes the place in a file as if each began at such a multiple
# size of the files


def unwritable_queues(store: RocketMQStore, queues: Set[tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence for each place in which a broker cannot write a queue. queues: those that it has or needs."""
    topics = {topic for topic, _ in queues}
    if store.directory.has_entry(QUEUES) and not store.directory.is_directory(QUEUES):
        yield _sentence(QUEUES, "a file has the place of that directory")
    for topic in store.directory.entries(QUEUES):
        name = topic.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        place = f"{QUEUES}/{topic.name}"
        if not topic.is_directory:
            if name in topics:
                yield _sentence(place, "a file has the place of that directory")
            continue
        for queue in store.directory.entries(place):
            if not queue.is_directory:
                if queue.name.isdecimal() and queue.name.isascii() and (name, int(queue.name)) in queues:
                    yield _sentence(f"{place}/{queue.name}", "a file has the place of that directory")
                continue
            for file in store.directory.entries(f"{place}/{queue.name}"):
                if file.is_directory and len(file.name) == NAME_DIGITS and file.name.isdecimal():
                    yield _sentence(f"{place}/{queue.name}/{file.name}", "a directory has the place of that file")


def directories_in_index(store: RocketMQStore) -> Iterator[str]:
    """Yield the path of each directory in `index/` whose name is a number: a broker takes it for an index file."""
    for entry in store.directory.entries("index"):
        if entry.is_directory and _JAVA_LONG.fullmatch(entry.name):
            yield f"index/{entry.name}"


def _sentence(place: str, why: str) -> str:
    return f"which messages the broker lists after its start, in any queue: it cannot write {place}, because {why}"


def misnamed_files(store: RocketMQStore) -> Iterator[str]:
    """Yield a sentence for each queue file whose name is not a multiple of the size of its files."""
    for queue in store.consume_queues():
        for file in queue.files:
            if queue.file_size and file.start % queue.file_size:
                yield (
                    f"what consumers get of topic {queue.topic!r}, queue {queue.queue_id}: the name of {file.relative} is not a multiple "
                    f"of the size of its files, {queue.file_size}"
                )
