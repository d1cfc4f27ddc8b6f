"""Structural states of RabbitMQ stores: what `diagnose` says, what a real node delivers, and the same after a repair.

A seed is one state: a golden store on which the node of a version has started, in a vhost of its own, with one change. Twenty are one boot.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from interop.rabbitmq.bench import SUITES, TEMPLATES, Bench, Drained, Messages, bench, missing, predicted
from proofs.changes import Change, one_file, swapped
from support.rabbitmq_states import half_index, lying_records, without_message_file
from support.repairs import image_of

from mqstore.diagnosis import Diagnosis
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.repair.plan import LOCKING, plan
from mqstore.rabbitmq.repair.queue_step import completed
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.repair.journal import apply, read_journal, undo

VERSIONS = tuple(SUITES)
PER_BENCH = 40  # seeds in a row that are states of one version
PER_BOOT = 20  # of them in one node, each in a vhost


def _removed(pattern: str) -> Change:
    def change(place: Path, dice: random.Random) -> None:
        path = one_file(place, pattern, dice)
        if path is not None:
            path.unlink()

    return change


def _cut(pattern: str) -> Change:
    def change(place: Path, dice: random.Random) -> None:
        path = one_file(place, pattern, dice)
        if path is not None:
            raw = path.read_bytes()
            path.write_bytes(raw[: dice.randrange(len(raw))])

    return change


def _zeroed(pattern: str) -> Change:
    def change(place: Path, dice: random.Random) -> None:
        path = one_file(place, pattern, dice)
        if path is not None:
            raw = bytearray(path.read_bytes())
            at = dice.randrange(len(raw))
            length = min(dice.choice((1, 32, 512, 4096, 1 << 20)), len(raw) - at)
            raw[at : at + length] = bytes(length)
            path.write_bytes(raw)

    return change


def _queue_removed(place: Path, dice: random.Random) -> None:
    shutil.rmtree(dice.choice(sorted((place / "queues").iterdir())))


def _always(change: Callable[[Path], None]) -> Change:
    def made(place: Path, _: random.Random) -> None:
        if (place / "msg_store_persistent" / "msg_store_index.ets").exists():
            change(place)

    return made


TABLES = "msg_store_persistent/*.ets"
CHANGES: dict[str, Change] = {
    "half-index": _always(half_index),
    "index-cut": _cut("msg_store_persistent/msg_store_index.ets"),
    "index-zeroed": _zeroed("msg_store_persistent/msg_store_index.ets"),
    "table-removed": _removed(TABLES),
    "mark-removed": _removed("msg_store_persistent/clean.dot"),
    "messages-removed": _removed("msg_store_persistent/*.rdq"),
    "largest-removed": _always(without_message_file),
    "messages-moved": _always(lying_records),
    "messages-cut": _cut("msg_store_persistent/*.rdq"),
    "messages-zeroed": _zeroed("msg_store_persistent/*.rdq"),
    "messages-swapped": swapped("msg_store_persistent/*.rdq"),
    "index-of-queue-removed": _removed("queues/*/*.[iq][di]*"),
    "index-of-queue-cut": _cut("queues/*/*.[iq][di]*"),
    "index-of-queue-zeroed": _zeroed("queues/*/*.[iq][di]*"),
    "queue-store-removed": _removed("queues/*/*.qs"),
    "queue-store-zeroed": _zeroed("queues/*/*.qs"),
    "journal-removed": _removed("queues/*/journal.jif"),
    "journal-cut": _cut("queues/*/journal.jif"),
    "terms-removed": _removed("recovery.dets"),
    "queue-removed": _queue_removed,
}
NOT_IN_BYTES = frozenset(
    {"index-of-queue-removed", "index-of-queue-cut", "index-of-queue-zeroed", "queue-removed", "journal-removed", "journal-cut"}
)  # an entry of zeros is one that was acknowledged


@dataclass
class State:
    """One state. whole: what its template delivers. error: what was wrong with the answer; vague: `diagnose` said that it cannot tell."""

    seed: int
    slot: int
    change: str
    clean: bool
    store: Path
    whole: Messages
    said: Diagnosis
    promised: Messages
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.change} {'clean' if self.clean else 'killed'}"

    @property
    def vague(self) -> bool:
        return bool(self.said.unknown)


def version_of(seed: int) -> str:
    return VERSIONS[seed // PER_BENCH % len(VERSIONS)]


def _state(node: Bench, seed: int, slot: int, base: Path) -> State:
    dice = random.Random(seed)
    change, clean = dice.choice(sorted(CHANGES)), dice.random() < 0.65
    store = node.state(slot, base / str(seed), clean=clean, change=lambda place: CHANGES[change](place, dice))
    whole = predicted(node.state(slot, base / f"whole{seed}", clean=clean, change=lambda _: None))[0]
    shutil.rmtree(base / f"whole{seed}")
    return State(seed, slot, change, clean, store, whole, diagnose(RabbitMQStore(store), node.version), predicted(store)[0])


def _judge(state: State, got: Drained, when: str) -> None:
    """Compare by message. A queue that ends delivers what is before that, some of it again: at least what is promised must come."""
    missing_ = (state.promised - got.messages).total()
    ended = {queue for queue, _ in (state.whole - state.promised)}
    more = sum(number for (queue, _), number in ((got.messages & state.whole) - state.promised).items() if queue not in ended)
    if (missing_ or more) and not state.vague:
        state.error += f"{when}: {missing_} promised and not delivered, {more} delivered and not promised; {got.failed}\n"
    altered = ((got.messages & state.promised) - state.whole).total()  # bodies in .rdq files have no checksum: delivered as they are now
    lost = (state.whole - got.messages).total() - altered
    if lost > 0 and state.said.status == 0 and state.change not in NOT_IN_BYTES:
        state.error += f"{when}: {lost} lost, and `diagnose` says that all are kept\n"


def check(node: Bench, seeds: Sequence[int], base: Path) -> Iterator[State]:
    """Yield the states of these seeds, judged: before and after a repair. A vhost has one: that of the seed modulo their number."""
    states = [_state(node, seed, seed % len(node.cases), base) for seed in seeds]
    booted = [state for state in states if state.said.starts]
    for state, got in _boot(node, booted, "as it is"):
        _judge(state, got, "as it is")
        before = got.messages & state.whole
        image = image_of(state.store)
        opened = RabbitMQStore(state.store, careful=True)
        steps = [step for step in plan(opened) if step.possible]
        if steps:
            apply(state.store, base / f"{state.seed}.undo", completed(opened.directory, steps), LOCKING)
            repaired = base / f"{state.seed}.repaired"
            shutil.copytree(state.store, repaired)
            journal = read_journal(base / f"{state.seed}.undo")
            assert journal is not None
            undo(state.store, journal, LOCKING)
            if image_of(state.store) != image:
                state.error += "undo does not give back every byte\n"
            state.store = repaired
            state.promised = predicted(repaired)[0]
            again = diagnose(RabbitMQStore(repaired), node.version)
            if not again.starts:
                state.error += f"after the repair it does not start: {again.evidence[:1]}\n"
            if (before - state.promised).total():
                state.error += f"the repair gives up {(before - state.promised).total()} that the node delivered\n"
    repaired_ = [state for state in booted if state.store.suffix == ".repaired" and not state.error]
    for state, got in _boot(node, repaired_, "repaired"):
        if (state.promised - got.messages).total():
            state.error += f"repaired: {(state.promised - got.messages).total()} of {state.promised.total()} not delivered; {got.failed}\n"
    yield from states


def _boot(node: Bench, states: Sequence[State], when: str) -> Iterator[tuple[State, Drained]]:
    if not states:
        return
    try:
        delivered = node.boot({state.slot: state.store for state in states})
    except Exception as error:  # one of them keeps the node from starting: halves of them show which
        node.node.kill()
        if len(states) == 1:
            states[0].error += f"{when}: the node does not start: {error}"[:500]
            return
        yield from _boot(node, states[: len(states) // 2], when)
        yield from _boot(node, states[len(states) // 2 :], when)
        return
    for state in states:
        yield state, delivered[state.slot]


def check_seeds(seeds: range, deadline: float) -> Iterator[State]:
    """Yield the states of a range of seeds, by version, until it is too late to boot again."""
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="mqstore-states-")))
        nodes: dict[str, Bench] = {}
        at = seeds.start
        while at < seeds.stop and time.time() < deadline:
            version = version_of(at)
            if version not in nodes:
                templates = tuple(islice(cycle(TEMPLATES[version]), PER_BOOT))
                nodes[version] = ends.enter_context(bench(place / f"bench{version}", version, templates))
            group = range(at, min(seeds.stop, (at // PER_BOOT + 1) * PER_BOOT))
            base = place / f"states{at}"
            base.mkdir()
            yield from check(nodes[version], group, base)
            shutil.rmtree(base)
            at = group.stop


def missing_brokers() -> str | None:
    """Return why the nodes cannot be started; None if they can."""
    return next((reason for reason in map(missing, VERSIONS) if reason), None)
