r"""A quorum queue as one of its members has it: which messages are there, in what order, in whose hands, and why others left.

`QuorumQueue.replay` runs the machine over the member's log. The messages come in the order in which a restarted node would deliver them:
it finds that all publishers and consumers are gone, and what these had in hand comes back first, counted once more.

    ready             never delivered
    returned          delivered before, and back in the queue
    checked-out       in the hand of a consumer when the node stopped
    dead-letter-held  waits for its target to confirm it; a restarted node does not deliver it
    delayed           waits for its time

What cannot be known on one member is listed in `uncertain`: entries above LastApplied in a cluster of several members, what is after a gap
or a damaged entry, commands that are not known.

Format: docs/formats/rabbitmq-quorum.md, sections 9 and 10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mqstore.files import Bytes
from mqstore.findings import Damage, Kind
from mqstore.kernels.rabbitmq import raft_commands
from mqstore.rabbitmq.erlang.etf import EtfError, decode
from mqstore.rabbitmq.erlang.terms import Atom, ErlangTextError, Term
from mqstore.rabbitmq.quorum import machine_state
from mqstore.rabbitmq.quorum.batch import apply_batch, message_ids
from mqstore.rabbitmq.quorum.commands import NO_FACTS, Membership, MessageFacts, Noop, key_of, read_entry
from mqstore.rabbitmq.quorum.dispatch import apply_command
from mqstore.rabbitmq.quorum.entities import Message
from mqstore.rabbitmq.quorum.machine import CONSUMED, LIMIT, PURGED, Machine
from mqstore.rabbitmq.quorum.member_config import MAX_CONFIG_BYTES, MemberConfig, named_by_cluster, read_config
from mqstore.rabbitmq.quorum.raft_log import Base, LogEntry, MemberLog, Meta
from mqstore.rabbitmq.quorum.snapshot import members_of
from mqstore.table.formatting import count

Longs = NDArray[np.int64]

READY, RETURNED, CHECKED_OUT, HELD, DELAYED = "ready", "returned", "checked-out", "dead-letter-held", "delayed"
MAX_FINDINGS = 100
SHORTEST_BATCH, ONE_BY_ONE = 64, 256  # entries; as many as the second are applied singly where a batch cannot begin


@dataclass(frozen=True, slots=True)
class QuorumMessage:
    """A message of a queue. pos: 0 is next to be delivered, None: a restarted node does not deliver it. index: of the entry with its body.

    state: as before the stop. delivery_count, acquired_count, redelivered: as the restarted node has them; None: not counted, or not by
    this version. expiry: ms since 1970. size: bytes as the machine counts them. consumer: the tag in whose hand it was. reason: of a dead
    letter. row: of the log, -1 if the entry is not there. committed: False if it is not known to be. left: it is no longer in the queue.
    """

    index: int
    pos: int | None
    state: str
    size: int
    expiry: int | None
    delivery_count: int | None
    acquired_count: int | None
    redelivered: bool
    consumer: str | None
    reason: str | None
    row: int
    committed: bool
    annotations: Term = None
    version: int = 0
    left: bool = False

    @property
    def leaves(self) -> str | None:
        """Why the queue does not deliver it: a held dead letter, or one when the node starts. None: it may be delivered."""
        if self.state == HELD:
            return "dead letters that their queue holds"
        return None if self.reason is None else "dead letters by the delivery limit at the next start"

    @property
    def recovered(self) -> bool:
        """Whether a restarted node would deliver it."""
        return self.pos is not None


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a message is no longer in the queue. at: index of the command."""

    index: int
    why: str
    at: int


@dataclass(slots=True)
class QueueState:
    """A queue after the replay. counts: as `list_queues` of the restarted node gives them: ready, unacknowledged, total.

    applied: index of the last entry. ts: the machine's time at that entry. uncertain: sentences about what cannot be known.
    """

    messages: list[QuorumMessage]
    ready: int
    unacknowledged: int
    total: int
    applied: int
    ts: int
    version: int
    members: tuple[tuple[str, str], ...]
    uncertain: tuple[str, ...]
    damage: tuple[Damage, ...]
    deleted: bool
    entries: Counter[str] = field(default_factory=Counter)


class Departures:
    """Why the messages of a log left their queue, by index: a byte for the reason and a number for each entry of the log."""

    def __init__(self, log: MemberLog) -> None:
        self._log = log
        self._reasons: list[str] = [""]
        self._codes: dict[str, int] = {}
        self._why: NDArray[np.uint8] = np.zeros(len(log), np.uint8)
        self._at: NDArray[np.int64] = np.zeros(len(log), np.int64)

    def note(self, message: Message, why: str, at: int) -> None:
        """Note that a message left the queue with a command."""
        row = self._log.row(message.index)
        if row >= 0:
            self._why[row], self._at[row] = self._code(why), at

    def _code(self, why: str) -> int:
        code = self._codes.get(why)
        if code is None:
            code = self._codes[why] = len(self._reasons)
            self._reasons.append(why)
        return code

    def note_settled(self, index: Longs, at: Longs) -> None:
        """Note that messages left the queue with the settles at these indexes."""
        row = np.searchsorted(self._log.index, index)
        here = row < len(self._why)
        here[here] &= self._log.index[row[here]] == index[here]
        self._why[row[here]], self._at[row[here]] = self._code(CONSUMED), at[here]

    def of(self, index: int) -> Departure | None:
        """Return why the message of an entry left; None if it did not, or is not known."""
        row = self._log.row(index)
        if row < 0 or not self._why[row]:
            return None
        return Departure(index, self._reasons[self._why[row]], int(self._at[row]))

    def __iter__(self) -> Iterator[Departure]:
        for row in np.flatnonzero(self._why).tolist():
            yield Departure(int(self._log.index[row]), self._reasons[self._why[row]], int(self._at[row]))

    def __len__(self) -> int:
        return int(np.count_nonzero(self._why))


class QuorumQueue:
    """A queue, read from the log of one member. damage: of its log and its config. foreign: snapshots of another queue, after a replay."""

    def __init__(self, log: MemberLog) -> None:
        self.log = log
        self.foreign: list[Base] = []
        self.damage: list[Damage] = []
        self.departures = Departures(log)

    @cached_property
    def config(self) -> MemberConfig:
        """What the member's config says; without one, what the name of its cluster says."""
        path = f"{self.log.place}/config"
        data = self.log.system.read(path, MAX_CONFIG_BYTES, self.damage)
        if data is None:
            detail = "The member has no config: the node starts it without the write-ahead log."
            self.damage.append(Damage(path, 0, 0, Kind.UNKNOWN_MEMBER, detail))
        else:
            try:
                return read_config(data)
            except ErlangTextError as error:
                detail = f"The config of the member cannot be read: {error}."
                self.damage.append(Damage(path, 0, len(data), Kind.UNKNOWN_MEMBER, detail))
        return named_by_cluster(self.log.system.names.get(self.log.uid, ""))

    @property
    def configured(self) -> bool:
        """Whether the member has a config that can be read."""
        _ = self.config
        return not any(item.kind is Kind.UNKNOWN_MEMBER for item in self.damage)

    @property
    def name(self) -> tuple[str | None, str]:
        """The vhost and the name of the queue; the UID in place of an unknown name."""
        return self.config.vhost, self.config.queue or self.log.uid

    @property
    def known(self) -> bool:
        """Whether the node knows the member: others are lost for it."""
        return self.log.uid in self.log.system.names

    @property
    def meta(self) -> Meta | None:
        return self.log.meta

    def replay(self, upto: int | None = None) -> QueueState:
        """Run the machine over the log, and let the node restart. upto: the index of the last entry to apply.

        A damaged entry of an `enqueue` is a message without content; any other damaged or missing entry makes what follows uncertain.
        """
        run = Replay(self, upto)
        machine = run.machine()
        before = {id(message): RETURNED for message in machine.ready.returns}
        consumers = {}
        for message, consumer in machine.in_hand():
            before[id(message)] = CHECKED_OUT
            consumers[id(message)] = consumer.tag.decode("utf-8", "replace") if isinstance(consumer.tag, bytes) else str(consumer.tag)
        away = tuple(self._in_hand_elsewhere(machine))
        gone: list[tuple[Message, str]] = []
        machine.left = lambda message, why, at: gone.append((message, why))
        pids = {each.pid for each in (*machine.consumers.values(), *machine.waiting) if each.pid is not None}
        for pid in sorted(pids | set(machine.enqueuers)):
            machine.down(run.last + 1, run.ts, pid, Atom("noproc"))
        messages = []
        limit = self._committed()

        def add(message: Message, state: str, pos: int | None, reason: str | None = None) -> None:
            count = message.delivery_count if message.acquired_count is None else message.acquired_count
            redelivered = bool(count) if machine.version >= 4 else count is not None
            messages.append(
                QuorumMessage(
                    message.index,
                    pos,
                    before.get(id(message), state),
                    message.size,
                    message.expiry,
                    message.delivery_count,
                    message.acquired_count,
                    redelivered,
                    consumers.get(id(message)),
                    reason,
                    self.log.row(message.index),
                    limit is None or message.index <= limit,
                    message.annotations,
                    machine.version,
                )
            )

        for pos, message in enumerate(machine.ready):
            add(message, READY, pos)
        ready = len(messages)
        for message, _ in machine.in_hand():
            add(message, CHECKED_OUT, None)
        unacknowledged = len(messages) - ready
        for _, _, message in machine.delayed:
            add(message, DELAYED, None)
        for reason, message in machine.held:
            add(message, HELD, None, reason)
            messages[-1] = replace(messages[-1], state=HELD)
        total = len(messages)
        for message, why in gone:
            if why in (LIMIT, PURGED):
                add(message, CHECKED_OUT, None, why)
        return QueueState(
            messages,
            ready,
            unacknowledged,
            total,
            run.last,
            run.ts,
            machine.version,
            self.cluster,
            (*run.uncertainties(machine, limit), *away),
            (*self.log.damage, *self.damage, *run.damage),
            machine.deleted,
            run.entries,
        )

    def _in_hand_elsewhere(self, machine: Machine) -> Iterator[str]:
        """Yield a sentence for each other node whose clients have messages in hand, where these do not come back as soon as it is away."""
        own = self.log.system.place.rpartition("/")[2]
        nodes = Counter(str(consumer.pid.node) for _, consumer in machine.in_hand() if consumer.pid is not None)
        for node, messages in sorted(nodes.items() if machine.version >= 8 else ()):
            if node != own:
                of = f"{count(messages, 'message')} in the hands of clients of {node}"
                yield f"{of}: {'they come' if messages > 1 else 'it comes'} back once that node runs, or after a timeout."

    def _committed(self) -> int | None:
        """Return the index up to which entries are known to be committed; None: all are, since the member is alone."""
        if len(self.cluster) <= 1:
            return None
        return self.meta.last_applied if self.meta is not None else -1

    @cached_property
    def cluster(self) -> tuple[tuple[str, str], ...]:
        """The members as the base and the config state them; after a replay, as the last change in the log does."""
        return (self.log.base.snapshot.cluster if self.log.base is not None else ()) or self.config.members

    def stored(self, row: int) -> Term:
        """Return the stored message of an entry. Raises EtfError, also for an entry that has none."""
        return stored_message(self.log.entry(row).entry)


def stored_message(entry: bytes) -> Term:
    """Return the message in an entry of a log. Raises EtfError, also for an entry that has none."""
    term, _ = decode(entry)
    command = term[2] if type(term) is tuple and len(term) >= 3 and term[0] == "$usr" else ()
    places = {"enqueue": 3, "e": 2, "requeue": 5}
    place = places.get(str(command[0])) if type(command) is tuple and command else None
    if place is None or len(command) <= place:
        raise EtfError(0, "the entry has no message")
    return command[place]


class Replay:
    """One run of the machine over a log."""

    def __init__(self, queue: QuorumQueue, upto: int | None) -> None:
        self.queue = queue
        self.log = queue.log
        self.upto = upto
        self.damage: list[Damage] = []
        self.last, self.ts = -1, 0
        self.entries: Counter[str] = Counter()
        self.lost: list[str] = []
        self._keys: dict[bytes, Term] = {}

    def machine(self) -> Machine:
        """Return the machine after the last entry."""
        machine = self._start()
        for data, first, position, length in self.log.blocks():
            index = self.log.index[first : first + len(position)]
            if self.upto is not None and len(index) and index[-1] > self.upto:
                kept = int(np.searchsorted(index, self.upto, "right"))
                index, position, length = index[:kept], position[:kept], length[:kept]
            self._block(machine, data, first, index, position, length)
        return machine

    def _block(self, machine: Machine, data: Bytes, first: int, index: Longs, position: Longs, length: Longs) -> None:
        """Apply the entries of a block: those that the kernel has read at once, the others decoded one by one."""
        columns = np.zeros((len(index), raft_commands.COLUMNS), np.int64)
        raft_commands.commands(data, position, length, columns)
        columns[~self.log.valid[first : first + len(index)], raft_commands.KIND] = raft_commands.OTHER
        kinds = columns[:, raft_commands.KIND]
        self.entries["e"] += int((kinds == raft_commands.PUBLISH).sum())
        self.entries["settle"] += int((kinds == raft_commands.SETTLE).sum())
        # a run of publishes and settles, up to another command or a gap
        borders = np.flatnonzero((kinds == raft_commands.OTHER) | (np.diff(index, prepend=self.last) != 1)).tolist()
        octets: list[bytes] = []
        row = 0
        for border in [*borders, len(index)]:
            while row < border:
                taken = 0
                if border - row >= SHORTEST_BATCH:
                    octets = octets or self._octets(data, columns)
                    taken = self._batch(machine, data, index[row:border], columns[row:border], octets[row:border])
                row += taken
                stop = min(border, row + (1 if taken >= SHORTEST_BATCH else ONE_BY_ONE))
                self._singly(machine, data, first, index, columns, row, stop)
                row = stop
            if row < len(index):
                self._singly(machine, data, first, index, columns, row, row + 1)
                row += 1

    def _octets(self, data: Bytes, columns: Longs) -> list[bytes]:
        """Return the bytes of the publisher or consumer of each entry; empty if it has none."""
        view = memoryview(cast(bytes, data))
        at, length = columns[:, raft_commands.KEY_START], columns[:, raft_commands.KEY_LENGTH]
        return [bytes(view[low:high]) for low, high in zip(at.tolist(), (at + length).tolist(), strict=True)]

    def _batch(self, machine: Machine, data: Bytes, index: Longs, columns: Longs, octets: list[bytes]) -> int:
        """Apply the first of these entries at once; return how many."""
        taken = apply_batch(machine, index, columns, octets, data, self._key, self.queue.departures.note_settled)
        if taken:
            self.last = int(index[taken - 1])
            self.ts = max(self.ts, int(columns[:taken, raft_commands.TS].max()))
        return taken

    def _singly(self, machine: Machine, data: Bytes, first: int, index: Longs, columns: Longs, start: int, stop: int) -> None:
        """Apply entries one by one. first: row of the block's first entry in the log."""
        other, publish = raft_commands.OTHER, raft_commands.PUBLISH
        rows = zip(range(start, stop), index[start:stop].tolist(), columns[start:stop].tolist(), strict=True)
        for row, number, values in rows:
            if number > self.last + 1 and number > 1:
                machine.lenient = True
            self.last = number
            kind, ts, seq, meta, body, ttl, priority, count, key_at, key_length, _, ids = values
            if kind == other:
                self._apply(machine, self.log.entry(first + row))
                continue
            if ts > self.ts:
                self.ts = ts
            key = self._key(data[key_at : key_at + key_length].tobytes()) if key_length else None
            if kind == publish:
                facts = MessageFacts(
                    meta, body, ttl if ttl >= 0 else None, priority if priority >= 0 else None, count if count >= 0 else None
                )
                machine.enqueue(number, ts, key, seq, facts)
            else:
                numbers = [body] if ids == 1 else message_ids(data, columns[row : row + 1]).tolist()
                machine.settle(number, ts, key if key_length else seq, numbers)

    def _key(self, octets: bytes) -> Term:
        """Return the process or the consumer that these bytes of a term are."""
        key = self._keys.get(octets)
        if key is None:
            key = self._keys[octets] = key_of(decode(b"\x83" + octets)[0])
        return key

    def _start(self) -> Machine:
        left = self.queue.departures.note
        self.queue.foreign.clear()
        for base in self.log.bases():
            named = machine_state.queue_of(base.snapshot.state)
            config = self.queue.config
            if None not in (*named, config.vhost, config.queue) and named != (config.vhost, config.queue):
                detail = f"The snapshot is of queue {named[1]!r} of vhost {named[0]!r}: it is another member's, and is not used."
                self.damage.append(Damage(base.path, 0, 0, Kind.BAD_SNAPSHOT, detail))
                self.queue.foreign.append(base)
                continue
            try:
                machine = machine_state.load(base.snapshot.state, base.snapshot.machine_version, left)
            except machine_state.BadStateError as error:
                self.damage.append(Damage(base.path, 0, 0, Kind.BAD_SNAPSHOT, f"The state cannot be read: {error}."))
                continue
            self.log.base = base
            self.last = base.snapshot.index
            return machine
        self.log.base = None
        config = self.queue.config
        machine = Machine(0, left)
        machine.config.update(config.machine, 0)
        machine_state.convert(machine, config.machine_version, 0)
        if machine.version >= 2:
            machine.config.update(config.machine, machine.version)
        return machine

    def _apply(self, machine: Machine, entry: LogEntry) -> None:
        command = None
        try:
            command = read_entry(entry.entry) if entry.entry else None
            if not entry.entry:
                raise EtfError(0, "it is not in the file")
        except EtfError as error:
            self._broken(machine, entry, error.what)
            return
        if not entry.valid:  # its time, its number of the publisher or its size may be wrong, and would drop other messages
            self._broken(machine, entry, "its checksum is wrong")
            return
        if command is None:
            self.entries["none"] += 1
            return
        if isinstance(command, Membership):
            self.entries["membership"] += 1
            machine.deleted |= command.deleted
            self.queue.cluster = members_of(command.cluster) or self.queue.cluster
            return
        self.ts = max(self.ts, command.ts)
        if isinstance(command, Noop):
            self.entries["noop"] += 1
            machine_state.convert(machine, command.version, command.ts)
            return
        self.entries[command.name] += 1
        try:
            apply_command(machine, entry.index, command.ts, command.name, command.fields, command.pid)
        except (ValueError, TypeError, IndexError, KeyError, AttributeError):
            self._broken(machine, entry, f"it is not a valid `{command.name}`")

    def _broken(self, machine: Machine, entry: LogEntry, why: str) -> None:
        """Report an entry that cannot be applied. What was certainly an `enqueue` becomes a message without content."""
        machine.lenient = True
        publishes = any(mark in entry.entry[:400] for mark in (b"enqueue", b"\x68\x04\x77\x01e", b"\x68\x04\x64\x00\x01e"))
        if publishes and b"register_enqueuer" not in entry.entry[:400]:
            machine.enqueue(entry.index, self.ts, None, None, NO_FACTS)
            effect = "it was a message, which is listed without content"
        else:
            effect = "what it did to the queue is not known"
            self.lost.append(f"entry {entry.index} is damaged")
        if len(self.damage) < MAX_FINDINGS:
            detail = f"Entry {entry.index} of the log cannot be applied: {why}; {effect}."
            self.damage.append(Damage(entry.file, entry.start, len(entry.entry), Kind.MISSING_ENTRIES, detail, 1))

    def uncertainties(self, machine: Machine, committed: int | None) -> Iterator[str]:
        """Yield sentences about what cannot be known, and note findings about missing entries."""
        log = self.log
        for number, (first, last) in enumerate(log.gaps):
            later = int(np.count_nonzero(log.index > last))
            behind = f"{count(later, 'later entry')} {'was' if later == 1 else 'were'}"
            what = f"Entry {first} is" if first == last else f"Entries {first} to {last} are"
            if not number:
                more = f", as are {count(len(log.gaps) - 1, 'further range')}" if len(log.gaps) > 1 else ""
                yield f"{what} missing{more}; {behind} applied: what the missing ones did is not known."
            self.damage.append(Damage(log.place, 0, 0, Kind.MISSING_ENTRIES, f"{what} missing from the log; {behind} there."))
        if self.lost:
            yield f"{count(len(self.lost), 'entry')} could not be applied: {', '.join(self.lost[:3])}{', …' if len(self.lost) > 3 else ''}."
        meta = self.queue.meta
        if meta is not None and meta.last_applied > log.last[1]:
            rest = f"the last one here is {log.last[1]}" if log.last[1] >= 0 else "no entry is here"
            detail = f"The node had applied entry {meta.last_applied}; {rest}. A write-ahead log is missing, or a repair has cut it."
            yield detail
            self.damage.append(Damage(log.place, 0, 0, Kind.MISSING_ENTRIES, detail))
        if committed is not None:
            above = int(np.count_nonzero(log.index > committed))
            if above:
                yield (
                    f"{above} entries above {committed} are not known to be committed: "
                    f"the queue has {len(self.queue.cluster)} members, and this is one of them."
                )
        if machine.placeholders:
            yield f"{machine.placeholders} messages are known by their size only: the log is not complete."
            detail = f"The snapshot counts {machine.placeholders} messages that no entry of the log consumes."
            self.damage.append(Damage(log.place, 0, 0, Kind.MISSING_ENTRIES, detail, machine.placeholders))
        if machine.uncertain_order:
            yield "More than 32 messages were returned by one command: which ones is certain, their order is not."
        for name in sorted(machine.unknown):
            yield f"The command `{name}` is not known: what it did is not known."
        if machine.deleted:
            yield "The queue was being deleted."
