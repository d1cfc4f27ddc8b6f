"""The broker's rules at the start of a queue: which messages it keeps, and which it marks as redelivered.

There are three kinds of start, depending on the last stop:

    clean                 the queue has terms in recovery.dets and the store is clean: nothing is checked; transient messages are dropped
    terms, store unclean  everything is checked as after a crash; numbers and redelivered marks come from the terms
    dirty                 no terms: everything is checked, every message is redelivered, numbering continues at the next segment

    >>> dirty = QueueStart(None, store_clean=False)
    >>> entries = np.zeros(3, ENTRY)
    >>> entries["seen"], entries["flags"], entries["length"], entries["seq"] = 1, (1, 1, 0), (9, 0, 9), (4, 5, 6)
    >>> keeps(entries, dirty, 1, own_persistent=np.array([True, True, False]), in_store=np.array([False, False, False]))
    array([ True, False, False])
    >>> redelivered(entries, dirty, 1), next_sequence_id(entries[:1], dirty, 4)
    (array([ True, True, True]), 8)

Expired messages are kept here: whether the broker drops them depends on when it starts.

Format: docs/formats/rabbitmq.md, sections 7 and 12.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mqstore.rabbitmq.format.index_v1 import DELIVERED, ENTRY, IN_STORE, PERSISTENT
from mqstore.rabbitmq.format.recovery_terms import QueueTerms

__all__ = ["ENTRY", "QueueStart", "keeps", "next_sequence_id", "redelivered"]


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
    persistent store.
    """
    live = entries["seen"] != 0
    persistent = (entries["flags"] & PERSISTENT) != 0
    if start.clean and start.terms is not None:
        below = np.ones(len(entries), np.bool_) if start.terms.next_seq is None else entries["seq"] < start.terms.next_seq
        return np.asarray(live & (persistent | ~below))
    shared = entries["place"] == IN_STORE if version == 2 else entries["length"] == 0
    if version == 2:
        return np.asarray(live & persistent & (~shared | in_store))
    return np.asarray(live & np.where(shared, in_store, own_persistent))


def redelivered(entries: NDArray[np.void], start: QueueStart, version: int) -> NDArray[np.bool_]:
    """Return which messages are marked as redelivered."""
    if start.terms is None:
        return np.ones(len(entries), np.bool_)
    if start.terms.next_deliver is not None:
        below = entries["seq"] < start.terms.next_deliver
        delivered = np.fromiter(start.terms.delivery_counts or (), np.int64)
        return np.asarray(below | np.isin(entries["seq"], delivered))
    return np.asarray((entries["seen"] & DELIVERED) != 0)


def next_sequence_id(kept: NDArray[np.void], start: QueueStart, count: int) -> int:
    """Return the sequence id of the next publish. kept: the remaining entries; count: entries per segment."""
    if start.terms is not None and start.terms.next_seq is not None:
        return start.terms.next_seq
    return (int(kept["seq"].max()) // count + 1) * count if len(kept) else 0
