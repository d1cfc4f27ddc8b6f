"""Tiered storage: messages that a 5.x broker has moved out of its log, queue by queue, into segments in another directory.

    tieredStoreFilePath/
      212d6b50_DefaultCluster/                    MD5 of the cluster's name, and the name
        broker-a/orders/0/                        broker, topic, queue
          COMMIT_LOG/cfcd208400000000000000000000 MD5 of the first byte's offset in decimal, and the offset in 20 digits
          CONSUME_QUEUE/cfcd2084…                 20-byte entries of a consume queue
        broker-a/rmq_sys_INDEX/0/INDEX/cfcd2084…  index of keys of all topics

Eight hexadecimal digits of each MD5 are in the name. A log segment is whole records, one after the other, without a gap and without zeros
at its end. It is not a piece of the broker's log: each queue has a separate log that begins at 0, and a record's physical offset is its
position there; all else of the record is as it was. 5.1.4 and 5.2.0 end a full segment with 16 bytes: i32 16, the magic of the end of a log
file, i64 time of the newest message; 5.5.0 does not.

    >>> segment_kind(PurePath("orders/0/COMMIT_LOG/cfcd208400000000000000000000"))
    'COMMIT_LOG'

The broker keeps `config/tieredStoreMetadata.json`: which segments there are, with their sizes. `tiered_index_file/` in its store is what
has not been moved yet of the index.

Format: docs/formats/rocketmq.md, section 12.4.
"""

from __future__ import annotations

from pathlib import PurePath

LOG = "COMMIT_LOG"
DERIVED_KINDS = {"CONSUME_QUEUE": "consume queue", "INDEX": "key index"}

_HASH = 8
_DIGITS = 20


def segment_kind(path: PurePath) -> str | None:
    """Return which kind of segment a file is, by its directory and its name; None if it is not one."""
    kind, name = path.parent.name, path.name
    return kind if (kind == LOG or kind in DERIVED_KINDS) and _is_segment_name(name) else None


def is_tier(names: set[str]) -> bool:
    """Return whether a directory with these names in it is the root of tiered storage, that of a queue, or one of log segments."""
    return LOG in names or any(_is_segment_name(name) or _is_cluster_name(name) for name in names)


def _is_segment_name(name: str) -> bool:
    offset = name[_HASH:]
    return len(offset) == _DIGITS and offset.isascii() and offset.isdigit() and _digest(str(int(offset))) == name[:_HASH]


def _is_cluster_name(name: str) -> bool:
    digest, mark, cluster = name.partition("_")
    return mark == "_" and digest == _digest(cluster)


def _digest(text: str) -> str:
    import hashlib  # a broker starts without it

    return hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()[:_HASH]
