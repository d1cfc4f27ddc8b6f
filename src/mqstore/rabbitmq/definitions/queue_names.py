"""Queue names supplied by the user, for directories without a valid `.queue_name`.

Either lines of text, vhost and queue with a tab between them, or the definitions that `rabbitmqctl export_definitions` and the management
plugin write. A name is used only if its digest is the name of a directory, so surplus names do no harm.

    >>> list(parse("/\\torders\\n/\\tбилеты\\n"))
    [('/', 'orders'), ('/', 'билеты')]
    >>> list(parse('{"queues": [{"name": "orders", "vhost": "/", "durable": true}]}'))
    [('/', 'orders')]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files import ReadOnlyDirectory

MAX_FILE_BYTES = 256 << 20


def read(file: Path) -> tuple[tuple[str, str], ...]:
    """Return the pairs of vhost and queue that a file names. Raises CannotOpenError, UsageError."""
    raw = ReadOnlyDirectory(file.parent).read(file.name, MAX_FILE_BYTES)
    if raw is None:
        raise CannotOpenError(f"{file} does not exist; give lines `vhost<TAB>queue`, or what `rabbitmqctl export_definitions` writes")
    try:
        return tuple(parse(raw.decode("utf-8")))
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8; give lines `vhost<TAB>queue`") from None
    except ValueError as error:
        raise UsageError(f"{file} {error}; give lines `vhost<TAB>queue`, or what `rabbitmqctl export_definitions` writes") from None


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of vhost and queue in a text. Raises ValueError."""
    if text.lstrip().startswith("{"):
        yield from _parse_definitions(text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        vhost, tab, queue = line.partition("\t")
        if line and (not tab or "\t" in queue):
            raise ValueError(f"has a line {number} that is not `vhost<TAB>queue`")
        if line:
            yield vhost, queue


def _parse_definitions(text: str) -> Iterator[tuple[str, str]]:
    try:
        queues = json.loads(text).get("queues", [])
    except (ValueError, RecursionError):
        raise ValueError("begins like JSON but is not valid JSON") from None
    for queue in queues if isinstance(queues, list) else []:
        vhost, name = (queue.get("vhost"), queue.get("name")) if isinstance(queue, dict) else (None, None)
        if not isinstance(vhost, str) or not isinstance(name, str):
            raise ValueError("has a queue without vhost and name: definitions of a single vhost do not name it")
        yield vhost, name
