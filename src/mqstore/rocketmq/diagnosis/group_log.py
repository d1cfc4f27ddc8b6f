"""The log of a DLedger group: what is certain of it from the files of one member, although nothing shows whether a broker starts.

What a broker has after its start depends on the other members: they may send what this one lacks, or let it cut what they never had. As
5.5.0 loads the files of one member, seen with its real store:

    the header of an entry is damaged (magic, size, index, position, size of the body)    the log ends before that entry
    a record is damaged, and the header of its entry is not                               the log is kept, with that record

Format: docs/formats/rocketmq.md, section 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mqstore.errors import UnsupportedError
from mqstore.findings import Damage, Report
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.table.formatting import count

_HEADER = frames.ENTRY_HEADER_SIZE
_INDEX_AT = 8


def cannot_be_determined(store: RocketMQStore, report: Report) -> UnsupportedError:
    """Return the answer for a store whose log DLedger keeps. report: of `verify`."""
    facts = "; ".join(_facts(store, report))
    return UnsupportedError(
        f"it cannot be determined whether a broker starts on {store.path}, and what it has then: DLedger keeps the log in {store.dledger}, "
        f"and the other members of the group decide that, too. What is certain of this member: {facts}"
    )


def _facts(store: RocketMQStore, report: Report) -> Iterator[str]:
    yield f"{count(report.checked.messages, 'message')} of its log can be read"
    starts = {file.relative: file.start for file in store.log.files}
    in_log = [item for item in report.damage if item.file in starts]
    broken = [starts[item.file] + item.offset for item in in_log if item.length == _HEADER]
    cut = min([*broken, *_out_of_order(store)], default=None)
    if cut is not None:
        yield f"the header of the entry at {cut} is damaged, and a broker loads the log up to there: what follows only others can send"
    lost = sum(item.messages for item in in_log if _is_before(starts[item.file], item, cut))
    if lost:
        yield f"{count(lost, 'message')} of what a broker loads {'is' if lost == 1 else 'are'} damaged"
    if cut is None and not in_log:
        yield "nothing of its log is damaged"


def _is_before(start: int, item: Damage, cut: int | None) -> bool:
    return item.length != _HEADER and (cut is None or start + item.offset < cut)


def _out_of_order(store: RocketMQStore) -> Iterator[int]:
    """Yield the place of the first entry whose index is not that of the entry before it plus one."""
    before: int | None = None
    for file in store.log.files:
        for event in store.log.scan_file(file, 0, file.size):
            if not isinstance(event, Records):
                before = None
                continue
            at = event.positions - _HEADER
            indexes = event.data[(at + _INDEX_AT)[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64)
            steps = np.diff(indexes, prepend=indexes[0] - 1 if before is None else before)
            wrong = np.flatnonzero(steps != 1)
            if len(wrong):
                yield file.start + int(at[wrong[0]])
                return
            before = int(indexes[-1])
