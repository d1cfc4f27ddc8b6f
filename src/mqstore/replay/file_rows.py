"""The rows of an edited file as messages to replay, all of them checked before the first is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files.regular_file import open_regular_file
from mqstore.jobs.load_rows import BadPlaceError, BodyForm, Source, open_source
from mqstore.replay.outgoing import ReplayMessage
from mqstore.replay.queue_rows import BadRowError, holds_queue_rows, queue_rows

SHOWN = 5  # bad lines that are named
CHUNK = 1 << 20


def digest_of(file: Path) -> str:
    """Return a digest of a file: a resume file belongs to the rows as they were. Raises CannotOpenError."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        with open_regular_file(file) as source:
            while piece := source.read(CHUNK):
                digest.update(piece)
    except OSError as error:
        raise CannotOpenError(f"{file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def rows_of_file(file: Path) -> Iterator[ReplayMessage]:
    """Return the messages of a file of rows of either broker. Raises UsageError, which names bad lines, and CannotOpenError."""
    noun, skip = "line", 0
    bad: list[str] = []
    while len(bad) <= SHOWN:
        try:
            for _ in _messages(file, skip):
                pass
            break
        except (BadPlaceError, BadRowError) as error:
            noun = "row" if file.suffix == ".parquet" else "line"
            bad.append(f"{noun} {error.place}: {error}")
            skip = error.place
    if bad:
        more = f", and more {noun}s" if len(bad) > SHOWN else ""
        raise UsageError(f"{file}, {'; '.join(bad[:SHOWN])}{more}; nothing was sent")
    return _messages(file, 0)


def _messages(file: Path, skip: int) -> Iterator[ReplayMessage]:
    if holds_queue_rows(file):
        yield from queue_rows(file, skip)
    else:
        yield from _log_rows(open_source(str(file), skip, BodyForm.AUTO), file.name)


def _log_rows(source: Source, name: str) -> Iterator[ReplayMessage]:
    for rows in source.rows:
        for place, row in zip(rows.places, rows.batch.to_pylist(), strict=True):
            properties = dict(row.get("properties") or ())
            for key, column in (("KEYS", "keys"), ("TAGS", "tags"), ("UNIQ_KEY", "uniq_key")):
                if row.get(column):
                    properties[key] = " ".join(row[column]) if isinstance(row[column], list) else row[column]
            queue = row.get("queue_id") or 0
            born = row.get("born_timestamp")
            yield ReplayMessage(
                f"{row['topic']}/{queue}",
                place,
                f"{name}#{place}",
                row["topic"],
                row.get("body") or b"",
                queue,
                properties,
                flag=row.get("flag") or 0,
                compressed=bool((row.get("sys_flag") or 0) & 1),
                born_timestamp=int(born.timestamp() * 1000) if hasattr(born, "timestamp") else born,
                reconsume_times=row.get("reconsume_times") or 0,
            )
