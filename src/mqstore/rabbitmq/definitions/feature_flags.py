"""Feature flags: which releases wrote a node's file of them, and which start on it.

A node keeps the names of the flags that are enabled in `<node>-feature_flags` beside its data directory (`RABBITMQ_FEATURE_FLAGS_FILE`),
as an Erlang list. A new node enables all flags of its release; one that was upgraded keeps those of the older release until someone enables
the rest. A release requires flags: it does not start where they are not enabled, or, where it can, it enables them itself (soft).

    >>> flags = parse(b"[quorum_queue,implicit_default_bindings,virtual_host_metadata,'rabbitmq_4.0.0']")
    >>> sorted(flags)
    ['implicit_default_bindings', 'quorum_queue', 'rabbitmq_4.0.0', 'virtual_host_metadata']
    >>> named(written_by(flags_of("3.12"))), named(written_by(flags_of("3.10"))), named(written_by(flags_of("4.3")))
    ('3.12 or 3.13', '3.10 or 3.11', '4.3')
    >>> lacking(flags_of("3.10"), "4.0")[:2], lacking(flags_of("3.13"), "4.0")
    (('classic_queue_type_delivery_support', 'direct_exchange_routing_v2'), ())

Source: the declarations of flags in the sources of all releases from 3.8.10 to 4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

RELEASES = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "4.0", "4.1", "4.2", "4.3")

_ATOM = re.compile(r"'([^']{1,255})'|([a-z][A-Za-z0-9_@]{0,254})")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the broker itself. since: the release that brought it; required: the first that does not start without it.

    soft: the release that requires it enables it itself. experimental: a new node does not enable it.
    """

    name: str
    since: str
    required: str | None = None
    soft: bool = False
    experimental: tuple[str, ...] = ()


FLAGS = (
    Flag("implicit_default_bindings", "3.8", "3.11"),
    Flag("maintenance_mode_status", "3.8", "3.11"),
    Flag("quorum_queue", "3.8", "3.11"),
    Flag("user_limits", "3.8", "3.11"),
    Flag("virtual_host_metadata", "3.8", "3.11"),
    Flag("stream_queue", "3.9", "3.12"),
    Flag("classic_mirrored_queue_version", "3.10", "3.12"),
    Flag("classic_queue_type_delivery_support", "3.11", "3.12"),
    Flag("direct_exchange_routing_v2", "3.11", "3.12"),
    Flag("feature_flags_v2", "3.11", "3.12"),
    Flag("listener_records_in_ets", "3.11", "3.12"),
    Flag("stream_single_active_consumer", "3.11", "3.12"),
    Flag("tracking_records_in_ets", "3.11", "3.12"),
    Flag("stream_sac_coordinator_unblock_group", "3.11", "4.0"),
    Flag("restart_streams", "3.12", "4.0"),
    Flag("message_containers", "3.13", "4.0"),
    Flag("stream_filtering", "3.13", "4.0"),
    Flag("stream_update_config_command", "3.13", "4.0"),
    Flag("quorum_queue_non_voters", "3.13", "4.3", soft=True),
    Flag("message_containers_deaths_v2", "3.13", "4.3", soft=True),
    Flag("khepri_db", "3.13", "4.3", soft=True, experimental=("3.13", "4.0", "4.1")),
    Flag("rabbitmq_4.0.0", "4.0", "4.3", soft=True),
    Flag("rabbitmq_4.1.0", "4.1", "4.3", soft=True),
    Flag("rabbitmq_4.2.0", "4.2", "4.3", soft=True),
    Flag("rabbitmq_4.3.0", "4.3"),
    Flag("tie_binding_to_dest_with_keep_while_cond", "4.3"),
    Flag("topic_binding_projection_v4", "4.3"),
    Flag("topic_binding_projection_v5", "4.3"),
    Flag("track_qq_members_uids", "4.3"),
)
# since patch releases that a minor release began without: they do not separate two releases
_LATE = frozenset({"classic_queue_type_delivery_support", "stream_sac_coordinator_unblock_group"})
_OF_4 = re.compile(r"rabbitmq_4\.(\d{1,3})\.0")


def parse(raw: bytes) -> frozenset[str]:
    """Return the names in a file of flags; none if it holds no list."""
    text = re.sub(r"%[^\n]*", "", raw.decode("latin-1")).strip()
    if not text.startswith("["):
        return frozenset()
    return frozenset(quoted or plain for quoted, plain in _ATOM.findall(text))


def flags_of(release: str) -> frozenset[str]:
    """Return the flags of the broker that a new node of a release has enabled."""
    at = RELEASES.index(release)
    return frozenset(flag.name for flag in FLAGS if RELEASES.index(flag.since) <= at and release not in flag.experimental)


def written_by(flags: Collection[str]) -> tuple[str, ...]:
    """Return the releases whose node can have left these flags, oldest first; none if there are no flags of the broker.

    A release above those of this table is given by its own flag, as `4.4`.
    """
    newer = sorted(int(found[1]) for name in flags if (found := _OF_4.fullmatch(name)) and f"4.{found[1]}" not in RELEASES)
    if newer:
        return (f"4.{newer[-1]}",)
    brought = [RELEASES.index(flag.since) for flag in FLAGS if flag.name in flags and flag.name not in _LATE and not flag.experimental]
    if not brought:
        return ()
    lowest = max(brought)
    return tuple(release for release in RELEASES[lowest:] if release == RELEASES[lowest] or not _required(release) - set(flags))


def _required(release: str) -> set[str]:
    """Return the flags that are enabled wherever a node of a release has started."""
    at = RELEASES.index(release)
    return {flag.name for flag in FLAGS if flag.required is not None and RELEASES.index(flag.required) <= at}


def lacking(flags: Collection[str], release: str) -> tuple[str, ...]:
    """Return the flags without which a release does not start, of those that are not enabled. Raises ValueError for an unknown release."""
    at = RELEASES.index(release)
    return tuple(
        flag.name
        for flag in FLAGS
        if flag.required is not None and not flag.soft and RELEASES.index(flag.required) <= at and flag.name not in flags
    )


def newer_than(flags: Collection[str], release: str) -> tuple[str, ...]:
    """Return the flags that a release does not know: an older node on the directory of a newer one."""
    at = RELEASES.index(release)
    return tuple(flag.name for flag in FLAGS if RELEASES.index(flag.since) > at and flag.name in flags)


def named(releases: Sequence[str]) -> str:
    """Return releases as text: `3.12`, `3.12 or 3.13`, `3.13 to 4.2`."""
    if len(releases) < 3:
        return " or ".join(releases)
    return f"{releases[0]} to {releases[-1]}"
