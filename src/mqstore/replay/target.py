"""A target: takes messages, several of them at once, and says which have arrived.

`where` is the place in the target after the last confirmed message of a queue of the source. With it a target can say whether the message
after it has arrived; AMQP has no such question, so there a message in doubt is sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mqstore.replay.outgoing import ReplayMessage


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message. where: the place after it; refused: why the target will never take it, None if it has it.

    doubtful: it may be there twice.
    """

    message: ReplayMessage
    where: str
    refused: str | None = None
    doubtful: bool = False


class Target(Protocol):
    """Takes messages. There is never more than one message of a queue of the source on its way."""

    @property
    def width(self) -> int:
        """How many messages may be on their way at once."""
        ...

    def begin(self, message: ReplayMessage) -> str:
        """Return the place where the first message of a queue will be stored, at the earliest. Raises TargetError."""
        ...

    def post(self, message: ReplayMessage, where: str) -> None:
        """Send a message; `finished` returns its outcome. where: the place before it. Raises TargetError."""
        ...

    def finished(self) -> list[Outcome]:
        """Wait for the outcome of at least one message that was posted. Raises TargetError."""
        ...

    def last(self) -> list[Outcome]:
        """Return the outcomes that still come, without sending anything again; the run has failed."""
        ...

    def arrived(self, message: ReplayMessage, where: str) -> str | None:
        """Return the place after a message in doubt that has arrived, None if it has not, or if there is no way to know it."""
        ...

    @property
    def can_look(self) -> bool:
        """Whether `arrived` knows it."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait while nothing is on its way, and keep the connection."""
        ...

    def close(self) -> None:
        """Finish; what was sent is durable as far as the target makes it so."""
        ...
