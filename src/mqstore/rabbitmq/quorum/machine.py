r"""The machine of a quorum queue, `rabbit_fifo`: which messages are there, in what order, in whose hands.

Each member applies the same commands in the order of the log, so that all have the same state. Messages are numbered per consumer, in the
order in which the machine gave them to it; a settle names these numbers only. Nothing else in the log says which message was
acknowledged: the machine has to be run. The versions are one implementation; what differs is in `rules`.

    ready      messages that came back, which are served before all others; then by priority: one FIFO, two, or 32
    consumers  what each has in hand; waiting: those of a single-active queue that are not active
    service    consumers that can take a message, by priority, in turns
    held       dead letters, until their targets confirmed them (at least once)
    delayed    messages that wait for their next delivery (version 8)

    >>> machine = Machine(2)
    >>> for index in (1, 2):
    ...     machine.enqueue(index, 0, None, None, MessageFacts(0, 5, None, None, None))
    >>> machine.checkout(3, 0, (b"tag", None), (Atom("auto"), 1, Atom("simple_prefetch")), {})
    >>> machine.settle(4, 0, (b"tag", None), [0])
    >>> [(message.index, consumer.tag) for message, consumer in machine.in_hand()], machine.ready.count
    ([(2, b'tag')], 0)

Format: docs/formats/rabbitmq-quorum.md, section 7.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.quorum.commands import MessageFacts, Pid, order_of, pid_of
from mqstore.rabbitmq.quorum.entities import (
    DEFAULT_TIMEOUT,
    Configuration,
    Consumer,
    DeadLetterWorker,
    Enqueuer,
    HeldDeadLetters,
    Message,
    ReadyMessages,
    consumer_mode,
    consumer_priority,
    count_delivery,
    integer,
    message_from,
    named,
    status_after,
    without,
)
from mqstore.rabbitmq.quorum.rules import NEWEST, RULES

DEFAULT_PRIORITY, HIGHEST_PRIORITY = 4, 31
SERIALS = 1 << 32
_SMALL_MAP = 32  # keys of an Erlang map up to which it is ordered

# why a message left the queue
CONSUMED, REJECTED, EXPIRED, MAXLEN, LIMIT, PURGED, CONFIRMED, DROPPED, REQUEUED = (
    "consumed",
    "rejected",
    "expired",
    "maxlen",
    "delivery_limit",
    "purged",
    "dead-lettered",
    "dropped",
    "requeued",  # as the message of that command
)


class Machine:
    """The state of a queue. version: of the rules. left: called with each message that leaves, why, and at which index.

    unknown: names of commands that are not known. uncertain_order: more than 32 messages were returned by one command of version 0 to 3, in
    an order that only the node knew. lenient: set it once entries are missing; then numbers of publishers may be missing as well. timed:
    messages with a time to live were there.
    """

    def __init__(self, version: int = 0, left: Callable[[Message, str, int], None] | None = None) -> None:
        self.version = version
        self.rules = RULES[min(version, NEWEST)]
        self.config = Configuration()
        self.left = left
        self.ready = ReadyMessages(self.rules.levels == 2)
        self.consumers: dict[Term, Consumer] = {}
        self.waiting: list[Consumer] = []
        self.service: dict[int, deque[Term]] = {}
        self.queued: set[Term] = set()
        self.enqueuers: dict[Pid, Enqueuer] = {}
        self.held = HeldDeadLetters()
        self.delayed: list[tuple[int, int, Message]] = []
        self.deferred: dict[bytes, tuple[int, int]] = {}
        self.unknown: set[str] = set()
        self.uncertain_order = False
        self.lenient = False
        self.timed = False
        self.deleted = False
        self._now = (0, 0)  # index and time of the command that is applied

    # what is there

    def in_hand(self) -> Iterator[tuple[Message, Consumer]]:
        """Yield the messages that consumers have, with the consumer, in the order of keys and numbers."""
        for key in sorted(self.consumers, key=order_of):
            consumer = self.consumers[key]
            for number in sorted(consumer.in_hand):
                yield consumer.in_hand[number], consumer

    @property
    def placeholders(self) -> int:
        """The number of messages of which the state has only a size: none, if the log is complete."""
        return sum(message.index < 0 for message in self.all_messages())

    def all_messages(self) -> Iterator[Message]:
        """Yield every message in the state, in no order."""
        yield from self.ready.all()
        for consumer in self.consumers.values():
            yield from consumer.in_hand.values()
        yield from (message for _, message in self.held)
        yield from (message for _, _, message in self.delayed)

    # commands

    def enqueue(self, index: int, ts: int, pid: Pid | None, seq: int | None, facts: MessageFacts) -> None:
        """A message is published. seq: its number for the publisher pid; without them it is not checked for repetition."""
        self._now = (index, ts)
        if pid is not None and type(seq) is int:
            enqueuer = self.enqueuers.get(pid)
            if enqueuer is None:
                enqueuer = self.enqueuers[pid] = Enqueuer()
            if seq != enqueuer.next_seq and not (self.lenient and seq > enqueuer.next_seq):
                if seq > enqueuer.next_seq and self.rules.pending:
                    insort(enqueuer.pending, (seq, index, ts, facts))
                    self._round()
                return
            enqueuer.next_seq = seq + 1
            self._add(index, ts, facts)
            while enqueuer.pending and enqueuer.pending[0][0] == enqueuer.next_seq:
                _, early, _, known = enqueuer.pending.pop(0)
                enqueuer.next_seq += 1
                self._add(early, ts, known)
        else:
            self._add(index, ts, facts)
        self._round()

    def _add(self, index: int, ts: int, facts: MessageFacts) -> None:
        rules = self.rules
        message = Message(index, facts.meta + facts.body if rules.header_size else facts.body)
        if rules.expiry:
            ttl = self.config.message_ttl if facts.ttl is None else facts.ttl
            if ttl is not None:
                if self.config.message_ttl is not None:
                    ttl = min(ttl, self.config.message_ttl)
                message.expiry = ts + max(1, ttl)
                self.timed = True
        if rules.acquired:
            message.delivery_count = facts.delivery_count
        level = 0
        if rules.levels == 2:
            level = 1 if facts.priority is not None and facts.priority > DEFAULT_PRIORITY else 0
        elif rules.levels > 2:
            level = DEFAULT_PRIORITY if facts.priority is None else max(0, min(facts.priority, HIGHEST_PRIORITY))
        self.ready.add(level, message)

    def register_enqueuer(self, pid: Pid | None) -> None:
        if pid is not None:
            self.enqueuers.setdefault(pid, Enqueuer())

    def settle(self, index: int, ts: int, key: Term, numbers: list[int]) -> None:
        """A consumer acknowledges messages."""
        self._now = (index, ts)
        consumer = self.consumer(key)
        if consumer is None:
            self._settle_waiting(key, numbers)
            return
        self._complete(consumer, numbers, CONSUMED)
        self._activate("settle")
        self._round()

    def discard(self, index: int, ts: int, key: Term, numbers: list[int], failed: bool = True, annotations: Term = None) -> None:
        """A consumer rejects messages for good."""
        self._now = (index, ts)
        # version 4 looks the consumer up by its key alone
        consumer = self.consumers.get(key) if self.version == 4 else self.consumer(key)
        if consumer is None:
            self._settle_waiting(key, numbers)
            return
        rejected = [consumer.in_hand[number] for number in dict.fromkeys(numbers) if number in consumer.in_hand]
        if self.rules.acquired:
            for message in rejected:
                count_delivery(message, failed, annotations)
        self._dead_letter(REJECTED, rejected)
        self._complete(consumer, numbers, "")
        self._activate("discard")
        self._round()

    def _complete(self, consumer: Consumer, numbers: list[int], why: str) -> None:
        """Take messages out of a consumer's hand. why: the reason why they left; empty if that was noted."""
        settled = 0
        for number in numbers:
            message = consumer.in_hand.pop(number, None)
            if message is not None:
                settled += 1
                consumer.deadlines.pop(number, None)
                if why and self.left is not None:
                    self.left(message, why, self._now[0])
        self._untime(consumer, numbers)
        if not settled and len(numbers) == 1 and 1 <= self.version < 8:
            return
        consumer.credit = self._credit(consumer, settled)
        self._update(consumer)

    def give_back(self, index: int, ts: int, key: Term, numbers: list[int], failed: bool = False, annotations: Term = None) -> None:
        """A consumer returns messages to the queue: `return`, and `modify` unless they are undeliverable."""
        self._now = (index, ts)
        consumer = self.consumer(key)
        if consumer is None:
            self._settle_waiting(key, numbers)
            return
        self._untime(consumer, numbers)
        if not self.rules.ordered_returns:
            numbers = sorted({number for number in numbers if number in consumer.in_hand})
            self.uncertain_order |= len(numbers) > _SMALL_MAP
        returned = 0
        for number in numbers:
            if number in consumer.in_hand:
                returned += 1
                self._return_one(consumer, number, failed, annotations)
        if self.version < 8 and self.consumers.get(consumer.key) is consumer:
            if self.version < 3:
                consumer.credit = self._credit(consumer, returned)
            self._update(consumer)
        self._activate("return")
        self._round()

    def _return_one(self, consumer: Consumer, number: int, failed: bool, annotations: Term = None) -> None:
        message = consumer.in_hand[number]
        if self.rules.count_returns:
            message.delivery_count = (message.delivery_count or 0) + 1
        else:
            count_delivery(message, failed, annotations)
        count = message.acquired_count if self.rules.limit == "acquired" else message.delivery_count
        limit = self.config.delivery_limit
        if limit is not None and count is not None and count > limit:
            self._dead_letter(LIMIT, [message])
            self._complete(consumer, [number], "")
            return
        del consumer.in_hand[number]
        consumer.deadlines.pop(number, None)
        if self.version >= 3:
            consumer.credit = self._credit(consumer, 1)
        self.ready.bytes += message.size
        ready_at, token = self._delay(message, failed, annotations) if self.rules.delays else (None, None)
        if ready_at is None:
            self.ready.take_back(message)
        else:
            insort(self.delayed, (ready_at, message.index, message), key=lambda item: item[:2])
            if token is not None:
                self.deferred[token] = (ready_at, message.index)
        if self.version >= 8:
            self._update(consumer)

    def _delay(self, message: Message, failed: bool, annotations: Term) -> tuple[int | None, bytes | None]:
        """Return when a returned message may be delivered again, or None; and the token by which a client asks for it."""
        now = self._now[1]
        stated = annotations if isinstance(annotations, dict) else {}
        token = stated.get(b"x-opt-deferral-token")
        token = token if type(token) is bytes else None
        time = stated.get(b"x-opt-delivery-time")
        if type(time) is int and time > now:
            return time, token
        retry = self.config.delayed_retry
        if retry is None or (retry[0] == "failed" and not failed) or (retry[0] == "returned" and failed):
            return None, None
        return now + min(retry[1] * max(1, message.delivery_count or 1), retry[2]), token

    def requeue(self, index: int, ts: int, key: Term, number: int, header: Term) -> None:
        """A consumer returns a message that gets a new entry, and goes to the end of the queue."""
        self._now = (index, ts)
        consumer = self.consumers.get(key)
        if consumer is None or number not in consumer.in_hand:
            return
        old = consumer.in_hand.pop(number)
        consumer.deadlines.pop(number, None)
        message = message_from(index, header) if header is not None else Message(index, old.size, old.expiry, old.delivery_count)
        self.timed |= message.expiry is not None
        if self.rules.acquired:
            message.acquired_count = (message.acquired_count or 0) + 1
        else:
            message.delivery_count = (message.delivery_count or 0) + 1
        if self.left is not None:
            self.left(old, REQUEUED, index)
        consumer.credit = self._credit(consumer, 1)
        self.ready.add(DEFAULT_PRIORITY if self.rules.levels > 2 else 0, message)
        self._update(consumer)
        self._activate("requeue")
        self._round()

    def credit(self, index: int, ts: int, key: Term, credit: int, delivery_count: int, drain: bool) -> None:
        """A consumer grants credit. delivery_count: the number of messages that it has seen."""
        self._now = (index, ts)
        consumer = self.consumers.get(key)
        if consumer is None:
            waiting = next((each for each in self.waiting if each.key == key), None)
            if waiting is None:
                return
            waiting.credit = self._link_credit(waiting, credit, delivery_count)
            if drain and self.rules.acquired:
                waiting.delivery_count = (waiting.delivery_count + waiting.credit) % SERIALS
                waiting.credit = 0
            if self.rules.acquired:
                self._sort_waiting()
            else:
                self.waiting.remove(waiting)
                self.waiting.insert(0, waiting)
            return
        consumer.credit = self._link_credit(consumer, credit, delivery_count)
        self._serve(consumer)
        self._round()
        if drain:
            consumer.delivery_count = (consumer.delivery_count + consumer.credit) % SERIALS
            consumer.credit = 0

    def _link_credit(self, consumer: Consumer, credit: int, delivery_count: int) -> int:
        if self.rules.acquired and consumer.mode == "credited":
            left = (delivery_count + credit - consumer.delivery_count) % SERIALS
            return left if left < SERIALS // 2 else 0
        return max(0, credit + delivery_count - consumer.delivery_count)

    def checkout(self, index: int, ts: int, identity: Term, spec: Term, meta: Term) -> None:
        """A consumer comes, changes, or goes (spec `cancel`, `remove`); or one message is fetched (`{dequeue, …}`)."""
        self._now = (index, ts)
        if isinstance(spec, Atom):
            self._cancel_command(identity, str(spec))
            return
        if type(spec) is not tuple or len(spec) not in (2, 3):
            raise ValueError("a consumer is specified by a tuple of two or three")
        if spec[0] == "dequeue":
            self._dequeue(identity, spec[1], meta)
            return
        once, mode, number = consumer_mode(spec)
        key = self._key_of(identity)
        if key is None:
            key = index if self.rules.acquired and len(spec) == 2 else identity
        self._take_consumer(key, identity, once, mode, number, meta)
        self._activate("checkout")
        self._round()

    def _take_consumer(self, key: Term, identity: Term, once: bool, mode: str, number: int, meta: Term) -> Consumer:
        tag, pid = identity if type(identity) is tuple and len(identity) == 2 else (identity, None)
        existing = self.consumers.get(key)
        waits = False
        if self.config.single_active and self.version < 2:
            waits = bool(self.consumers)
        elif self.config.single_active:
            active = self._active()
            waits = existing is None or (active is not None and (active is not existing or existing.status != "up"))
        if waits:
            existing = None
        settings = named(meta)
        priority = consumer_priority(settings, self.rules.acquired) if self.rules.own_priority else 0
        included = 0 if mode == "credited" and self.rules.acquired else number
        if existing is not None:
            existing.once, existing.credit = once, max(0, included - len(existing.in_hand))
            if self.version >= 2:
                existing.status, existing.priority, existing.mode = "up", priority, mode
                existing.prefetch = number if mode == "simple_prefetch" else 0
            self._update(existing) if self.version else self._serve(existing)
            return existing
        consumer = Consumer(key, tag, pid_of(pid), mode, number if mode == "simple_prefetch" else 0, once, priority)
        consumer.credit = included
        consumer.delivery_count = number if mode == "credited" and self.rules.acquired else 0
        consumer.stated_prefetch = integer(settings.get("prefetch"))
        timeout = settings.get("timeout")
        consumer.timeout = timeout if type(timeout) is int else DEFAULT_TIMEOUT
        if waits:
            self.waiting = [each for each in self.waiting if each.key != key or not self.rules.acquired]
            self.waiting.append(consumer)
            if self.rules.acquired:
                self._sort_waiting()
        else:
            self.consumers[key] = consumer
            self._update(consumer) if self.version else self._serve(consumer)
        return consumer

    def _dequeue(self, identity: Term, settlement: Term, meta: Term) -> None:
        if self.config.single_active or not self.ready.count or self._key_of(identity) is not None:
            return
        self._take_consumer(identity, identity, True, "simple_prefetch", 1, meta)
        given = self._deliver_one()
        if given is None:
            self.consumers.pop(identity, None)
        elif settlement == "settled":
            self.settle(*self._now, identity, [given[1]])
        self._limit()

    def _key_of(self, identity: Term) -> Term:
        if identity in self.consumers:
            return identity
        if self.rules.acquired and type(identity) is tuple and len(identity) == 2:
            for consumer in (*self.consumers.values(), *self.waiting):
                if (consumer.tag, consumer.pid) == (identity[0], pid_of(identity[1])):
                    return consumer.key
        return None

    def consumer(self, key: Term) -> Consumer | None:
        """Return the consumer with a key, also by {Tag, Process} where keys are numbers."""
        consumer = self.consumers.get(key)
        if consumer is None and self.rules.acquired and type(key) is tuple and len(key) == 2:
            pid = pid_of(key[1])
            return next((each for each in self.consumers.values() if each.tag == key[0] and each.pid == pid), None)
        return consumer

    def _cancel_command(self, identity: Term, spec: str) -> None:
        key = self._key_of(identity) if self.rules.acquired else identity
        if key is None:
            return
        self._cancel(key, spec)
        self._activate("cancel")
        self._round()

    def _cancel(self, key: Term, reason: str) -> None:
        """Remove a consumer, or let it keep what it has (`cancel`)."""
        consumer = self.consumers.get(key)
        waited = bool(self.waiting)
        if consumer is None:
            if self.config.single_active:
                self.waiting = [each for each in self.waiting if each.key != key]
            return
        if reason == "cancel":
            consumer.once, consumer.credit, consumer.status = True, 0, "cancelled"
            self._update(consumer)
        else:
            self._return_all(consumer, reason == "down")
            self.consumers.pop(key, None)
        if waited and self.config.single_active and not self.rules.acquired:
            self._activate_first()

    def _return_all(self, consumer: Consumer, failed: bool) -> None:
        for number in sorted(consumer.in_hand):
            self._return_one(consumer, number, failed)

    def down(self, index: int, ts: int, pid: Pid, reason: Term) -> None:
        """A publisher or consumer is gone, or its node cannot be reached (`noconnection`)."""
        self._now = (index, ts)
        if reason == "noconnection":
            self._suspect(pid)
            return
        self._forget(pid)
        self._activate("down")
        self._round()

    def _forget(self, pid: Pid) -> None:
        enqueuer = self.enqueuers.pop(pid, None)
        if enqueuer is not None:
            for _, early, _, facts in enqueuer.pending:
                self._add(early, self._now[1], facts)
        if self.config.single_active:
            self.waiting = [each for each in self.waiting if each.pid != pid]
        for key in sorted((key for key, each in self.consumers.items() if each.pid == pid), key=order_of):
            self._cancel(key, "down")

    def _suspect(self, pid: Pid) -> None:
        if self.version >= 8:
            for consumer in self.consumers.values():
                if consumer.pid == pid:
                    consumer.status = status_after("suspected_down", consumer)
            self._update_waiting(lambda each: each.pid == pid, "suspected_down")
            self._round()
            return
        suspected = [each for each in self.consumers.values() if each.pid is not None and each.pid.node == pid.node]
        for consumer in sorted(suspected, key=lambda each: order_of(each.key)):
            if not self.config.single_active and consumer.status != "up":
                continue
            if self.version < 3:
                consumer.credit = self._credit(consumer, len(consumer.in_hand))
            if not self.config.single_active:
                consumer.status = "suspected_down"
            self._return_all(consumer, True)
            if self.config.single_active and self.consumers.pop(consumer.key, None) is not None:
                self.waiting.append(consumer)
        if self.config.single_active:
            self._update_waiting(lambda each: each.pid is not None and each.pid.node == pid.node, "suspected_down")
            self._activate_first() if not self.rules.acquired else self._activate_best()
        self._round()

    def _update_waiting(self, selected: Callable[[Consumer], bool], status: str) -> None:
        self.waiting = [each for each in self.waiting if each.status != "cancelled"]
        for consumer in self.waiting:
            if selected(consumer):
                consumer.status = status_after(status, consumer) if self.version >= 8 else status
        if self.rules.acquired:
            self._sort_waiting()

    def nodeup(self, index: int, ts: int, node: str) -> None:
        """A node can be reached again."""
        self._now = (index, ts)
        for key in sorted(self.consumers, key=order_of):
            consumer = self.consumers.get(key)
            if consumer is None or consumer.pid is None or consumer.pid.node != node or consumer.status == "cancelled":
                continue
            if self.version >= 8 and not (type(consumer.status) is tuple and consumer.status[0] == "suspected_down"):
                continue
            consumer.status = status_after("up", consumer) if self.version >= 8 else "up"
            self._update(consumer)
        self._update_waiting(lambda each: each.pid is not None and each.pid.node == node, "up")
        self._activate("nodeup", always=True)
        self._round()

    def purge(self, index: int, ts: int) -> None:
        """All messages that are ready are dropped; version 8 drops delayed ones and dead letters as well."""
        self._now = (index, ts)
        gone = list(self.ready.all())
        self.ready.clear()
        if self.version >= 8:
            gone += [message for _, _, message in self.delayed]
            gone += [message for _, message in self.held]
            self.delayed.clear()
            self.deferred.clear()
            self.held.clear()
        self._note(gone, PURGED)
        self._limit()

    def purge_nodes(self, index: int, ts: int, nodes: Iterable[Term]) -> None:
        """Nodes left the cluster: their publishers and consumers are gone."""
        self._now = (index, ts)
        for node in nodes:
            pids = {each.pid for each in (*self.consumers.values(), *self.waiting) if each.pid is not None and each.pid.node == node}
            for pid in sorted(pids | {pid for pid in self.enqueuers if pid.node == node}):
                self._forget(pid)

    def update_config(self, index: int, ts: int, config: Term) -> None:
        """The configuration changes. Dead letters that are held are dropped when their handling changes from or to at least once."""
        self._now = (index, ts)
        before = self.config.dead_letters
        self.config.update(config, self.version)
        if before != self.config.dead_letters and "at_least_once" in (before, self.config.dead_letters):
            self._note([message for _, message in self.held], DROPPED)
            self.held = HeldDeadLetters()
        self._round()

    def timeout(self, index: int, ts: int, what: Term) -> None:
        """A timer of the leader has fired."""
        self._now = (index, ts)
        if what == "expire_msgs" or (type(what) is tuple and what[:1] == ("expire_msgs",)):
            if self.version >= 8:
                while self.delayed and self.delayed[0][0] <= ts:
                    self._promote(self.delayed.pop(0))
                self._expire_all()
        elif what == "evaluate_consumer_timeout":
            self._time_out(ts)
        elif type(what) is tuple and len(what) == 2 and what[0] == "consumer_disconnected_timeout":
            consumer = self.consumer(what[1])
            if consumer is None or type(consumer.status) is not tuple or consumer.status[0] != "suspected_down":
                return
            self._return_all(consumer, False)
            if self.config.single_active:
                if self.consumers.pop(consumer.key, None) is not None and consumer.status[1] != "cancelled":
                    consumer.status = ("suspected_down", "up")
                    self.waiting.append(consumer)
                self._activate_best()
        else:
            return
        self._round()

    def _promote(self, item: tuple[int, int, Message]) -> None:
        self.deferred = {token: place for token, place in self.deferred.items() if place != item[:2]}
        self.ready.take_back(item[2])

    def _time_out(self, ts: int) -> None:
        for key in sorted(self.consumers, key=order_of):
            consumer = self.consumers[key]
            late = sorted(number for number, deadline in consumer.deadlines.items() if ts >= deadline)
            if not late:
                continue
            consumer.timed_out = sorted(consumer.timed_out + late)
            consumer.status = status_after("timeout", consumer)
            for number in late:
                self._return_one(consumer, number, False)
        if self.config.single_active:
            for key in sorted(self.consumers, key=order_of):
                consumer = self.consumers[key]
                if type(consumer.status) is tuple and not consumer.in_hand:
                    del self.consumers[key]
                    self._wait(consumer)
        self._activate("timeout", always=True)

    def dead_letter_command(self, index: int, ts: int, command: Term) -> None:
        """The worker that delivers held dead letters comes, or has delivered some."""
        self._now = (index, ts)
        if self.config.dead_letters == "at_least_once" and type(command) is tuple and command:
            if command[0] == "settle" and len(command) == 2 and type(command[1]) is list:
                self._note(self.held.confirmed(command[1]), CONFIRMED)
            elif command[0] == "checkout" and len(command) == 3 and type(command[2]) is int:
                self.held.serve(DeadLetterWorker(pid_of(command[1]), command[2]))
        self._round()

    def delayed_command(self, index: int, ts: int, operation: Term) -> None:
        """Delayed messages are wanted at once: all, some, or those with certain tokens."""
        self._now = (index, ts)
        if type(operation) is not tuple or not operation:
            return
        if operation[0] == "retry" and len(operation) == 2:
            count = len(self.delayed) if operation[1] == "all" else operation[1] if type(operation[1]) is int else 0
            for _ in range(min(count, len(self.delayed))):
                self._promote(self.delayed.pop(0))
            self._round()
        elif operation[0] == "assign_deferred" and len(operation) == 3 and type(operation[2]) is list:
            self._assign(operation[1], operation[2])

    def _assign(self, key: Term, tokens: list[Term]) -> None:
        consumer = self.consumers.get(key)
        places = [self.deferred[token] for token in dict.fromkeys(tokens) if type(token) is bytes and token in self.deferred]
        if consumer is None or consumer.status != "up" or len(places) > consumer.credit:
            return
        for place in places:
            delayed = next((item for item in self.delayed if item[:2] == place), None)
            if delayed is not None:
                self.delayed.remove(delayed)
                self.deferred = {token: at for token, at in self.deferred.items() if at != place}
                self._give(consumer, delayed[2])
        self._update(consumer)

    # what was applied at once (`batch`)

    def serve_in_turn(self, consumers: Sequence[Consumer]) -> None:
        """Let these consumers, of one priority, be the ones that can take a message, in this order."""
        self.service, self.queued = {}, set()
        for consumer in consumers:
            self._serve(consumer)

    def reached(self, index: int, ts: int) -> None:
        """Take over the index and the time of the last entry."""
        self._now = (index, ts)

    # the delivery round

    def _round(self) -> None:
        if self.service:
            while self._deliver_one() is not None:
                pass
        elif self.ready.count and self.rules.expiry:
            self._expire(self._now[1])
        if self.config.dead_letters == "at_least_once":
            self.held.deliver()
        if self.config.max_length is not None or self.config.max_bytes is not None:
            self._limit()

    def _deliver_one(self) -> tuple[Consumer, int] | None:
        """Give the next message to the next consumer. Return the consumer and the number of the message, or None."""
        ts = self._now[1]
        while True:
            if self.rules.expiry and self.ready.count:
                self._expire(ts)
            if not self.service:
                return None
            level = max(self.service) if len(self.service) > 1 else next(iter(self.service))
            key = self.service[level][0]
            consumer = self.consumers.get(key)
            if consumer is None and self.rules.status_matters:
                self._unqueue(level)
                continue
            if not self.ready.count:
                return None
            self._unqueue(level)
            if consumer is None or not consumer.credit or not self._is_served(consumer):
                continue
            number = self._give(consumer, self.ready.take())
            self._update(consumer)
            return consumer, number

    def _is_served(self, consumer: Consumer) -> bool:
        return consumer.status == "up" if self.rules.acquired else consumer.status not in ("cancelled", "suspected_down")

    def _give(self, consumer: Consumer, message: Message) -> int:
        number = consumer.next_id
        consumer.in_hand[number] = message
        if self.rules.delays:
            consumer.deadlines[number] = self._now[1] + consumer.timeout
        consumer.next_id += 1
        consumer.credit -= 1
        consumer.delivery_count = (consumer.delivery_count + 1) % SERIALS if self.rules.acquired else consumer.delivery_count + 1
        return number

    def _unqueue(self, level: int) -> None:
        queue = self.service[level]
        self.queued.discard(queue.popleft())
        if not queue:
            del self.service[level]

    def _serve(self, consumer: Consumer) -> None:
        """Put a consumer at the end of those that can take a message."""
        if consumer.credit > 0 and consumer.key not in self.queued and (consumer.status == "up" or not self.rules.status_matters):
            level = consumer.priority if self.rules.own_priority else 0
            self.service.setdefault(level, deque()).append(consumer.key)
            self.queued.add(consumer.key)

    def _update(self, consumer: Consumer) -> None:
        """Keep a consumer, remove it, or let it wait."""
        if consumer.once and not consumer.credit:
            if consumer.in_hand:
                self.consumers[consumer.key] = consumer
            else:
                self.consumers.pop(consumer.key, None)
        elif consumer.status == "quiescing" and not consumer.in_hand:
            consumer.status = "up"
            self.consumers.pop(consumer.key, None)
            self._wait(consumer)
        else:
            self.consumers[consumer.key] = consumer
            self._serve(consumer)

    def _credit(self, consumer: Consumer, count: int) -> int:
        """Return the credit of a consumer that has settled or returned messages."""
        if consumer.once or consumer.mode == "credited":
            return consumer.credit
        if self.rules.capped_credit and consumer.prefetch > 0:
            return min(consumer.prefetch, consumer.credit + count)
        return consumer.credit + count

    def _expire(self, ts: int) -> None:
        """Drop the messages at the head whose time has passed."""
        while self.ready.count:
            expiry = self.ready.first().expiry
            if expiry is None or expiry > ts:
                return
            if self.version >= 8:
                self._expire_all()
                return
            self._drop(EXPIRED)

    def _expire_all(self) -> None:
        """Drop what has expired at the head of the returns and of every priority."""
        self._dead_letter(EXPIRED, self.ready.expired(self._now[1]))

    def _drop(self, reason: str) -> None:
        self._dead_letter(reason, [self.ready.take()])

    def _limit(self) -> None:
        """Drop messages from the head until the limits hold."""
        config = self.config
        if config.reject_publish:
            return
        ready, held = self.ready, self.held
        while ready.count and (
            (config.max_length is not None and ready.count + len(self.delayed) + len(held) > config.max_length)
            or (config.max_bytes is not None and ready.bytes + held.bytes > config.max_bytes)
        ):
            self._drop(MAXLEN)

    # dead letters

    def _dead_letter(self, reason: str, messages: list[Message]) -> None:
        if self.config.dead_letters == "at_least_once" and reason != MAXLEN:
            self.held.add(reason, messages)
        else:
            self._note(messages, reason)

    def _note(self, messages: Iterable[Message], why: str) -> None:
        if self.left is not None:
            for message in messages:
                self.left(message, why, self._now[0])

    # the single active consumer

    def _active(self) -> Consumer | None:
        active = ("up",)
        if self.rules.acquired:
            active = ("up", "quiescing", ("suspected_down", "up"), ("suspected_down", "quiescing"))  # type: ignore[assignment]
        for key in sorted(self.consumers, key=order_of):
            if self.consumers[key].status in active:
                return self.consumers[key]
        return None

    def _activate(self, command: str, *, always: bool = False) -> None:
        if not self.config.single_active or not (always or command in self.rules.activates):
            return
        if self.rules.acquired:
            self._activate_best()
        else:
            self._activate_first()

    def _activate_first(self) -> None:
        """Up to version 3: without an active consumer, the first waiting one that is up."""
        if self._active() is not None:
            return
        following = next((each for each in self.waiting if each.status == "up"), None)
        if following is not None:
            self.waiting.remove(following)
            self._make_active(following)

    def _activate_best(self) -> None:
        if not self.config.single_active or not self.waiting or self.waiting[0].status != "up":
            return
        following, active = self.waiting[0], self._active()
        if active is None:
            self.waiting.pop(0)
            self._make_active(following)
        elif following.priority > active.priority:
            if active.in_hand:
                active.status = "quiescing"
                return
            self.waiting.pop(0)
            self.consumers.pop(active.key)
            self._make_active(following)
            self._wait(active)

    def _make_active(self, consumer: Consumer) -> None:
        existing = self.consumers.get(consumer.key)
        if existing is not None and self.version > 0:
            existing.mode, existing.prefetch, existing.once = consumer.mode, consumer.prefetch, consumer.once
            existing.priority, existing.timeout = consumer.priority, consumer.timeout
            consumer = existing
        self._serve(consumer)
        self.consumers[consumer.key] = consumer

    def _wait(self, consumer: Consumer) -> None:
        self.waiting = [each for each in self.waiting if each.key != consumer.key]
        self.waiting.append(consumer)
        self._sort_waiting()

    def _sort_waiting(self) -> None:
        self.waiting.sort(key=lambda each: (0, -each.priority, -each.credit, order_of(each.key)) if each.status == "up" else (1, 0, 0, ()))

    # consumers whose time is up (version 8)

    def _untime(self, consumer: Consumer, numbers: list[int]) -> None:
        """A consumer that settles everything it was late with is served again."""
        if type(consumer.status) is tuple and consumer.status[0] == "timeout":
            consumer.timed_out = without(consumer.timed_out, numbers)
            if not consumer.timed_out:
                consumer.status = consumer.status[1]

    def _settle_waiting(self, key: Term, numbers: list[int]) -> None:
        if not self.rules.delays or not self.config.single_active:
            return
        pid = pid_of(key[1]) if type(key) is tuple and len(key) == 2 else None
        for consumer in self.waiting:
            if consumer.key != key and (pid is None or (consumer.tag, consumer.pid) != (key[0], pid)):
                continue
            if type(consumer.status) is tuple and consumer.status[0] == "timeout":
                self._untime(consumer, numbers)
                self._sort_waiting()
                if type(consumer.status) is not tuple:
                    self._activate_best()
                    self._round()
            return
