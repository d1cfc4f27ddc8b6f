"""The plan of a repair of a RabbitMQ store: the steps after which a node starts on it and delivers everything that is intact.

Quorum queues first: write-ahead logs with which no node starts, and members that names.dets lacks. Then vhost by vhost: the number of
entries of a segment, names that do not belong there, left-overs of merges, the index of each queue, records that a scan misses, the files
of a clean stop; then the indexes of streams. What a node deals with itself and without loss is not in the plan, except for a torn end of
a journal.

What depends on the node and not on the files (its version, its name, its metadata) is not repaired: `diagnose` says it.

It is applied under a lock (`NodeLock`), since nodes take none: no node may run on the store, and no other mqstore may write to it.

A node is found by what Linux shows of its processes: the directory in its command line (`-mnesia dir "…"`), or a file of the store that
a process has open for writing. A node of another machine, on a shared file system, cannot be seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mqstore.errors import TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.durable import DurableDirectory
from mqstore.files.locking import LockedDirectory, LockHeldError
from mqstore.rabbitmq.broker_version import node_version
from mqstore.rabbitmq.format.index_v1 import ACKED, IN_STORE, PERSISTENT, PUBLISHED
from mqstore.rabbitmq.format.layout import find_vhosts, leads_elsewhere
from mqstore.rabbitmq.format.recovery_terms import QueueTerms
from mqstore.rabbitmq.repair.index_steps import index_v1_step, index_v2_steps, lost_index_steps, stream_steps
from mqstore.rabbitmq.repair.queue_step import QueueContent, QueueStep, completed
from mqstore.rabbitmq.repair.quorum_steps import quorum_plan
from mqstore.rabbitmq.repair.vhost_steps import (
    config_steps,
    corrected_terms,
    left_over_steps,
    mac_step,
    marker_steps,
    store_steps,
    stray_steps,
    terms_steps,
)
from mqstore.rabbitmq.store.queue import Queue
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.rabbitmq.version import likely_version
from mqstore.repair.journal import StoreLocking, why_refused

PROCESSES = Path("/proc")
_DIRECTORY = re.compile(rb'\x00dir\x00"([^"\x00]+)"\x00')
_WRITING = os.O_WRONLY | os.O_RDWR


def plan(
    store: RabbitMQStore,
    *,
    intact: bool = False,
    progress: Callable[[int, int], None] | None = None,
    keeps: list[int] | None = None,
    in_copy: bool = False,
) -> list[QueueStep]:
    """Return the steps, in the order in which they are applied. Reads only. progress: called with (queues done, 0).

    intact: `verify` has found no damage, so that the index of a queue without terms of a clean stop is not read again. keeps: takes the
    number of messages that each queue has after the repair. in_copy: of a real copy of the store, in which each link is a separate file.
    """
    careful = store.carefully()
    numbers = [] if keeps is None else keeps
    of_mac = mac_step(careful.directory)
    removed = frozenset() if of_mac is None else frozenset(change.file for change in of_mac.changes)
    drops = node_version(likely_version(careful, read_messages=False)).drops_wrong_last is True
    of_queues = quorum_plan(careful.directory, drops_wrong_last=drops)
    together = partial(_together, careful.directory, in_copy=in_copy)
    steps = _each(together, [*([] if of_mac is None else [of_mac]), *of_queues.steps])
    if keeps is not None:
        every = (queue for node in careful.examined_quorum for queue in node.queues)
        kept = of_queues.kept if all(step.possible for step in steps) else {}
        numbers += (kept.get(queue.place, queue.recovered - queue.unread) for queue in every)
    steps += [step for vhost in careful.vhosts for step in _vhost_steps(vhost, together, removed, intact, progress, numbers)]
    steps += _each(together, stream_steps(careful))
    for _, examined in careful.examined_streams if keeps is not None else ():
        start = examined.node_start()
        numbers.append(start.kept + start.lost)
    taken = {change.file for step in steps for change in step.changes} | {step.file for step in steps}
    for item in careful.unread:
        if item.file not in taken:
            otherwise = "it may use what is there, which this plan does not know"
            in_copy = leads_elsewhere(careful.directory, item)
            steps.append(QueueStep("unread", item.file, 0, 0, item.detail, otherwise, "", (), in_copy=in_copy))
    return steps


def _vhost_steps(
    vhost: Vhost,
    together: partial[list[QueueStep]],
    removed: Collection[str],
    intact: bool,
    progress: Callable[[int, int], None] | None,
    keeps: list[int],
) -> Iterator[QueueStep]:
    names = [*config_steps(vhost), *stray_steps(vhost.root, vhost.place, removed), *left_over_steps(vhost)]
    names = _each(together, names)
    steps = [*names]
    wrong: dict[str, tuple[QueueTerms, str]] = {}
    none = np.empty(0, np.int64)
    unseen, needed = [none], [(none, none)]
    for number, listed in enumerate(vhost.queues, 1):
        # not the listed one, which would keep its journal in memory
        stores = (vhost.persistent, vhost.transient)
        queue = Queue(vhost.root, listed.place, vhost.entry_count, stores, vhost.start(listed.directory))
        content = QueueContent()
        if intact and not vhost.clean and queue.directory not in vhost.terms:
            mine = together(names, [*lost_index_steps(queue, vhost, content)])
            keeps.append(listed.counts.ready + (content.messages if all(step.possible for step in mine) else 0))
            steps += mine
            continue
        first = index_v1_step(queue, vhost, content)
        mine = together(names, [*([first] if first is not None else ()), *index_v2_steps(queue, vhost, content)])
        if not all(step.possible for step in mine):
            keeps.append(listed.counts.ready)
            steps += mine
            continue
        keeps.append(content.messages)
        unseen += content.unseen
        noted = vhost.terms.get(queue.directory)
        if vhost.clean:
            needed += stored_ids(queue)
        fitting = None if noted is None else corrected_terms(noted, content, clean=vhost.clean, rewritten=bool(mine))
        if fitting is not None and mine:
            mine[0] = replace(mine[0], terms={queue.directory: fitting[0]})
        elif fitting is not None:
            wrong[queue.directory] = fitting
        steps += mine
        if progress is not None:
            progress(number, 0)
    steps += together(names, [*store_steps(vhost, np.concatenate(unseen))])
    steps += terms_steps(vhost, wrong)
    if not any(step.possible for step in steps):
        steps += marker_steps(vhost, *map(np.concatenate, zip(*needed, strict=True)))
    yield from together((), steps, complete=True)


def _each(together: partial[list[QueueStep]], steps: Iterable[QueueStep]) -> list[QueueStep]:
    """Return steps; those whose changes cannot be made, whatever the others do, say so."""
    return [each for step in steps for each in together((), [step])]


def _together(
    directory: ReadOnlyDirectory, before: Sequence[QueueStep], steps: list[QueueStep], *, complete: bool = False, in_copy: bool = False
) -> list[QueueStep]:
    """Return the steps of one queue or vhost; if not all of their changes can be made after those before them, none is.

    complete: with the changes of the files of a clean stop. in_copy: as for `plan`.
    """
    made = completed(directory, steps) if complete else [*before, *steps]
    changes = [change for step in made for change in step.changes]
    if why := why_refused(directory.root, changes, LOCKING, in_copy=in_copy):
        mended = not in_copy and not why_refused(directory.root, changes, LOCKING, in_copy=True)
        why = why.replace(f"{directory.root}/", "")
        return [step.refused(why, in_copy=mended) if step.possible else step for step in steps]
    return steps


def stored_ids(queue: Queue) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the ids of the messages of a queue that are in the persistent store, as halves."""
    for table in queue.entry_tables():
        entries = table.entries
        live = (entries["state"] & (PUBLISHED | ACKED)) == PUBLISHED
        shared = entries[live & (entries["place"] == IN_STORE) & ((entries["flags"] & PERSISTENT) != 0)]
        yield shared["hi"], shared["lo"]


class NodeLock:
    """Every vhost directory below a root, locked. Raises TargetError if a node or another process has the store."""

    def __init__(self, directory: DurableDirectory) -> None:
        process = holder(directory.root)
        if process is not None:
            raise TargetError(f"{directory.root} is in use by process {process}; stop the node, and try again")
        self._locks: list[LockedDirectory] = []
        try:
            for place in sorted({"", *find_vhosts(ReadOnlyDirectory(directory.root))}):
                self._locks.append(LockedDirectory(directory, place))
        except LockHeldError:
            self.close()
            raise TargetError(f"{directory.root} is in use by another process that writes to it; end it, and try again") from None
        except BaseException:  # pragma: no cover - Ctrl-C in these lines, or a directory that cannot be opened any more
            self.close()
            raise

    def close(self) -> None:
        """Release the locks; does nothing if they are released."""
        for lock in self._locks:
            lock.close()


LOCKING = StoreLocking(NodeLock)


def holder(root: Path) -> str | None:
    """Return the id and name of a process that runs on a directory, or writes to a file in it; None if there is none to be seen."""
    real = os.fsencode(root.resolve())
    for process in _others():
        if _runs_on(process, real) or _writes_below(process, real):
            name = ""
            with suppress(OSError):
                name = (process / "comm").read_text(errors="replace").strip()
            return f"{process.name} ({name})" if name else process.name
    return None


def _others() -> Iterator[Path]:
    own = {str(os.getpid()), str(os.getppid())}
    with suppress(OSError):
        yield from (each for each in PROCESSES.iterdir() if each.name.isdigit() and each.name not in own)


def _runs_on(process: Path, root: bytes) -> bool:
    """Return whether a node was started with a data directory that the root is, holds, or is in."""
    try:
        started = b"\0" + (process / "cmdline").read_bytes()
    except OSError:
        return False
    if b"\0-mnesia\0" not in started:
        return False
    return any(_nested(os.path.realpath(path), root) for path in _DIRECTORY.findall(started))


def _nested(one: bytes, other: bytes) -> bool:
    return one == other or one.startswith(other + b"/") or other.startswith(one + b"/")


def _writes_below(process: Path, root: bytes) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError, ValueError, IndexError):
                if not os.readlink(os.fsencode(descriptor)).startswith(root + b"/"):
                    continue
                flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & _WRITING:
                    return True
    except OSError:  # it has ended, or is another user's
        return False
    return False
