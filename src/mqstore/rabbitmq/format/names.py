r"""Directory names: a vhost and a queue live in directories named by a digest of their names.

    directory of a vhost  base36(md5(vhost))
    directory of a queue  base36(md5("queue" + vhost + queue))

The digest is taken as one 128-bit number, the digits are 0-9A-Z, without leading zeros. Names are their UTF-8 bytes.

    >>> vhost_directory(b"/")
    '628WB79CIFDYO9LJI6DKMI09L'
    >>> queue_directory(b"/", b"small.embedded")
    '8GAFI66390KAQ1U33NFI8WMTF'

A queue with `x-max-priority` M has no directory of its own but M+1 of them, one per level P, for the name + 00 + P:

    >>> queue_directory(b"/", priority_name(b"prio.q", 5))
    '6CKYUS6H636JZ0V8X4SQO0KT5'

No name can be told from a digest. The file `.queue_name` in the directory of a queue tells it, without any escaping:

    "VHOST: " vhost "\n" "QUEUE: " name "\n"     and "INDEX: v2\n" behind it for version 2

Names may hold these texts themselves, so of all ways to split the file the one counts whose digest is the directory's name.

    >>> parse_queue_name_file(b"VHOST: /\nQUEUE: small.embedded\n", "8GAFI66390KAQ1U33NFI8WMTF")
    QueueName(vhost=b'/', name=b'small.embedded', v2=False)

Before 3.7.0 the digest was another one; such directories are not read.

Format: docs/formats/rabbitmq.md, sections 2.1 and 2.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "QueueName",
    "base36",
    "is_file_number",
    "parse_queue_name_file",
    "priority_name",
    "queue_directory",
    "queue_name_file",
    "split_priority",
    "vhost_directory",
]

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
V2_LINE = b"INDEX: v2\n"
# A file beyond this was not written by a broker: names have at most 255 bytes.
MAX_FILE_BYTES = 4096


class QueueName(NamedTuple):
    """What `.queue_name` says. name: with the priority level's two bytes, where it is one's directory. v2: the file says version 2."""

    vhost: bytes
    name: bytes
    v2: bool


def base36(number: int) -> str:
    """A number in the digits 0-9A-Z."""
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
    """Name of a vhost's directory under `msg_stores/vhosts`."""
    return _directory(_octets(vhost))


def queue_directory(vhost: bytes | str, name: bytes | str) -> str:
    """Name of a queue's directory under `queues`; of one level of a priority queue with `priority_name`."""
    return _directory(b"queue" + _octets(vhost) + _octets(name))


def _octets(name: bytes | str) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


def priority_name(name: bytes | str, level: int) -> bytes:
    """The name under which level 0…255 of a priority queue is stored."""
    return _octets(name) + bytes([0, level])


def split_priority(name: bytes) -> tuple[bytes, int | None]:
    """The queue's own name and the level; the level is None where the name is that of a queue without priorities."""
    if len(name) >= 2 and name[-2] == 0:
        return name[:-2], name[-1]
    return name, None


def queue_name_file(vhost: bytes | str, name: bytes | str, v2: bool = False) -> bytes:
    """The bytes of `.queue_name`."""
    return b"VHOST: " + _octets(vhost) + b"\nQUEUE: " + _octets(name) + b"\n" + (V2_LINE if v2 else b"")


def parse_queue_name_file(content: bytes, directory: str, vhost: bytes | None = None) -> QueueName | None:
    """What the file says, or None if no way to split it fits the name of its directory.

    vhost: of the directory above, if known; without it, two vhosts fit a name made only of borders.
    """
    for found in _splits(content):
        if (vhost is None or found.vhost == vhost) and queue_directory(found.vhost, found.name) == directory:
            return found
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
