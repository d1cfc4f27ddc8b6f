"""Salvage: every intact message of a store, of what is left of one, or of an image, to a file, a new store or a running broker.

what is at the path                            its messages come from
a RabbitMQ store, or files under their names   the indexes, which say what became of each
a RocketMQ log in place, if OUT is a file      the log and its queues, which say the same
anything else, and a new RocketMQ store        carving (`mqstore.wreck.search`), which finds them by their own marks

mqstore.salvage("/images/disk.img", "found.jsonl").as_dict()
mqstore.open("/wreck").salvage("amqp://guest@localhost/").confirmed
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import CannotOpenError, NotAStoreError, UnsupportedError, UsageError
from mqstore.files.archive import UnpackedArchive, is_archive
from mqstore.files.durable import DurableDirectory, remove_left_behind
from mqstore.files.location import Location, check_parent, exists_already, local_target, refuse_address, without_password
from mqstore.findings import Kind, SalvageReport, Verdict
from mqstore.jobs.resume import is_work, record_written, work_at, written_before
from mqstore.jobs.runner import choose_runner
from mqstore.places import open_rocketmq
from mqstore.rabbitmq import salvage as rabbitmq
from mqstore.rabbitmq.carved_logs import stored_terms
from mqstore.rabbitmq.format.index_v2 import ENTRY_COUNT
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rocketmq import salvage as rocketmq
from mqstore.rocketmq.format.profile import profile
from mqstore.rocketmq.store.log_site import log_elsewhere, mounted_log
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.store import NOBODY, Observer
from mqstore.table.formatting import count
from mqstore.table.row_files import format_of
from mqstore.wreck import search
from mqstore.wreck.rows import write_carved_rabbitmq_rows, write_carved_rows

if TYPE_CHECKING:
    from mqstore.files.durable import NewFile
    from mqstore.jobs.runner import Runner
    from mqstore.rabbitmq.convert.convert_vhost import ConvertReport
    from mqstore.table.row_files import Complete, RowCounts
    from mqstore.wreck.rows import FragmentCounts
    from mqstore.wreck.search import SourceFile, Wreck

MAX_GROUPS = 1000
_UNPROVED = "in a log of a quorum queue, and not proved by a checksum: only written to a file (.jsonl, .parquet)"
_SENT = ("sent", "confirmed", "returned", "refused", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageRequest:
    """Where messages go, and which.

    to: a new file, a new directory with as_kind, `amqp://user:password@host:port/vhost`, or `rocketmq://host:port[/topic]`.
    format: of a file, `jsonl` or `parquet`, if its name does not imply it. as_kind: the new store, `rocketmq` or `rabbitmq`.
    verdicts: only messages with these; over AMQP by default those that are intact.
    vhost: of RabbitMQ, only this one; in a new store the name of a vhost without one. queues: of RabbitMQ, only these.
    into: the queue of RabbitMQ for messages that are in none. queue_version, entries: of a new store, the version of its queues and the
    entries of a segment. version: of the broker that is to start on it; of RocketMQ, by default that which a store's files suggest.
    by_exchange: publish to the exchange that a message came through. rate: messages per second, of a broker.
    resume: a file (brokers) or directory (images) by which a run that was interrupted goes on.
    master, threads: where an image is searched; by default the size decides.
    """

    to: str
    format: str | None = None
    as_kind: str | None = None
    verdicts: frozenset[str] | None = None
    vhost: str | None = None
    queues: tuple[str, ...] | None = None
    into: str | None = None
    queue_version: int | None = None
    entries: int | None = None
    version: str | None = None
    by_exchange: bool = False
    rate: float | None = None
    resume: Path | None = None
    master: str | None = None
    threads: int | None = None

    @property
    def to_amqp(self) -> bool:
        """Whether the target is a running broker that speaks AMQP."""
        return self.to.startswith(("amqp://", "amqps://"))

    @property
    def sent(self) -> bool:
        """Whether the target is a running broker of either kind."""
        return self.to_amqp or self.to.startswith("rocketmq://")


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A new RabbitMQ store. converted: its queues; store: the path of the wreck."""

    converted: ConvertReport
    store: str

    @property
    def ok(self) -> bool:
        """Whether nothing was damaged or missing."""
        return self.converted.ok

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `salvage --as rabbitmq -o json` prints."""
        return self.converted.as_dict() | {"store": self.store}


@dataclass(frozen=True, slots=True)
class SentReport:
    """Messages of a RabbitMQ store sent to a broker. skipped: delivered in an earlier run; left_out: live messages not sent, by reason."""

    to: str
    store: str
    sent: int
    confirmed: int
    returned: int
    refused: int
    skipped: int
    left_out: dict[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every message arrived."""
        return not self.returned and not self.refused and not self.left_out

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `salvage --to amqp://… -o json` prints."""
        numbers = {name: getattr(self, name) for name in _SENT}
        return {"to": self.to, "store": self.store, "ok": self.ok, **numbers, "left_out": self.left_out, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class CarveReport:
    """What was found by carving, and written. wreck: what was found; written: of the document, what depends on the target."""

    store: str
    wreck: Wreck
    written: dict[str, Any]
    verdicts: Mapping[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every byte belongs to an intact message or is zero, and every message arrived."""
        refused = self.written.get("refused") or self.written.get("returned")
        return not self.verdicts.get(Verdict.DAMAGED) and not self.verdicts.get(Verdict.UNPROVED) and self.wreck.ok and not refused

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `salvage -o json` prints for anything that is not a store under its own names."""
        return {
            "store": self.store,
            "ok": self.ok,
            **self.written,
            "verdicts": {str(each): self.verdicts.get(str(each), 0) for each in Verdict},
            **self.wreck.as_dict(),
            "seconds": round(self.seconds, 3),
        }


AnyReport = SalvageReport | StoreReport | SentReport | CarveReport


def salvage(
    source: Location | RocketMQStore | RabbitMQStore,
    to: str | os.PathLike[str],
    *,
    names: Iterable[tuple[str, str]] = (),
    observer: Observer = NOBODY,
    **options: Any,
) -> AnyReport:
    """Recover every intact message of a store, of what is left of one, or of an image.

    source: a path, or a store that is open. names: pairs of vhost and queue, for directories of RabbitMQ that do not record theirs.
    options: those of `SalvageRequest`. Raises UsageError, CannotOpenError, NotAStoreError, TargetError; nothing is ever overwritten.
    """
    request = SalvageRequest(to=os.fspath(to), **options)
    if not request.sent:
        refuse_address(request.to, "give rocketmq://host:port[/topic] or amqp://user:password@host:port/vhost (amqps:// with TLS)")
        local_target(request.to)
    path = source.path if isinstance(source, RocketMQStore | RabbitMQStore) else source
    if not isinstance(path, Path):
        raise UnsupportedError(f"{path} is not a path of this machine, and salvage reads files of this machine only; copy it first")
    opened = None if source is path else source
    wreck = rabbitmq.as_wreck(opened) if isinstance(opened, RabbitMQStore) else None if opened else _wreck_of_rabbitmq(path, names)
    if wreck is not None:
        return _salvage_rabbitmq(path, wreck, request, observer)
    in_place = request.as_kind is None and not request.sent
    store = opened if isinstance(opened, RocketMQStore) else _rocketmq(path) if in_place or path.is_dir() else None
    elsewhere = None if store is None else log_elsewhere(store)
    if elsewhere is not None:
        observer.note(f"which messages are in the rest of the log {elsewhere.sentence}")
    if store is None or not in_place or not _is_log_in_place(store):
        return carve(path, request, observer, () if store is None else mounted_log(store.directory))
    if request.master or request.threads or request.resume:
        raise UsageError(f"{path} has its log in place: --master, --threads and --resume apply to images and nameless pieces")
    with observer.progress("salvaging", "messages") as progress:
        report = rocketmq.salvage(store, Path(request.to), format=request.format, verdicts=request.verdicts, progress=progress)
    return replace(report, store=str(path))


def _wreck_of_rabbitmq(path: Path, names: Iterable[tuple[str, str]]) -> RabbitMQStore | None:
    """Return a RabbitMQ store or what is left of one; None for anything else that exists. Raises CannotOpenError, NotAStoreError."""
    try:
        return rabbitmq.open_wreck(path, names=names)
    except NotAStoreError:
        if path.exists():
            return None
        raise


def _rocketmq(path: Path) -> RocketMQStore | None:
    """Return the RocketMQ store at a path; None if there is none, or only files of its log."""
    if not path.is_dir() and not (path.is_file() and is_archive(path)):
        return None
    with contextlib.suppress(NotAStoreError if path.is_file() else CannotOpenError, UnsupportedError):
        store = open_rocketmq(path)
        return None if store.log_only else store
    return None


def _is_log_in_place(store: RocketMQStore) -> bool:
    """Return whether a log is where a broker expects it, so that its queues say what became of a message."""
    return bool(store.log.files) and not any(item.kind is Kind.STRAY_FILE for item in store.findings)


# what has files of RabbitMQ under their names


def _salvage_rabbitmq(path: Path, wreck: RabbitMQStore, request: SalvageRequest, observer: Observer) -> AnyReport:
    if request.version is not None and request.as_kind is None:
        raise UsageError("--for is the version that is to start on a new store; give --as")
    if request.to_amqp:
        return _send_wreck(wreck, request)
    if path.is_dir() and (unread := rabbitmq.unread_files(wreck.directory)):
        others = f"{count(len(unread), 'file')} under other names, such as {unread[0]}"
        observer.note(
            f"{others}: not read, because there are files of RabbitMQ under their names; salvage others from a separate directory"
        )
    if request.master or request.threads:
        raise UsageError(f"{path} has files of RabbitMQ under their names; --master and --threads apply to images and nameless pieces")
    if request.as_kind == "rocketmq":
        raise UsageError(f"{path} is what is left of a RabbitMQ store; --as rabbitmq writes a new one, mqstore replay a RocketMQ store")
    if request.as_kind is not None:
        if request.queues is not None or request.verdicts is not None:
            raise UsageError(
                "a new store takes the ready messages of every queue; --queue and --verdict apply if OUT is a file or an amqp:// address"
            )
        return StoreReport(_write_queues(wreck, request, observer), str(path))
    if request.into is not None:
        raise UsageError("--into names a queue, which a file does not have; use it with --as rabbitmq or an amqp:// address")
    with observer.progress("salvaging", "messages") as progress:
        report = rabbitmq.salvage(
            wreck,
            Path(request.to),
            format=request.format,
            verdicts=rabbitmq.WRITTEN if request.verdicts is None else request.verdicts,
            vhosts=None if request.vhost is None else frozenset({request.vhost}),
            queues=None if request.queues is None else frozenset(request.queues),
            progress=progress,
        )
    if not report.messages and (unknown := wreck.unknown_name(request.vhost and [request.vhost], request.queues)):
        observer.note(f"no message matches: {unknown}")
    return replace(report, store=str(path))


def _write_queues(wreck: RabbitMQStore, request: SalvageRequest, observer: Observer, title: str = "salvaging") -> ConvertReport:
    """Write the ready messages into a new store."""
    with observer.progress(title, "queues") as progress:
        return rabbitmq.salvage_store(
            wreck,
            Path(request.to),
            request.queue_version,
            target=request.version,
            into=request.into,
            vhost=request.vhost or "/",
            entries_v2=request.entries or ENTRY_COUNT,
            progress=progress,
        )


def _send_wreck(wreck: RabbitMQStore, request: SalvageRequest) -> SentReport:
    from mqstore.rabbitmq.amqp_sender import Sender, outgoing_messages

    if request.rate is not None and request.rate <= 0:
        raise UsageError("--rate must be above 0 messages per second")
    into, verdicts = request.into, request.verdicts or frozenset({"intact"})
    way = "exchange" if request.by_exchange else f"queue, else {into}" if into else "queue"
    chosen = sorted(request.queues or ())
    to = without_password(request.to)
    about = f"{wreck.path.absolute()}: {', '.join(sorted(verdicts))} of {request.vhost or 'the vhost'} {chosen} by {way} to {to}"
    sender = Sender(request.to, rate=request.rate, resume=request.resume, about=about)
    started = time.monotonic()
    left_out = Counter[str]()
    sent = sender.send(
        outgoing_messages(
            wreck,
            verdicts,
            vhosts=frozenset({request.vhost or sender.vhost}),
            queues=frozenset(chosen) or None,
            by_exchange=request.by_exchange,
            user=sender.user,
            into=into,
            skipped=left_out,
        )
    )
    numbers = {name: getattr(sent, name) for name in _SENT}
    return SentReport(to, str(wreck.path), **numbers, left_out=dict(left_out), seconds=time.monotonic() - started)


# anything else


def carve(path: Path, request: SalvageRequest, observer: Observer = NOBODY, further: Sequence[Path] = ()) -> CarveReport:
    """Search a source for messages of either broker, and write what was found; errors as for `salvage`.

    further: directories elsewhere that have a part of it.
    """
    _check(path, request)
    started = time.monotonic()
    keep = UnpackedArchive(path) if is_archive(path) and path.is_file() else None
    if keep is not None and request.master:
        raise UsageError(f"{path} is an archive: unpack it first, tasks cannot share an unpacked copy")
    files = search.source_files(path if keep is None else keep.store_root(), is_store=bool(further))
    for directory in further:
        if not directory.is_relative_to(path):
            files += [replace(file, name=f"{directory}/{file.name}") for file in search.source_files(directory)]
    choice = choose_runner(path, lambda: sum(file.size for file in files), threads=request.threads, master=request.master)
    with _stage(request, files) as (stage, resumable), choice.runner() as runner:
        with observer.progress("carving") as progress:
            wreck = search.carve(files, runner, stage=stage if resumable else None, progress=progress)
        written, verdicts = _Carved(path, wreck, request, observer, runner, stage, resumable).write()
    return CarveReport(str(path), wreck, written, verdicts, time.monotonic() - started)


def _check(path: Path, request: SalvageRequest) -> None:
    """Refuse what cannot be done, before anything is searched."""
    if request.version is not None and request.as_kind is None:
        raise UsageError("--for is the version that is to start on a new store; give --as")
    if request.queues is not None:
        raise UsageError(f"the messages of {path} are in no queue, because only an index knows it; choose among the rows of OUT instead")
    if request.as_kind == "rabbitmq" and request.into is None:
        raise UsageError("carved messages are in no queue, because only an index knows it; give --into QUEUE, the queue to put them in")
    if request.as_kind == "rocketmq" and request.version is not None:
        profile(request.version)
    if request.sent:
        return
    if request.resume is not None and request.resume.exists() and not is_work(request.resume):
        raise UsageError(f"{request.resume} is not the directory of an earlier salvage; give a name that does not exist yet")
    _refuse_existing(Path(request.to), request.resume)


def _refuse_existing(to: Path, stage: Path | None) -> None:
    """Refuse a target that exists, unless an earlier run, whose work directory is given, wrote it completely."""
    if os.path.lexists(to) and (stage is None or written_before(stage, to) is None):
        raise exists_already(to)


@contextlib.contextmanager
def _stage(request: SalvageRequest, files: list[SourceFile]) -> Iterator[tuple[Path, bool]]:
    """Yield the directory for what is not finished, and whether another run can go on from it."""
    to = Path(request.to)
    if request.sent:
        path, stays = Path(tempfile.gettempdir()) / f".mqstore-salvage-{os.getpid()}", False
    elif request.resume is not None:
        path, stays = request.resume.absolute(), True
    else:
        path, stays = to.absolute().parent / f".{to.name[:100]}.mqstore-carve", False
    check_parent(path)
    identity = {
        "files": search.fingerprint(files),
        "split": search.SPLIT,
        "format": None if request.sent or request.as_kind else format_of(to, request.format),
        "verdict": sorted(request.verdicts or ()),
    }
    with work_at(path, resume=stays, identity=identity, what="salvage") as work:
        if work.resumed_plan is None:
            work.write_plan(identity)
        yield work.path, stays


Part = tuple[dict[str, Any], Mapping[str, int]]


@dataclass(slots=True)
class _Carved:
    """What was found, to be written. stage: directory for what is not finished; keep: it stays if the run ends early.

    Each method returns its part of the report, and the number of messages by verdict.
    """

    path: Path
    wreck: Wreck
    request: SalvageRequest
    observer: Observer
    runner: Runner
    stage: Path
    keep: bool
    to: Path = field(init=False)

    def __post_init__(self) -> None:
        self.to = Path(self.request.to)

    def write(self) -> Part:
        """Write what was found, as it was asked for."""
        wreck, request = self.wreck, self.request
        if request.as_kind == "rocketmq":
            if not wreck.placed:
                raise NotAStoreError(f"{self.path} holds no record of RocketMQ; --as rabbitmq writes a store of its RabbitMQ messages")
            store = _rocketmq(self.path) if request.version is None else None
            return self._to_rocketmq_store(self.to, request.version if store is None else store.evidence.profile.version)
        if request.as_kind == "rabbitmq":
            if not wreck.messages:
                others = "; --as rocketmq writes a store of its RocketMQ records" if wreck.placed else ""
                raise NotAStoreError(f"{self.path} holds no message of RabbitMQ{others}")
            return self._to_rabbitmq_store()
        if request.sent:
            return self._send()
        parts = []
        if wreck.placed:
            parts.append(self._rocketmq_rows(self._own("rocketmq")))
        if wreck.messages:
            parts.append(self._rabbitmq_rows(self._own("rabbitmq")))
        verdicts: Counter[str] = Counter()
        for _, numbers in parts:
            verdicts.update(numbers)
        document = {
            "to": request.to,
            "format": format_of(self.to, request.format),
            "messages": sum(each["messages"] for each, _ in parts),
            "bytes": sum(each["bytes"] for each, _ in parts),
            "files": [each["to"] for each, _ in parts],
            "groups": [group for each, _ in parts for group in each["groups"]],
        }
        return document, verdicts

    # to files

    def _own(self, family: str) -> Path:
        """Return the file for the rows of a family: OUT, or, if both were found, a separate name beside it."""
        if not (self.wreck.placed and self.wreck.messages):
            return self.to
        to = self.to.with_name(f"{self.to.stem}.{family}{self.to.suffix}")
        _refuse_existing(to, self.stage if self.keep else None)
        return to

    def _finished(self, to: Path) -> Part | None:
        """Return what an earlier run reported about a file that it wrote completely; None if it is to be written."""
        before = written_before(self.stage, to) if self.keep else None
        if before is None:
            return None
        remove_left_behind(to)  # of a run that was killed right after the file got its name
        return before.part, before.verdicts

    def _recording(self, to: Path, groups: Counter[tuple[str, str]]) -> Complete:
        """Return what records a file in the work directory right before it gets its name."""

        def complete(new: NewFile, counts: RowCounts) -> None:
            if self.keep:
                record_written(self.stage, new, _part(to, counts, groups), counts.verdicts)

        return complete

    def _rocketmq_rows(self, to: Path) -> Part:
        before = self._finished(to)
        if before is not None:
            return before
        none = Counter[tuple[str, str]]()
        with self.observer.progress("writing", "records") as progress:
            written = write_carved_rows(
                self.wreck.placed,
                to,
                format_of(self.to, self.request.format),
                self.request.verdicts or frozenset(Verdict),
                self.runner,
                self.stage,
                keep=self.keep,
                progress=progress,
                complete=self._recording(to, none),
            )
        return _part(to, written, none), written.verdicts

    def _rabbitmq_rows(self, to: Path) -> Part:
        before = self._finished(to)
        if before is not None:
            return before
        groups: Counter[tuple[str, str]] = Counter()

        def take(counts: FragmentCounts) -> None:
            for group, number in counts.groups.items():
                if group in groups or len(groups) < MAX_GROUPS:
                    groups[group] += number

        with self.observer.progress("writing", "readings of messages") as progress:
            written = write_carved_rabbitmq_rows(
                self.wreck.found,
                to,
                format_of(self.to, self.request.format),
                self.request.verdicts or frozenset(Verdict),
                self.runner,
                self.stage,
                keep=self.keep,
                logs=self.wreck.logs_found,
                take=take,
                progress=progress,
                complete=self._recording(to, groups),
            )
        return _part(to, written, groups), written.verdicts

    # to a new store

    def _to_rocketmq_store(self, to: Path, version: str | None) -> Part:
        with self.observer.progress("writing", "records") as progress:
            verdicts = rocketmq.salvage_into_store(self.wreck.placed, to, version, progress)
        return {"to": str(to), "format": "rocketmq", "messages": verdicts[str(Verdict.INTACT)], "groups": []}, verdicts

    def _message_files(self, *, transient: bool = True) -> rabbitmq.CarvedStore:
        """Write the RabbitMQ messages that were found as message files into the stage."""
        with DurableDirectory(self.stage) as stage:
            stage.discard("messages")
            stage.make_directory("messages")
        with DurableDirectory(self.stage / "messages") as directory:
            logs = (stored for found in self.wreck.logs_found for stored in stored_terms(found, self.request.vhost or "/"))
            return rabbitmq.write_carved(self.wreck.found, directory, logs=logs, damaged=False, transient=transient)

    def _to_rabbitmq_store(self) -> Part:
        store = self._message_files(transient=False)
        report = _write_queues(store.open(), self.request, self.observer, "writing")
        verdicts = _verdicts(store, report.messages + store.transient)
        verdicts[str(Verdict.DUPLICATE)] += store.count - report.messages
        left_out = {"not persistent: a broker drops them when it starts": store.transient} if store.transient else {}
        left_out |= _left_in_logs(store)
        document = {"to": self.request.to, "format": "rabbitmq", "messages": report.messages, "groups": [], "left_out": left_out}
        return document, verdicts

    # to a running broker

    def _send(self) -> Part:
        """Send the messages that were found: those of the broker's family, or of RocketMQ to AMQP if there are no others."""
        to = without_password(self.request.to)
        if self.request.to_amqp and self.wreck.messages:
            sent, verdicts = self._send_rabbitmq()
        else:
            if not self.wreck.placed:
                others = "; its RabbitMQ messages can be sent to an amqp:// address" if self.wreck.messages else ""
                raise NotAStoreError(f"{self.path} holds no record of RocketMQ{others}")
            sent, verdicts = self._send_rocketmq()
        return {"to": to, "format": "broker", "groups": [], **sent}, verdicts

    def _send_rabbitmq(self) -> Part:
        from mqstore.rabbitmq.amqp_sender import Sender, outgoing_messages

        request = self.request
        store = self._message_files()
        about = f"{self.path.absolute()}: carved, by {request.into or 'exchange'}"
        sender = Sender(request.to, rate=request.rate, resume=request.resume, about=about)
        left: Counter[str] = Counter()
        chosen = request.verdicts or frozenset({str(Verdict.UNINDEXED)})
        sent = sender.send(
            outgoing_messages(store.open(), chosen, by_exchange=request.into is None, user=sender.user, into=request.into, skipped=left)
        )
        verdicts = _verdicts(store, sent.sent + sent.skipped)
        numbers = {name: getattr(sent, name) for name in _SENT}
        return {"messages": sent.confirmed, **numbers, "left_out": left | _left_in_logs(store)}, verdicts

    def _send_rocketmq(self) -> Part:
        from mqstore.replay.running import Journal, ReplayCounts, replay
        from mqstore.replay.sources import DEFAULT_VERDICTS, rocketmq_messages
        from mqstore.replay.targets import open_target
        from mqstore.table.columns import Selection

        request = self.request
        path = self.stage / "store"
        _, verdicts = self._to_rocketmq_store(path, None)
        counts, skipped = ReplayCounts(), Counter[str]()
        store = open_rocketmq(path)
        with Journal(request.resume, f"{self.path.absolute()}: carved -> {without_password(request.to)}") as journal:
            target = open_target(request.to)
            try:
                with self.observer.progress("sending", "messages") as progress:
                    messages = rocketmq_messages(store, Selection(), DEFAULT_VERDICTS, None, skipped)
                    replay(messages, target, journal, counts, rate=request.rate, progress=progress)
            finally:
                target.close()
        document = {"messages": counts.sent, "confirmed": counts.sent, "skipped": counts.skipped, "refused": counts.refused}
        refusals = [{"message": mark, "reason": reason} for mark, reason in counts.refusals]
        return {**document, "refusals": refusals, "left_out": dict(skipped)}, verdicts


def _verdicts(store: rabbitmq.CarvedStore, unindexed: int) -> dict[str, int]:
    """Return the messages that were found by verdict. unindexed: of those that were written, without copies."""
    left = {Verdict.DAMAGED: store.damaged, Verdict.UNPROVED: store.unproved, Verdict.DUPLICATE: store.copies}
    return {str(Verdict.UNINDEXED): unindexed, **{str(verdict): number for verdict, number in left.items()}}


def _left_in_logs(store: rabbitmq.CarvedStore) -> dict[str, int]:
    """Return the messages that only a file of rows can take, with the reason."""
    return {_UNPROVED: store.unproved} if store.unproved else {}


def _part(to: Path, counts: RowCounts, groups: Counter[tuple[str, str]]) -> dict[str, Any]:
    rows = [{"exchange": exchange, "routing_key": key, "messages": number} for (exchange, key), number in groups.most_common(MAX_GROUPS)]
    return {"to": str(to), "messages": counts.rows, "bytes": counts.bytes, "groups": rows}
