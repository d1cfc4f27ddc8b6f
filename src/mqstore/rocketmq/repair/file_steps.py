"""Steps for names and lengths: what a broker refuses to load is taken out, files get the length of their neighbours.

    a name that is not a position    taken out, of a queue also one at which none of its files begins
    a directory among the files      taken out, with everything in it
    an empty file                    taken out
    another length                   zeros are added, or the bytes after the end are cut off

Format: docs/formats/rocketmq.md, sections 1.2 and 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mqstore.files import ReadOnlyDirectory
from mqstore.repair.change import Change, Step
from mqstore.rocketmq.format import consume_queue, mapped_file_queue
from mqstore.rocketmq.format.mapped_file_queue import NAME_DIGITS, FileQueue
from mqstore.rocketmq.store.store import RocketMQStore

_REFUSES = "it does not start"
_OUT_OF_ORDER = "it reads this file out of order, and may write over others"
_JAVA_LONG = re.compile(r"[+-]?[0-9]{1,19}")


def file_steps(store: RocketMQStore) -> Iterator[Step]:
    """Yield the steps for the files of the log and of all queues, and for a checkpoint or lock that is not a file."""
    yield from _of_queue(store.directory, store.log.queue)
    sizes = {"consumequeue": store.config.consume_queue_file_size, "batchconsumequeue": store.config.batch_queue_file_size}
    for path, configured in sizes.items():
        size = configured or consume_queue.common_file_size(store.directory, path)
        for topic, queue_id in consume_queue.queues(store.directory, path):
            queue = mapped_file_queue.load(store.directory, f"{path}/{topic}/{queue_id}", size=size)
            yield from _of_queue(store.directory, queue, of_log=False)
    for path in directories_in_index(store):
        yield _take_out(store.directory, path, "a directory does not belong here", "5.x does not start, 4.x loads no index file after it")
    if store.directory.is_directory("checkpoint"):
        yield _take_out(store.directory, "checkpoint", "a directory is in the place of the file", _REFUSES)
    if store.directory.is_directory("lock"):  # which is locked while steps are applied
        yield Step("take-out", "lock", 0, 0, "a directory is in the place of the file: move it away first", _REFUSES, "", ())


def directories_in_index(store: RocketMQStore) -> Iterator[str]:
    """Yield the path of each directory in `index/` whose name is a number: a broker takes it for an index file."""
    for entry in store.directory.entries("index"):
        if entry.is_directory and _JAVA_LONG.fullmatch(entry.name):
            yield f"index/{entry.name}"


def _of_queue(directory: ReadOnlyDirectory, queue: FileQueue, *, of_log: bool = True) -> Iterator[Step]:
    astray = {name for name, _ in queue.out_of_place()}
    for entry in queue.listing:
        name = f"{queue.relative}/{entry.name}"
        if entry.is_directory:
            yield _take_out(directory, name, "a directory does not belong here", "4.x does not start, 5.x ignores it")
        elif not entry.is_file:
            yield Step("take-out", name, 0, 0, "it is not a regular file, and is left alone: remove it by hand", _REFUSES, "", ())
        elif not (len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdigit()):
            otherwise = _OUT_OF_ORDER if name in astray else _REFUSES
            yield _take_out(directory, name, f"a file of {entry.size} bytes does not belong here", otherwise)
        elif not of_log and queue.file_size and int(entry.name) % queue.file_size:
            yield _take_out(directory, name, f"no file of {queue.file_size} bytes begins at this position", _OUT_OF_ORDER)
        elif entry.size == 0:
            yield _take_out(
                directory, name, "the file is empty", "4.x does not start; 5.x does not unless it is the last one, which it deletes"
            )
        elif queue.file_size and entry.size != queue.file_size:
            yield _give_length(name, entry.size, queue.file_size)


def _give_length(name: str, size: int, length: int) -> Step:
    what = "zeros are added" if size < length else "the bytes after that are cut off"
    why = f"the file has {size} bytes, and its neighbours {length}: {what}"
    loss = "" if size < length else "the bytes after the end, which no broker reads"
    return Step("length", name, min(size, length), abs(length - size), why, _REFUSES, loss, (Change("resize", name, length=length),))


def _take_out(directory: ReadOnlyDirectory, name: str, why: str, otherwise: str) -> Step:
    """Return the step that takes a file, or a directory with all it holds, out of the store."""
    if not directory.is_directory(name):
        return Step("take-out", name, 0, 0, f"{why}: it is kept in the journal", otherwise, "", (Change("remove", name),))
    changes: list[Change] = []
    directories = [name]
    for path, entry in directory.walk(name):
        if not entry.is_file:
            return Step("take-out", name, 0, 0, f"{why}, and holds {entry.name}, which is not a regular file", otherwise, "", ())
        changes.append(Change("remove", path))
    directories += _below(directory, name)
    changes += [Change("rmdir", path) for path in sorted(directories, key=lambda path: -path.count("/"))]
    return Step("take-out", name, 0, 0, f"{why}: it is kept in the journal", otherwise, "", tuple(changes))


def _below(directory: ReadOnlyDirectory, name: str) -> Iterator[str]:
    for entry in directory.entries(name):
        if entry.is_directory:
            yield f"{name}/{entry.name}"
            yield from _below(directory, f"{name}/{entry.name}")
