"""Places that are not as a broker needs them: it does not start, or it cannot be determined which messages consumers get.

    a directory in `index/` with a number for    5.x does not start; 4.x does not load the index files after it
    its name
a file where a queue's directory must be,    the broker cannot write that queue; dispatch fails at the first such message, again and
a directory where its file must be           again, and lists nothing more in any queue
a file name that is not a multiple of the    the broker computes the place in a file as if each began at such a multiple
size of the files
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from mqstore.rocketmq.store.store import RocketMQStore

ROOT = "consumequeue"
NAME = 20  # digits of the name of a queue file
_LONG = re.compile(r"[+-]?[0-9]{1,19}")


def unwritable_queues(store: RocketMQStore, queues: Set[tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence for each place in which a broker cannot write a queue. queues: those that it has or needs."""
    topics = {topic for topic, _ in queues}
    if store.directory.has_entry(ROOT) and not store.directory.is_directory(ROOT):
        yield _sentence(ROOT, "a file has the place of that directory")
    for topic in store.directory.entries(ROOT):
        name = topic.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        place = f"{ROOT}/{topic.name}"
        if not topic.is_directory:
            if name in topics:
                yield _sentence(place, "a file has the place of that directory")
            continue
        for queue in store.directory.entries(place):
            if not queue.is_directory:
                if queue.name.isdecimal() and queue.name.isascii() and (name, int(queue.name)) in queues:
                    yield _sentence(f"{place}/{queue.name}", "a file has the place of that directory")
                continue
            for file in store.directory.entries(f"{place}/{queue.name}"):
                if file.is_directory and len(file.name) == NAME and file.name.isdecimal():
                    yield _sentence(f"{place}/{queue.name}/{file.name}", "a directory has the place of that file")


def directories_in_index(store: RocketMQStore) -> Iterator[str]:
    """Yield the path of each directory in `index/` whose name is a number: a broker takes it for an index file."""
    for entry in store.directory.entries("index"):
        if entry.is_directory and _LONG.fullmatch(entry.name):
            yield f"index/{entry.name}"


def _sentence(place: str, why: str) -> str:
    return f"which messages the broker lists after its start, in any queue: it cannot write {place}, because {why}"


def misnamed_files(store: RocketMQStore) -> Iterator[str]:
    """Yield a sentence for each queue file whose name is not a multiple of the size of its files."""
    for queue in store.consume_queues():
        for file in queue.files:
            if queue.file_size and file.start % queue.file_size:
                yield (
                    f"what consumers get of topic {queue.topic!r}, queue {queue.queue_id}: the name of {file.relative} is not a multiple "
                    f"of the size of its files, {queue.file_size}"
                )
