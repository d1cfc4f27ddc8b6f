"""The record of the jobs that write into a store: which runs are in its log, and the commit that is decided.

    STORE/config/mqstore-sink.json
        format    1
        runs      for each run: the last batch that is in the log, its messages, first and last physical offset
        intent    a commit in progress or interrupted: run, batch, stage, parts, and where the log ended before it; else null

The file is replaced as a whole, by one rename, while the store's lock is held (`engine.staged_commit`). A broker ignores it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import TargetError, UsageError
from mqstore.files.state_file import fields_of, flag, one_of, parse, plain_name, read_state, rows, seal, text, whole
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.staging import StagedPart, check_run, is_stage
from mqstore.rocketmq.format.profile import VERSIONS

if TYPE_CHECKING:
    from mqstore.files.recorder import Recorder

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
        return seal(document, indent=1) + b"\n"


def load_manifest(root: Path) -> Manifest:
    """Read the manifest of a store; empty if there is none. Raises TargetError if it cannot be read."""
    # it may belong to the owner of the store: each of its writers may finish the commit of another
    raw = read_state(root / MANIFEST, owners=(root.stat().st_uid,)) if root.is_dir() else None
    if raw is None:
        return Manifest({})
    try:
        document = parse(raw, fields=("format", "intent", "runs"))
        whole(document, "format", 1, 1)
        intent = None if document["intent"] is None else _intent(fields_of(document["intent"], _names(Intent)))
        runs = fields_of(document.get("runs"))
        return Manifest({check_run(name): _batch(fields_of(each, _names(CommittedBatch))) for name, each in runs.items()}, intent)
    except (ValueError, KeyError, UsageError) as error:
        raise TargetError(
            f"{root / MANIFEST} cannot be read ({error}): it records which runs are in the log; restore it, or remove it and check by hand"
        ) from None


def _names(kind: type[Intent | CommittedBatch | StagedPart | SinkSettings]) -> list[str]:
    return [each.name for each in fields(kind)]


def _batch(found: dict[str, Any]) -> CommittedBatch:
    return CommittedBatch(
        whole(found, "batch"),
        whole(found, "messages"),
        whole(found, "first_physical_offset", -1),
        whole(found, "last_physical_offset", -1),
        flag(found, "named"),
        whole(found, "at"),
        text(found, "stopped") if "stopped" in found else "",
    )


def _intent(found: dict[str, Any]) -> Intent:
    run, stage = check_run(text(found, "run")), Path(text(found, "stage"))
    if not is_stage(stage, run):
        raise ValueError(f"its stage {stage} is not one of this run")
    parts = tuple(_part(fields_of(each, _names(StagedPart))) for each in rows(found, "parts"))
    settings = fields_of(found.get("settings"), _names(SinkSettings))
    broker = fields_of(settings.get("broker"))
    given = SinkSettings(
        None if settings.get("version") is None else one_of(settings, "version", VERSIONS),
        None if settings.get("store_host") is None else text(settings, "store_host", 100),
        {name: text(broker, name) for name in broker},
    )
    return Intent(run, whole(found, "batch"), flag(found, "named"), str(stage), parts, whole(found, "start"), flag(found, "stored"), given)


def _part(found: dict[str, Any]) -> StagedPart:
    topics = rows(found, "topics")
    if not all(isinstance(topic, str) for topic in topics):
        raise ValueError("its topics are not texts")
    return StagedPart(whole(found, "partition"), plain_name(found, "name"), whole(found, "rows"), whole(found, "bytes"), tuple(topics))
