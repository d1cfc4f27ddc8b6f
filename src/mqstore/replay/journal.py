"""The resume file of a replay: for each queue of the source, the last message that the target has confirmed or refused.

The first line describes the run; each further one is the state of a queue and replaces the one before it:

    {"replay": "store: topic orders -> rocketmq://10.0.0.1:9876"}
    {"queue": "orders/0", "position": -1, "where": "broker-a/0/1200"}     before its first message
    {"queue": "orders/0", "position": 4711, "where": "broker-a/0/1201"}   after each confirmed message
    {"queue": "orders/0", "position": 4712, "where": "…", "refused": "…"} the target will never take this one, with its words
    {"settled": true}                                                     the run ended in order: nothing is in doubt

Each line ends with its checksum, `"sum"`. A line is written before the next message of the queue is sent, so at most one message
of each queue is in doubt after a kill: the one after its last line. A line that is not whole at the end of the file is ignored and
overwritten. The file is synced twice a second and at the end: after a loss of power the messages of that time are in doubt. One run at a
time uses the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import UsedFile
from mqstore.files.state_file import flag, open_state, parse, seal, text, whole

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
            kept = self._read(file, about)
            self._directory = DurableDirectory(file.absolute().parent)
            if kept:
                self._directory.truncate(self._name, kept)
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
                kept, settled = len(first), False
                while (line := lines.readline(LONGEST_LINE)).endswith(b"\n"):
                    kept += len(line)
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
        return kept

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
