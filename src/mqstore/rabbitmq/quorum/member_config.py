r"""The file `config` of a member: which queue it is a replica of, and the first configuration of its machine.

    >>> text = b'#{uid => <<"2F_Q">>,machine => {module,rabbit_fifo,#{queue_resource => {resource,<<"/">>,queue,<<"q \xc3\xbc">>}}}}.'
    >>> found = read_config(text)
    >>> found.vhost, found.queue, found.machine_version
    ('/', 'q ü', 0)

The file is latin-1, one byte a character, whatever it holds.

Format: docs/formats/rabbitmq-quorum.md, section 1.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mqstore.rabbitmq.erlang.terms import Atom, ErlangTextError, Term, read_text
from mqstore.rabbitmq.quorum.snapshot import members_of

MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """What a member's config states. vhost, queue: None if unknown. members: of the cluster at first, as (name, node).

    machine: the configuration of the machine, as Erlang has it. cluster: the name of the Raft cluster, empty if unknown.
    """

    vhost: str | None = None
    queue: str | None = None
    uid: str = ""
    machine_version: int = 0
    members: tuple[tuple[str, str], ...] = ()
    machine: Term = field(default_factory=dict, hash=False)
    cluster: str = ""


def read_config(content: bytes) -> MemberConfig:
    """Read a config. Raises ErlangTextError."""
    terms = read_text(content.decode("latin-1").encode("utf-8"))
    if len(terms) != 1 or not isinstance(terms[0], dict):
        raise ErlangTextError(0, "the configuration of a member is one map")
    top = terms[0]
    machine = top.get(Atom("machine"))
    config = machine[2] if type(machine) is tuple and len(machine) == 3 and isinstance(machine[2], dict) else {}
    vhost, queue = resource_names(config.get(Atom("queue_resource")))
    uid, version = top.get(Atom("uid")), top.get(Atom("initial_machine_version"))
    return MemberConfig(
        vhost,
        queue,
        uid.decode("latin-1") if type(uid) is bytes else "",
        version if type(version) is int else 0,
        members_of(top.get(Atom("initial_members"))),
        config,
        next((name for name, _ in members_of([top.get(Atom("id"))])), ""),
    )


def named_by_cluster(cluster: str) -> MemberConfig:
    """Return what the name of a cluster says of its queue: the vhost `/`, or none, since other names are ambiguous."""
    return MemberConfig("/", cluster[4:]) if cluster.startswith("%2F_") else MemberConfig()


def resource_names(resource: Term) -> tuple[str | None, str | None]:
    """Return the vhost and the name that `{resource, VHost, queue, Name}` has; None twice for any other term."""
    if type(resource) is tuple and len(resource) == 4 and type(resource[1]) is bytes and type(resource[3]) is bytes:
        return _text(resource[1]), _text(resource[3])
    return None, None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
