"""Diagnosis: whether a broker starts on a store, what that loses, and the one command to run next. The same for both families.

What cannot be determined is a sentence in `unknown`, and never counted as kept: an answer is complete only without them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.findings import Damage
from mqstore.shown import count


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason for an answer. finding: a kind of damage, or a state such as `abort` or `log-cut`. offset, length: bytes in the file."""

    finding: str
    file: str
    detail: str
    offset: int = 0
    length: int = 0
    messages: int = 0

    @classmethod
    def of(cls, item: Damage) -> Evidence:
        """Return damage as evidence."""
        return cls(str(item.kind), item.file, item.detail, item.offset, item.length, item.messages)

    def as_dict(self) -> dict[str, Any]:
        return {
            "finding": self.finding,
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "detail": self.detail,
            "messages": self.messages,
        }


def second_name(root: Path, files: Iterable[str], broker: str, copied: str) -> Iterator[Evidence]:
    """Yield a note on the first file below root that has a second hard link, if one has: a broker writes into the bytes of both.

    copied: the command that makes a real copy.
    """
    for file in files:
        with suppress(OSError):
            status = os.lstat(root / file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                sentence = f"{file} has a second name (a hard link), as a backup may have: a {broker} that starts here changes both"
                yield Evidence("note", ".", f"{sentence}; start it on a real copy: {copied}")
                return


@dataclass(frozen=True, slots=True)
class Way:
    """A command that can be run next, for `why`. keeps: how many messages there are after it; None if only its plan shows it."""

    next: str
    why: str
    keeps: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"command": self.next, "why": self.why, "keeps": self.keeps}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. version: of the broker that is asked about; rules: the version whose rules answer.

    loses: messages that are in the files, or that only a queue entry is left of, and that the broker does not deliver.
    redelivers: messages that consumers get although they had them. changes: what the broker does to the files, a sentence each.
    harmless: whether nothing of that can be noticed by a client. unknown: what cannot be determined. next: a command line, for `why`.
    ways: the possible next commands, best first.
    without: why it is not known what is kept, as the predicate of a sentence; empty if everything that messages are in was read.
    """

    store: str
    family: str
    version: str
    rules: str
    starts: bool
    loses: int
    redelivers: int
    next: str
    why: str
    changes: tuple[str, ...] = ()
    harmless: bool = True
    unknown: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    without: str = ""
    ways: tuple[Way, ...] = ()

    @property
    def headline(self) -> str:
        """The answer in one sentence, the same for the command line and the console."""
        broker = "A RocketMQ {} broker" if self.family == "rocketmq" else "A RabbitMQ {} node"
        who = broker.format(self.version)
        if not self.starts:
            return f"{who} does not start on {self.store}."
        parts = []
        if self.loses:
            parts.append(f"loses {count(self.loses, 'message')}")
        if self.redelivers:
            parts.append(f"delivers {count(self.redelivers, 'message')} again")
        if self.without:
            lead = f"it {' and '.join(parts)}, and what else" if parts else "what"
            return f"{who} starts on {self.store}; {lead} it keeps {self.without}."
        if not parts:
            parts.append("keeps every message" if self.harmless else "keeps every message, but not everything is as it was")
        return f"{who} starts on {self.store}; it {' and '.join(parts)}{', as far as is known' if self.unknown else ''}."

    @property
    def status(self) -> int:
        """The exit status: 0 starts and keeps everything, 1 loses or changes something, or may do so, 2 does not start."""
        if not self.starts:
            return 2
        return 1 if self.loses or not self.harmless or self.unknown else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the document that `diagnose -o json` prints."""
        return {
            "store": self.store,
            "family": self.family,
            "version": self.version,
            "rules": self.rules,
            "starts": self.starts,
            "loses": self.loses,
            "redelivers": self.redelivers,
            "next": self.next,
            "why": self.why,
            "changes": list(self.changes),
            "unknown": list(self.unknown),
            "ways": [way.as_dict() for way in self.ways or (Way(self.next, self.why),)],
            "evidence": [item.as_dict() for item in self.evidence],
        }
