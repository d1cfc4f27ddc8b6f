"""Definitions as the JSON document that `rabbitmqctl export_definitions` writes and `import_definitions` reads.

As the broker does, it leaves out what every vhost has by itself: the default exchange, those named `amq.…`, and the bindings of the
default exchange. Unlike the broker it includes internal exchanges, and leaves out exclusive queues, which do not outlive a connection.

Format: docs/formats/rabbitmq.md, section 11.
"""

from __future__ import annotations

import base64
from typing import Any

from mqstore.rabbitmq.definitions.metadata import Definitions, Parameter
from mqstore.rabbitmq.erlang.terms import Atom, Term
from mqstore.rabbitmq.message.properties import Fields

POLICIES = b"policy"
# parameters that a broker makes by itself, or that are valid only while it runs
_OWN = (b"internal_cluster_id", b"imported_definition_hash_value")
_IN_PROGRESS = b"exchange-delete-in-progress"
_TYPES = {"rabbit_classic_queue": "classic", "rabbit_quorum_queue": "quorum", "rabbit_stream_queue": "stream"}


def queue_type(module: str) -> str:
    """Return the name of a queue's type by its Erlang module.

    >>> queue_type("rabbit_quorum_queue")
    'quorum'
    """
    return _TYPES.get(module, module)


def definitions_document(definitions: Definitions, *, users: bool = True) -> dict[str, Any]:
    """Return the document. users: with users and their permissions."""
    document: dict[str, Any] = {
        "vhosts": [{"name": _text(name), **_vhost(definitions, name)} for name in definitions.vhosts],
        "exchanges": [
            {
                "name": _text(each.name), "vhost": _text(each.vhost), "type": each.type, "durable": True, "auto_delete": each.auto_delete,
                "internal": each.internal, "arguments": _arguments(each.arguments),
            }
            for each in definitions.exchanges
            if each.durable and each.name and not each.name.startswith(b"amq.")
        ],
        "queues": [
            {
                "name": _text(each.name), "vhost": _text(each.vhost), "type": queue_type(each.type), "durable": True,
                "auto_delete": each.auto_delete, "arguments": _arguments(each.arguments),
            }
            for each in definitions.queues
            if each.durable and not each.exclusive
        ],
        "bindings": [
            {
                "source": _text(each.source), "vhost": _text(each.vhost), "destination": _text(each.destination),
                "destination_type": each.destination_type, "routing_key": _text(each.key), "arguments": _arguments(each.arguments),
            }
            for each in definitions.bindings
            if each.source
        ],
        "policies": [
            {"vhost": _text(each.vhost), "name": _text(each.name), **_value(each.value)}
            for each in definitions.parameters
            if each.component == POLICIES and isinstance(_value(each.value), dict)
        ],
        "parameters": [
            {"vhost": _text(each.vhost), "component": _text(each.component), "name": _text(each.name), "value": _value(each.value)}
            for each in definitions.parameters
            if each.component and each.component not in (POLICIES, _IN_PROGRESS)
        ],
        "global_parameters": [
            {"name": _text(each.name), "value": _value(each.value)} for each in definitions.parameters if _is_global(each)
        ],
    }  # fmt: skip
    if users:
        document["users"] = [
            {
                "name": _text(user.name),
                "password_hash": base64.b64encode(user.password_hash).decode("ascii"),
                "hashing_algorithm": user.hashing_algorithm,
                "tags": list(user.tags),
                "limits": _value(user.limits),
            }
            for user in definitions.users
        ]
        document["permissions"] = [
            {"user": _text(each.user), "vhost": _text(each.vhost), "configure": _text(each.configure or b""), **_patterns(each)}
            for each in definitions.permissions
            if each.exchange is None
        ]
        document["topic_permissions"] = [
            {"user": _text(each.user), "vhost": _text(each.vhost), "exchange": _text(each.exchange), **_patterns(each)}
            for each in definitions.permissions
            if each.exchange is not None
        ]
    return document


def _patterns(permission: Any) -> dict[str, str]:
    return {"write": _text(permission.write), "read": _text(permission.read)}


def _is_global(parameter: Parameter) -> bool:
    return not parameter.component and parameter.name not in _OWN


def _vhost(definitions: Definitions, name: bytes) -> dict[str, Any]:
    noted = _value(definitions.vhost_metadata.get(name, {}))
    return {"metadata": noted} if isinstance(noted, dict) and noted else {}


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


def _arguments(fields: Fields) -> dict[str, Any]:
    return {_text(name): _argument(kind, value) for name, kind, value in fields}


def _argument(kind: str, value: Any) -> Any:
    if kind == "table":
        return _arguments(value)
    if kind == "array":
        return [_argument(*item) for item in value]
    return _text(value) if isinstance(value, bytes) else value


def _value(term: Term) -> Any:
    """Return the value of a parameter: lists of pairs and maps are objects."""
    if isinstance(term, Atom):
        return {"true": True, "false": False, "undefined": None, "null": None}.get(term, str(term))
    if isinstance(term, bytes):
        return _text(term)
    if isinstance(term, dict):
        return {str(_value(key)): _value(value) for key, value in term.items()}
    if isinstance(term, list):
        if term and all(type(item) is tuple and len(item) == 2 and isinstance(item[0], bytes | Atom) for item in term):
            return {str(_value(key)): _value(value) for key, value in term}
        return [_value(item) for item in term]
    return term if isinstance(term, int | float | str | None) else str(term)
