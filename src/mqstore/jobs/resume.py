"""Resumable work of an export: finished parts outlive the process that wrote them.

    .OUT.mqstore-export/                 beside the target, until that is complete
        plan.json                        what is exported: options, state of the log, splits
        000003.8a1f….0                   a part, in progress or finished
        done-000003.json                 what the task of split 3 wrote; created when its parts are on disk

A killed run leaves it in place. A run with `resume` continues it if it is the same export, with the splits that are not done;
any other run removes it. A running export holds a lock on the directory.

A salvage records the files that it has written completely in its work directory, right before they get their names:

    written-found.rocketmq.jsonl.json    {"identity": [inode, bytes], "part": {…}, "verdicts": {…}}

A run that was killed between two files, or before it removed its work directory, finds its files by that, and does not write them
again. Another file under the same name is not one of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mqstore.errors import TargetError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import STAGED, DurableDirectory, NewFile, identity_of, remove_left_behind, staged_name
from mqstore.files.location import check_parent
from mqstore.files.state_file import fields_of, one_of, parse, plain_name, read_state, require_own_directory, rows, seal, text, whole
from mqstore.findings import Damage, Kind, Verdict
from mqstore.table.row_files import PartFile, TaskOutput

PLAN = "plan.json"


class StagedTask(Protocol):
    """A task that writes parts. number: its number within the export; stage: the directory it writes to."""

    @property
    def number(self) -> int: ...
    @property
    def stage(self) -> str: ...


T = TypeVar("T", bound=StagedTask)


class ExportWork:
    """The work directory of an export. resumed_plan: the plan of the run that is resumed, None for a new one."""

    def __init__(self, path: Path, resumed_plan: dict[str, Any] | None) -> None:
        self.path = path
        self.resumed_plan = resumed_plan
        self.keep = False

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Record what is exported, before the first part is written."""
        with DurableDirectory(self.path) as directory:
            directory.write_small(PLAN, seal(plan, indent=1))

    def done(self, number: int) -> TaskOutput | None:
        """Return what the task of a split wrote, or None unless it is complete."""
        raw = read_state(self.path / _done_name(number))
        if raw is None:
            return None
        try:
            record = parse(raw, fields=("parts", "rows", "damage", "damage_untold"))
            parts = tuple(_part(part) for part in rows(record, "parts"))
            damage = tuple(_damage(item) for item in rows(record, "damage"))
            outcome = TaskOutput(parts, whole(record, "rows"), damage, whole(record, "damage_untold"))
            complete = all(_size(self.path / part.staged) == part.bytes for part in parts)
        except (ValueError, OSError):
            return None
        return outcome if complete else None


def _part(value: object) -> PartFile:
    part = fields_of(value, ("staged", "name", "rows", "bytes"))
    name = text(part, "name")
    if any(step in ("", ".", "..") or "\0" in step for step in name.split("/")):
        raise ValueError(f"its name {name!r} leads out of the target")
    return PartFile(plain_name(part, "staged"), name, whole(part, "rows"), whole(part, "bytes"))


def _damage(value: object) -> Damage:
    item = fields_of(value, ("file", "offset", "length", "kind", "detail", "messages"))
    kind = Kind(one_of(item, "kind", [str(each) for each in Kind]))
    return Damage(
        text(item, "file"), whole(item, "offset", -1), whole(item, "length", -1), kind, text(item, "detail"), whole(item, "messages")
    )


def _size(path: Path) -> int:
    """Return the size of a regular file, -1 for a link or anything else. Raises OSError."""
    status = path.lstat()
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _done_name(number: int) -> str:
    return f"done-{number:06d}.json"


def export_and_record(export_split: Callable[[T], TaskOutput], task: T) -> TaskOutput:
    """Write a split in a task and, when its parts are on disk, record that it is done."""
    outcome = export_split(task)
    record = {**asdict(outcome), "damage": [{**asdict(item), "kind": str(item.kind)} for item in outcome.damage]}
    with DurableDirectory(task.stage) as stage:
        for part in outcome.parts:
            stage.sync(part.staged)
        stage.write_small(_done_name(task.number), seal(record))
    return outcome


def work_directory(target: Path, *, resume: bool, identity: Mapping[str, Any]) -> contextlib.AbstractContextManager[ExportWork]:
    """Return the directory to work in, as a context. identity: what must be equal for earlier work to be resumed.

    Raises UsageError if `resume` finds work of another export, and TargetError if another process is using it.
    With resume the work is kept if the block ends with an error; setting `keep` keeps it in any case.
    """
    check_parent(target)
    return work_at(target.parent / f".{target.name[:100]}{STAGED}export", resume=resume, identity=identity)


def is_work(path: Path) -> bool:
    """Return whether a directory is a work directory, be it of a run that was killed before its plan was written."""
    return path.is_dir() and ((path / PLAN).is_file() or all(name.startswith(f".{PLAN}{STAGED}") for name in os.listdir(path)))


@contextlib.contextmanager
def work_at(path: Path, *, resume: bool, identity: Mapping[str, Any], what: str = "export") -> Iterator[ExportWork]:
    """Yield a directory to work in, as `work_directory` does. what: name of the work in error messages."""
    with DurableDirectory(path.parent) as parent:
        remove_left_behind(path)
        if os.path.lexists(path):
            require_own_directory(path)
        lock = _lock(path, what) if path.is_dir() else -1
        try:
            plan = _plan(path, identity, what) if lock >= 0 and resume else None
            if plan is not None:
                _check_same(path, plan, identity, what)
            elif lock >= 0:
                _discard(parent, path)
                os.close(lock)
                lock = -1
            if lock < 0:
                parent.make_directory(path.name)
                lock = _lock(path, what)
            work = ExportWork(path, plan)
            try:
                yield work
            except BaseException:
                work.keep = resume
                raise
            finally:
                if not work.keep:
                    with contextlib.suppress(TargetError):
                        _remove(parent, path)
        finally:
            if lock >= 0:
                os.close(lock)


def _remove(parent: DurableDirectory, path: Path) -> None:
    """Remove a work directory; last what says that its files are complete, so that a run that is killed meanwhile is known as ended."""
    with DurableDirectory(path) as directory:
        for entry in ReadOnlyDirectory(path).entries():
            if entry.name != PLAN and not entry.name.startswith(PREFIX):
                directory.discard(entry.name)
    _discard(parent, path)


def _discard(parent: DurableDirectory, path: Path) -> None:
    """Remove a work directory under another name: a task of a dead run that still writes to it can add nothing from then on."""
    doomed = staged_name(path.name)
    parent.rename(path.name, doomed)
    parent.remove_tree(doomed)


def _lock(path: Path, what: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TargetError(f"another {what} to the same target is running in {path}; wait until it ends, or choose another name") from None
    except OSError:
        return descriptor  # a file system without locks
    return descriptor


def _plan(path: Path, identity: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """Return the plan of an earlier run; None if it was killed before it wrote one. Raises UsageError for a file that is not a plan."""
    raw = read_state(path / PLAN)
    if raw is None:
        return None
    try:
        plan = parse(raw, fields=(*identity, "run_id", "asked_splits", "splits"))
        if "run_id" in plan:
            _check_splits(plan)
    except ValueError as error:
        raise UsageError(f"{path / PLAN} is not the plan of an earlier {what}: {error}; {_again(what)}") from None
    return plan


def _check_splits(plan: Mapping[str, Any]) -> None:
    """Check what only an export writes. Raises ValueError."""
    if not re.fullmatch("[0-9a-f]{16}", text(plan, "run_id")):
        raise ValueError("its run_id is not 16 hexadecimal digits")
    if plan.get("asked_splits") is not None:
        whole(plan, "asked_splits", 1)
    if isinstance(plan.get("splits"), list):
        for split in rows(plan, "splits"):
            number, start, stop = (whole({"split": each}, "split") for each in split) if isinstance(split, list) else (0, 1, 0)
            if start > stop:
                raise ValueError(f"its split {number} ends before it begins")
    else:
        whole(plan, "splits", 1)


def _again(what: str) -> str:
    return "export without --resume, which removes it and starts over" if what == "export" else "remove it, or choose another name"


def _check_same(path: Path, plan: Mapping[str, Any], identity: Mapping[str, Any], what: str) -> None:
    for name, value in identity.items():
        if plan.get(name) == value:
            continue
        if name == "log":
            reason = "the log has changed since"
        else:
            reason = f"its {name} was {json.dumps(plan.get(name))}, not {json.dumps(value)}"
        raise UsageError(f"the {what} in {path} cannot be resumed: {reason}; {_again(what)}")


# files of a salvage


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
