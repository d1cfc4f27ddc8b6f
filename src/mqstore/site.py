"""The site of a store: the parts that a store of its family has, where each is, and who says that it should be there.

A directory is not the whole world: a log may be on another disk, feature flags beside the directory, a queue on another node. What is
said of a store rests on parts; an answer that needs a part which is absent, elsewhere or not read cannot be told without it.

    state       the part
    here        is where the store keeps it, and is read
    partly      is there, but not all of it
    absent      is not where it should be, or not needed yet
    elsewhere   is at a place that was not read
    not-read    is there, in a form that is not read

    >>> log = Part("log", "/data/store/commitlog", "absent", "consumerOffset.json and checkpoint")
    >>> abort = Part("abort", "/data/store/abort", "absent", "a clean exit removes it", wanted=False)
    >>> site = Site((log, abort))
    >>> [part.within("/data/store") for part in site.shown]
    ['commitlog']
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["here", "partly", "absent", "elsewhere", "not-read"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a store. part: the part's name; path: where it is or should be, None if nothing says so.

    known_from: who says that it should be there, or what showed where it is. wanted: whether something says that there was or must be one.
    """

    part: str
    path: str | None
    state: State
    known_from: str
    wanted: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return an item of `site` in the document that `inspect -o json` prints."""
        return {"part": self.part, "path": self.path, "state": self.state, "known_from": self.known_from}

    def within(self, store: str) -> str:
        """Return the path, relative to the store where it is inside."""
        path = self.path or ""
        return path.removeprefix(f"{store}/") or "."


@dataclass(frozen=True, slots=True)
class Site:
    """The parts of a store, those that hold messages first."""

    parts: tuple[Part, ...]

    @property
    def shown(self) -> tuple[Part, ...]:
        """The parts without those that are absent and that nothing asks for."""
        return tuple(part for part in self.parts if part.wanted or part.state != "absent")

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return `site` of the document that `inspect -o json` prints."""
        return [part.as_dict() for part in self.parts]
