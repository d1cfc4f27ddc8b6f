r"""Snapshots and checkpoints of Ra: the state of the machine after the entries up to some index.

    snapshots/<term>_<index>/snapshot.dat, checkpoints/ (4.0 and newer), recovery_checkpoint/ (4.3); both numbers in 16 hex digits

    0 "RASN"   4 u8 1   5 u32 CRC-32 of what follows   9 u32 m   13 meta: a term of m bytes   13+m state: a term to the end

    meta = #{index, term, machine_version, cluster}

and beside it, in 4.3, `indexes`: the entries at or below the index that must be kept.

    0 "RASI"   4 u8 1   5 u32 CRC-32   9 a list, high to low, of Index | {Low, High}          older: the list alone

    >>> from mqstore.rabbitmq.erlang.terms import encode
    >>> meta, state = encode({Atom("index"): 9, Atom("term"): 2, Atom("machine_version"): 3}), encode(Atom("empty"))
    >>> rest = len(meta).to_bytes(4, "big") + meta + state
    >>> read_snapshot(b"RASN\1" + zlib.crc32(rest).to_bytes(4, "big") + rest, "snapshot.dat")
    Snapshot(index=9, term=2, machine_version=3, cluster=(), state=Atom('empty'))

Format: docs/formats/rabbitmq-quorum.md, section 4.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.erlang.etf import EtfError, Limits, decode
from mqstore.rabbitmq.erlang.terms import Atom, Pairs, Term

MAGIC = b"RASN"
# a state has a few elements for each message
STATE_LIMITS = Limits(terms=8_000_000)
MAX_SNAPSHOT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the machine. index, term: of the last entry in it. cluster: the members, as (name, node)."""

    index: int
    term: int
    machine_version: int
    cluster: tuple[tuple[str, str], ...]
    state: Term = field(hash=False)


def read_snapshot(data: bytes, file: str) -> Snapshot | Damage:
    """Read a snapshot, or return the finding."""
    if data[:4] != MAGIC or len(data) < 13:
        return _damage(file, 0, min(13, len(data)), "The file does not begin as a snapshot of a Raft log.")
    if zlib.crc32(data[9:]) != int.from_bytes(data[5:9], "big"):
        return _damage(file, 9, len(data) - 9, "The checksum of the snapshot is wrong.")
    length = int.from_bytes(data[9:13], "big")
    try:
        meta = decode(data[13 : 13 + length])[0]
        state = decode(data, 13 + length, STATE_LIMITS)[0]
    except EtfError as error:
        return _damage(file, 13, len(data) - 13, f"The snapshot is not a term: {error.what}.")
    if not isinstance(meta, dict) or type(meta.get("index")) is not int:
        return _damage(file, 13, length, "The snapshot does not state its index.")
    term, version = (meta.get(name) if type(meta.get(name)) is int else 0 for name in ("term", "machine_version"))
    return Snapshot(meta["index"], term or 0, version or 0, members_of(meta.get("cluster")), state)


def members_of(cluster: Term) -> tuple[tuple[str, str], ...]:
    """Return the members of a cluster as (name, node): a list of ids, or a map with ids as keys."""
    items = [key for key, _ in cluster] if isinstance(cluster, Pairs) else list(cluster) if isinstance(cluster, list | dict) else []
    pairs = [item for item in items if type(item) is tuple and len(item) == 2]
    return tuple((str(name), str(node)) for name, node in pairs if isinstance(name, Atom) and isinstance(node, Atom))


def _damage(file: str, offset: int, length: int, detail: str) -> Damage:
    return Damage(file, offset, length, Kind.BAD_SNAPSHOT, detail)
