"""The run of a replay: messages one after the other, each confirmed, edited on the way, at a rate, and recorded in a resume file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mqstore.replay.journal import Journal
from mqstore.replay.outgoing import ReplayMessage
from mqstore.replay.targets import RefusedMessageError, Target

__all__ = ["MAX_REFUSED", "ReplayCounts", "replay"]

MAX_REFUSED = 100  # refused messages that are listed
REPORTED = 0.2  # seconds between two reports of progress


@dataclass(slots=True)
class ReplayCounts:
    """Counts of a run. sent: confirmed by the target; skipped: confirmed in an earlier run.

    arrived: of these, messages that were in doubt and had arrived; doubtful: sent, although an earlier run may have sent them. refused:
    messages that the target will never take, with its words.
    """

    sent: int = 0
    bytes: int = 0
    skipped: int = 0
    arrived: int = 0
    doubtful: int = 0
    refused: int = 0
    refusals: list[tuple[str, str]] = field(default_factory=list)


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
    started = reported = time.monotonic()
    for each in messages:
        state = journal.states.get(each.source)
        if state is not None and each.position <= state.position:
            counts.skipped += 1
            continue
        message = each.edited(edits) if edits else each
        if state is None:
            where = target.begin(message)
            journal.note(each.source, -1, where)
        else:
            where = state.where
            if each.source in journal.resumed:
                journal.resumed.discard(each.source)
                after = target.arrived(message, where)
                if after is not None:
                    journal.note(each.source, each.position, after)
                    counts.arrived += 1
                    counts.skipped += 1
                    continue
                counts.doubtful += not target.can_look
        if rate is not None:
            early = counts.sent / rate - (time.monotonic() - started)
            if early > 0:
                time.sleep(early)
        try:
            where = target.send(message, where)
        except RefusedMessageError as error:
            counts.refused += 1
            if len(counts.refusals) < MAX_REFUSED:
                counts.refusals.append((message.mark, str(error)))
        else:
            counts.sent += 1
            counts.bytes += len(message.body)
        journal.note(each.source, each.position, where)
        if progress is not None and time.monotonic() - reported > REPORTED:
            reported = time.monotonic()
            progress(counts.sent + counts.skipped, 0)
