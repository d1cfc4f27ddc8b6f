"""Steps for index files that are gone: each is made again, as dispatch made it, from the keys of the log that no other file has.

    the keys are       between two files, the first of them full; before the first file, if the log begins at 0; after the last one, which
                       is full; all of them if there is no file
    they fill          all files between two others: other files were not made by dispatch alone, and are left to `rebuild`
    after a kill       the last files, too, up to the time that the checkpoint has of the index: that of the last file that was full. A
                       broker deletes a later one, and makes it again from where it recovers the log
    the name           that of the file before, plus a millisecond; without one the time of the first key. A broker takes its clock.

How many slots and positions the files have is known from other files or from the configuration; else `rebuild` makes them.

Format: docs/formats/rocketmq.md, section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from mqstore.findings import Damage, Kind, Subject
from mqstore.repair.change import Change, Step
from mqstore.rocketmq.dispatch.dispatcher import TagKeys
from mqstore.rocketmq.dispatch.index_builder import index_name
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER, Shape, file_size
from mqstore.rocketmq.rebuild_steps import settings_of
from mqstore.rocketmq.repair.index_steps import Begin, Keys, chained, end_of, keys_between
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.index_proof import out_of_order
from mqstore.rocketmq.verify.verification import Verification
from mqstore.table.formatting import count

INDEX = "index"
MOST_KEYS = 20_000_000  # of all files that are made: those of one of the default size, with 1.2 GB of memory
KEYS_OF_A_RECORD = 1 << 15  # at most: its properties have as many bytes
_NONE = Begin(-1, 0, 0)


def missing_index_steps(store: RocketMQStore, scan: Verification, damage: Collection[Damage]) -> Iterator[Step]:
    """Yield one step for each index file that is gone. The scan must be complete; damage: its findings."""
    files, settings = store.index_files(), settings_of(store)
    lacking = any(item.kind is Kind.MISSING_INDEX_ENTRY for item in damage) or (scan.unindexed and (store.unclean or not files))
    elsewhere = store.unread_index or store.database_index is not None or store.unread_index_sentence is not None
    if not lacking or elsewhere or not settings.index or settings.assumed_geometry or out_of_order(files):
        return
    if scan.unindexed + scan.unindexed_inside > MOST_KEYS:
        return
    shape = (settings.index_slots, settings.index_positions)
    damaged = {item.file for item in damage if item.kind.subject is Subject.INDEX}
    left = MOST_KEYS
    for before, after in pairwise((None, *files, None)):
        known = not damaged & {file.relative for file in (before, after) if file is not None}
        begin = _NONE if before is None else end_of(before) if before.header.index_count >= before.positions else None
        expired = begin is not None and max(0, begin.offset) < store.log.start and (before is not None or after is not None)
        if not known or begin is None or expired:
            continue
        tags = TagKeys(scan.log, [file for file in (before, after) if file is not None]).newest()
        keys = _keys(scan, begin, after, store.indexes_tags if tags is None else tags)
        if after is None and store.unclean:
            flushed = keys[: int(np.argmin(np.append(keys["store_timestamp"] <= store.checkpoint.index, False)))]
            keys = flushed[: len(flushed) // (shape[1] - 1) * (shape[1] - 1)]
        if not 0 < len(keys) <= left or (after is not None and len(keys) % (shape[1] - 1)):
            continue
        left -= len(keys)
        for step in _steps(keys, begin, before, after, shape):
            if store.unclean:
                step = replace(step, otherwise=f"{step.otherwise}, but for those that a broker indexes again when it recovers the log")
            yield step if store.directory.is_directory(INDEX) else replace(step, changes=(Change("mkdir", INDEX), *step.changes))


def _keys(scan: Verification, begin: Begin, after: IndexFile | None, tags: bool) -> Keys:
    """Return the keys of the log between two index files, those of tags among them or not."""
    stop = scan.log_end if after is None else after.header.begin_physical_offset
    keys = keys_between(scan, begin.offset, stop, most=MOST_KEYS + 2 * KEYS_OF_A_RECORD, tags=tags)
    return keys[begin.held : len(keys) - (0 if after is None else len(after.numbers_of(stop)))]


def _steps(keys: Keys, begin: Begin, before: IndexFile | None, after: IndexFile | None, shape: Shape) -> Iterator[Step]:
    """Yield the steps for files that have these keys, all but the last of which are full; none if there are no names for them."""
    previous = None if before is None else before.name
    beside = before or after
    counts_keys = beside is not None and bool(
        beside.header.hash_slot_count == beside.header.index_count - 1 > np.count_nonzero(beside.slots())
    )
    inherited, steps = begin.timestamp, []
    for at in range(0, len(keys), shape[1] - 1):
        part = keys[at : at + shape[1] - 1]
        first, last = int(part["store_timestamp"][0]), int(part["store_timestamp"][-1])
        previous = index_name(first if previous is None else 0, previous)
        name = f"{INDEX}/{previous}"
        why = f"an index file is gone: it is made again from the {count(len(part), 'key')} of the log that no other file has"
        content = partial(_content, part, inherited, shape[0], counts_keys=counts_keys)
        made = (Change("put", name, content=content), Change("resize", name, length=file_size(shape)))
        steps.append(Step("index-file", name, 0, file_size(shape), why, "key queries miss these messages", "", made))
        inherited = last
    if after is None or (previous is not None and previous < after.name):
        yield from steps


def _content(keys: Keys, inherited: int, slot_count: int, *, counts_keys: bool) -> bytes:
    """Return the bytes of a file up to its last entry. counts_keys: whether the header counts keys, not the slots in use."""
    slots, entries, taken = chained(keys, inherited, slot_count)
    ends, offsets = keys[[0, -1]]["store_timestamp"].tolist(), keys[[0, -1]]["physical_offset"].tolist()
    head = HEADER.pack(*ends, *offsets, len(keys) if counts_keys else taken, len(keys) + 1)
    return b"".join((head, slots.view(np.uint8).data, bytes(ENTRY_SIZE), entries.data))
