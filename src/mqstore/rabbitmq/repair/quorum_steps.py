"""Steps for quorum queues: after them a node starts, and knows every member that is there.

    a damaged record in the middle of a write-ahead log     the node does not start
    a write-ahead log that does not begin as one            the node does not start; its first 5 bytes are the same in all of them
    a write-ahead log of less than 5 bytes                  the node does not start; the file is taken out
    a wrong checksum of the last record                     3.8 does not start; the file is cut there, as newer nodes do
    members that names.dets does not have                   4.1 and newer skip their write-ahead log, older ones start them without leader

The damaged bytes become one record of a member that is in no names.dets, which nodes skip. A queue whose log then has a gap ends before
it: its later records are given to the same member, by the three bytes that name it. All other queues keep every record, which cutting the
file would not do. The bytes of the entries stay, and `salvage` reads the original: save first what the plan says is lost to the node.

What a node would do was seen on nodes of 3.10.8 and 4.3.6, damaged and repaired.

Format: docs/formats/rabbitmq-quorum.md, sections 2 and 11.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.quorum.facts import uses_long_names
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.quorum.wal import BEGINNING, HEADER, KNOWN_ID, NUMBER, TERM_START, WORDS, WalRecords
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.repair.change import Change
from mqstore.table.formatting import count

NO_START = "it does not start"
FILLER = b"MQSTORE_REPAIRED"  # the member that no node knows
LEAST = 5 + 1 + WORDS.size + 6  # bytes of a record with a name of one byte, and an empty binary as its entry

_UNDEFINED = {12: b"\x83w\x09undefined", 13: b"\x83d\x00\x09undefined"}  # by length: as OTP 26 and as older ones write it


@dataclass(slots=True)
class QuorumPlan:
    """The steps for the quorum queues of a node. kept, lost: messages of each queue that it cuts, by place of the member.

    kept: after the repair. lost: that can be read, and are not there after it.
    """

    steps: list[QueueStep] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


def quorum_plan(directory: ReadOnlyDirectory, *, drops_wrong_last: bool = True) -> QuorumPlan:
    """Return the steps for the quorum queues in a node's data directory. drops_wrong_last: what its node does with such a record."""
    plan = QuorumPlan()
    for system in raft_systems(directory, "quorum"):
        plan.steps += _names_steps(system)
        cuts: dict[str, _Cut] = {}
        for path, wal in system.write_ahead_logs:
            if (size := system.directory.mapped(path).size) < HEADER:
                why = f"the write-ahead log has {count(size, 'byte')}: it is taken out"
                plan.steps.append(QueueStep("wal-empty", path, 0, 0, why, NO_START, "", (Change("remove", path),)))
            elif max(wal.stops_at, wal.ends_at) >= 0 or cuts:
                plan.steps += _wal_steps(system, path, wal, cuts, plan)
            if wal.wrong_last and not drops_wrong_last:
                why = "the last record has a wrong checksum: the file is cut there"
                plan.steps.append(
                    QueueStep("wal-torn", path, wal.torn, size - wal.torn, why, NO_START, "", (Change("resize", path, length=wal.torn),))
                )
    return plan


# members that the node does not know


def _names_steps(system: RaftDirectory) -> Iterator[QueueStep]:
    """Yield the step that writes names.dets with the members that are not in it, and those that have no remedy."""
    file = f"{system.place}/names.dets"
    known = {name: uid for uid, name in system.names.items()}
    by_queue: dict[str, list[str]] = {}
    for uid in system.uids:
        if uid not in system.names:
            cluster = QuorumQueue(system.member(uid, wal=False)).config.cluster
            by_queue.setdefault(cluster, []).append(uid)
    unnamed = by_queue.pop("", [])
    added = {name: uids[0] for name, uids in by_queue.items() if name not in known and len(uids) == 1}
    otherwise = "it skips their write-ahead log" if uses_long_names(system) else "it starts their queues without a leader"
    if added:
        data = system.directory.read(file) or b"" if system.directory.exists(file) else b""
        objects: list[tuple[Term, Term]] = [*(dets.read_objects(data) if data else [])]
        objects += [(Atom(name), uid.encode("latin-1")) for name, uid in sorted(added.items())]
        why = f"names.dets lacks {count(len(added), 'member')} whose directories are here, {min(added)} first: they are added"
        content = dets.write_objects(objects)
        yield QueueStep("names", file, 0, 0, why, otherwise, "", (Change("put", file, content=content),))
    for name, uids in sorted(by_queue.items()):
        if name not in added:
            rival = f"{known[name]} is in names.dets" if name in known else "which of them the node used is not known"
            why = f"{count(len(uids), 'further directory')} of queue {name}: {', '.join(uids)}; {rival}"
            yield QueueStep("queue-twice", f"{system.place}/{uids[0]}", 0, 0, why, "it does not use it", "", ())
    for uid in unnamed:
        why = "the member is not in names.dets, and its config does not say of which queue it is"
        yield QueueStep("names", f"{system.place}/{uid}", 0, 0, why, "it does not use it", "", ())


# write-ahead logs


@dataclass(slots=True)
class _Cut:
    """A queue that ends before the entry `first`. path: of the file with the damage; at: where that is."""

    first: int
    path: str
    at: int


def _wal_steps(system: RaftDirectory, path: str, wal: WalRecords, cuts: dict[str, _Cut], plan: QuorumPlan) -> Iterator[QueueStep]:
    """Yield the step for one file. cuts: the queues that end in an earlier file, by UID; those that end in this one are added."""
    if not wal.stops_at and len(wal.records):
        why = f"the file does not begin as a write-ahead log: its first {HEADER} bytes are written"
        yield QueueStep("wal-header", path, 0, HEADER, why, NO_START, "", (Change("write", path, 0, BEGINNING),))
    of_records = (item for item in wal.damage if item.offset != wal.torn and (item.offset or not len(wal.records)))
    ranges = [(item.offset, item.offset + item.length) for item in of_records]
    if any(end - start < LEAST for start, end in ranges) or (ranges and ranges[0][0] < HEADER):
        why = f"the bytes from {ranges[0][0]:,} on cannot be made a record"
        yield QueueStep("wal-record", path, ranges[0][0], 0, why, NO_START, "", ())
        return
    earlier = set(cuts)
    for uid in system.uids if ranges else ():
        first = None if uid in cuts else _first_missing(system, uid, path, wal, ranges[0][0])
        if first is not None:
            cuts[uid] = _Cut(first, path, ranges[0][0])
    unused = _unused(system, path, wal)
    fillers = []
    for start, end in ranges:
        uid, content = _introduced(system, path, start), _filler(unused, FILLER[: end - start - LEAST + 1], end - start)
        if uid and uid not in cuts:
            first = _first_after(system, uid, path, wal, start)
            zero = _entry_0(_head(system, path, start), uid.encode("latin-1"), end - start)
            if first == 1 and zero:
                content = zero
            elif first >= 0:
                cuts[uid] = _Cut(first, path, start)
        fillers.append(Change("write", path, start, content))
    moved = [change for uid, cut in cuts.items() for change in _moved(system, uid, cut, path, wal)]
    if not ranges and not moved:
        return
    damaged = sum(end - start for start, end in ranges)
    why = f"{count(len(ranges), 'damaged range')} of {damaged:,} bytes made {'a record' if len(ranges) == 1 else 'records'} that nodes skip"
    if not ranges:
        why = f"{count(len(moved), 'record')} after a damage in {next(iter(cuts.values())).path}: nodes skip them"
    before = sum(plan.lost.values())
    loss = "; ".join(filter(None, (_loss(system, uid, cut, plan) for uid, cut in cuts.items() if uid not in earlier)))
    costs = sum(plan.lost.values()) - before
    at = ranges[0][0] if ranges else moved[0].offset
    otherwise = NO_START if wal.ends_at < 0 else "it drops what follows"
    yield QueueStep("wal-record", path, at, damaged, why, otherwise, loss, (*fillers, *moved), costs=costs)


def _first_missing(system: RaftDirectory, uid: str, path: str, wal: WalRecords, damage: int) -> int | None:
    """Return the first entry of a member that the damage has taken, by index; None if it has all that can be known to have been there."""
    mine = wal.of(uid)
    hit = mine["index"][mine["valid"] == 0].tolist()
    log = system.member(uid, wal=False)
    known = [log.index[log.valid], _valid(mine)["index"]]
    for other, read in system.write_ahead_logs:  # pragma: no branch - the file is one of them
        if other == path:
            break
        known.append(_valid(read.of(uid))["index"])
    there = np.unique(np.concatenate(known))
    there = there[there >= max(log.first_replayed, 1)]
    gaps = np.flatnonzero(np.diff(there) > 1)
    if len(there) and there[0] > max(log.first_replayed, 1):
        hit.append(max(log.first_replayed, 1))
    elif len(gaps):
        hit.append(int(there[gaps[0]]) + 1)
    missing = [index for index in hit if index not in there]
    after = _valid(mine[mine["start"] > damage])["index"]
    # what was missing before is not mended here, and nothing is cut for it
    lost = [index for index in missing if not len(after) or index <= int(after.max())]
    return min(lost, default=None)


def _valid(records: NDArray[np.void]) -> NDArray[np.void]:
    valid: NDArray[np.void] = records[records["valid"] != 0]
    return valid


def _moved(system: RaftDirectory, uid: str, cut: _Cut, path: str, wal: WalRecords) -> Iterator[Change]:
    """Yield the changes by which the records of a member after a cut are those of one that no node knows."""
    data, unused = system.directory.mapped(path), _unused(system, path, wal)
    mine = _valid(wal.of(uid))
    for start in mine["start"][(mine["start"] > cut.at) | (path != cut.path)].tolist():
        head = int.from_bytes(data.bytes(start, start + 3), "big")
        if not head & KNOWN_ID:  # from here on the number is that of a name as long
            length = int.from_bytes(data.bytes(start + 3, start + 5), "big")
            yield Change("write", path, start + 5, (FILLER * (length // len(FILLER) + 1))[:length])
        elif path == cut.path:
            yield Change("write", path, start, (KNOWN_ID | unused).to_bytes(3, "big"))


def _unused(system: RaftDirectory, path: str, wal: WalRecords) -> int:
    """Return a number that no member has in a file."""
    data = system.directory.mapped(path)
    return max((int.from_bytes(data.bytes(at, at + 3), "big") & NUMBER for at in wal.records["start"].tolist()), default=-1) + 1


def _head(system: RaftDirectory, path: str, start: int) -> int:
    return int.from_bytes(system.directory.mapped(path).bytes(start, start + 3), "big")


def _introduced(system: RaftDirectory, path: str, start: int) -> str:
    """Return the member whose number the bytes there give, or an empty text: later records name it by the number alone."""
    if _head(system, path, start) & KNOWN_ID:
        return ""
    data = system.directory.mapped(path)
    length = int.from_bytes(data.bytes(start + 3, start + 5), "big")
    uid = data.bytes(start + 5, min(start + 5 + length, data.size)).decode("latin-1")
    return uid if uid in system.uids else ""


def _first_after(system: RaftDirectory, uid: str, path: str, wal: WalRecords, start: int) -> int:
    """Return the first index that a member has after a place; -1 if it has none."""
    mine = _valid(wal.of(uid))
    after = mine["index"][mine["start"] > start]
    return int(after.min()) if len(after) else -1


def _entry_0(number: int, name: bytes, length: int) -> bytes:
    """Return the record that begins the log of every member, entry 0, which nodes do not read; empty if it has another length."""
    head = _record_head(number, name)
    entry = _UNDEFINED.get(length - len(head) - WORDS.size, b"")
    return head + WORDS.pack(zlib.adler32(bytes(16) + entry), len(entry), 0, 0) + entry if entry else b""


def _record_head(number: int, name: bytes) -> bytes:
    return (number & NUMBER).to_bytes(3, "big") + len(name).to_bytes(2, "big") + name


def _filler(number: int, name: bytes, length: int) -> bytes:
    """Return the beginning of a record of this length; its entry is a binary, with whatever bytes are there."""
    entry = length - 5 - len(name) - WORDS.size
    binary = bytes((TERM_START, 109)) + (entry - 6).to_bytes(4, "big")
    return _record_head(number, name) + WORDS.pack(0, entry, 1, 1) + binary


def _loss(system: RaftDirectory, uid: str, cut: _Cut, plan: QuorumPlan) -> str:
    """Return what a cut costs, and note how many messages the queue has after it."""
    queue, shorter = QuorumQueue(system.member(uid)), QuorumQueue(system.member(uid))
    now, then = queue.replay(), shorter.replay(cut.first - 1)
    valid = {int(index) for index in queue.log.index[queue.log.valid]}
    before = {message.index for message in now.messages if message.recovered and message.index in valid}
    after = {message.index for message in then.messages if message.recovered}
    plan.kept[queue.log.place], plan.lost[queue.log.place] = len(after), len(before - after)
    vhost, name = queue.name
    damaged = sum(message.recovered and message.index not in valid for message in now.messages)
    parts = [
        *([f"{count(damaged, 'message')} damaged"] if damaged else []),
        f"{count(len(before - after), 'message')} lost to the node"
        if before - after
        else f"no {'other ' if damaged else ''}message is lost",
        *([f"{count(len(after - before), 'message')} back that had left it"] if after - before else []),
    ]
    of = f"queue {name!r} of vhost {vhost!r}" if vhost is not None else f"the queue in {queue.log.place}"
    return f"{of} ends before entry {cut.first} of {now.applied}: {', '.join(parts)}"
