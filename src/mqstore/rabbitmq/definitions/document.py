"""Definitions as the JSON document that `rabbitmqctl export_definitions` writes and `import_definitions` reads.

What belongs to plug-ins can be split off, since a node without them imports nothing after it.

As the broker does, it leaves out what every vhost has by itself: the default exchange, those named `amq.…`, and the bindings of the
default exchange. Unlike the broker it includes internal exchanges, and leaves out exclusive queues, which do not outlive a connection.

Format: docs/formats/rabbitmq.md, section 11.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.definitions.metadata import Definitions, Parameter
from mqstore.rabbitmq.erlang.terms import Atom, Term, text_of
from mqstore.rabbitmq.message.properties import Fields

POLICIES = b"policy"
# parameters that a broker makes by itself, or that are valid only while it runs
_OWN = (b"internal_cluster_id", b"imported_definition_hash_value")
_IN_PROGRESS = b"exchange-delete-in-progress"
_TYPES = {"rabbit_classic_queue": "classic", "rabbit_quorum_queue": "quorum", "rabbit_stream_queue": "stream"}


# types of exchanges that every node has, the last one from 4.0 on
_EXCHANGE_TYPES = frozenset({"direct", "fanout", "topic", "headers", "x-local-random"})
PLUGIN_OF_EXCHANGE = {
    "x-consistent-hash": "rabbitmq_consistent_hash_exchange",
    "x-delayed-message": "rabbitmq_delayed_message_exchange",
    "x-federation-upstream": "rabbitmq_federation",
    "x-jms-topic": "rabbitmq_jms_topic_exchange",
    "x-lvc": "rabbitmq_lvc_exchange",
    "x-modulus-hash": "rabbitmq_sharding",
    "x-random": "rabbitmq_random_exchange",
    "x-recent-history": "rabbitmq_recent_history_exchange",
    "x-rtopic": "rabbitmq_rtopic_exchange",
}
_PLUGIN_OF_COMPONENT = {
    "federation-upstream": "rabbitmq_federation",
    "federation-upstream-set": "rabbitmq_federation",
    "shovel": "rabbitmq_shovel",
}
_PLUGIN_OF_KEY = {
    "federation-upstream": "rabbitmq_federation",
    "federation-upstream-pattern": "rabbitmq_federation",
    "federation-upstream-set": "rabbitmq_federation",
    "routing-key": "rabbitmq_sharding",
    "shards-per-node": "rabbitmq_sharding",
}


def queue_type(module: str) -> str:
    """Return the name of a queue's type by its Erlang module.

    >>> queue_type("rabbit_quorum_queue")
    'quorum'
    """
    return _TYPES.get(module, module)


def definitions_document(definitions: Definitions, *, users: bool = True) -> dict[str, Any]:
    """Return the document. users: with users and their permissions."""
    document: dict[str, Any] = {
        "vhosts": [{"name": text_of(name), **_vhost(definitions, name)} for name in definitions.vhosts],
        "exchanges": [
            {
                "name": text_of(each.name), "vhost": text_of(each.vhost), "type": each.type, "durable": True,
                "auto_delete": each.auto_delete, "internal": each.internal, "arguments": _arguments(each.arguments),
            }
            for each in definitions.exchanges
            if each.durable and each.name and not each.name.startswith(b"amq.")
        ],
        "queues": [
            {
                "name": text_of(each.name), "vhost": text_of(each.vhost), "type": queue_type(each.type), "durable": True,
                "auto_delete": each.auto_delete, "arguments": _arguments(each.arguments),
            }
            for each in definitions.queues
            if each.durable and not each.exclusive
        ],
        "bindings": [
            {
                "source": text_of(each.source), "vhost": text_of(each.vhost), "destination": text_of(each.destination),
                "destination_type": each.destination_type, "routing_key": text_of(each.key), "arguments": _arguments(each.arguments),
            }
            for each in definitions.bindings
            if each.source
        ],
        "policies": [
            {"vhost": text_of(each.vhost), "name": text_of(each.name), **_value(each.value)}
            for each in definitions.parameters
            if each.component == POLICIES and isinstance(_value(each.value), dict) and not is_encrypted(each.value)
        ],
        "parameters": [
            {"vhost": text_of(each.vhost), "component": text_of(each.component), "name": text_of(each.name), "value": _value(each.value)}
            for each in definitions.parameters
            if each.component and each.component not in (POLICIES, _IN_PROGRESS) and not is_encrypted(each.value)
        ],
        "global_parameters": [
            {"name": text_of(each.name), "value": _value(each.value)}
            for each in definitions.parameters
            if _is_global(each) and not is_encrypted(each.value)
        ],
    }  # fmt: skip
    if users:
        document["users"] = [
            {
                "name": text_of(user.name),
                "password_hash": base64.b64encode(user.password_hash).decode("ascii"),
                "hashing_algorithm": user.hashing_algorithm,
                "tags": list(user.tags),
                "limits": _value(user.limits),
            }
            for user in definitions.users
        ]
        document["permissions"] = [
            {"user": text_of(each.user), "vhost": text_of(each.vhost), "configure": text_of(each.configure or b""), **_patterns(each)}
            for each in definitions.permissions
            if each.exchange is None
        ]
        document["topic_permissions"] = [
            {"user": text_of(each.user), "vhost": text_of(each.vhost), "exchange": text_of(each.exchange), **_patterns(each)}
            for each in definitions.permissions
            if each.exchange is not None
        ]
    return document


def is_encrypted(term: Term) -> bool:
    """Return whether a value has {encrypted, …} in it, as the configuration of a node may have, which only its passphrase opens."""
    if isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Atom) and term[0] == "encrypted":
        return True
    parts = term.values() if isinstance(term, dict) else term if isinstance(term, list | tuple) else ()
    return any(is_encrypted(part) for part in parts)


def encrypted_values(definitions: Definitions) -> Iterator[str]:
    """Yield a sentence for each parameter that is left out because its value is encrypted."""
    for each in definitions.parameters:
        if is_encrypted(each.value):
            what = f"parameter {text_of(each.name)!r}{f' of vhost {text_of(each.vhost)!r}' if each.vhost else ''}"
            yield f"the value of {what}: it is encrypted, and cannot be told without the passphrase of the old node"


def split_plugins(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Take out of a document what only a node with a plug-in imports: exchanges of its types with their bindings, parameters, policies.

    Returns a document of these, and what each plug-in is needed for. A node without the plug-in ends the import of a document that has
    any of them, and what was not imported before it is missing. A type that is not known is of the plug-in "?".
    """
    needed: dict[str, list[str]] = {}

    def split(kind: str, plugin_of: Callable[[Any], str | None], title: str) -> list[dict[str, Any]]:
        own = [(each, plugin_of(each)) for each in document[kind]]
        document[kind] = [each for each, plugin in own if plugin is None]
        for each, plugin in own:
            if plugin is not None:
                needed.setdefault(plugin, []).append(f"{title} {each['name']!r} of vhost {each['vhost']!r}")
        return [each for each, plugin in own if plugin is not None]

    exchanges = split(
        "exchanges", lambda each: None if each["type"] in _EXCHANGE_TYPES else PLUGIN_OF_EXCHANGE.get(each["type"], "?"), "exchange"
    )
    taken = {(each["vhost"], each["name"]) for each in exchanges}
    bindings = [
        each
        for each in document["bindings"]
        if (each["vhost"], each["source"]) in taken
        or (each["destination_type"] == "exchange" and (each["vhost"], each["destination"]) in taken)
    ]
    document["bindings"] = [each for each in document["bindings"] if each not in bindings] if bindings else document["bindings"]
    parameters = split("parameters", lambda each: _PLUGIN_OF_COMPONENT.get(each["component"]), "parameter")
    policies = split(
        "policies", lambda each: next((_PLUGIN_OF_KEY[key] for key in each["definition"] if key in _PLUGIN_OF_KEY), None), "policy"
    )
    split_off = {"exchanges": exchanges, "bindings": bindings, "parameters": parameters, "policies": policies}
    return split_off, {plugin: tuple(names) for plugin, names in sorted(needed.items())}


def _patterns(permission: Any) -> dict[str, str]:
    return {"write": text_of(permission.write), "read": text_of(permission.read)}


def _is_global(parameter: Parameter) -> bool:
    return not parameter.component and parameter.name not in _OWN


def _vhost(definitions: Definitions, name: bytes) -> dict[str, Any]:
    noted = _value(definitions.vhost_metadata.get(name, {}))
    return {"metadata": noted} if isinstance(noted, dict) and noted else {}


def _arguments(fields: Fields) -> dict[str, Any]:
    return {text_of(name): _argument(kind, value) for name, kind, value in fields}


def _argument(kind: str, value: Any) -> Any:
    if kind == "table":
        return _arguments(value)
    if kind == "array":
        return [_argument(*item) for item in value]
    return text_of(value) if isinstance(value, bytes) else value


def _value(term: Term) -> Any:
    """Return the value of a parameter: lists of pairs and maps are objects."""
    if isinstance(term, Atom):
        return {"true": True, "false": False, "undefined": None, "null": None}.get(term, str(term))
    if isinstance(term, bytes):
        return text_of(term)
    if isinstance(term, dict):
        return {str(_value(key)): _value(value) for key, value in term.items()}
    if isinstance(term, list):
        if term and all(type(item) is tuple and len(item) == 2 and isinstance(item[0], bytes | Atom) for item in term):
            return {str(_value(key)): _value(value) for key, value in term}
        return [_value(item) for item in term]
    return term if isinstance(term, int | float | str | None) else str(term)


# ---- queue names supplied by the user, for directories without a valid `.queue_name`
#
# Either lines of text, vhost and queue with a tab between them, or the definitions that `rabbitmqctl export_definitions` and the
# management plugin write. A name is used only if its digest is the name of a directory, so surplus names do no harm.

MAX_FILE_BYTES = 256 << 20


def read_queue_names(file: Path) -> tuple[tuple[str, str], ...]:
    """Return the pairs of vhost and queue that a file names. Raises CannotOpenError, UsageError."""
    raw = ReadOnlyDirectory(file.parent).read(file.name, MAX_FILE_BYTES)
    if raw is None:
        raise CannotOpenError(f"{file} does not exist; give lines `vhost<TAB>queue`, or what `rabbitmqctl export_definitions` writes")
    try:
        return tuple(parse_queue_names(raw.decode("utf-8")))
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8; give lines `vhost<TAB>queue`") from None
    except ValueError as error:
        raise UsageError(f"{file} {error}; give lines `vhost<TAB>queue`, or what `rabbitmqctl export_definitions` writes") from None


def parse_queue_names(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of vhost and queue in a text. Raises ValueError.

    >>> list(parse_queue_names("/\\torders\\n/\\tбилеты\\n"))
    [('/', 'orders'), ('/', 'билеты')]
    >>> list(parse_queue_names('{"queues": [{"name": "orders", "vhost": "/", "durable": true}]}'))
    [('/', 'orders')]
    """
    if text.lstrip().startswith("{"):
        yield from _parse_definitions(text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        vhost, tab, queue = line.partition("\t")
        if line and (not tab or "\t" in queue):
            raise ValueError(f"has a line {number} that is not `vhost<TAB>queue`")
        if line:
            yield vhost, queue


def _parse_definitions(text: str) -> Iterator[tuple[str, str]]:
    try:
        queues = json.loads(text).get("queues", [])
    except (ValueError, RecursionError):
        raise ValueError("begins like JSON but is not valid JSON") from None
    for queue in queues if isinstance(queues, list) else []:
        vhost, name = (queue.get("vhost"), queue.get("name")) if isinstance(queue, dict) else (None, None)
        if not isinstance(vhost, str) or not isinstance(name, str):
            raise ValueError("has a queue without vhost and name: definitions of a single vhost do not name it")
        yield vhost, name
