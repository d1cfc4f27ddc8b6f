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

    machine: the newest version of the machine of quorum queues that it runs. single_deliveries: whether it records deliveries message
    by message. reads: versions of queues whose messages it keeps. crashes_on_containers: of any version. starts_without_flags: on the
    metadata of 3.10 to 3.12 without their feature flags; how others do is not known. old_redelivered: whether consumers of quorum
    queues get a message of before 3.13 again; None: not known. starts_on_empty_files: of the small ones beside Mnesia's tables; None: not
    known. mends_streams_first: whether it mends the end of a stream before it asks for its offsets; None: not known. drops_wrong_last:
    whether it starts with a write-ahead log of quorum queues whose last record has a wrong checksum; None: not known. has_mirrors: whether
    it heeds mirroring, and the other arguments and policies that 4.0 did away with. starts_renamed: on the metadata of a node of another
    name; None: not known. has_listener_table: whether it ends without that table of Mnesia.
    """

    name: str
    queue_versions: tuple[int, ...]
    containers: bool
    machine: int
    single_deliveries: bool = False
    reads: tuple[int, ...] = (1, 2)
    crashes_on_containers: bool = False
    starts_without_flags: bool = False
    old_redelivered: bool | None = True
    starts_on_empty_files: bool | None = None
    mends_streams_first: bool | None = None
    drops_wrong_last: bool | None = True
    has_mirrors: bool = True
    starts_renamed: bool | None = False
    has_listener_table: bool = False

    @property
    def queue_version(self) -> int:
        """The queue version that is written for it unless another is asked for."""
        return self.queue_versions[0]


_MACHINES = {"3.8": 0, "3.9": 1, "3.11": 3, "3.12": 3, "4.0": 5, "4.1": 7, "4.2": 7}  # of quorum queues
_VERSIONS = {
    **{
        name: BrokerVersion(
            name, (1,), False, _MACHINES[name], reads=(1,), crashes_on_containers=True, drops_wrong_last=drops, has_listener_table=True
        )
        for name, drops in (("3.8", False), ("3.9", None))
    },
    "3.10": BrokerVersion(
        "3.10",
        (1, 2),
        False,
        2,
        crashes_on_containers=True,
        starts_on_empty_files=False,
        mends_streams_first=False,
        has_listener_table=True,
    ),
    **{name: BrokerVersion(name, (1, 2), False, _MACHINES[name], crashes_on_containers=True) for name in ("3.11", "3.12")},
    "3.13": BrokerVersion("3.13", (1, 2), False, 3, old_redelivered=None),
    **{
        name: BrokerVersion(
            name, (2,), True, _MACHINES[name], old_redelivered=None, mends_streams_first=True, has_mirrors=False, starts_renamed=None
        )
        for name in ("4.0", "4.1", "4.2")
    },
    "4.3": BrokerVersion(
        "4.3",
        (2,),
        True,
        8,
        single_deliveries=True,
        reads=(2,),
        starts_without_flags=True,
        old_redelivered=False,
        mends_streams_first=True,
        has_mirrors=False,
        starts_renamed=None,
    ),
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


def versions_with_machine(machine: int) -> list[str]:
    """Return the versions that leave quorum queues with a machine of this version; the newest for one that is newer."""
    newest = min((each.machine for each in _VERSIONS.values() if each.machine >= machine), default=_VERSIONS[NEWEST_NODE].machine)
    return [name for name, each in _VERSIONS.items() if each.machine == newest]


def target_version(text: str, queue_version: int | None = None) -> BrokerVersion:
    """Return the version that a text names, for example 3.10 or 3.10.8. queue_version: one it must read. Raises UsageError."""
    version = _known(text)
    if version is None:
        raise UsageError(f"{text!r} is not a version of RabbitMQ that can be converted for; they are {', '.join(_VERSIONS)}")
    if queue_version is not None and queue_version not in version.queue_versions and queue_version in version.reads:
        raise UsageError(
            f"RabbitMQ {version.name} does not write queues of version {queue_version}: it reads them, and converts them to version "
            f"{version.queue_version} when it starts; leave out --queue-version"
        )
    if queue_version is not None and queue_version not in version.queue_versions:
        raise UsageError(f"RabbitMQ {version.name} does not read queues of version {queue_version}; leave out --queue-version")
    return version
