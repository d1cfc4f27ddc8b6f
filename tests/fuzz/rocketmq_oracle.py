"""What must hold of a damaged image of a RocketMQ store, judged from the bytes of the golden store and of the image alone.

* A message whose record is in its log file, at its place, byte for byte, is reported, with every field as before; as `intact` if no
  queue file was touched.
* A message that is reported as anything but `damaged` is one of the golden store, and unchanged except in fields that nothing in its record
  protects (`test_corruption_sweep` lists them).
* A message that is lost or damaged is not kept quiet: `verify` has findings, unless nothing that is left speaks of it (its queue entry
  is gone, too, or it was older than the first log file, as after retention).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fuzz.damage import File, Tree, resolve
from fuzz.test_corruption_sweep import UNPROTECTED, Message, record_fields

import mqstore
from mqstore.errors import MqstoreError
from mqstore.findings import Report
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import ROCKETMQ_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

CONTENT = tuple(name for name in ROCKETMQ_COLUMNS if name != "verdict")
QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "config")


def read(root: Path) -> tuple[pa.Table, Report, RocketMQStore]:
    """Return all that the package says of a store: every message, and the findings."""
    import pyarrow as pa

    store = mqstore.open(root)
    if not isinstance(store, RocketMQStore):
        raise WrongFamilyError(f"{root} is taken for a store of RabbitMQ")
    batches = list(store.to_batches(ROCKETMQ_COLUMNS))
    table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in ROCKETMQ_COLUMNS})
    return table, verify(store, threads=1), store


class WrongFamilyError(AssertionError):
    """A store was taken for one of the other broker."""


@dataclass
class Golden:
    """The golden store before any damage. messages: by physical offset, with the number of the row in table."""

    tree: Tree
    table: pa.Table
    messages: list[Message]
    verdicts: list[str]
    entries: dict[int, str]
    topics: list[tuple[str, int]]
    keys: list[tuple[str, str]]
    files: dict[int, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[int, int]:
        return {message.offset: row for row, message in enumerate(self.messages)}

    @staticmethod
    def of(root: Path, tree: Tree) -> Golden:
        table, _, store = read(root)
        offsets, verdicts = table["physical_offset"].to_pylist(), table["verdict"].to_pylist()
        told = dict(zip(offsets, verdicts, strict=True))
        messages = []
        for event in store.log.scan():
            if isinstance(event, Records):
                columns = RecordColumns(event)
                for k in range(len(columns)):
                    offset, size = int(columns.row(frames.PHYSICAL_OFFSET)[k]), int(columns.row(frames.SIZE)[k])
                    messages.append(Message(offset, size, told[offset], record_fields(columns, k)))
        assert [message.offset for message in messages] == offsets
        topics = table["topic"].to_pylist()
        queues = sorted(set(zip(topics, table["queue_id"].to_pylist(), strict=True)))
        keys = [(topic, keys[0]) for topic, keys in zip(topics, table["keys"].to_pylist(), strict=True) if keys] or [("none", "none")]
        files = {int(path.rpartition("/")[2]): path for path in tree if path.startswith("commitlog/")}
        return Golden(tree, table.select(CONTENT), messages, verdicts, _entries(tree), queues, keys, files)

    @cached_property
    def homes(self) -> list[tuple[str, int]]:
        """The log file of each message, and its position in it."""
        found = []
        for message in self.messages:
            base = max(start for start in self.files if start <= message.offset)
            found.append((self.files[base], message.offset - base))
        return found


def _entries(tree: Tree) -> dict[int, str]:
    """Return the file with the queue entry of each physical offset."""
    found = {}
    for path, node in tree.items():
        if path.startswith("consumequeue/") and isinstance(node, File):
            for at in range(0, len(node.data) - 19, 20):
                raw = node.data[at : at + 20]
                if raw[8:12] != bytes(4):
                    found[int.from_bytes(raw[:8], "big")] = path
    return found


def judge(golden: Golden, image: Tree, root: Path) -> None:
    """Check everything that the module's docstring names. Raises AssertionError."""
    whole, linked, touched = _sorted_messages(golden, image)
    try:
        table, report, _ = read(root)
    except MqstoreError as error:
        if whole:
            raise AssertionError(f"{len(whole)} messages are untouched, and the store is refused: {error}") from error
        return
    offsets, verdicts = table["physical_offset"].to_pylist(), table["verdict"].to_pylist()
    places = {offset: row for row, offset in enumerate(offsets)}
    assert len(places) == len(offsets), "a message is reported twice"
    strange = [offset for offset, verdict in zip(offsets, verdicts, strict=True) if offset not in golden.rows and verdict != "damaged"]
    assert not strange, f"there is a message at {strange[0]} that nobody wrote"
    _judge_whole(golden, image, [each for each in (*whole, *linked) if each in places], whole, table.select(CONTENT), places, verdicts)
    start = min((base for base, path in golden.files.items() if isinstance(image.get(path), File)), default=None)
    for message, positions in touched:
        row = places.get(message.offset)
        if row is None or verdicts[row] == "damaged":
            after_start = start is not None and message.offset >= start
            spoken_of = row is not None or (after_start and _entry_is_there(golden, image, message.offset))
            assert report.damage or not spoken_of, f"message {message.offset} is lost, and verify finds nothing"
            continue
        if positions is None and _is_in_a_surplus(golden, image, message):
            continue
        assert positions is not None, f"message {message.offset} is gone from its place, and is {verdicts[row]}"
        free = [place for name, place in message.fields.items() if name in UNPROTECTED or name == "body_crc"]
        wrong = sorted(positions.difference(*(range(begin, begin + size) for begin, size in free)))
        assert not wrong, f"message {message.offset} was touched at {wrong[:5]}, and is {verdicts[row]}"


def _is_in_a_surplus(golden: Golden, image: Tree, message: Message) -> bool:
    """Return whether a log file that is too long has the message's bytes where the next file, which is gone, would have them."""
    path, at = golden.homes[golden.messages.index(message)]
    raw = golden.tree[path].data[at : at + message.size]
    for name, node in image.items():
        if name.startswith("commitlog/") and name[-20:].isdigit() and isinstance(node, File):
            begin = message.offset - int(name[-20:])
            if begin >= 0 and node.data[begin : begin + message.size] == raw:
                return True
    return False


def _judge_whole(
    golden: Golden, image: Tree, found: list[int], whole: list[int], table: pa.Table, places: dict[int, int], verdicts: list[str]
) -> None:
    import pyarrow as pa

    missing = [offset for offset in whole if offset not in places]
    assert not missing, f"{len(missing)} messages are untouched and not reported, the first at {missing[0]}"
    wanted = golden.table.take(pa.array([golden.rows[offset] for offset in found], pa.int64()))
    told = table.take(pa.array([places[offset] for offset in found], pa.int64()))
    if not told.equals(wanted):
        for offset, mine, was in zip(found, told.to_pylist(), wanted.to_pylist(), strict=True):
            names = [name for name in mine if mine[name] != was[name]]
            assert not names, (
                f"message {offset} is untouched, and its {names[0]} is {mine[names[0]]!r:.80} instead of {was[names[0]]!r:.80}"
            )
    queues_touched = any(image.get(path) is not node for path, node in golden.tree.items() if path.startswith(QUEUES))
    queues_touched = queues_touched or any(path.startswith(QUEUES) for path in image.keys() - golden.tree.keys())
    for offset in whole:
        verdict, before = verdicts[places[offset]], golden.verdicts[golden.rows[offset]]
        believed = {before, "unindexed"} if queues_touched else {before}
        assert verdict in believed, f"message {offset} is untouched, and {verdict}"


def _sorted_messages(golden: Golden, image: Tree) -> tuple[list[int], list[int], list[tuple[Message, set[int] | None]]]:
    """Return the messages that are whole at their place, those that are so behind a link, and the touched ones.

    Touched ones have the positions that differ, None if nothing is at their place.
    """
    whole: list[int] = []
    linked: list[int] = []
    touched: list[tuple[Message, set[int] | None]] = []
    same = {path for path in golden.files.values() if image.get(path) is golden.tree[path]}
    for message, (path, at) in zip(golden.messages, golden.homes, strict=True):
        if path in same:
            whole.append(message.offset)
            continue
        before, after = golden.tree[path], resolve(image, path)
        there = whole if image.get(path) is after else linked
        if after is before:
            there.append(message.offset)
            continue
        assert isinstance(before, File)
        stop = at + message.size
        new = b"" if after is None else after.data[at:stop] + bytes(max(0, min(after.size, stop) - max(len(after.data), at)))
        old = before.data[at:stop]
        if new == old:
            there.append(message.offset)
        else:
            touched.append((message, _differing(old, new) if new else None))
    return whole, linked, touched


def _differing(old: bytes, new: bytes) -> set[int]:
    """Return the positions of old at which new, which may be shorter, has another byte or none."""
    at_once = np.frombuffer(old, np.uint8, len(new)) != np.frombuffer(new, np.uint8)
    return {*np.flatnonzero(at_once).tolist(), *range(len(new), len(old))}


def _entry_is_there(golden: Golden, image: Tree, offset: int) -> bool:
    """Return whether the queue entry of a message is in its file, and no file of that queue was touched."""
    if offset not in golden.entries:
        return False
    path = golden.entries[offset]
    queue = path.rpartition("/")[0] + "/"
    files = [each for each in image.keys() | golden.tree.keys() if each.startswith(queue)]
    return all(image.get(each) is golden.tree.get(each) for each in files)
