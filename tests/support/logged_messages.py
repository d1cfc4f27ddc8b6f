"""Messages in the logs of quorum queues: those of the golden stores, changed ones, and a log made of any entries."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from pathlib import Path

from support import quorum

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang.etf import EtfError
from mqstore.rabbitmq.message.message_term import message_from
from mqstore.rabbitmq.quorum.queue import stored_message
from mqstore.rabbitmq.quorum.raft_log import MemberLog, RaftDirectory, raft_systems

TAGS = (0, 1, 97, 98, 104, 106, 107, 108, 109, 110, 116, 119, 255)


def entries(case: str) -> list[bytes]:
    (system,) = raft_systems(ReadOnlyDirectory(quorum.node(case)), "quorum")
    return [entry.entry for uid in system.uids for entry in system.member(uid).entries()]


def changed(entry: bytes, rng: random.Random) -> list[bytes]:
    """Return the entry with every byte changed in turn, cut at random places, and with runs of bytes twice or left out."""
    texts = []
    for at in range(len(entry)):
        values = {*TAGS, entry[at] ^ 1 << rng.randrange(8), (entry[at] + 1) % 256, rng.randrange(256)} - {entry[at]}
        texts += [entry[:at] + bytes([value]) + entry[at + 1 :] for value in sorted(values)]
    for _ in range(100):
        low, high = sorted(rng.randrange(len(entry) + 1) for _ in range(2))
        texts += [entry[:low], entry[:low] + entry[high:], entry[:high] + entry[low:]]
    return texts


def form(entry: bytes) -> tuple[object, ...] | None:
    """Return what tells the forms of messages apart; None for an entry without a message."""
    try:
        message = message_from(stored_message(entry), with_id=False)
    except EtfError:
        return None
    annotated = sorted(map(str, message.annotations or ()))
    return message.form, message.properties_bin is None, message.decoded is None, *annotated, b"headers" in entry


def shortest(entries: Iterable[bytes]) -> list[bytes]:
    """Return the shortest entry of each form of message."""
    found = {form(entry): entry for entry in sorted(entries, key=len, reverse=True)}
    found.pop(None, None)
    assert found
    return list(found.values())


def member(place: Path, entries: Iterable[bytes]) -> MemberLog:
    """Write a write-ahead log with these entries, without checksums, and return it as that of a member."""
    (place / "U").mkdir()
    texts = [b"\0\0\0\0\1U" + struct.pack(">IIQQ", 0, len(entry), index, 1) + entry for index, entry in enumerate(entries, 1)]
    (place / "1".zfill(16)).with_suffix(".wal").write_bytes(b"RAWA\1" + b"".join(texts))
    return RaftDirectory(ReadOnlyDirectory(place), "").member("U")
