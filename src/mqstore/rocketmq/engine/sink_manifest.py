"""The record of the jobs that write into a store: which runs are in its log, and the commit that is decided.

    STORE/config/mqstore-sink.json
        format    1
        runs      for each run: the last batch that is in the log, its messages, first and last physical offset
        intent    a commit in progress or interrupted: run, batch, stage, parts, and where the log ended before it; else null

The file is replaced as a whole, by one rename, while the store's lock is held (`engine.staged_commit`). A broker ignores it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.staging import StagedPart

if TYPE_CHECKING:
    from mqstore.files.recorder import Recorder

__all__ = ["MANIFEST", "CommittedBatch", "Intent", "Manifest", "SinkSettings", "load_manifest"]

MANIFEST = "config/mqstore-sink.json"
UNNAMED_KEPT = 100  # runs that the user did not name and that are kept


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How the store is opened: version of the rules, host of messages without one, and broker settings by name."""

    version: str | None = None
    store_host: str | None = None
    broker: dict[str, str] = field(default_factory=dict)

    def config(self, recorder: Recorder | None = None) -> StoreConfig:
        """Return the settings of the store: no services, one wait for the disk. Raises UsageError."""
        found = StoreConfig(version=self.version, services=False, recorder=recorder).with_broker(self.broker)
        host = self.store_host or found.store_host
        return replace(found, store_host=host, flush_disk_type="ASYNC_FLUSH")


@dataclass(frozen=True, slots=True)
class Intent:
    """A commit that is decided. start: physical offset at which the log ended before it. named: whether the user named the run."""

    run: str
    batch: int
    named: bool
    stage: str
    parts: tuple[StagedPart, ...]
    start: int
    stored: bool
    settings: SinkSettings

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a run that is in the log. Offsets are -1 if it had no rows. stopped: why the rows after `messages` are missing."""

    batch: int
    messages: int
    first_physical_offset: int
    last_physical_offset: int
    named: bool
    at: int
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the file."""

    runs: dict[str, CommittedBatch]
    intent: Intent | None = None

    def done(self, run: str, outcome: CommittedBatch) -> Manifest:
        """Return the manifest with a run recorded and no intent; the oldest of many unnamed runs are dropped."""
        runs = {name: each for name, each in self.runs.items() if name != run} | {run: outcome}
        unnamed = [name for name, each in runs.items() if not each.named]
        for name in unnamed[: max(0, len(unnamed) - UNNAMED_KEPT)]:
            del runs[name]
        return Manifest(runs)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        intent = None if self.intent is None else asdict(self.intent)
        document = {"format": 1, "intent": intent, "runs": {name: asdict(each) for name, each in self.runs.items()}}
        return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode()


def load_manifest(root: Path) -> Manifest:
    """Read the manifest of a store; empty if there is none. Raises TargetError if it cannot be read."""
    raw = ReadOnlyDirectory(root).read(MANIFEST) if root.is_dir() else None
    if raw is None:
        return Manifest({})
    try:
        document = json.loads(raw)
        intent: Any = document["intent"]
        if intent is not None:
            parts = tuple(StagedPart(**{**part, "topics": tuple(part["topics"])}) for part in intent["parts"])
            intent = Intent(**{**intent, "parts": parts, "settings": SinkSettings(**intent["settings"])})
        return Manifest({name: CommittedBatch(**each) for name, each in document["runs"].items()}, intent)
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"{root / MANIFEST} cannot be read ({error}): it records which runs are in the log; restore it, or remove it and check by hand"
        ) from None
