"""Why a key query or a lookup found nothing, or not everything: the fixed list of reasons.

A query explains its answer with one reason; a lookup gives one for each key without a message. The order is the rank:
where several reasons apply to the same number of messages, the first one is given.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why an answer is empty or short. The first one that applies is given."""

    AFTER_INDEX_END = "after-index-end"  # the message was stored after the last entry of the index
    INDEX_FILE_DROPPED = "index-file-dropped"  # recovery deletes the index file that has the entry and does not recreate it
    INDEX_FILE_MISSING = "index-file-missing"  # no index file covers the message
    INDEX_FILE_UNSOUND = "index-file-unsound"  # in the covering index file a slot, chain or entry on the way to the message is broken
    OUTSIDE_TIME_WINDOW = "outside-time-window"  # the entry's time, as the index computes it, is outside the requested range
    CUT_BY_MAX = "cut-by-max"  # there are more hits than were requested, or than the broker's limit
    RECORD_DAMAGED = "record-damaged"  # the index points at bytes that are not a valid record
    REMOVED_BY_RETENTION = "removed-by-retention"  # the index points before the first log file
    HASH_COLLISIONS_ONLY = "hash-collisions-only"  # every hit is a record with another topic or key of the same hash
    NO_INDEX_ENTRY = "no-index-entry"  # neither the index nor the log that it does not cover has an entry of the hash
    TOPIC_NEVER_SEEN = "topic-never-seen"  # no record, queue or configuration has the topic
    NOT_IN_STORE = "not-in-store"  # the whole log was read without damage: no record has the key in the topic
    KEY_NEVER_SEEN = "key-never-seen"  # no readable record has the key in the topic


LOOKUP_ONLY = frozenset({Reason.NO_INDEX_ENTRY, Reason.NOT_IN_STORE})  # a query always scans the log before it gives such a reason
