"""Random lives of queues, run by a real node and by our engine; then each opens the store of the other.

Two kinds of batches share the boots of a node. In one the node is killed when its journals are written (after 200 ms without work)
and nothing is in segments yet; in the other, which has queues of both versions, when its queues hibernate: version 2 does not write
earlier by itself.
Four readings of the final messages must be equal in every field but the message id: the node's store by the node and by us, our store
by us and by the node.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from interop.rabbitmq.adopting import Adopted, adopt_in, declare, differences, drain_all
from interop.rabbitmq.node import Node, telling_lines
from interop.rabbitmq.playing import OurSide, config, declared, play_phase_on_node, rows_by_engine
from interop.rabbitmq.queuescripts import SETTINGS, Script

PER_BATCH = 30
NOT_ALIKE = ("msg_id", "expiry_us")


@dataclass(frozen=True, slots=True)
class Kind:
    """ends: of each phase. versions: of the queues. at_rest: a node is neither killed nor stopped before its queues hibernate.

    Stopped earlier, a queue of version 2 may crash on 3.10.8 (`einval` in `rabbit_classic_queue_index_v2:terminate/3`) and leave no terms.
    """

    ends: tuple[str, ...]
    versions: tuple[int, ...]
    at_rest: bool


JOURNALS = Kind(("kill", "stop", "kill"), (1,), False)
SEGMENTS = Kind(("stop", "kill", "stop"), (1, 2), True)


def prove_lives(node: Node, lives: list[Script], kind: Kind, place: Path) -> None:
    """Play these lives on a node and on our engine, and compare the four readings. Raises AssertionError."""
    queues = declared(lives)
    node.start()
    declare(node, queues)
    ours = place / "ours"
    sides = [OurSide(ours, life, config(SETTINGS)) for life in lives]
    for phase, end in enumerate(kind.ends):
        if phase:
            node.start()
            for side in sides:
                side.reopen()
        for life, side in zip(lives, sides, strict=True):
            play_phase_on_node(node, life, phase)
            side.play_phase(phase)
        _end(node, sides, end, kind)
    told_of_its_own = {line.partition("> ")[2] for line in telling_lines(node.log())}
    theirs = place / "theirs"
    shutil.copytree(node.stores, theirs)
    node.start()
    by_node = Adopted(booted=True)
    drain_all(node, queues, by_node)
    node.kill()
    assert by_node.sound, by_node.failed
    adopted = adopt_in(node, ours, queues)
    assert adopted.sound, (adopted.error, adopted.down, adopted.failed, adopted.log)
    expected = {(life.vhost, queue): tags for life in lives for queue, tags in life.expected.items() if tags}
    for name, rows in {
        "the node reads its own store": by_node.rows,
        "the node reads our store": adopted.rows,
        "we read our store": rows_by_engine(ours, lives, config(SETTINGS), place / "a"),
        "we read the store of the node": rows_by_engine(theirs, lives, config(SETTINGS), place / "b"),
    }.items():
        found: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            found.setdefault((row["vhost"], row["queue"]), []).append(row["properties"]["message_id"])
        assert found == expected, f"{name}: {_first_difference(found, expected)}"
        different = differences(rows, by_node.rows, NOT_ALIKE)
        assert not different, "\n".join([f"{name} with {len(different)} differences from what the node reads in its own:", *different[:20]])
    strange = [line for line in adopted.log if "[warning]" in line or "[error]" in line]
    new = [line for line in strange if line.partition("> ")[2] not in told_of_its_own]
    assert not new, "\n".join(new)


def _end(node: Node, sides: list[OurSide], end: str, kind: Kind) -> None:
    if end == "kill" or kind.at_rest:
        time.sleep(0.8)
        stop = time.monotonic() + 30
        while kind.at_rest and node.eval("oracle:awake().") != "0":
            assert time.monotonic() < stop, "the queues of the node do not hibernate"
            time.sleep(0.1)
    if end == "stop":
        node.stop()
    else:
        node.kill()
    for side in sides:
        side.end(clean=end == "stop")


def _first_difference(found: dict[tuple[str, str], list[str]], expected: dict[tuple[str, str], list[str]]) -> str:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            return f"{key}: {found.get(key)} instead of {expected.get(key)}"
    return "none"
