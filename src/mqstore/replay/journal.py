"""The resume file of a replay: for each queue of the source, the last message that the target has confirmed.

The first line describes the run; each further one is the state of a queue and replaces the one before it:

    {"replay": "store: topic orders -> rocketmq://10.0.0.1:9876"}
    {"queue": "orders/0", "position": -1, "where": "broker-a/0/1200"}     before its first message
    {"queue": "orders/0", "position": 4711, "where": "broker-a/0/1201"}   after each confirmed message

A line is written before the next message of the queue is sent, so at most one message of each queue is in doubt after a kill: the one after
its last line. A line that is not whole at the end of the file is ignored and overwritten. The file is synced twice a second and at the
end: after a loss of power the messages of that time are in doubt.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.durable import DurableDirectory

__all__ = ["Journal", "QueueState"]

SYNCED = 0.5  # seconds between two syncs


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a queue. position: of the last confirmed message, -1 for none. where: the place in the target after it."""

    position: int
    where: str


class Journal:
    """The states of the queues, with or without a file. Raises UsageError for the file of another run, CannotOpenError, TargetError."""

    def __init__(self, file: Path | None, about: str) -> None:
        self.states: dict[str, QueueState] = {}
        self.resumed: set[str] = set()  # queues of which a message may be in doubt
        self._name = "" if file is None else file.name
        self._directory: DurableDirectory | None = None
        self._synced = time.monotonic()
        self._end = 0
        if file is None:
            return
        kept = self._read(file, about)
        self.resumed = set(self.states)
        self._directory = DurableDirectory(file.absolute().parent)
        try:
            if kept is None:
                self._directory.append(self._name, _line({"replay": about}))
                self._directory.sync(self._name)
                self._directory.sync_directory()
            else:
                self._directory.truncate(self._name, kept)
        except BaseException:
            self._directory.close()
            raise

    def _read(self, file: Path, about: str) -> int | None:
        """Read the states; return the length of the whole lines, None if there is no file."""
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
        whole = raw.rfind(b"\n") + 1
        if not whole and not raw.startswith(b'{"replay"'[: len(raw)]):
            raise UsageError(f"{file} is not a resume file; give another name")
        if not whole:
            file.unlink()
            return None
        lines = raw[:whole].splitlines()
        try:
            run = json.loads(lines[0])["replay"]
            for line in lines[1:]:
                state = json.loads(line)
                self.states[str(state["queue"])] = QueueState(int(state["position"]), str(state["where"]))
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{file} is not a resume file; give another name") from None
        if run != about:
            raise UsageError(f"{file} is the resume file of another run ({run}); give another name")
        return whole

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._directory is not None:
            try:
                self._directory.sync(self._name)
            finally:
                self._directory.close()

    def note(self, queue: str, position: int, where: str) -> None:
        """Record the state of a queue."""
        self.states[queue] = QueueState(position, where)
        if self._directory is None:
            return
        self._directory.append(self._name, _line({"queue": queue, "position": position, "where": where}))
        if time.monotonic() - self._synced > SYNCED:
            self._directory.sync(self._name)
            self._synced = time.monotonic()


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode() + b"\n"
