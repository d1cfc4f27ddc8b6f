"""Which version's node wrote a RabbitMQ store last, as far as its files show it, and by which of them.

Nothing in `msg_stores` states the version. The feature flags of the node do (`definitions.feature_flags`): they give a range of releases,
and a flag of 4.x one.

      with clean.dot of a message store  it names index_module up to 3.13
      with queues of version 1           4.x converts them when it starts

Without flags that are known, the range in which all of these agree, as far as they do:

    redeliver_seq_id in recovery.dets    4.3
    machine of the quorum queues         its version
    names of files of the Raft library   8 digits up to 4.1, 16 since
    vhosts in Khepri                     3.13 and later
    tables without schema_version        3.11 and later: 3.10 does not start without it, 4.0 has none
    coordination/                        3.9 and later
    enabled_plugins                      the release that brought a plug-in
    message containers                   3.13 and later; version 1 queues with them: up to 4.2
    other stored messages                before 3.13, or stored before an upgrade: only where nothing else gives an end

Format: docs/formats/rabbitmq.md, sections 7, 8.3 and 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.broker_version import versions_with_machine
from mqstore.rabbitmq.definitions import feature_flags
from mqstore.rabbitmq.definitions.feature_flags import RELEASES, FlagsFile, newest_flag, order, plugins_file, releases
from mqstore.rabbitmq.definitions.node_directory import raft_file_names
from mqstore.rabbitmq.format import recovery_terms
from mqstore.rabbitmq.format.layout import MNESIA, mapped_bytes, small_file
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection

LOOKED_AT = 10_000  # messages
PLUGINS_SINCE = {"rabbitmq_stream": "3.9", "rabbitmq_stream_management": "3.9"}

_CONTAINER = re.compile(rb"\x83h\x04(?:d\x00|[ws])\x02mc")  # {mc, …}: a tuple of four whose first element is that atom


class VersionEvidence(NamedTuple):
    """version: as text, None if nothing shows it. why: what in the files does, or what is missing. oldest: the first release of a range."""

    version: str | None
    why: str
    oldest: str | None = None

    @property
    def sentence(self) -> str:
        """What is known of the node."""
        known = "The version of the node is not known" if self.version is None else f"Node: {self.version}"
        return f"{known}: {self.why}"


class _Mark(NamedTuple):
    """What shows that a node was of oldest or later, and of newest or earlier. weak: it counts only if nothing else gives an end."""

    oldest: str | None
    newest: str | None
    why: str
    weak: bool = False


def flags_of(store: RabbitMQStore) -> FlagsFile | None:
    """Return the feature flags of the node whose messages these are; None if they are neither beside its directory nor in it."""
    node = store.node
    return None if node is None else feature_flags.flags_file(node)


def are_containers(store: RabbitMQStore) -> Iterator[bool]:
    """Yield, for each stored message, whether it is a message container, as nodes from 3.13 on write them."""
    for rows in store.rows(QueueSelection()):
        table = rows.table
        for row in np.flatnonzero(table.source >= 0).tolist():
            data = mapped_bytes(store.directory, table.sources[int(table.source[row])][0])
            at = int(table.at[row])
            yield data is not None and _CONTAINER.match(data[at : at + 16].tobytes()) is not None


def likely_version(store: RabbitMQStore, *, read_messages: bool = True) -> str:
    """Return the version whose rules answer if none is asked for: the oldest that the files fit, as far as its behaviour is known."""
    by_flags = _by_flags(store)
    if by_flags is not None and by_flags.oldest is not None:
        return min(by_flags.oldest, RELEASES[-1], key=order)
    least = max((mark.oldest for mark in _marks_of_files(store) if mark.oldest is not None), key=order, default=RELEASES[0])
    if any(node.queues for node in store.examined_quorum):
        return least
    return max(least, _of_classic_queues(store, read_messages), key=order)


def _of_classic_queues(store: RabbitMQStore, read_messages: bool) -> str:
    if any(queue.version == 1 for queue in store.queues):
        return "3.10" if all(vhost.config_there for vhost in store.vhosts) else "3.8"
    if lacks_schema_version(store):
        return "4.0"
    return "4.0" if read_messages and any(are_containers(store)) else "3.10"


def lacks_schema_version(store: RabbitMQStore) -> bool:
    """Return whether the tables of Mnesia are there and `schema_version` is not: 3.10 does not start without it, 4.0 has none."""
    node = store.node
    return node is not None and node.has_entry("schema.DAT") and not node.has_entry("schema_version")


def version_evidence(store: RabbitMQStore) -> VersionEvidence:
    """Return what the files suggest; at most `LOOKED_AT` messages are looked at."""
    by_flags = _by_flags(store)
    if by_flags is not None:
        return by_flags
    flags = flags_of(store)
    if flags is None:
        without = "no feature flags are beside the directory"
    elif flags.enabled is None:
        without = f"{flags.path} is not a list of feature flags"
    else:
        without = f"{flags.path} names no feature flag that is known"
    oldest = newest = None
    whys: list[str] = []
    for mark in _marks(store):
        low = mark.oldest if oldest is None or (mark.oldest is not None and order(mark.oldest) > order(oldest)) else oldest
        high = mark.newest if newest is None or (mark.newest is not None and order(mark.newest) < order(newest)) else newest
        agrees = low is None or high is None or order(low) <= order(high)
        if agrees and (low, high) != (oldest, newest) and not (mark.weak and newest is not None):
            oldest, newest = low, high
            whys.append(mark.why)
    if not whys:
        return VersionEvidence(None, f"no message is stored, and {without}: nothing shows the version")
    first = RELEASES.index(oldest or RELEASES[0])
    version = f"{oldest} or later" if newest is None else _range(RELEASES[first : RELEASES.index(newest) + 1])
    return VersionEvidence(version, "; ".join(whys if flags is None else (*whys, without)), oldest)


def _marks(store: RabbitMQStore) -> Iterator[_Mark]:
    """Yield what shows the version besides feature flags, the surest first."""
    yield from _marks_of_files(store)
    count = 0
    for container in islice(are_containers(store), LOOKED_AT):
        if container and any(queue.version == 1 for queue in store.queues):
            yield _Mark("3.13", "4.2", "a stored message is a message container, and there are version 1 queues")
        elif container:
            yield _Mark("3.13", None, "a stored message is a message container, which 3.13 and later write")
        if container:
            return
        count += 1
    if count:
        oldest = "3.10" if any(queue.version == 2 for queue in store.queues) else "3.8"
        yield _Mark(oldest, "3.12", "no stored message that was looked at is a message container, which 3.13 and later write", weak=True)


def _marks_of_files(store: RabbitMQStore) -> Iterator[_Mark]:
    """Yield what shows the version without a look at messages."""
    if any(terms.redeliver is not None for vhost in store.vhosts for terms in vhost.terms.values()):
        yield _Mark("4.3", "4.3", "recovery.dets has redeliver_seq_id, which 4.3 writes")
    if machines := {queue.version for node in store.examined_quorum for queue in node.queues}:
        fit = versions_with_machine(max(machines))
        yield _Mark(fit[0], fit[-1], f"a quorum queue has a machine of version {max(machines)}")
    if (node := store.node) is not None:
        yield from _marks_of_node(store, node)


def _marks_of_node(store: RabbitMQStore, node: ReadOnlyDirectory) -> Iterator[_Mark]:
    names = raft_file_names(node)
    if "long" in names:
        yield _Mark("4.2", None, "files of coordination/ have names of 16 digits, as 4.2 and later give them")
    elif "short" in names:
        yield _Mark("3.9", "4.1", "files of coordination/ have names of 8 digits, as 3.9 to 4.1 give them")
    if store.definitions.vhosts and not any(node.has_entry(name) for name in MNESIA):
        yield _Mark("3.13", None, "the definitions are in Khepri, which 3.13 is the first to have")
    if lacks_schema_version(store):
        yield _Mark("3.11", None, "there is no schema_version, without which 3.10 does not start")
    if (plugins := plugins_file(node)) is None:
        return
    for name in sorted((plugins.enabled or frozenset()) & PLUGINS_SINCE.keys()):
        yield _Mark(PLUGINS_SINCE[name], None, f"{plugins.path} names {name}, which {PLUGINS_SINCE[name]} is the first to have")


def _by_flags(store: RabbitMQStore) -> VersionEvidence | None:
    """Return what the feature flags say, narrowed by what else only some releases write; None if no flag is known."""
    flags = flags_of(store)
    newest = None if flags is None or flags.enabled is None else newest_flag(flags.enabled)
    if flags is None or flags.enabled is None or newest is None:
        return None
    range_ = releases(flags.enabled)
    why = f"{flags.path} names {newest}, which {feature_flags.since(newest)} is the first to have"
    if order(range_[0]) > order(RELEASES[-1]):
        return VersionEvidence(f"{range_[0]} or later", f"{why}; {RELEASES[-1]} is the newest whose behaviour is known", range_[0])
    mark, of_4 = _of_4(store)
    narrowed = tuple(release for release in range_ if of_4 is None or release.startswith("4.") is of_4)
    if narrowed and narrowed != range_:
        why = f"{why}; {mark}"
    else:
        narrowed = range_
    if any(queue.version == 2 for queue in store.queues) and order(narrowed[0]) < order("3.10") <= order(narrowed[-1]):
        narrowed = tuple(each for each in narrowed if order(each) >= order("3.10"))
        why = f"{why}; there are queues of version 2, which 3.10 is the first to have"
    after = RELEASES.index(narrowed[-1]) + 1
    missing = feature_flags.missing_flags(flags.enabled, RELEASES[after]) if after < len(RELEASES) else ()
    if missing:
        why = f"{why}; it does not name {missing[0]}, without which {RELEASES[after]} does not start"
    if unknown := feature_flags.unknown_flags(flags.enabled):
        why = f"{why}; {unknown}"
    return VersionEvidence(_range(narrowed), why, narrowed[0])


def _range(range_: Sequence[str]) -> str:
    return range_[0] if len(range_) == 1 else f"{range_[0]} {'or' if len(range_) == 2 else 'to'} {range_[-1]}"


def _of_4(store: RabbitMQStore) -> tuple[str, bool | None]:
    """Return what shows whether a node of 4.x stopped last on the message stores, and whether one did; None if nothing shows it."""
    for vhost in store.vhosts:
        dot = recovery_terms.read_clean_dot(small_file(store.directory, f"{vhost.persistent.place}/clean.dot") or b"")
        if not isinstance(dot, str):
            if dot.index_module is None:
                return "clean.dot names no index_module, as 4.x writes it", True
            return "clean.dot names an index_module, as nodes before 4.0 write it", False
    if any(queue.version == 1 for queue in store.queues):
        return "there are queues of version 1, which 4.x converts when it starts", False
    return "", None
