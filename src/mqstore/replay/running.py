"""The run of a replay: messages edited on the way, sent at a rate, and recorded in a resume file when they are confirmed.

Of each queue of the source one message is on its way at a time, so that its order stays and at most one message of it is in doubt after a
kill. Messages of several queues are on their way to a broker at once: some are read ahead, to find those of other queues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from mqstore.errors import CannotOpenError, MqstoreError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import UsedFile
from mqstore.files.state_file import flag, open_state, parse, seal, text, whole
from mqstore.replay.outgoing import Outcome, ReplayMessage, Target

MAX_REFUSED = 100  # refused messages that are listed
REPORTED = 0.2  # seconds between two reports of progress
AHEAD = 1000  # messages that are read ahead
AHEAD_BYTES = 32 << 20


@dataclass(slots=True)
class ReplayCounts:
    """Counts of a run. sent: confirmed by the target; skipped: confirmed in an earlier run.

    arrived: of these, messages that were in doubt and had arrived; doubtful: sent, although the target may have them already. refused:
    messages that the target will never take, with its words, also if it said so in an earlier run.
    """

    sent: int = 0
    bytes: int = 0
    skipped: int = 0
    arrived: int = 0
    doubtful: int = 0
    refused: int = 0
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def refuse(self, mark: str, why: str) -> None:
        """Count a message that the target will never take, in this run or in an earlier one."""
        self.refused += 1
        if len(self.refusals) < MAX_REFUSED:
            self.refusals.append((mark, why))


def replay(
    messages: Iterator[ReplayMessage],
    target: Target,
    journal: Journal,
    counts: ReplayCounts,
    *,
    edits: Mapping[str, str] | None = None,
    rate: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Send all messages that the journal does not have yet. counts: is counted up, also when an error ends the run.

    rate: messages per second. progress: called with (messages, 0). Raises TargetError.
    """
    run = _Run(messages, target, journal, counts, edits or {}, rate, progress)
    try:
        run.all()
        journal.resumed.clear()
    except (MqstoreError, KeyboardInterrupt):
        for outcome in target.last() if journal.writable else ():
            run.settle(outcome)
        raise
    finally:
        if not run.flying and not journal.resumed:
            journal.settle()


@dataclass(slots=True)
class _Run:
    """A run: messages read ahead by queue, and those on their way. ready: queues with messages read ahead, none of which is on its way.

    number, bytes: of messages read ahead. flying: queues of which a message is on its way.
    """

    messages: Iterator[ReplayMessage]
    target: Target
    journal: Journal
    counts: ReplayCounts
    edits: Mapping[str, str]
    rate: float | None
    progress: Callable[[int, int], None] | None
    ahead: dict[str, deque[ReplayMessage]] = field(default_factory=dict)
    number: int = 0
    bytes: int = 0
    ready: deque[str] = field(default_factory=deque)
    flying: set[str] = field(default_factory=set)
    exhausted: bool = False
    posted: int = 0
    started: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)

    def all(self) -> None:
        """Send everything. Raises TargetError."""
        while True:
            self._read()
            if self.ready and len(self.flying) < self.target.width:
                early = 0.0 if self.rate is None else self.posted / self.rate - (time.monotonic() - self.started)
                if early <= 0:
                    self._send()
                    continue
                if not self.flying:
                    self.target.wait(early)
                    continue
            elif not self.flying:
                return
            for outcome in self.target.finished():
                self.settle(outcome)

    def _read(self) -> None:
        """Read ahead until there is a message to send, and nothing if there is one."""
        while not (
            self.exhausted or self.ready or len(self.flying) >= self.target.width or self.number >= AHEAD or self.bytes >= AHEAD_BYTES
        ):
            message = next(self.messages, None)
            if message is None:
                self.exhausted = True
                return
            state = self.journal.states.get(message.source)
            if state is not None and message.position <= state.position:
                why = self.journal.refused.get((message.source, message.position))
                if why is None:
                    self.counts.skipped += 1
                else:
                    self.counts.refuse(message.mark, why)
                continue
            waiting = self.ahead.setdefault(message.source, deque())
            waiting.append(message)
            self.number += 1
            self.bytes += len(message.body)
            if len(waiting) == 1 and message.source not in self.flying:
                self.ready.append(message.source)

    def _send(self) -> None:
        source = self.ready.popleft()
        each = self.ahead[source].popleft()
        self.number -= 1
        self.bytes -= len(each.body)
        message = each.edited(self.edits) if self.edits else each
        state = self.journal.states.get(source)
        if state is None:
            where = self.target.begin(message)
            self.journal.note(source, -1, where)
        else:
            where = state.where
            if source in self.journal.resumed:
                self.journal.resumed.discard(source)
                after = self.target.arrived(message, where)
                if after is not None:
                    self.journal.note(source, message.position, after)
                    self.counts.arrived += 1
                    self.counts.skipped += 1
                    self._next(source)
                    return
                self.counts.doubtful += not self.target.can_look
        self.flying.add(source)
        self.posted += 1
        self.target.post(message, where)

    def _next(self, source: str) -> None:
        if self.ahead[source]:
            self.ready.append(source)
        else:
            del self.ahead[source]

    def settle(self, outcome: Outcome) -> None:
        """Count and record the outcome of a message."""
        message, counts = outcome.message, self.counts
        if outcome.refused is None:
            counts.sent += 1
            counts.bytes += len(message.body)
            counts.doubtful += outcome.doubtful
        else:
            counts.refuse(message.mark, outcome.refused)
        self.journal.note(message.source, message.position, outcome.where, outcome.refused)
        self.flying.discard(message.source)
        self._next(message.source)
        if self.progress is not None and time.monotonic() - self.reported > REPORTED:
            self.reported = time.monotonic()
            self.progress(counts.sent + counts.skipped, 0)


# ---- the resume file of a replay: for each queue of the source, the last message that the target has confirmed or refused
#
# The first line describes the run; each further one is the state of a queue and replaces the one before it:
#
#     {"replay": "store: topic orders -> rocketmq://10.0.0.1:9876"}
#     {"queue": "orders/0", "position": -1, "where": "broker-a/0/1200"}     before its first message
#     {"queue": "orders/0", "position": 4711, "where": "broker-a/0/1201"}   after each confirmed message
#     {"queue": "orders/0", "position": 4712, "where": "…", "refused": "…"} the target will never take this one, with its words
#     {"settled": true}                                                     the run ended in order: nothing is in doubt
#
# Each line ends with its checksum, `"sum"`. A line is written before the next message of the queue is sent, so at most one message of
# each queue is in doubt after a kill: the one after its last line. A line that is not whole at the end of the file is ignored and
# overwritten. The file is synced twice a second and at the end: after a loss of power the messages of that time are in doubt. One run at
# a time uses the file.

SYNCED = 0.5  # seconds between two syncs
LONGEST_LINE = 1 << 20
LONGEST_WHY = 500  # characters of a reason


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue. position: of the last confirmed message, -1 for none. where: the place in the target after it."""

    position: int
    where: str


class Journal:
    """The states of the queues, with or without a file. Raises UsageError for the file of another run, CannotOpenError, TargetError."""

    def __init__(self, file: Path | None, about: str) -> None:
        self.states: dict[str, QueueState] = {}
        self.refused: dict[tuple[str, int], str] = {}  # why a message was refused in an earlier run, by queue and position
        self.resumed: set[str] = set()  # queues of which a message may be in doubt
        self.writable = True  # False after a line that could not be written
        self._name = "" if file is None else file.name
        self._directory: DurableDirectory | None = None
        self._used: UsedFile | None = None
        self._synced = time.monotonic()
        if file is None:
            return
        try:
            length = self._read(file, about)
            self._directory = DurableDirectory(file.absolute().parent)
            if length:
                self._directory.truncate(self._name, length)
            else:
                self._directory.append(self._name, _line({"replay": about}))
                self._use(file)
                self._directory.sync(self._name)
                self._directory.sync_directory()
        except BaseException:
            self._close()
            raise

    def _read(self, file: Path, about: str) -> int:
        """Read the states; return the length of the whole lines, 0 if there is none yet."""
        try:
            with open_state(file) as lines:
                self._use(file)
                first = lines.readline(LONGEST_LINE)
                if not first.endswith(b"\n"):
                    if not first.startswith(b'{"replay"'[: len(first)]) or len(first) >= LONGEST_LINE:
                        raise UsageError(f"{file} is not a resume file; give another name")
                    lines.close()
                    with DurableDirectory(file.absolute().parent) as directory:
                        directory.truncate(self._name, 0)
                    return 0
                run = text(parse(first, fields=("replay",)), "replay", LONGEST_LINE)
                if run != about:
                    raise UsageError(f"{file} is the resume file of another run ({run}); give another name")
                length, settled = len(first), False
                while (line := lines.readline(LONGEST_LINE)).endswith(b"\n"):
                    length += len(line)
                    state = parse(line, fields=("queue", "position", "where", "refused", "settled"))
                    settled = "settled" in state
                    if settled:
                        if not flag(state, "settled") or len(state) > 1:
                            raise ValueError
                    else:
                        queue, position = text(state, "queue"), whole(state, "position", -1)
                        self.states[queue] = QueueState(position, text(state, "where"))
                        if "refused" in state:
                            self.refused[queue, position] = text(state, "refused", LONGEST_WHY)
                if len(line) >= LONGEST_LINE:
                    raise ValueError
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(f"{file} is not a resume file; give another name") from None
        self.resumed = set() if settled else set(self.states)
        return length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._directory is not None:
                self._directory.sync(self._name)
        finally:
            self._close()

    def _use(self, file: Path) -> None:
        if self._used is None:
            self._used = UsedFile(file)

    def _close(self) -> None:
        if self._directory is not None:
            self._directory.close()
        if self._used is not None:
            self._used.close()

    def note(self, queue: str, position: int, where: str, refused: str | None = None) -> None:
        """Record the state of a queue. refused: why the target did not take the message at the position. Raises TargetError."""
        self.states[queue] = QueueState(position, where)
        why = {} if refused is None else {"refused": refused[:LONGEST_WHY]}
        self._append({"queue": queue, "position": position, "where": where, **why})

    def settle(self) -> None:
        """Record that nothing is on its way. Raises TargetError."""
        if self.states:
            self._append({"settled": True})

    def _append(self, value: dict[str, object]) -> None:
        if self._directory is None or not self.writable:
            return
        self.writable = False  # after half a line nothing may follow
        self._directory.append(self._name, _line(value))
        self.writable = True
        if time.monotonic() - self._synced > SYNCED:
            self._directory.sync(self._name)
            self._synced = time.monotonic()


def _line(value: dict[str, object]) -> bytes:
    return seal(value) + b"\n"
