"""The shorter way from 3.10 to 3.12 to 4.3: a new node starts on the old data directory, whose `msg_stores` is replaced.

    OUT/msg_stores/    the classic queues, converted for 4.3
    OUT/STEPS.md       the commands to type; users, permissions, policies and the like stay, since 4.3 takes them over from Mnesia

The old directory is not changed, neither here nor by the steps, which work on a copy beside it. What is known to keep 4.3 from starting
on a directory, or cannot be ruled out, is refused: then the way through definitions remains.

    Khepri                        the metadata of 4.x, or of 3.13 with it: such a node needs no conversion, or has no old tables
    records of older tables       3.8 writes users without limits, on which 4.3 ends with unexpected_record
    no `coordination/`            written by 3.8
    terms without next_seq_id     written by a clean stop of 3.8 or 3.9
    feature flags                 none of 3.10 or newer: 3.8 or 3.9; those of 3.13: its message containers are not those of 4.x
    several nodes                 the member of a cluster waits for the others
    tables that cannot be read    the new node would not start, or would delete the queues that it does not find

A node deletes every queue that its metadata lacks: such directories are reported, and cannot be defined on this way.

Format: docs/formats/rabbitmq.md, sections 7.1 and 11.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.rabbitmq.broker_version import target_version
from mqstore.rabbitmq.convert.convert_queue import QueueReport
from mqstore.rabbitmq.convert.convert_vhost import ConvertReport, convert
from mqstore.rabbitmq.convert.rescue import StoppedNode, queue_names, steps_in_place
from mqstore.rabbitmq.definitions.document import queue_type
from mqstore.rabbitmq.definitions.feature_flags import flags_file, newest_flag, order, since
from mqstore.rabbitmq.definitions.khepri import read_khepri
from mqstore.rabbitmq.definitions.metadata import CLASSIC, MAX_FILE_BYTES, TABLES, file_names, read_definitions, replay
from mqstore.rabbitmq.definitions.node_directory import COORDINATION
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format.layout import find_vhosts
from mqstore.rabbitmq.format.recovery_terms import read_terms

TARGET = "4.3"
OTHERWISE = "leave out --in-place: the new node then gets the definitions first"
# the records of 3.10 to 3.12, by their number of elements; older versions have fewer
_SHAPES = {"vhost": 4, "amqqueue": 21, "internal_user": 6}
_WRITTEN_AS = {"vhost": "vhosts", "amqqueue": "queues", "internal_user": "users"}
_NODE = re.compile(rb"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+")
_FLAGS = "feature_flags"


@dataclass(frozen=True, slots=True)
class InPlaceReport:
    """The result. node: the name that the new node must have; unknown: directories whose queues the metadata lacks, which the node
    deletes; others: queues of other types, which stay where they are; flags: the files `feature_flags` that the steps take away.
    """

    to: str
    version: str
    node: str
    converted: ConvertReport
    unknown: tuple[QueueReport, ...] = ()
    others: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def deleted(self) -> int:
        """Messages that the new node deletes at its start."""
        return sum(queue.messages for queue in self.unknown)

    @property
    def ok(self) -> bool:
        return self.converted.ok and not self.deleted

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What is damaged in the stores; damaged metadata is refused."""
        return self.converted.findings

    def as_dict(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "version": self.version,
            "in_place": True,
            "ok": self.ok,
            "node": self.node,
            "messages": self.converted.messages - self.deleted,
            "deleted": self.deleted,
            "unknown_directories": [queue.directory for queue in self.unknown],
            "not_looked_at": list(self.others),
            "feature_flags": list(self.flags),
            "notes": list(self.notes),
            "converted": self.converted.as_dict(),
        }


def rescue_in_place(
    data: str | Path, to: str | Path, version: str, *, threads: int = 2, progress: Callable[[int, int], None] | None = None
) -> InPlaceReport:
    """Write a new directory with the stores for a node of 4.3 on an old data directory, and the steps.

    Raises NotAStoreError, TargetError, UnsupportedError, UsageError; then nothing is left behind.
    """
    broker = target_version(version)
    if broker.name != TARGET:
        raise UnsupportedError(f"the way in place is known for RabbitMQ {TARGET} only, not for {broker.name}; {OTHERWISE}")
    stopped = StoppedNode(Path(data))
    directory = stopped.directory
    node = _check_source(directory)
    definitions = read_definitions(directory)
    if definitions.damage:
        first = definitions.damage[0]
        raise UnsupportedError(f"the metadata is damaged ({first.file}: {first.detail.rstrip('.')}); {OTHERWISE}")
    known = {
        own
        for queue in definitions.queues
        if queue.durable and not queue.exclusive and queue.vhost in definitions.vhosts
        for _, own in queue.directories()
    }
    flags = _flag_files(Path(data))
    named = ((queue_type(queue.type), *queue.names) for queue in definitions.queues if queue.type != CLASSIC)
    others = tuple(f"{kind} {name!r} of vhost {vhost!r}" for kind, vhost, name in named)
    unknown: list[QueueReport] = []
    notes = stopped.notes
    if not flags:
        notes = (*notes, "feature_flags is neither beside the directory nor in it: that the node is one of 3.10 to 3.12 is assumed")

    def beside(queues: Sequence[QueueReport]) -> Mapping[str, bytes]:
        stopped.check()
        unknown.extend(queue for queue in queues if queue.directory not in known)
        text = steps_in_place(node, Path(data), Path(to), queues, unknown, others)
        return {"STEPS.md": text.encode("utf-8", "surrogateescape")}

    converted = convert(data, to, target=version, names=queue_names(definitions), threads=threads, progress=progress, beside=beside)
    return InPlaceReport(str(to), broker.name, node, converted, tuple(unknown), others, tuple(str(path) for path in flags), notes)


def _flag_files(data: Path) -> list[Path]:
    """Return the files with the feature flags of the old node: beside the data directory by default."""
    data = Path(os.path.abspath(data))
    return [path for path in (data.with_name(f"{data.name}-{_FLAGS}"), data / _FLAGS) if os.path.lexists(path)]


def _refuse(why: str) -> UnsupportedError:
    return UnsupportedError(f"--in-place is for the data directory of a node of 3.10 to 3.12: {why}; {OTHERWISE}")


def _check_source(directory: ReadOnlyDirectory) -> str:
    """Return the name of the node. Raises UnsupportedError if a node of 4.3 would not start on the directory, or may not."""
    if any(_is_vhost(record) for record in read_khepri(directory).records):
        raise _refuse("this one has its metadata in Khepri")
    if not directory.is_directory(COORDINATION):
        raise _refuse("this one has no coordination/, so it is one of 3.8")
    _check_flags(directory)
    vhosts = find_vhosts(directory)
    if not vhosts:
        raise _refuse("this one has no vhost in msg_stores/")
    for path in vhosts:
        noted = read_terms(dets.read_objects(_read(directory, f"{path}/recovery.dets") or b""))
        if any(terms.next_seq is None for terms in noted.values()):
            raise _refuse(f"{path}/recovery.dets is as 3.8 and 3.9 write it")
    missing = [name for name in ("schema.DAT", "rabbit_vhost.DCD", "rabbit_durable_queue.DCD") if not directory.exists(name)]
    if missing:
        raise _refuse(f"this one has no {missing[0]}")
    _check_schema(directory)
    files = {name: content for name in file_names(TABLES) if (content := _read(directory, name)) is not None}
    for table in replay(files, TABLES).records.values():
        for record in table:
            tag = str(record[0])
            if tag in _SHAPES and len(record) < _SHAPES[tag]:
                raise _refuse(
                    f"the {_WRITTEN_AS[tag]} in this one are written as 3.8 writes them, on which a node of {TARGET} does not start"
                )
    nodes: list[bytes] = sorted(set(_NODE.findall(_read(directory, "cluster_nodes.config") or b"")))
    if len(nodes) > 1:
        raise _refuse(f"this one is of a cluster of {len(nodes)} nodes")
    if not nodes:
        raise _refuse("cluster_nodes.config does not name a node")
    return nodes[0].decode("ascii")


def _check_flags(directory: ReadOnlyDirectory) -> None:
    """Refuse the feature flags of older and newer nodes. A file that is damaged says nothing."""
    flags = flags_file(directory)
    newest = None if flags is None or flags.enabled is None else newest_flag(flags.enabled)
    if flags is None or newest is None:
        return
    if order(since(newest)) >= order("3.13"):
        raise _refuse(f"{flags.path} has flags of 3.13 or newer, {newest}")
    if order(since(newest)) < order("3.10"):
        raise _refuse(f"{flags.path} has no flag of 3.10 or newer, so it is of 3.8 or 3.9, or not all of its flags were enabled")


def _check_schema(directory: ReadOnlyDirectory) -> None:
    """Refuse a schema that Mnesia would not load, or that lacks tables."""
    table = dets.read_table(_read(directory, "schema.DAT") or b"")
    if table.damage:
        raise _refuse(f"its schema.DAT is damaged ({table.damage[0].detail.rstrip('.')})")
    named = {str(entry[1]) for entry in table.objects if len(entry) >= 2}
    lacking = [name for name in TABLES if name not in named]
    if lacking:
        raise _refuse(f"its schema.DAT does not name the table {lacking[0]}")


def _is_vhost(record: Any) -> bool:
    return type(record) is tuple and len(record) > 1 and str(record[0]) == "vhost"


def _read(directory: ReadOnlyDirectory, name: str) -> bytes | None:
    try:
        return directory.read(name, MAX_FILE_BYTES)
    except CannotOpenError as error:
        raise _refuse(f"{name} cannot be read ({error})") from None
