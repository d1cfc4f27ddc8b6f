"""Files that a salvage has written completely, recorded in its work directory right before they get their names.

    written-found.rocketmq.jsonl.json    {"identity": [inode, bytes], "part": {…}, "verdicts": {…}}

A run that was killed between two files, or before it removed its work directory, finds its files by that, and does not write them
again. Another file under the same name is not one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.files.durable import DurableDirectory, NewFile, identity_of
from mqstore.files.state_file import fields_of, parse, read_state, seal, whole
from mqstore.findings import Verdict

PREFIX = "written-"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was reported about a file. part: of the document of the command."""

    part: dict[str, Any]
    verdicts: dict[str, int]


def record_written(stage: Path, new: NewFile, part: Mapping[str, Any], verdicts: Mapping[str, int]) -> None:
    """Record a file whose content is complete, before it is published. Raises TargetError."""
    record = {"identity": new.identity(), "part": dict(part), "verdicts": dict(verdicts)}
    with DurableDirectory(stage) as directory:
        directory.write_small(f"{PREFIX}{new.target.name}.json", seal(record))


def written_before(stage: Path, to: Path) -> WrittenFile | None:
    """Return what an earlier run recorded about a file, if that is the file that exists now."""
    identity = identity_of(to)
    try:
        raw = read_state(stage / f"{PREFIX}{to.name}.json") if identity is not None else None
        record = None if raw is None else parse(raw, fields=("identity", "part", "verdicts"))
        if record is None or record.get("identity") != identity:
            return None
        verdicts = fields_of(record.get("verdicts"), map(str, Verdict))
        return WrittenFile(dict(fields_of(record.get("part"))), {name: whole(verdicts, name) for name in verdicts})
    except ValueError:
        return None
