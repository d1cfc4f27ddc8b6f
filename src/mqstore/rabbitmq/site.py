"""The parts that a node's store has, where each is, and who says that it should be there.

Said by what was given, and by the lists of a clean stop: `file_summary.ets` or `msg_store_index.ets` names message files, `recovery.dets`
directories of queues. Feature flags are beside the data directory of a node. Messages that the plug-in for delayed messages holds are in
a table of Mnesia, and in no message store (`delayed`).

The definitions name vhosts and queues. A queue of version 1 without a directory may be empty; one of version 2, a quorum queue or a stream
has one from the start. In a cluster a queue may be on other nodes: what is in it cannot be told without theirs.

Format: docs/formats/rabbitmq.md, sections 8 and 11.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.definitions.feature_flags import plugins_file
from mqstore.rabbitmq.definitions.metadata import CLASSIC, QueueDefinition
from mqstore.rabbitmq.definitions.node_directory import name_of_node
from mqstore.rabbitmq.delayed import delayed_tables
from mqstore.rabbitmq.erlang.terms import text_of
from mqstore.rabbitmq.format.layout import MNESIA, cluster_nodes, has_metadata, is_away
from mqstore.rabbitmq.format.names import vhost_directory
from mqstore.rabbitmq.quorum.raft_log import RaftDirectory, raft_systems
from mqstore.rabbitmq.version import flags_of
from mqstore.site import Part, Site, State
from mqstore.table.columns import CLASSIC as CLASSIC_TYPE
from mqstore.table.columns import QUORUM as QUORUM_TYPE
from mqstore.table.columns import STREAM as STREAM_TYPE
from mqstore.table.formatting import count

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rabbitmq.store.vhost import Vhost

QUORUM = "rabbit_quorum_queue"
DELAYED = "delayed messages"
_GIVEN = "given"
_EVERY_NODE_HAS = {"msg_stores": "the classic queues", "quorum": "the quorum queues"}


@dataclass(frozen=True, slots=True)
class AbsentQueue:
    """A vhost or queue that the definitions name, and whose files are not here. path: where they should be, relative to the store.

    nodes: on which they are, if not on this one. sure: whether there must be some; an empty queue of version 1 has none. listed: whether
    the list of a clean stop would name one that has messages. vhost, queue: None for all. beside: the directory of a vhost in message
    stores beside the node, empty if there is none. logs: the write-ahead logs that still have records of a quorum queue.
    """

    title: str
    path: str | None
    nodes: tuple[str, ...]
    sure: bool
    vhost: str | None = None
    queue: str | None = None
    beside: str = ""
    listed: bool = False
    logs: tuple[str, ...] = ()

    @property
    def may_have_been_empty(self) -> bool:
        """Whether nothing says that there were messages, and nothing that there were none."""
        return not (self.sure or self.listed)

    @property
    def named_by(self) -> str:
        return "the definitions name" if self.stated else "every node has"

    @property
    def queue_type(self) -> str:
        """The type of the queues: classic, quorum or stream."""
        return {"quorum": QUORUM_TYPE, "stream": STREAM_TYPE}.get((self.path or "").partition("/")[0], CLASSIC_TYPE)

    @property
    def stated(self) -> bool:
        """Whether the node's own lists say that there were queues; without metadata nothing does."""
        return self.path not in _EVERY_NODE_HAS

    @property
    def is_damage(self) -> bool:
        """Whether something that was here is not here any more, or was left behind."""
        return self.sure and self.stated and not self.nodes

    @property
    def known_from(self) -> str:
        if not self.stated:
            return "every node has one"
        return f"definitions: on {', '.join(self.nodes)}" if self.nodes else "definitions"

    @property
    def sentence(self) -> str:
        """What cannot be told, and without what."""
        what = f"what is in {self.title}: that cannot be told without"
        if self.nodes:
            return f"{what} {', '.join(self.nodes)}"
        if self.may_have_been_empty:
            return f"{what} its directory {self.path}; a queue that was always empty has none"
        beside = f"; {self.beside} is there: put it back" if self.beside else ""
        if self.logs:
            beside += f"; {', '.join(self.logs)} has records of it, which a node drops at its start: salvage writes those messages, too"
        return f"{what} {'its directory ' if self.stated else ''}{self.path}, which {self.named_by}{beside}"


def _member(systems: Sequence[RaftDirectory], place: str, vhost: str, queue: str) -> tuple[str, tuple[str, ...]]:
    """Return the directory of a quorum queue's member by names.dets, and the write-ahead logs that have records of it.

    place, that of all members, if it is not in there.
    """
    cluster = f"{'%2F' if vhost == '/' else vhost}_{queue}"
    for system in systems:
        uid = next((uid for uid, name in system.names.items() if name == cluster), None) if system.place == place else None
        if uid is not None:
            return f"{place}/{uid}", tuple(path for path, wal in system.write_ahead_logs if uid.encode("latin-1") in wal.uids)
    return place, ()


def absent_queues(store: RabbitMQStore) -> list[AbsentQueue]:
    """Return the vhosts and queues of the definitions whose files are not here, those that `recovery.dets` counts as empty left out."""
    node = store.node
    if node is None or node.root != store.directory.root:
        return []
    own = name_of_node(node)
    vhosts = {vhost_directory(vhost.name or ""): vhost for vhost in store.vhosts} | {vhost.directory: vhost for vhost in store.vhosts}
    members = {queue.name for queue in store.quorum_queues}
    systems = raft_systems(store.directory, "quorum")
    absent = []
    if not store.definitions.vhosts and not vhosts:
        for place, title in _EVERY_NODE_HAS.items():
            if not store.directory.is_directory(place) and (place == "msg_stores" or has_metadata(store.directory)):
                absent.append(AbsentQueue(title, place, (), sure=True))
    for vhost in store.definitions.vhosts:
        if vhost_directory(vhost) not in vhosts:
            number = sum(queue.vhost == vhost and queue.type == CLASSIC and queue.durable for queue in store.definitions.queues)
            if not number:
                continue  # the node makes its directory, and no message was in it
            title = f"vhost {text_of(vhost)!r} ({count(number, 'classic queue')})"
            place = f"msg_stores/vhosts/{vhost_directory(vhost)}"
            beside = f"../{place}" if os.path.isdir(f"{node.root}/../{place}") else ""
            absent.append(AbsentQueue(title, place, (), sure=True, vhost=text_of(vhost), beside=beside))
    for queue in store.definitions.queues:
        away = queue.nodes if own is not None and queue.nodes and own not in queue.nodes else ()
        names = queue.names
        title = f"queue {names[1]!r} of vhost {names[0]!r}"
        if not queue.durable or queue.exclusive:
            continue
        if queue.type == QUORUM:
            if names not in members:
                place, logs = _member(systems, f"quorum/{own or 'NODE'}", *names)
                absent.append(AbsentQueue(f"quorum {title}", place, away, True, *names, logs=logs))
        elif queue.stream_directory is not None:
            place = f"stream/{queue.stream_directory}"
            if not store.directory.is_directory(place):
                absent.append(AbsentQueue(f"stream {title.removeprefix('queue ')}", place, away, True, *names))
        elif (holder := vhosts.get(vhost_directory(queue.vhost))) is not None:
            absent += _without_directory(store, holder, queue, title, away)
    return absent


def _without_directory(
    store: RabbitMQStore, vhost: Vhost, queue: QueueDefinition, title: str, away: tuple[str, ...]
) -> Iterator[AbsentQueue]:
    missing = [own for _, own in queue.directories() if own not in vhost.terms and not store.directory.has_entry(_place(vhost, own))]
    if missing:
        # the messages of a store without any queue were in some
        of_version_2 = all(each.version == 2 for each in vhost.queues) if vhost.queues else len(vhost.persistent) > 0
        sure = bool(away) or queue.version == 2 or of_version_2
        yield AbsentQueue(title, _place(vhost, missing[0]), away, sure, *queue.names, listed=bool(vhost.terms))


def _place(vhost: Vhost, directory: str) -> str:
    return vhost.place.below(f"queues/{directory}")


def site_of(store: RabbitMQStore) -> Site:
    """Return the parts of a store."""
    node = store.node
    parts = (*(part for vhost in store.vhosts for part in _vhost_parts(store, vhost)), *_node_parts(store, node))
    unpacked, archive = os.path.abspath(store.directory.root), os.path.abspath(store.path)
    return Site(parts if unpacked == archive else tuple(_named_by(part, unpacked, str(store.path)) for part in parts))


def _named_by(part: Part, unpacked: str, archive: str) -> Part:
    """Return a part of an archive under the archive's name: the place where it is unpacked is about to vanish."""
    return part if part.path is None else replace(part, path=os.path.join(archive, os.path.relpath(part.path, unpacked)))


def _vhost_parts(store: RabbitMQStore, vhost: Vhost) -> Iterator[Part]:
    def absolute(path: str) -> str:
        return str(store.directory.path(path))

    def state(path: str, missing: bool) -> State:
        if is_away(store.directory, path):
            return "not-read"
        return "absent" if not store.directory.is_directory(path) else "partly" if missing else "here"

    files, queues = vhost.missing_files, vhost.missing_queues
    stores, below = vhost.persistent.place, vhost.place.below("queues")
    yield Part("message store", absolute(stores), state(stores, bool(files)), _GIVEN, wanted=bool(files))
    for file in files if store.directory.is_directory(stores) else ():
        yield Part("message file", absolute(file.path), "absent" if file.there is None else "partly", file.known_from)
    yield Part("queues", absolute(below), state(below, bool(queues)), _GIVEN, wanted=bool(queues))
    for queue in queues:
        yield Part(f"queue {queue.queue}", absolute(queue.path), "absent", f"recovery.dets: {count(queue.messages, 'message')}")


def _node_parts(store: RabbitMQStore, node: ReadOnlyDirectory | None) -> Iterator[Part]:
    if node is None:
        yield Part("definitions", None, "absent", "no data directory of a node is around what was given", wanted=False)
        return
    held = "Mnesia" if any(node.has_entry(name) for name in MNESIA) else "Khepri" if store.definitions.vhosts else ""
    place = node.path("coordination") if held == "Khepri" else node.root
    if held and not store.definitions.vhosts:
        yield Part("definitions", str(place), "partly", f"{held}, in which no vhost can be read")
    else:
        yield Part("definitions", str(place), "here" if held else "absent", held or "no Mnesia and no Khepri is in it", wanted=False)
    flags = flags_of(store)
    if flags is None:
        yield Part("feature flags", f"{node.root}-feature_flags", "absent", "a node writes them beside its directory", wanted=False)
    else:
        yield Part("feature flags", os.path.normpath(str(node.path(flags.path))), "here", "found")
    if (plugins := plugins_file(node)) is not None:
        yield Part("enabled plug-ins", os.path.normpath(str(node.path(plugins.path))), "here", "found")
    for name in ("quorum", "stream"):
        if node.is_directory(name):
            yield Part(f"{name} queues" if name == "quorum" else "streams", str(node.path(name)), "here", "found")
    own = name_of_node(node)
    for member in cluster_nodes(node):
        if own is not None and member != own:
            yield Part(f"node {member}", None, "elsewhere", "cluster_nodes.config: a member of the cluster")
    for absent in absent_queues(store):
        path = None if absent.path is None else str(store.directory.path(absent.path))
        yield Part(absent.title, path, "elsewhere" if absent.nodes else "absent", absent.known_from, wanted=absent.sure)
    for table in delayed_tables(node):
        read = f"found: {count(len(table.messages), 'message')} that wait"
        yield Part(DELAYED, str(node.path(table.file)), "partly" if table.damage else "here", read)
