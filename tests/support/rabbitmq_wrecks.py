"""Small vhosts of version 1 and 2, intact and damaged, for the tests of conversion and salvage."""

from __future__ import annotations

from pathlib import Path

from support.rabbitmq_index import message_id, term, write

from mqstore.rabbitmq.format import index_v2, journal, message_file, segment
from mqstore.rabbitmq.format.names import queue_directory, queue_name_file, vhost_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, write_terms
from mqstore.rabbitmq.format.vhost_config import config_file

PLACE = f"vhosts/{vhost_directory('/')}"
STORE = f"{PLACE}/msg_store_persistent"
Q = f"{PLACE}/queues/{queue_directory('/', 'q')}"
N = 2048


def body(number: int) -> bytes:
    return f"message {number}".encode()


def stored(number: int) -> bytes:
    return term(message_id(number), body(number))


def in_journal(number: int, *, marked: bool = True) -> bytes:
    put = journal.publish(number, message_id(number), stored(number), size=len(body(number)))
    return put + (journal.deliver(number) if marked else b"")


def in_segment(number: int, *, marked: bool = True, embedded: bool = True) -> bytes:
    put = segment.publish(number % N, message_id(number), stored(number) if embedded else b"", size=len(body(number)))
    return put + (segment.mark(number % N) if marked else b"")


def in_store(number: int) -> bytes:
    return message_file.record(message_id(number), stored(number))


def queue_store(numbers: list[int]) -> tuple[bytes, bytes]:
    """Return `0.qi` and `0.qs` with these messages, each at the position of its number."""
    index, store = index_v2.header(0, 4096), index_v2.header(0, 4096, store=True)
    for number in numbers:
        raw = stored(number)
        index = index.ljust(64 + 32 * number, b"\0") + index_v2.stored_entry(len(store), len(raw), size=len(body(number)))
        store += index_v2.queue_store_entry(raw)
    return index, store


def noted(next_seq: int, next_deliver: int, *, count: int, size: int = 0, segments: dict[int, int] | None = None) -> bytes:
    """Return recovery.dets with the terms of the queue."""
    terms = QueueTerms(segments or {0: count}, None, next_seq, next_deliver, bytes(range(16)), count, size)
    return write_terms({Q.rpartition("/")[2]: terms})


def vhost(root: Path, files: dict[str, bytes], *, v2: bool = False) -> Path:
    """Return a `msg_stores` directory with one vhost `/` and one queue `q`, and these files."""
    about = {
        f"{PLACE}/.vhost": b"/",
        f"{PLACE}/.config": config_file(N),
        f"{Q}/.queue_name": queue_name_file("/", "q", v2),
    }
    if any(name.endswith(".idx") for name in files):
        about[f"{Q}/journal.jif"] = b""  # a node makes it before the first segment
    return write(root, about | files)
