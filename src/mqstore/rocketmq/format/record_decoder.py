"""Records read from the log as objects: as `record.decode` does, but None where it raises.

    >>> from mqstore.rocketmq.format.record import Record, encode
    >>> record_or_none(memoryview(encode(Record("T", b"body", queue_id=3)))).queue_id, record_or_none(b"no record")
    (3, None)

Format: docs/formats/rocketmq.md, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqstore.kernels.rocketmq.record_decode import Decoder
from mqstore.rocketmq.format.java_text import decode_utf8
from mqstore.rocketmq.format.record import Record, format_host

_DECODER = Decoder(Record, decode_utf8, format_host)


def record_or_none(raw: bytes | memoryview) -> Record | None:
    """Decode the record at the start of raw; None if it cannot be decoded."""
    return _DECODER.record(raw)


def records_of(raws: Iterable[memoryview]) -> list[Record]:
    """Decode the record at the start of each; bytes that are not a record are left out."""
    return [record for record in map(record_or_none, raws) if record is not None]


def records_in(view: memoryview, start: int, rows: bytes) -> list[Record]:
    """Decode the records of a pull within one log file, see `kernels.rocketmq.pull`; bytes that are not a record are left out."""
    return _DECODER.records(view, start, rows)
