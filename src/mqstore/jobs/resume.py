"""Resumable work of an export: finished parts outlive the process that wrote them.

    .OUT.mqstore-export/                 beside the target, until that is complete
        plan.json                        what is exported: options, state of the log, splits
        000003.8a1f….0                   a part, in progress or finished
        done-000003.json                 what the task of split 3 wrote; created when its parts are on disk

A killed run leaves it in place. A run with `resume` continues it if it is the same export, with the splits that are not done;
any other run removes it. A running export holds a lock on the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mqstore.errors import TargetError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import STAGED, DurableDirectory, remove_left_behind, staged_name
from mqstore.files.location import check_parent
from mqstore.findings import Damage, Kind
from mqstore.jobs.written_files import PREFIX
from mqstore.table.parts import PartFile, TaskOutput

__all__ = ["ExportWork", "export_and_record", "is_work", "work_at", "work_directory"]

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
            directory.write_small(PLAN, json.dumps(plan, indent=1).encode())

    def done(self, number: int) -> TaskOutput | None:
        """Return what the task of a split wrote, or None unless it is complete."""
        raw = ReadOnlyDirectory(self.path).read(_done_name(number))
        if raw is None:
            return None
        try:
            record = json.loads(raw)
            parts = tuple(PartFile(**part) for part in record["parts"])
            damage = tuple(Damage(**{**item, "kind": Kind(item["kind"])}) for item in record["damage"])
            outcome = TaskOutput(parts, record["rows"], damage, record["damage_untold"])
            whole = all((self.path / part.staged).stat().st_size == part.bytes for part in parts)
        except (ValueError, KeyError, TypeError, OSError):
            return None
        return outcome if whole else None


def _done_name(number: int) -> str:
    return f"done-{number:06d}.json"


def export_and_record(export_split: Callable[[T], TaskOutput], task: T) -> TaskOutput:
    """Write a split in a task and, when its parts are on disk, record that it is done."""
    outcome = export_split(task)
    record = {**asdict(outcome), "damage": [{**asdict(item), "kind": str(item.kind)} for item in outcome.damage]}
    with DurableDirectory(task.stage) as stage:
        for part in outcome.parts:
            stage.sync(part.staged)
        stage.write_small(_done_name(task.number), json.dumps(record).encode())
    return outcome


def work_directory(target: Path, *, resume: bool, wanted: Mapping[str, Any]) -> contextlib.AbstractContextManager[ExportWork]:
    """Return the directory to work in, as a context. wanted: what must be equal for earlier work to be resumed.

    Raises UsageError if `resume` finds work of another export, and TargetError if another process is using it.
    With resume the work is kept if the block ends with an error; setting `keep` keeps it in any case.
    """
    check_parent(target)
    return work_at(target.parent / f".{target.name[:100]}{STAGED}export", resume=resume, wanted=wanted)


def is_work(path: Path) -> bool:
    """Return whether a directory is a work directory, be it of a run that was killed before its plan was written."""
    return path.is_dir() and ((path / PLAN).is_file() or all(name.startswith(f".{PLAN}{STAGED}") for name in os.listdir(path)))


@contextlib.contextmanager
def work_at(path: Path, *, resume: bool, wanted: Mapping[str, Any], what: str = "export") -> Iterator[ExportWork]:
    """Yield a directory to work in, as `work_directory` does. what: name of the work in error messages."""
    with DurableDirectory(path.parent) as parent:
        remove_left_behind(path)
        lock = _lock(path, what) if path.is_dir() else -1
        try:
            found = _plan(path) if lock >= 0 and resume else None
            if found is not None:
                _check_same(path, found, wanted, what)
            elif lock >= 0:
                _discard(parent, path)
                os.close(lock)
                lock = -1
            if lock < 0:
                parent.make_directory(path.name)
                lock = _lock(path, what)
            work = ExportWork(path, found)
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
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise TargetError(f"another {what} to the same target is running in {path}; wait until it ends, or choose another name") from None
    except OSError:
        return descriptor  # a file system without locks
    return descriptor


def _plan(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(ReadOnlyDirectory(path).read(PLAN) or b"null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        if name == "log":
            reason = "the log has changed since"
        else:
            reason = f"its {name} was {json.dumps(found.get(name))}, not {json.dumps(value)}"
        again = "export without --resume, which removes it and starts over" if what == "export" else "remove it, or choose another name"
        raise UsageError(f"the {what} in {path} cannot be resumed: {reason}; {again}")
