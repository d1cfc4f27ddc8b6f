"""Versions of RabbitMQ: which queue versions and which forms of messages a node of each reads, and which are written for it.

    3.8, 3.9        queues of version 1                            messages as `basic_message`
    3.10 to 3.13    version 1 (their default) and 2                `basic_message`; the containers of 3.13 differ from those of 4.x
    4.0 to 4.3      version 2; version 1 deletes messages in 4.3   both forms

>>> target_version("3.10.8").queue_version, target_version("4.3").containers
(1, True)

Format: docs/formats/rabbitmq.md, sections 10, 12.6 and 13.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mqstore.errors import UsageError


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """A minor version. queue_versions: which of the two are written for it, its default first; containers: whether it reads those of 4.x.

    single_deliveries: whether it records deliveries message by message. reads: versions of queues whose messages it keeps.
    crashes_on_containers: of any version. wants_flags: feature flags that 3.x does not write. ends_without_flags: and does not start then.
    """

    name: str
    queue_versions: tuple[int, ...]
    containers: bool
    single_deliveries: bool = False
    reads: tuple[int, ...] = (1, 2)
    crashes_on_containers: bool = False
    wants_flags: bool = True
    ends_without_flags: bool = False

    @property
    def queue_version(self) -> int:
        """The queue version that is written for it unless another is asked for."""
        return self.queue_versions[0]


_VERSIONS = {
    **{name: BrokerVersion(name, (1,), False, reads=(1,), crashes_on_containers=True, wants_flags=False) for name in ("3.8", "3.9")},
    **{name: BrokerVersion(name, (1, 2), False, crashes_on_containers=True, wants_flags=False) for name in ("3.10", "3.11", "3.12")},
    "3.13": BrokerVersion("3.13", (1, 2), False, wants_flags=False),
    **{name: BrokerVersion(name, (2,), True) for name in ("4.0", "4.1", "4.2")},
    "4.3": BrokerVersion("4.3", (2,), True, single_deliveries=True, reads=(2,), ends_without_flags=True),
}
OLDEST_NODE, *_, NEWEST_NODE = _VERSIONS
_NUMBER = re.compile(r"([0-9]+\.[0-9]+)(?:\.[0-9]+)?")


def _known(text: str) -> BrokerVersion | None:
    number = _NUMBER.fullmatch(text)
    return None if number is None else _VERSIONS.get(number[1])


def node_version(text: str) -> BrokerVersion:
    """Return the version that a text names, for example 3.10 or 3.10.8. Raises UsageError for one whose behaviour is not known."""
    version = _known(text)
    if version is None:
        raise UsageError(f"{text!r} is not a version whose behaviour is known; give one from {OLDEST_NODE} to {NEWEST_NODE}")
    return version


def target_version(text: str, queue_version: int | None = None) -> BrokerVersion:
    """Return the version that a text names, for example 3.10 or 3.10.8. queue_version: one it must read. Raises UsageError."""
    version = _known(text)
    if version is None:
        raise UsageError(f"{text!r} is not a version of RabbitMQ that can be converted for; they are {', '.join(_VERSIONS)}")
    if queue_version is not None and queue_version not in version.queue_versions:
        raise UsageError(f"RabbitMQ {version.name} does not read queues of version {queue_version}; leave out --queue-version")
    return version
