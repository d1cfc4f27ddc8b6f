"""States of a RabbitMQ store on which a node crashes, or with which it loses something: each made from a store that a real node wrote.

`STATES` maps a name to the golden store that it is made from, the function that changes it, and what a repair makes of it. `made` gives
a store in that state, if asked for with its vhost under another name, so that one node can start on many.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.golden import case_named, unpack

from mqstore.files import Bytes
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format.journal import acknowledge, deliver
from mqstore.rabbitmq.format.message_file import strict_scan
from mqstore.rabbitmq.format.names import parse_queue_name_file, queue_directory, queue_name_file, vhost_directory
from mqstore.rabbitmq.format.recovery_terms import queue_value, read_terms, write_terms


class State(NamedTuple):
    """case: of 3.10.8. steps: the kinds of steps of the plan.

    lost: how many messages fewer than in the golden store there are after a repair; more come back if acknowledgements are lost.
    """

    case: str
    change: Callable[[Path], None]
    lost: int
    steps: tuple[str, ...]


def _largest(store: Path, pattern: str) -> Path:
    return max(store.glob(f"msg_stores/vhosts/*/{pattern}"), key=lambda path: path.stat().st_size)


def _patch(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def _cut(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def _journal_records(raw: bytes) -> list[tuple[int, int]]:
    """Return position and length of each record."""
    found, at = [], 0
    while at + 8 <= len(raw):
        length = 8 if raw[at] >> 7 else 40 + int.from_bytes(raw[at + 36 : at + 40], "big")
        found.append((at, length))
        at += length
    return found


def journal_hole(store: Path) -> None:
    """Overwrite one publish in the middle of the journal with zeros."""
    path = _largest(store, "queues/*/journal.jif")
    records = [each for each in _journal_records(path.read_bytes()) if each[1] > 40]
    at, length = records[len(records) // 2]
    _patch(path, at, bytes(length))


def journal_torn(store: Path) -> None:
    """Add the first half of a publish, as a node that is killed while it writes leaves it."""
    path = _largest(store, "queues/*/journal.jif")
    raw = path.read_bytes()
    at, length = next(each for each in _journal_records(raw) if each[1] > 40)
    path.write_bytes(raw + struct.pack(">Q", 1 << 40) + raw[at + 8 : at + length // 2])


def journal_repeats(store: Path) -> None:
    """Deliver a message twice: a node crashes on it."""
    path = _largest(store, "queues/*/journal.jif")
    raw = path.read_bytes()
    sequence_id = int.from_bytes(raw[:8], "big") & ((1 << 62) - 1)
    path.write_bytes(raw + deliver(sequence_id) + deliver(sequence_id) + acknowledge(sequence_id))


def segment_torn(store: Path) -> None:
    """Cut the last segment inside the body of its last publish."""
    path = max(store.glob("msg_stores/vhosts/*/queues/*/3.idx"), key=lambda path: path.stat().st_size)
    _cut(path, path.read_bytes().rindex(b"basic_message") + 40)


def segment_zeros(store: Path) -> None:
    path = _largest(store, "queues/*/2.idx")
    _patch(path, 4096, bytes(512))


def term_of_segment(store: Path) -> None:
    """Make one embedded message something that is not a term."""
    path = _largest(store, "queues/*/2.idx")
    raw = path.read_bytes()
    at = raw.index(b"\x83h\x06", 2000)
    _patch(path, at, b"\x00")


def headless(store: Path) -> None:
    _patch(_largest(store, "queues/*/1.qi"), 0, bytes(16))


def torn_entry(store: Path) -> None:
    """Cut the last entry of an index so that it still says where its message is."""
    path = _largest(store, "queues/*/1.qi")
    _cut(path, path.stat().st_size - 8)


def torn_entry_short(store: Path) -> None:
    path = _largest(store, "queues/*/1.qi")
    _cut(path, path.stat().st_size - 30)


def odd_status(store: Path) -> None:
    _patch(_largest(store, "queues/*/1.qi"), 64 + 32, b"\x09")


def frame_of_qs(store: Path) -> None:
    """Damage the size and the checksum of the first two live messages of a queue store."""
    index, stored = _largest(store, "queues/*/1.qi"), _largest(store, "queues/*/1.qs")
    raw = index.read_bytes()
    live = [at for at in range(64, len(raw), 32) if raw[at] == 1 and raw[at + 3] == 2]
    for number, at in enumerate(live[:2]):
        _patch(stored, int.from_bytes(raw[at + 4 : at + 12], "big") + (0 if number else 5), b"\xff\xff")


def size_of_record(store: Path) -> None:
    """Make the size of the third record of a message file lead past its end: the node's scan stops there."""
    path = _largest(store, "msg_store_persistent/0.rdq")
    at = strict_scan(_bytes_of(path)).at
    _patch(path, int(at[2]), b"\x00\x00\x00\x7f")


def zeros_in_store(store: Path) -> None:
    """Overwrite a record of a message file with zeros."""
    path = _largest(store, "msg_store_persistent/0.rdq")
    scan = strict_scan(_bytes_of(path))
    _patch(path, int(scan.at[1]), bytes(int(scan.total[1])))


def term_of_record(store: Path) -> None:
    """Make a stored message that a queue has something that is not a term; its frame stays whole."""
    path = _largest(store, "msg_store_persistent/1.rdq")
    raw = path.read_bytes()
    indexes = b"".join(each.read_bytes() for each in store.glob("msg_stores/vhosts/*/queues/*/*") if each.suffix in (".qi", ".jif"))
    at = next(at for at in strict_scan(_bytes_of(path)).at.tolist() if raw[at + 8 : at + 24] in indexes)
    _patch(path, at + 24, b"\x00")


def left_over_alone(store: Path) -> None:
    path = _largest(store, "msg_store_persistent/2.rdq")
    path.rename(path.with_suffix(".rdt"))


def nothing(store: Path) -> None:
    """An interrupted merge, as a node left it."""


def stray_index(store: Path) -> None:
    path = _largest(store, "queues/*/journal.jif").parent
    (path / "core.idx").write_bytes(b"a file of somebody else")
    (path / "9.idx").mkdir()
    (path / "9.idx" / "note").write_bytes(b"something")


def stray_in_store(store: Path) -> None:
    place = _largest(store, "msg_store_persistent/*.rdq").parent
    (place / "core.rdq").write_bytes(b"a file of somebody else")
    (place / "77.rdq").mkdir()


def torn_terms(store: Path) -> None:
    """Overwrite the head of recovery.dets and the key of one queue."""
    path = _largest(store, "recovery.dets")
    raw = bytearray(path.read_bytes())
    raw[:64] = bytes(64)
    at = re.search(rb"k\x00[\x18\x19]", raw)
    assert at is not None
    raw[at.start()] = 0
    path.write_bytes(raw)


def lying_terms(store: Path) -> None:
    """Say that a queue has more messages than it has, and that its next number is one that is there."""
    path = _largest(store, "recovery.dets")
    objects = dets.read_objects(path.read_bytes())
    terms = read_terms(objects)
    name = max(terms, key=lambda each: terms[each].count or 0)
    noted = terms[name]
    wrong = type(noted)(noted.segments, noted.v2_segments, 3, noted.next_deliver, noted.reference, (noted.count or 0) + 7, noted.size)
    values = [(key, queue_value(wrong) if bytes(key) == name.encode() else value) for key, value in objects]  # type: ignore[arg-type]
    path.write_bytes(dets.write_objects(values))


def lying_tables(store: Path) -> None:
    """Put the first record of a message file of a clean stop after its others."""
    path = _largest(store, "msg_store_persistent/0.rdq")
    raw, total = path.read_bytes(), int(strict_scan(_bytes_of(path)).total[0])
    path.write_bytes(raw[total:] + raw[:total])


def half_index(place: Path) -> None:
    """Cut the table of messages of a clean stop in the middle. place: of a vhost."""
    path = place / "msg_store_persistent" / "msg_store_index.ets"
    _cut(path, path.stat().st_size // 2)


def largest_message_file(place: Path) -> Path:
    return max((place / "msg_store_persistent").glob("*.rdq"), key=lambda path: (path.stat().st_size, -int(path.stem)))


def without_message_file(place: Path) -> None:
    largest_message_file(place).unlink()


def lying_records(place: Path) -> None:
    """Put the first record of the largest message file after its others."""
    path = largest_message_file(place)
    if not len(strict_scan(_bytes_of(path)).total):
        return
    raw, total = path.read_bytes(), int(strict_scan(_bytes_of(path)).total[0])
    path.write_bytes(raw[total:] + raw[:total])


def empty_config(store: Path) -> None:
    """Empty the file with the number of entries of a segment: a node fails on it."""
    next(store.glob("msg_stores/vhosts/*/.config")).write_bytes(b"")


def garbage_config(store: Path) -> None:
    next(store.glob("msg_stores/vhosts/*/.config")).write_bytes(b"{segment_entry_count, 2\x00\xff8")


def lost_index(store: Path) -> None:
    _largest(store, "queues/*/1.qi").unlink()


def lost_index_of_first(store: Path) -> None:
    _largest(store, "queues/*/0.qi").unlink()


def lost_store(store: Path) -> None:
    _largest(store, "queues/*/1.qs").unlink()


def lost_store_of_first(store: Path) -> None:
    _largest(store, "queues/*/0.qs").unlink()


def _bytes_of(path: Path) -> Bytes:
    return np.frombuffer(path.read_bytes(), np.uint8)


A, B, C, D, E, E3 = (
    "a-small-clean",
    "b-dirty-journal",
    "c-segments-16384",
    "d-large-fanout",
    "e-gc-combined",
    "e3-gc-interrupted-zero-extended",
)
G1, G2 = "g1-v2-small-clean", "g2-v2-large-dirty"

STATES = {
    "journal_hole": State(B, journal_hole, 1, ("index",)),
    "journal_hole_after_a_clean_stop": State(A, journal_hole, 1, ("index",)),
    "journal_torn": State(A, journal_torn, 0, ("torn-end",)),
    "journal_repeats": State(B, journal_repeats, 1, ("index",)),
    "segment_torn": State(B, segment_torn, -393, ("index",)),
    "segment_torn_after_a_clean_stop": State(C, segment_torn, 1, ("index",)),
    "segment_zeros": State(B, segment_zeros, 2, ("index",)),
    "term_of_segment": State(B, term_of_segment, 1, ("index",)),
    "headless": State(G2, headless, 0, ("header",)),
    "torn_entry": State(G2, torn_entry, 0, ("torn-entry",)),
    "torn_entry_short": State(G2, torn_entry_short, 1, ("torn-entry",)),
    "odd_status": State(G2, odd_status, 0, ("status",)),
    "frame_of_qs": State(G2, frame_of_qs, 0, ("frame",)),
    "size_of_record": State(E, size_of_record, 0, ("records",)),
    "size_of_record_after_a_clean_stop": State(D, size_of_record, 0, ("records",)),
    "zeros_in_store": State(G2, zeros_in_store, 1, ("records",)),
    "term_of_record": State(G2, term_of_record, 3, ("unreadable",) * 3),
    "term_of_record_after_a_clean_stop": State(D, term_of_record, 3, ("index",) * 3),
    "left_over_alone": State(E, left_over_alone, 0, ("rename",)),
    "interrupted_merge": State(E3, nothing, -6, ("records",)),
    "stray_index": State(E, stray_index, 0, ("take-out",) * 2),
    "stray_in_store": State(E, stray_in_store, 0, ("take-out",) * 2),
    "torn_terms": State(A, torn_terms, 0, ("terms",)),
    "lying_terms": State(A, lying_terms, 0, ("terms",)),
    "empty_config": State(B, empty_config, 0, ("config",)),
    "empty_config_after_a_clean_stop": State(A, empty_config, 0, ("config",)),
    "garbage_config": State(B, garbage_config, 0, ("config",)),
    "lost_index": State(G2, lost_index, 0, ("lost-index",)),
    "lost_index_after_a_clean_stop": State(G1, lost_index_of_first, -29, ("lost-index",)),
    "lost_store": State(G2, lost_store, 429, ("unreadable",)),
    "lost_store_after_a_clean_stop": State(G1, lost_store_of_first, 71, ("unreadable",)),
    "lying_tables": State(D, lying_tables, 0, ("clean-markers",)),
}


def made(name: str, target: Path, *, vhost: str | None = None) -> Path:
    """Return an unpacked store in that state. vhost: another name for its vhost `/`."""
    state = STATES[name]
    unpacked(state.case, target)
    if vhost is not None:
        rename_vhost(target, vhost)
    state.change(target)
    return target


def unpacked(case: str, target: Path) -> Path:
    """Return an unpacked golden store of 3.10.8 that may be changed."""
    unpack(case_named(f"3.10.8/{case}"), target)
    return writable(target)


def writable(store: Path) -> Path:
    """Make all of a store writable, and return it."""
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return store


def rename_vhost(store: Path, vhost: str) -> None:
    """Give the vhost another name, with all the directories whose names are made from it; an empty queue may have terms alone."""
    place = store / "msg_stores" / "vhosts" / vhost_directory(vhost)
    (store / "msg_stores" / "vhosts" / vhost_directory("/")).rename(place)
    (place / ".vhost").write_text(vhost)
    renamed = {}
    for path in sorted((place / "queues").iterdir()):
        known = parse_queue_name_file((path / ".queue_name").read_bytes(), path.name)
        assert known is not None
        renamed[path.name] = queue_directory(vhost, known.name)
        (path / ".queue_name").write_bytes(queue_name_file(vhost, known.name, known.v2))
        path.rename(path.with_name(renamed[path.name]))
    terms = read_terms(dets.read_objects((place / "recovery.dets").read_bytes()))
    if terms:
        (place / "recovery.dets").write_bytes(write_terms({renamed.get(name, name): noted for name, noted in terms.items()}))
