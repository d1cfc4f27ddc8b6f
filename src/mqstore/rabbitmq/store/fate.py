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

from mqstore.rabbitmq.format.index_v1 import DELIVERED, IN_STORE, PERSISTENT
from mqstore.rabbitmq.format.index_v1 import REPEATED as REPEATED_PUBLISH
from mqstore.rabbitmq.format.recovery_terms import QueueTerms

RECOVERED, ACKNOWLEDGED, TRANSIENT, MISSING, DAMAGED, HIDDEN, REPEATED, UNFOUND, REFUSED, UNLISTED = range(10)


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


FATES = tuple(each.name for each in fields(Fates))


def fates(
    entries: NDArray[np.void],
    *,
    recovered: NDArray[np.bool_],
    consumed: NDArray[np.bool_],
    nowhere: NDArray[np.bool_],
    invalid: NDArray[np.bool_],
) -> NDArray[np.uint8]:
    """Return the fate of each entry of a queue that the node starts.

    recovered: by its rules of start; consumed: acknowledged; nowhere: its message is in no file; invalid: its bytes are not a message.
    """
    result = np.full(len(entries), UNFOUND, np.uint8)
    result[entries["seen"] == 0] = HIDDEN
    result[invalid] = DAMAGED
    result[nowhere] = MISSING
    result[(entries["flags"] & PERSISTENT) == 0] = TRANSIENT
    result[(entries["flags"] & REPEATED_PUBLISH) != 0] = REPEATED
    result[consumed] = ACKNOWLEDGED
    result[recovered] = RECOVERED
    return result


def lost(entry_fates: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which entries are persistent messages that the node would start without."""
    return np.asarray((entry_fates >= MISSING) & (entry_fates <= UNFOUND))


def totals(entry_fates: NDArray[np.uint8]) -> Fates:
    """Count the fates of entries."""
    return Fates(*np.bincount(entry_fates, minlength=len(FATES)).tolist())


# ---- the broker's rules at the start of a queue: which messages it keeps, and which it marks as redelivered
#
# There are three kinds of start, depending on the last stop:
#
#     clean                 the queue has terms in recovery.dets and the store is clean: its tables are trusted, transient messages dropped
#     terms, store unclean  everything is checked as after a crash; numbers and redelivered marks come from the terms
#     dirty                 no terms: everything is checked, every message is redelivered, numbering continues at the next segment
#
# Expired messages are kept here: whether the broker drops them depends on when it starts.
#
# Format: docs/formats/rabbitmq.md, sections 7 and 12.4.


@dataclass(frozen=True, slots=True)
class QueueStart:
    """How one queue would start. store_clean: whether the broker trusts the message store of its vhost without a scan.

    queue_addresses: the broker delivers the name of a queue for a reply-to that is its AMQP 1.0 address (`MessageTerm.delivered`).
    """

    terms: QueueTerms | None
    store_clean: bool
    queue_addresses: bool = False

    @property
    def clean(self) -> bool:
        return self.terms is not None and self.store_clean

    @property
    def name(self) -> str:
        """`clean`, `terms` or `dirty`."""
        return "clean" if self.clean else "dirty" if self.terms is None else "terms"


def keeps(
    entries: NDArray[np.void], start: QueueStart, version: int, *, own_persistent: NDArray[np.bool_], in_store: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which entries are messages of the queue after the start.

    own_persistent: for embedded messages, whether the term itself is marked persistent. in_store: whether the broker finds the id in the
    persistent store: after a clean stop, by its tables (`store.clean_tables`).

    >>> from mqstore.rabbitmq.format.index_v1 import ENTRY
    >>> dirty = QueueStart(None, store_clean=False)
    >>> entries = np.zeros(3, ENTRY)
    >>> entries["seen"], entries["flags"], entries["length"], entries["seq"] = 1, (1, 1, 0), (9, 0, 9), (4, 5, 6)
    >>> keeps(entries, dirty, 1, own_persistent=np.array([True, True, False]), in_store=np.array([False, False, False]))
    array([ True, False, False])
    >>> redelivered(entries, dirty), next_sequence_id(entries[:1], dirty, 4)
    (array([ True, True, True]), 8)
    """
    live = entries["seen"] != 0
    persistent = (entries["flags"] & PERSISTENT) != 0
    shared = entries["place"] == IN_STORE if version == 2 else entries["length"] == 0
    if start.clean and start.terms is not None:
        below = np.ones(len(entries), np.bool_) if start.terms.next_seq is None else entries["seq"] < start.terms.next_seq
        return np.asarray(live & (persistent | ~below) & (~shared | in_store | ~persistent))
    if version == 2:
        return np.asarray(live & persistent & (~shared | in_store))
    return np.asarray(live & np.where(shared, in_store, own_persistent))


def redelivered(entries: NDArray[np.void], start: QueueStart) -> NDArray[np.bool_]:
    """Return which messages are marked as redelivered."""
    if start.terms is None:
        return np.ones(len(entries), np.bool_)
    if start.terms.next_deliver is not None:
        below = entries["seq"] < start.terms.next_deliver
        delivered = np.fromiter(start.terms.delivery_counts or (), np.int64)
        return np.asarray(below | np.isin(entries["seq"], delivered))
    return np.asarray((entries["seen"] & DELIVERED) != 0)


def next_sequence_id(entries: NDArray[np.void], start: QueueStart, count: int) -> int:
    """Return the sequence id of the next publish. entries: those that remain; count: entries per segment."""
    if start.terms is not None and start.terms.next_seq is not None:
        return start.terms.next_seq
    return (int(entries["seq"].max()) // count + 1) * count if len(entries) else 0
