"""The site of a store: the parts that a store of its family has, where each is, and who says that it should be there.

A directory is not the whole world: a log may be on another disk, feature flags beside the directory, a queue on another node. What is
said of a store rests on parts; an answer that needs a part which is absent, elsewhere or not read cannot be told without it.

    state       the part
    here        is where the store keeps it, and is read
    partly      is there, but not all of it
    absent      is not where it should be, or not needed yet
    elsewhere   is at a place that was not read
    not-read    is there, in a form that is not read

    >>> flags = Part("feature flags", "rabbit@a-feature_flags", "here", "a file beside the directory")
    >>> log = Part("log", "/disk2/commitlog", "elsewhere", "storePathCommitLog in broker.conf, line 5")
    >>> Site((flags, log)).without("log", "feature flags")
    'cannot be told without the log at /disk2/commitlog (storePathCommitLog in broker.conf, line 5)'
    >>> Site((flags, log)).without("feature flags") is None
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["here", "partly", "absent", "elsewhere", "not-read"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a store. part: the part's name; path: where it is or should be, None if nothing says so.

    known_from: who says that it should be there, or what showed where it is. wanted: whether something says that there was or must be one:
    a part that is absent and that nothing asks for makes no answer doubtful.
    """

    part: str
    path: str | None
    state: State
    known_from: str
    wanted: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return an item of `site` in the document that `inspect -o json` prints."""
        return {"part": self.part, "path": self.path, "state": self.state, "known_from": self.known_from}

    @property
    def lacking(self) -> bool:
        """Whether an answer that needs the part cannot be given."""
        return self.wanted and self.state != "here"

    @property
    def title(self) -> str:
        """The part with its place, and how that is known, as a noun of a sentence."""
        where = "" if self.path is None else f" at {self.path}"
        what = {"partly": "the rest of the", "not-read": "what is in the"}.get(self.state, "the")
        return f"{what} {self.part}{where} ({self.known_from})"


@dataclass(frozen=True, slots=True)
class Site:
    """The parts of a store, those that hold messages first."""

    parts: tuple[Part, ...]

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def lacking(self, *names: str) -> tuple[Part, ...]:
        """Return the parts of the given names (of any name, if none is given) that an answer cannot be given without."""
        return tuple(part for part in self.parts if part.lacking and (not names or part.part in names))

    def without(self, *names: str) -> str | None:
        """Return the predicate of an answer that rests on parts of which one is lacking; None if all of them are here."""
        lacking = self.lacking(*names)
        if not lacking:
            return None
        return f"cannot be told without {' and '.join(part.title for part in lacking)}"

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return `site` of the document that `inspect -o json` prints."""
        return [part.as_dict() for part in self.parts]
