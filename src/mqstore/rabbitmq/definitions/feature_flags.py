r"""Feature flags of RabbitMQ by release, and what those that a node has enabled say about its version.

A node keeps the list of its enabled flags in `<node>-feature_flags` beside its data directory (or in the file that its environment names):

    [classic_mirrored_queue_version,implicit_default_bindings,quorum_queue].

A new node enables all that are stable; after an upgrade those of the new release stay off until someone enables them. So the newest flag
gives the oldest release that can have written the list, and the first release that requires a missing one gives an end: from 3.11 on, a
node that starts on a list without a flag that it requires ends with `disabled_required_feature_flag`.

`FLAGS` is made from the attributes `-rabbit_feature_flag` in the sources of every release from 3.8.0 to 4.3.5.

>>> enabled = read_flags(b"[quorum_queue,implicit_default_bindings,virtual_host_metadata,\n maintenance_mode_status,user_limits].")
>>> releases(enabled)
('3.8', '3.9', '3.10', '3.11')
>>> missing_flags(enabled | {"stream_queue"}, "3.12")[:2]
('classic_mirrored_queue_version', 'classic_queue_type_delivery_support')

Format: docs/formats/rabbitmq.md, section 11.3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.format.layout import cluster_nodes, node_name

RELEASES = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "4.0", "4.1", "4.2", "4.3")
_MOST_BYTES = 1 << 20
_ATOM = re.compile(rb"'([^'\\\n]{1,255})'|([a-z][A-Za-z0-9_@]*)")
_OF_4 = re.compile(r"rabbitmq_(4\.\d{1,2})\.0")


class Flag(NamedTuple):
    """since: the first release that has it. required: the first that does not start without it; None if none does.

    plugin: which brings it; such a flag, even required, keeps no node from starting. enabled: the first that enables it when it starts.
    """

    since: str
    required: str | None = None
    plugin: str = ""
    enabled: str | None = None


FLAGS = {
    "implicit_default_bindings": Flag("3.8.0", "3.11"),
    "quorum_queue": Flag("3.8.0", "3.11"),
    "virtual_host_metadata": Flag("3.8.0", "3.11"),
    "drop_unroutable_metric": Flag("3.8.0", None, "rabbitmq_management_agent"),
    "empty_basic_get_metric": Flag("3.8.0", None, "rabbitmq_management_agent"),
    "maintenance_mode_status": Flag("3.8.8", "3.11"),
    "user_limits": Flag("3.8.10", "3.11"),
    "stream_queue": Flag("3.9.0", "3.12"),
    "classic_mirrored_queue_version": Flag("3.10.0", "3.12"),
    "classic_queue_type_delivery_support": Flag("3.10.9", "3.12"),
    "direct_exchange_routing_v2": Flag("3.11.0", "3.12"),
    "feature_flags_v2": Flag("3.11.0", "3.12"),
    "listener_records_in_ets": Flag("3.11.0", "3.12"),
    "stream_single_active_consumer": Flag("3.11.0", "3.12"),
    "tracking_records_in_ets": Flag("3.11.0", "3.12"),
    "stream_sac_coordinator_unblock_group": Flag("3.11.14", "4.0"),
    "delete_ra_cluster_mqtt_node": Flag("3.12.0", None, "rabbitmq_mqtt"),
    "rabbit_mqtt_qos0_queue": Flag("3.12.0", None, "rabbitmq_mqtt"),
    "restart_streams": Flag("3.12.0", "4.0"),
    "detailed_queues_endpoint": Flag("3.13.0", None, "rabbitmq_management"),
    "khepri_db": Flag("3.13.0", enabled="4.3"),
    "message_containers": Flag("3.13.0", "4.0"),
    "mqtt_v5": Flag("3.13.0", None, "rabbitmq_mqtt"),
    "stream_filtering": Flag("3.13.0", "4.0"),
    "stream_update_config_command": Flag("3.13.0", "4.0"),
    "quorum_queue_non_voters": Flag("3.13.1", enabled="4.3"),
    "message_containers_deaths_v2": Flag("3.13.3", enabled="4.3"),
    "rabbit_exchange_type_local_random": Flag("4.0.0", enabled="4.3"),
    "rabbitmq_4.0.0": Flag("4.0.0", enabled="4.3"),
    "rabbitmq_4.1.0": Flag("4.1.0", enabled="4.3"),
    "rabbitmq_4.2.0": Flag("4.2.0", enabled="4.3"),
    "rabbitmq_4.3.0": Flag("4.3.0"),
    "tie_binding_to_dest_with_keep_while_cond": Flag("4.3.0"),
    "topic_binding_projection_v4": Flag("4.3.0"),
    "track_qq_members_uids": Flag("4.3.0"),
    "topic_binding_projection_v5": Flag("4.3.1"),
}
# deletes the table rabbit_listener, without which nodes before 3.11 end with schema_integrity_check_failed
DELETES_LISTENERS = "listener_records_in_ets"


class FlagsFile(NamedTuple):
    """path: relative to the data directory. enabled: None if the file cannot be read or is not a list of flags."""

    path: str
    enabled: frozenset[str] | None


def read_flags(content: bytes) -> frozenset[str] | None:
    """Return the flags that a file names; None if it is not a list."""
    text = content.strip()
    if not text.startswith(b"[") or not text.endswith(b"]."):
        return None
    return frozenset((quoted or plain).decode("utf-8", "replace") for quoted, plain in _ATOM.findall(text))


def order(release: str) -> tuple[int, ...]:
    """Return a release so that releases can be compared: 3.10 follows 3.9.

    >>> order("3.10") > order("3.9.29")
    True
    """
    return tuple(map(int, release.split(".")))


def newest_flag(enabled: Collection[str]) -> str | None:
    """Return the flag of the newest release; a flag `rabbitmq_4.N.0` counts, where no release is known that has it; None without any."""
    known = [name for name in enabled if name in FLAGS or _OF_4.fullmatch(name)]
    return max(known, key=lambda name: (order(since(name)), name), default=None)


def unknown_flags(enabled: Collection[str]) -> str:
    """Return a clause about flags that no release here has; empty without any."""
    unknown = sorted(name for name in enabled if name not in FLAGS and not _OF_4.fullmatch(name))
    more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
    return f"it names {unknown[0]}{more}, which no release up to {RELEASES[-1]} has: a newer one or a plug-in does" if unknown else ""


def since(name: str) -> str:
    """Return the first release that has a flag."""
    later = _OF_4.fullmatch(name)
    return FLAGS[name].since if name in FLAGS or later is None else f"{later[1]}.0"


def missing_flags(enabled: Collection[str], release: str) -> tuple[str, ...]:
    """Return the flags without which a minor release does not start, and which are not enabled."""
    return tuple(
        name for name, flag in FLAGS.items() if flag.required is not None and order(flag.required) <= order(release) and name not in enabled
    )


def releases(enabled: Collection[str]) -> tuple[str, ...]:
    """Return the minor releases that can have written a list of flags, oldest first; nothing if no flag is known."""
    newest = newest_flag(enabled)
    if newest is None:
        return ()
    first = ".".join(since(newest).split(".")[:2])
    if first not in RELEASES:
        return (first,)
    fit = RELEASES[RELEASES.index(first) :]
    return (first, *(each for each in fit[1:] if not missing_flags(enabled, each) and not _disabled(enabled, each)))


def _disabled(enabled: Collection[str], release: str) -> bool:
    """Return whether a flag that a release enables when it starts is not enabled."""
    return any(flag.enabled is not None and order(flag.enabled) <= order(release) and name not in enabled for name, flag in FLAGS.items())


def flags_file(node: ReadOnlyDirectory) -> FlagsFile | None:
    """Return the list of flags of a data directory: beside it under its name or that of its node, or in it; None if there is none."""
    names = (node.root.name, node_name(node.root), *cluster_nodes(node))
    return _list_file(node, [f"{name}-feature_flags" for name in names], "feature_flags")


def plugins_file(node: ReadOnlyDirectory) -> FlagsFile | None:
    """Return the list of enabled plug-ins beside a data directory or in it; None if it is elsewhere, as it is by default."""
    return _list_file(node, ["enabled_plugins"], "enabled_plugins")


def _list_file(node: ReadOnlyDirectory, beside: Sequence[str], inside: str) -> FlagsFile | None:
    """Return the first list that is there. beside, inside: its names beside the data directory, and in it."""
    try:
        around = ReadOnlyDirectory(Path(node.root).absolute().parent)
    except CannotOpenError:
        around = None
    places = [] if around is None else [(around, name, "../") for name in beside]
    for directory, name, above in (*places, (node, inside, "")):
        if directory.has_entry(name):
            try:
                return FlagsFile(above + name, read_flags(directory.read(name, _MOST_BYTES) or b""))
            except CannotOpenError:
                return FlagsFile(above + name, None)
    return None
