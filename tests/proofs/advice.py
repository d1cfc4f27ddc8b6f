"""Advice: the commands that `diagnose` names are run, literally, and lead to a broker that is started on all that any of them keeps.

A seed is a store: the golden ones first, then the damaged images of the fuzzer in their order. What must hold of the walk:

    its end      the advice to start the broker, after at most `COMMANDS`; or to bring a part that is missing, which only a person can,
                 where nothing is said of what to do if that part is gone
    its steps    none leaves fewer messages than there were before it, of those whose bytes are intact or that the broker delivers;
                 what a salvage wrote is there, too
    a repair     is taken back by `repair --undo`, to the last byte

A store that `diagnose` refuses to answer for has no advice.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

from fuzz.images import Images
from fuzz.layout import write_tree
from support.golden import CASES, FURTHER, OTHER_RABBITMQ, RABBITMQ, GoldenCase, Row, run_cli, tree_checksum, unpack, unpack_node

from mqstore.rabbitmq.format.names import priority_name, queue_directory

COMMANDS = 3  # that are advised: repair, repair --apply, and rebuild or salvage for what no repair can mend
INTACT = {"intact", "unindexed"}
LOOKS = {"inspect", "messages", "topics", "verify"}  # show what there is, for a person to go on
BY_HAND = ("get what is missing", "a broker has the store open", "cannot be told", "start none on this directory")
GONE = "if it is gone"  # the part that is missing, as it is here
NO_ANSWER = 3
GOLDEN: dict[str, tuple[GoldenCase, ...]] = {"rocketmq": (*CASES, *FURTHER), "rabbitmq": (*RABBITMQ, *OTHER_RABBITMQ)}
Messages = Counter[tuple[object, ...]]


@dataclass
class Walk:
    """The commands in their order, and the messages that there were at first and after each that changed or wrote a store.

    before: the checksum of the store at first, or with the names that files were given. end: the last advice; why: its reason. fault: why
    it does not lead to an end.
    """

    lines: list[str]
    before: str
    kept: list[Messages] = field(default_factory=list)
    end: str = ""
    why: str = ""
    fault: str = ""


def next_step(text: str) -> tuple[str, str]:
    """Return the first command line that an output names as the next, and what for; empty without one."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("Next: "):
            why = line
            for line in lines:
                if line.startswith("      "):
                    return line.strip(), why
                why += f" {line}"
            return "", why
    return "", ""


def walk(store: Path, family: str) -> Walk:
    """Follow the commands from `diagnose` until one says that the broker is to be started."""
    diagnose = shlex.join(("mqstore", "diagnose", str(store)))
    walked = Walk([diagnose], tree_checksum(store, times=False), [intact(store, family) | delivered(store, family)])
    saved = Messages()  # in the file that a salvage wrote, which `replay` sends
    while True:
        _, verb, *words = shlex.split(walked.lines[-1])
        outcome = run_cli(verb, *words)
        if outcome.status == NO_ANSWER and len(walked.lines) == 1:
            walked.end = "refused"
            return walked
        walked.end, walked.why = next_step(outcome.stdout)
        if outcome.status == NO_ANSWER or not walked.end:
            walked.fault = f"no next command, and status {outcome.status}: {outcome.stderr}"
            return walked
        if verb in ("rebuild", "convert") or "--as" in words:
            store = Path(words[words.index("--to") + 1])
        if verb == "salvage" and "--as" not in words:
            saved = Counter(_identities(_lines(Path(words[words.index("--to") + 1])), family))
        if store != Path(words[0]) or "--apply" in words:
            walked.kept.append(intact(store, family) | delivered(store, family))
        if walked.end.startswith("mv "):
            subprocess.run(walked.end, shell=True, check=True)
            walked.lines += [walked.end, walked.lines[0]]
            walked.before = tree_checksum(store, times=False)
            continue
        if walked.end.startswith("mkdir "):
            copied, _, then = walked.end.rpartition(" && ")
            subprocess.run(copied, shell=True, check=True)
            walked.lines += [copied, then]
            store = Path(shlex.split(then)[2])  # mqstore VERB STORE
            walked.before = tree_checksum(store, times=False)
            continue
        if not walked.end.startswith("mqstore "):
            walked.kept.append(delivered(store, family) | saved)
            return walked
        if shlex.split(walked.end)[1] in LOOKS or (GONE not in walked.why and any(each in walked.why for each in BY_HAND)):
            return walked
        if sum(not line.startswith("mqstore diagnose ") for line in walked.lines) >= COMMANDS:
            walked.fault = "it does not end"
            return walked
        walked.lines.append(walked.end)


def intact(store: Path, family: str) -> Messages:
    """Return what identifies each message whose bytes are intact, and that its queue has not delivered."""
    return Counter(_identities(_rows(store), family))


def delivered(store: Path, family: str) -> Messages:
    """Return what identifies each message that the broker has after its start."""
    rows = _rows(store, "--view", "recovered")
    for row in rows:
        # its queue offset is that of another message, and another place of the queue leads to it
        if family == "rocketmq" and row["verdict"] == "duplicate" and row["physical_offset"] in _listed(store, row):
            row["verdict"] = "intact"
    return Counter(_identities(rows, family))


def _listed(store: Path, row: Row) -> set[int]:
    """Return the physical offsets that the queue of a message leads to after the broker's start."""
    entries = run_cli("queue", store, row["topic"], row["queue_id"], "--view", "recovered", "-o", "jsonl")
    return {entry["physical_offset"] for entry in entries.rows}


def _rows(store: Path, *options: str) -> list[Row]:
    outcome = run_cli("messages", store, "-o", "jsonl", "--body", "sha256", *options)
    return [] if outcome.status == 2 else outcome.rows


def _lines(path: Path) -> list[Row]:
    """Return the rows of the messages that a salvage wrote as lines of JSON; none of another target."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.suffix == ".jsonl" else []


def _identities(found: list[Row], family: str) -> Iterator[tuple[object, ...]]:
    if family == "rocketmq":
        names = ("topic", "queue_id", "queue_offset", "body_sha256")
        return (tuple(row[name] for name in names) for row in found if row["verdict"] in INTACT)
    names = ("vhost", "queue", "payload_sha256")
    return (tuple(row[name] for name in names) for row in found if row["verdict"] == "intact" and row["persistent"] is not False)


def wrong(seed: int, family: str, place: Path, images: Images) -> str:
    """Return what is wrong with the advice for a store; empty if nothing is."""
    name, store = make(seed, family, place, images)
    walked = walk(store, family)
    said = "\n".join((name, *walked.lines, f"then: {walked.end} ({walked.why})"))
    if walked.fault:
        return f"{walked.fault}\n{said}"
    kept = _named(walked.kept) if family == "rabbitmq" else walked.kept
    for number, (earlier, later) in enumerate(pairwise(kept), 1):
        gone = earlier - later
        if gone:
            return f"change {number} loses {gone.total()} of {earlier.total()} messages, such as {next(iter(gone))}\n{said}"
    if store.with_name(f"{store.name}.undo").exists():
        undone = run_cli("repair", store, "--undo")
        if undone.status or tree_checksum(store, times=False) != walked.before:
            return f"--undo does not give everything back: {undone.stderr}\n{said}"
    return ""


def _named(kept: list[Messages]) -> list[Messages]:
    """Return the messages of RabbitMQ with the name of their queue, where before a step only its directory was known."""
    names: dict[tuple[object, ...], object] = {}
    for vhost, queue in {(vhost, queue) for vhost, queue, _ in chain(*kept)}:
        if isinstance(vhost, str) and isinstance(queue, str):
            levels: tuple[str | bytes, ...] = (queue, *(priority_name(queue, level) for level in range(256)))
            names |= {(vhost, queue_directory(vhost, name)): queue for name in levels}
    named = []
    for messages in kept:
        named.append(Messages())
        for (vhost, queue, body), number in messages.items():
            named[-1][vhost, names.get((vhost, queue), queue), body] += number
    return named


def make(seed: int, family: str, place: Path, images: Images) -> tuple[str, Path]:
    """Make the store of a seed, below an empty directory. Returns what it is, and the store."""
    golden = GOLDEN[family]
    if seed < len(golden):
        case, store = golden[seed], place / "store"
        (unpack_node if (case.path / "metadata.tar.xz").exists() else unpack)(case, store)
        return case.id, store
    image = images.image(seed - len(golden))
    store = place / ("store" if family == "rocketmq" else "msg_stores")
    write_tree(store, image.tree)
    return str(image), store
