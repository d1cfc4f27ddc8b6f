"""Files and directories that are not where a broker needs them: it does not start, or what consumers get cannot be determined.

    a directory with the name of a file that a      the broker does not start
    broker opens: checkpoint, lock, timer files
    a directory in `index/` with a number for       5.x does not start; 4.x does not load the index files after it
    its name
    a file where a queue's directory must be,       the broker cannot write that queue; dispatch fails at the first such message,
    a directory where its file must be              again and again, and lists nothing more in any queue
    a file name that is not a multiple of the       the broker computes the place in a file as if each began at such a multiple
    size of the files

Format: docs/formats/rocketmq.md, section 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from mqstore.diagnosis import Evidence
from mqstore.rocketmq.format.mapped_file_queue import NAME_DIGITS
from mqstore.rocketmq.format.profile import VersionRules
from mqstore.rocketmq.format.timer_wheel import CHECK, WHEEL
from mqstore.rocketmq.repair.file_steps import directories_in_index
from mqstore.rocketmq.store.store import RocketMQStore

QUEUES = "consumequeue"


def directories_for_files(store: RocketMQStore, rules: VersionRules) -> Iterator[Evidence]:
    """Yield each directory that a broker takes for a file: `keys-lost` if it starts nevertheless."""
    for path in directories_in_index(store) if store.config.message_index_enable is not False else ():
        sentence = f"{path} is a directory, and the broker takes it for an index file"
        if rules.starts_with_directory_in_index:
            yield Evidence("keys-lost", path, f"{sentence}: it does not load the index files after it")
        else:
            yield Evidence("refused", path, f"{sentence}: it does not start")
    if store.directory.is_directory("checkpoint"):
        yield Evidence("bad-checkpoint", "checkpoint", "it is a directory, in which a broker cannot keep its checkpoint")
    for name in ("lock", *((WHEEL, CHECK) if rules.has_timer_wheel else ())):
        if store.directory.is_directory(name):
            yield Evidence("stray-file", name, "it is a directory, and a broker opens it as a file: it does not start")


def unwritable_queues(store: RocketMQStore, queues: Set[tuple[str, int]]) -> Iterator[str]:
    """Yield a sentence for each place in which a broker cannot write a queue. queues: those that it has or needs."""
    topics = {topic for topic, _ in queues}
    if store.directory.has_entry(QUEUES) and not store.directory.is_directory(QUEUES):
        yield _sentence(QUEUES, "a file has the place of that directory")
    for topic in store.directory.entries(QUEUES):
        name = topic.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        path = f"{QUEUES}/{topic.name}"
        if not topic.is_directory:
            if name in topics:
                yield _sentence(path, "a file has the place of that directory")
            continue
        for queue in store.directory.entries(path):
            if not queue.is_directory:
                # a broker takes the number of any name, and the directory of a queue has that number without zeros before it
                own = queue.name.isdecimal() and queue.name.isascii() and queue.name == str(int(queue.name))
                if own and (name, int(queue.name)) in queues:
                    yield _sentence(f"{path}/{queue.name}", "a file has the place of that directory")
                continue
            for file in store.directory.entries(f"{path}/{queue.name}"):
                if file.is_directory and len(file.name) == NAME_DIGITS and file.name.isdecimal():
                    yield _sentence(f"{path}/{queue.name}/{file.name}", "a directory has the place of that file")


def _sentence(path: str, why: str) -> str:
    return f"which messages the broker lists after its start, in any queue: it cannot write {path}, because {why}"


def misnamed_files(store: RocketMQStore) -> Iterator[str]:
    """Yield a sentence for each file with a name by which a broker does not read it at its place, or another one there.

    A name that is a number, and has not 20 digits: sorted by name, the file has another place in the list, which a broker takes for the
    run; it finds nothing after the end of the last one listed, and may continue in a file that has messages.
    """
    for path, start in store.log.queue.out_of_place():
        yield (
            f"which messages the broker has after its start, and which it writes over: it loads {path} as the file of position {start}, "
            "out of order; give the file a name of 20 digits, or move it away, before a broker starts"
        )
    for queue in store.consume_queues():
        for path, start in queue.out_of_place():
            yield (
                f"what consumers get of topic {queue.topic!r}, queue {queue.queue_id}: the broker loads {path} as the file of position "
                f"{start}, out of order"
            )
        for file in queue.files:
            if queue.file_size and file.start % queue.file_size:
                yield (
                    f"what consumers get of topic {queue.topic!r}, queue {queue.queue_id}: the name of {file.relative} is not a multiple "
                    f"of the size of its files, {queue.file_size}"
                )
