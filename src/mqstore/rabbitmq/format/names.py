r"""Directory names: the directories of vhosts and queues are named by a digest of their names.

    directory of a vhost  base36(md5(vhost))
    directory of a queue  base36(md5("queue" + vhost + queue))

The digest is one 128-bit number in the digits 0-9A-Z, without leading zeros. Names are hashed as UTF-8.

    >>> vhost_directory(b"/")
    '628WB79CIFDYO9LJI6DKMI09L'
    >>> queue_directory(b"/", b"small.embedded")
    '8GAFI66390KAQ1U33NFI8WMTF'

A queue with `x-max-priority` M has M+1 directories, one for each level P, named by the queue name + 00 + P:

    >>> queue_directory(b"/", priority_name(b"prio.q", 5))
    '6CKYUS6H636JZ0V8X4SQO0KT5'

A digest cannot be reversed. The file `.queue_name` in the directory of a queue has the name, without escaping:

    "VHOST: " vhost "\n" "QUEUE: " name "\n"     followed by "INDEX: v2\n" for version 2

Names may contain these texts, so of all ways to split the file the one counts whose digest is the directory's name.

    >>> parse_queue_name_file(b"VHOST: /\nQUEUE: small.embedded\n", "8GAFI66390KAQ1U33NFI8WMTF")
    QueueName(vhost=b'/', name=b'small.embedded', v2=False)

Before 3.7.0 the digest was different; such directories are not read.

Format: docs/formats/rabbitmq.md, sections 2.1 and 2.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
V2_LINE = b"INDEX: v2\n"
# Brokers write no larger file: names have at most 255 bytes.
MAX_FILE_BYTES = 4096


class QueueName(NamedTuple):
    """Contents of `.queue_name`. name: includes the two-byte priority suffix for a priority sub-queue. v2: it has the line of version 2."""

    vhost: bytes
    name: bytes
    v2: bool


def base36(number: int) -> str:
    """Return a number in base 36, with the digits 0-9A-Z."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return digits or "0"


def _directory(name: bytes) -> str:
    return base36(int.from_bytes(hashlib.md5(name, usedforsecurity=False).digest(), "big"))


def is_file_number(stem: str) -> bool:
    """Return whether this is the stem of a numbered file as a broker writes it: decimal, without leading zeros."""
    return stem.isascii() and stem.isdigit() and (stem == "0" or not stem.startswith("0")) and len(stem) <= 18


def vhost_directory(vhost: bytes | str) -> str:
    """Return the name of a vhost's directory under `msg_stores/vhosts`."""
    return _directory(_octets(vhost))


def queue_directory(vhost: bytes | str, name: bytes | str) -> str:
    """Return the name of a queue's directory under `queues`. For a level of a priority queue pass `priority_name`."""
    return _directory(b"queue" + _octets(vhost) + _octets(name))


def _octets(name: bytes | str) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


def priority_name(name: bytes | str, level: int) -> bytes:
    """Return the name under which level 0…255 of a priority queue is stored."""
    return _octets(name) + bytes([0, level])


def split_priority(name: bytes) -> tuple[bytes, int | None]:
    """Return the queue's name and the priority level, None for a queue without priorities."""
    if len(name) >= 2 and name[-2] == 0:
        return name[:-2], name[-1]
    return name, None


def queue_name_file(vhost: bytes | str, name: bytes | str, v2: bool = False) -> bytes:
    """Return the bytes of `.queue_name`."""
    return b"VHOST: " + _octets(vhost) + b"\nQUEUE: " + _octets(name) + b"\n" + (V2_LINE if v2 else b"")


def parse_queue_name_file(content: bytes, directory: str, vhost: bytes | None = None) -> QueueName | None:
    """Return the contents of the file, or None if no way to split it matches the name of its directory.

    vhost: of the parent directory, if known; without it, a name made only of separators may match two vhosts.
    """
    for split in _splits(content):
        if (vhost is None or split.vhost == vhost) and queue_directory(split.vhost, split.name) == directory:
            return split
    return None


def _splits(content: bytes) -> Iterator[QueueName]:
    if len(content) > MAX_FILE_BYTES or not content.startswith(b"VHOST: ") or not content.endswith(b"\n"):
        return
    for v2 in (True, False):
        if v2 and not content.endswith(b"\n" + V2_LINE):
            continue
        text = content[len(b"VHOST: ") : -len(V2_LINE) - 1 if v2 else -1]
        border = text.find(b"\nQUEUE: ")
        while border >= 0:
            yield QueueName(text[:border], text[border + len(b"\nQUEUE: ") :], v2)
            border = text.find(b"\nQUEUE: ", border + 1)
