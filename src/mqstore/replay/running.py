"""The run of a replay: messages edited on the way, sent at a rate, and recorded in a resume file when they are confirmed.

Of each queue of the source one message is on its way at a time, so that its order stays and at most one message of it is in doubt after a
kill. Messages of several queues are on their way to a broker at once: some are read ahead, to find those of other queues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mqstore.errors import MqstoreError
from mqstore.replay.journal import Journal
from mqstore.replay.outgoing import ReplayMessage
from mqstore.replay.target import Outcome, Target

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


class _Run:
    """A run: messages read ahead by queue, and those on their way."""

    def __init__(
        self,
        messages: Iterator[ReplayMessage],
        target: Target,
        journal: Journal,
        counts: ReplayCounts,
        edits: Mapping[str, str],
        rate: float | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._messages, self._target, self._journal, self._counts = messages, target, journal, counts
        self._edits, self._rate, self._progress = edits, rate, progress
        self._ahead: dict[str, deque[ReplayMessage]] = {}
        self._number = self._bytes = 0  # of messages read ahead
        self._ready: deque[str] = deque()  # queues with messages read ahead, none of which is on its way
        self.flying: set[str] = set()
        self._exhausted = False
        self._posted = 0
        self._started = self._reported = time.monotonic()

    def all(self) -> None:
        """Send everything. Raises TargetError."""
        while True:
            self._read()
            if self._ready and len(self.flying) < self._target.width:
                early = 0.0 if self._rate is None else self._posted / self._rate - (time.monotonic() - self._started)
                if early <= 0:
                    self._send()
                    continue
                if not self.flying:
                    self._target.wait(early)
                    continue
            elif not self.flying:
                return
            for outcome in self._target.finished():
                self.settle(outcome)

    def _read(self) -> None:
        """Read ahead until there is a message to send, and nothing if there is one."""
        while not (
            self._exhausted or self._ready or len(self.flying) >= self._target.width or self._number >= AHEAD or self._bytes >= AHEAD_BYTES
        ):
            message = next(self._messages, None)
            if message is None:
                self._exhausted = True
                return
            state = self._journal.states.get(message.source)
            if state is not None and message.position <= state.position:
                why = self._journal.refused.get((message.source, message.position))
                if why is None:
                    self._counts.skipped += 1
                else:
                    self._counts.refuse(message.mark, why)
                continue
            waiting = self._ahead.setdefault(message.source, deque())
            waiting.append(message)
            self._number += 1
            self._bytes += len(message.body)
            if len(waiting) == 1 and message.source not in self.flying:
                self._ready.append(message.source)

    def _send(self) -> None:
        source = self._ready.popleft()
        each = self._ahead[source].popleft()
        self._number -= 1
        self._bytes -= len(each.body)
        message = each.edited(self._edits) if self._edits else each
        state = self._journal.states.get(source)
        if state is None:
            where = self._target.begin(message)
            self._journal.note(source, -1, where)
        else:
            where = state.where
            if source in self._journal.resumed:
                self._journal.resumed.discard(source)
                after = self._target.arrived(message, where)
                if after is not None:
                    self._journal.note(source, message.position, after)
                    self._counts.arrived += 1
                    self._counts.skipped += 1
                    self._next(source)
                    return
                self._counts.doubtful += not self._target.can_look
        self.flying.add(source)
        self._posted += 1
        self._target.post(message, where)

    def _next(self, source: str) -> None:
        if self._ahead[source]:
            self._ready.append(source)
        else:
            del self._ahead[source]

    def settle(self, outcome: Outcome) -> None:
        """Count and record the outcome of a message."""
        message, counts = outcome.message, self._counts
        if outcome.refused is None:
            counts.sent += 1
            counts.bytes += len(message.body)
            counts.doubtful += outcome.doubtful
        else:
            counts.refuse(message.mark, outcome.refused)
        self._journal.note(message.source, message.position, outcome.where, outcome.refused)
        self.flying.discard(message.source)
        self._next(message.source)
        if self._progress is not None and time.monotonic() - self._reported > REPORTED:
            self._reported = time.monotonic()
            self._progress(counts.sent + counts.skipped, 0)
