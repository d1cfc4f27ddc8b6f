"""The store: what `mqstore.open` returns, and the verbs that both families answer to.

    verb        report, and the command whose `-o json` prints its `as_dict()`
    summary     what is there                                    inspect
    messages    rows                                             messages
    get         one message in full                              get
    find        messages that hold a text                        find
    verify      damage                                           verify
    usage       what takes the space                             usage
    diagnose    what a broker makes of it, and what to do next   diagnose
    repair      what would be changed, and the changes           repair
    salvage     every intact message, written elsewhere          salvage
    export      files of messages                                export

A topic is not a vhost: which messages are meant is said in the terms of the family. Verbs, reports and progress are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from mqstore.diagnosis import Diagnosis
    from mqstore.files.location import Location
    from mqstore.findings import Report
    from mqstore.repair.repair import Repair
    from mqstore.table.rows import Rows

Family = Literal["rocketmq", "rabbitmq"]
Progress = Callable[[int, int], None]


class Observer(Protocol):
    """What shows the progress of work that has several parts, such as the command line."""

    def progress(self, title: str, unit: str = "bytes") -> AbstractContextManager[Progress]:
        """Return what surrounds one part, and takes (done, total). unit: of these, in the plural."""
        ...

    def note(self, sentence: str) -> None:
        """Take a note about the result."""
        ...


class _Nobody:
    def progress(self, title: str, unit: str = "bytes") -> AbstractContextManager[Progress]:
        return nullcontext(lambda done, total: None)

    def note(self, sentence: str) -> None:
        return


NOBODY: Observer = _Nobody()


class Answer(Protocol):
    """A report: facts, no text for people."""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as the command's JSON has them."""
        ...


class Store(Protocol):
    """A store that is open, read-only. progress: called with (done, total), in bytes or parts."""

    @property
    def family(self) -> str:
        """`rocketmq` or `rabbitmq`."""
        ...

    def summary(self) -> Answer:
        """Return what is there, from names, sizes and headers."""
        ...

    def messages(self, *columns: Any, **selection: Any) -> Rows:
        """Return the selected messages; nothing is read before rows are asked for."""
        ...

    def get(self, *place: Any, **choice: Any) -> Answer:
        """Return one message in full. Raises NotFoundError."""
        ...

    def find(self, text: str, *, progress: Progress | None = None) -> Answer:
        """Return the messages that hold a text, each with what became of it."""
        ...

    def verify(self, *, progress: Progress | None = None) -> Report:
        """Check every entry and message, and each against the others."""
        ...

    def usage(self, by: str | None = None, *, progress: Progress | None = None) -> Answer:
        """Return what takes the space."""
        ...

    def diagnose(self, version: str | None = None, *, progress: Progress | None = None) -> Diagnosis:
        """Return what a broker makes of the store, and the command to run next."""
        ...

    def repair(self, *, journal: Any = None, threads: int | None = None, observer: Observer = NOBODY) -> Repair:
        """Return the plan of a repair, which can be applied, and taken back. Nothing is read before its steps are asked for.

        journal: the undo journal, a directory outside the store; by default beside it.
        """
        ...

    def salvage(self, to: Any, *, observer: Observer = NOBODY) -> Answer:
        """Write every intact message, with its verdict, to a file, a new store or a running broker."""
        ...

    def export(self, to: Any, *, progress: Progress | None = None) -> Answer:
        """Write messages to files in a new directory."""
        ...


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store is. path: as it was given; root: the directory of its files, which for an archive is what it was unpacked to.

    keep: keeps the unpacked files as long as the store that reads them.
    """

    family: Family
    path: Location
    root: Location
    keep: object = None


@dataclass(frozen=True, slots=True)
class StorePart:
    """Files of one directory or kind. bytes: total length; stored: bytes of the disk blocks they occupy."""

    name: str
    purpose: str
    files: int
    bytes: int
    stored: int

    def as_dict(self) -> dict[str, Any]:
        """Return an item of `parts` in the document that `inspect -o json` prints."""
        return {"name": self.name, "files": self.files, "bytes": self.bytes, "stored_bytes": self.stored}
