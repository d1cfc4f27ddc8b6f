"""The fate of each index entry at the next start of the node: the one model of loss that all counts and findings use.

    recovered      the node has it in its queue
    acknowledged   consumed; its bytes may still be in the files
    transient      dropped: a node discards transient messages at every start, whatever happened
    missing        lost: its message is in no file
    damaged        lost: its bytes are not a message
    hidden         lost: its entry is after damage that the node does not read past
    repeated       lost: a further publish of a sequence id, with different bytes
    unfound        lost: its message is intact, but the node does not find it
    refused        kept on disk, but the node does not start the queue or its vhost
    unlisted       in no index: acknowledged, or its index is lost; nothing records which

    >>> totals(np.array([RECOVERED, RECOVERED, TRANSIENT, UNFOUND], np.uint8)).lost
    1

Only the first two are the same after a start. Format: docs/formats/rabbitmq.md, sections 7 and 12.4.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq.format.index_v1 import PERSISTENT
from mqstore.rabbitmq.format.index_v1 import REPEATED as REPEATED_PUBLISH

RECOVERED, ACKNOWLEDGED, TRANSIENT, MISSING, DAMAGED, HIDDEN, REPEATED, UNFOUND, REFUSED, UNLISTED = range(10)
FATES = ("recovered", "acknowledged", "transient", "missing", "damaged", "hidden", "repeated", "unfound", "refused", "unlisted")


@dataclass(slots=True)
class Fates:
    """How many index entries have each fate."""

    recovered: int = 0
    acknowledged: int = 0
    transient: int = 0
    missing: int = 0
    damaged: int = 0
    hidden: int = 0
    repeated: int = 0
    unfound: int = 0
    refused: int = 0
    unlisted: int = 0

    @property
    def lost(self) -> int:
        """Persistent messages that the node would start without."""
        return self.missing + self.damaged + self.hidden + self.repeated + self.unfound

    @property
    def not_recovered(self) -> int:
        """Messages that are not acknowledged, and that the node would not have."""
        return self.lost + self.transient + self.refused

    @property
    def listed(self) -> int:
        """Messages that are not acknowledged."""
        return self.recovered + self.not_recovered

    def add(self, other: Fates) -> None:
        """Add the counts of others."""
        for each in fields(other):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def fates(
    entries: NDArray[np.void],
    *,
    kept: NDArray[np.bool_],
    consumed: NDArray[np.bool_],
    nowhere: NDArray[np.bool_],
    invalid: NDArray[np.bool_],
    clean: bool,
) -> NDArray[np.uint8]:
    """Return the fate of each entry of a queue that the node starts.

    kept: by its rules of start; consumed: acknowledged; nowhere: its message is in no file; invalid: its bytes are not a message.
    clean: the node was stopped, so that all it held was written. A killed node leaves transient messages half written.
    """
    found = np.full(len(entries), UNFOUND, np.uint8)
    found[entries["seen"] == 0] = HIDDEN
    found[invalid] = DAMAGED
    found[nowhere] = MISSING
    transient = (entries["flags"] & PERSISTENT) == 0
    found[transient & ~(nowhere | invalid) if clean else transient] = TRANSIENT
    found[(entries["flags"] & REPEATED_PUBLISH) != 0] = REPEATED
    found[consumed] = ACKNOWLEDGED
    found[kept] = RECOVERED
    return found


def lost(found: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which entries are persistent messages that the node would start without."""
    return np.asarray((found >= MISSING) & (found <= UNFOUND))


def totals(found: NDArray[np.uint8]) -> Fates:
    """Count the fates of entries."""
    return Fates(*np.bincount(found, minlength=len(FATES)).tolist())
