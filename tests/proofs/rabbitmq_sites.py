"""Sites of RabbitMQ: data directories of real nodes of which parts are moved, renamed, omitted, emptied or of another time; a seed is one.

What is true of a state is known, since the directory was whole: its messages, and the release that wrote it.

    messages that are not here any more     the answer loses some, or says what it cannot tell; it is not that all are kept
    all messages are here                   none is lost, unless the directory, or that of a vhost, has another name
    the release                             is in the range that is said, or no range is said
    4.0 on the directory of a 3.10          does not start, or whether it does cannot be told
    what was left out                       is not said to be here
    queues that the metadata lacks          the node deletes their directories, as a real 3.10.8 did: they are not all kept

One case is not decided by any file: a queue of version 1 without a directory, where no list of a clean stop is left. What was in it cannot
be told.
"""

from __future__ import annotations

import random
import re
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from support.archives import extract_all
from support.golden import GOLDEN

from mqstore.errors import MqstoreError
from mqstore.places import find_store
from mqstore.rabbitmq.definitions.feature_flags import order
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.repair.plan import plan
from mqstore.rabbitmq.site import site_of
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.rabbitmq.version import version_evidence
from mqstore.table.columns import QueueSelection

SITES = ("plain", "windows-name", "delayed-messages", "delayed-messages-killed")  # all of 3.10.8
RELEASE = "3.10"
_RANGE = re.compile(r"(\d+\.\d+)(?: (?:or|to) (later|\d+\.\d+))?")
Change = Callable[[Path, random.Random], str]


def unpack(case: str, place: Path) -> Path:
    with tarfile.open(GOLDEN / "rabbitmq-sites" / f"{case}.tar.xz") as archive:
        extract_all(archive, place)
    (node,) = (path for path in place.iterdir() if path.is_dir())
    return node


def messages(node: Path) -> Counter[tuple[str, str, str]]:
    """Return the messages that the rows of a directory have as recovered, by vhost, queue and payload; the names of directories count."""
    store = RabbitMQStore(node)
    held: Counter[tuple[str, str, str]] = Counter()
    for batch in store.to_batches(("vhost", "queue", "payload", "verdict"), QueueSelection(recovered=True)):
        for row in batch.to_pylist():
            if row["verdict"] == "intact":
                held[row["vhost"] or "", row["queue"] or "", repr(row["payload"])] += 1
    return held


@cache
def whole(case: str) -> Counter[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="mqstore-whole-") as place:
        return messages(unpack(case, Path(place)))


def defined(node: Path) -> int:
    """Return how many vhosts and queues the metadata has, as far as it can be read: a node has no more of it."""
    definitions = RabbitMQStore(node).definitions
    return len(definitions.vhosts) + len(definitions.queues)


@cache
def defined_in_whole(case: str) -> int:
    with tempfile.TemporaryDirectory(prefix="mqstore-whole-") as place:
        return defined(unpack(case, Path(place)))


def _files(node: Path, pattern: str) -> list[Path]:
    return sorted(path for path in node.glob(pattern) if not path.is_symlink())


def _omit(pattern: str, most: int = 1) -> Change:
    def change(node: Path, dice: random.Random) -> str:
        chosen = _files(node, pattern)
        chosen = dice.sample(chosen, min(len(chosen), dice.randint(1, most)))
        for path in chosen:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return f"without {', '.join(path.relative_to(node).as_posix() for path in chosen)}"

    return change


def _emptied(pattern: str) -> Change:
    def change(node: Path, dice: random.Random) -> str:
        chosen = [path for path in _files(node, pattern) if path.stat().st_size]
        for path in dice.sample(chosen, min(len(chosen), 2)):
            raw = path.read_bytes()
            kept = dice.choice((0, 0, len(raw) // 2))
            path.write_bytes(raw[:kept] + bytes(dice.choice((0, len(raw) - kept))))
        return f"emptied {pattern}"

    return change


def _renamed(pattern: str, suffix: str) -> Change:
    def change(node: Path, dice: random.Random) -> str:
        chosen = _files(node, pattern)
        if not chosen:
            return "as it is"
        path = dice.choice(chosen)
        path.rename(path.with_name(f"{path.name}{suffix}"))
        return f"{path.relative_to(node).as_posix()} has {suffix}"

    return change


def _flags(node: Path) -> Path:
    return node.with_name(f"{node.name}-feature_flags")


def _without_flags(node: Path, dice: random.Random) -> str:
    flags = _flags(node)
    if dice.random() < 0.5:
        flags.unlink(missing_ok=True)
        return "without flags"
    if flags.exists():
        flags.write_bytes(dice.choice((b"", b"[implicit_default", bytes(148))))
    return "flags that cannot be read"


def _of_another_time(node: Path, dice: random.Random) -> str:
    """Take a part of the same node at another time: killed before the clean stop, or the other way round."""
    name = node.name.removesuffix("-mnesia")
    if not name.startswith("referee"):
        return "as it is"
    with tempfile.TemporaryDirectory(prefix="mqstore-time-") as place:
        other = unpack(dice.choice(SITES[2:]), Path(place))
        part = dice.choice(("LATEST.LOG", "msg_stores", "schema.DAT", "coordination", "rabbit_durable_queue.DCD"))
        source, target = other / part, node / part
        if not source.exists():
            return "as it is"
        if target.is_dir():
            shutil.rmtree(target)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        return f"{part} of another time"


V = "msg_stores/vhosts/*"
CHANGES: tuple[Change, ...] = (
    _without_flags,
    _of_another_time,
    _omit(f"{V}/queues/*", 3),
    _omit(f"{V}/queues"),
    _omit(V),
    _omit("msg_stores"),
    _omit("quorum"),
    _omit("coordination"),
    _omit(f"{V}/msg_store_persistent/*.rdq"),
    _omit(f"{V}/msg_store_persistent"),
    _omit(f"{V}/recovery.dets", 2),
    _omit(f"{V}/msg_store_persistent/clean.dot", 2),
    _omit(f"{V}/msg_store_*/*.ets", 3),
    _omit(f"{V}/.config", 2),
    _omit(f"{V}/.vhost", 2),
    _omit(f"{V}/queues/*/.queue_name", 3),
    _omit("*.DC?", 4),
    _omit("*.LOG", 2),
    _omit("schema.DAT"),
    _omit("cluster_nodes.config"),
    _emptied("*.LOG"),
    _emptied("*.DC?"),
    _emptied("cluster_nodes.config"),
    _emptied("schema_version"),
    _renamed(f"{V}/msg_store_persistent/*.rdq", ".bak"),
    _renamed(f"{V}/queues/*", ".old"),
    _renamed(V, ".old"),
)
NAMES = ("old-copy", "rabbit@other", "{}-mnesia", "{}", "{}", "{}")


def make(seed: int, place: Path) -> tuple[Path, str, str, bool]:
    """Make a state in an empty directory. Returns the directory, its case, what was done, and whether it still has its name."""
    dice = random.Random(seed)
    case = SITES[seed % len(SITES)]
    node = unpack(case, place)
    done = [change(node, dice) for change in dice.sample(CHANGES, dice.choice((1, 1, 2, 3)))]
    name = node.name.removesuffix("-mnesia")
    new = node.with_name(dice.choice(NAMES).format(name))
    if _flags(node).exists():
        _flags(node).rename(_flags(new))
    return node.rename(new), case, "; ".join(done), name in new.name


def wrong(seed: int, place: Path) -> str:
    """Return what is falsely said of a state; empty if nothing is."""
    node, case, done, same_name = make(seed, place)
    said = f"seed {seed}, {case} as {node.name}: {done}: "
    try:
        root = Path(str(find_store(node).root))
    except MqstoreError as error:
        return "" if "\n" not in str(error) and "not known" not in str(error) else f"{said}{error}"
    if root != node:
        return f"{said}opened {root}"
    store = RabbitMQStore(node)
    found = diagnose(store)
    plan(RabbitMQStore(node))
    gone = (whole(case) - messages(node)).total()
    kinds = [item.finding for item in found.evidence if item.finding != "note"]
    said += f"{gone} gone; {found.headline} {found.status} {found.unknown} {kinds}"
    notes = " ".join(item.detail for item in found.evidence)
    named = "the answer is for a node that has the definitions" in notes
    if gone and found.status == 0 and not named:
        return f"{said}: a false reassurance"
    tables = (node / "schema.DAT").exists() or not (node / "rabbit_durable_queue.DCD").exists()
    if not tables and found.status == 0 and messages(node):
        return f"{said}: a false reassurance: the node deletes what its metadata does not have"
    moved = ".old" in done or not same_name or _has_no_tables(node) or defined(node) < defined_in_whole(case)
    if not gone and found.loses and not moved:
        return f"{said}: a false alarm"
    if found.loses > gone and not moved:
        return f"{said}: {found.loses} lost of {gone} that are gone"
    if "whatever is done" in notes:
        return f"{said}: lost, whatever is done"
    if problem := _of_release(store, node):
        return f"{said}: {problem}"
    for part in site_of(RabbitMQStore(node)).parts:
        if part.path is not None and part.state == "here" and not Path(part.path).exists() and part.part != "delayed messages":
            return f"{said}: {part} is said to be here"
    return ""


def _has_no_tables(node: Path) -> bool:
    """Return whether a node begins with empty tables, or knows fewer queues than the directory has: it deletes all others."""
    names = ("schema.DAT", "rabbit_durable_queue.DCD", "rabbit_vhost.DCD", "LATEST.LOG")  # of a killed node all may be in the log
    return any(not (node / name).exists() or not (node / name).stat().st_size for name in names)


def _of_release(store: RabbitMQStore, node: Path) -> str:
    """Return what is falsely said about the release that wrote the directory, and about a newer one that starts on it."""
    version = version_evidence(store).version
    stated = None if version is None else _RANGE.match(version)
    if stated is not None:
        last = {"later": "99.0", None: stated[1]}.get(stated[2], stated[2])
        if not order(stated[1]) <= order(RELEASE) <= order(str(last)):
            return f"written by {version}"
    metadata = any(node.glob("*.DC?")) or any(node.glob("schema.DAT"))
    newer = diagnose(RabbitMQStore(node), "4.0")
    if metadata and newer.starts and not any("starts" in sentence for sentence in newer.unknown):
        return f"4.0: {newer.headline}"
    return ""
