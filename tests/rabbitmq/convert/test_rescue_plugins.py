"""Definitions that only a node with a plug-in imports are split off, and a node without it has all the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.node import Node, erlang_binary, missing, new_node
from rabbitmq.test_delayed import node_of
from support.golden import run_cli

from mqstore.rabbitmq.definitions.document import split_plugins


def rescued(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    out = tmp_path / "out"
    outcome = run_cli("rescue", node_of("delayed-messages", tmp_path / "old"), "--to", out, "--for", "3.10", "-o", "json")
    assert outcome.status == 0, outcome
    return outcome.document, out


def read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def test_exchanges_of_a_plug_in_are_in_a_file_of_their_own_with_their_bindings(tmp_path: Path) -> None:
    report, out = rescued(tmp_path)
    assert report["needs_plugins"] == {
        "rabbitmq_delayed_message_exchange": ["exchange 'later' of vhost '/'", "exchange 'später' of vhost '/'"]
    }
    assert report["delayed_messages"] == 30
    rest, own = read(out / "definitions.json"), read(out / "definitions-plugins.json")
    assert (rest["exchanges"], rest["bindings"], sorted(queue["name"] for queue in rest["queues"])) == ([], [], ["orders", "plain"])
    assert sorted(each["name"] for each in own["exchanges"]) == ["later", "später"]
    assert sorted(each["source"] for each in own["bindings"]) == ["later", "später"]
    steps = (out / "STEPS.md").read_text(encoding="utf-8")
    assert "rabbitmq-plugins enable rabbitmq_delayed_message_exchange" in steps
    assert "import_definitions " + str(out / "definitions-plugins.json") in steps
    assert "30 messages that the plug-in rabbitmq_delayed_message_exchange" in steps


def test_parameters_policies_and_unknown_types_are_split_off_and_the_rest_stays() -> None:
    exchange = {"vhost": "/", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    document: dict[str, Any] = {
        "exchanges": [{"name": name, "type": name, **exchange} for name in ("topic", "x-random", "x-own", "x-local-random")],
        "bindings": [
            {"vhost": "/", "source": "topic", "destination": "x-own", "destination_type": "exchange"},
            {"vhost": "/", "source": "topic", "destination": "x-own", "destination_type": "queue"},
        ],
        "parameters": [{"vhost": "/", "component": each, "name": each, "value": {}} for each in ("shovel", "vhost-limits")],
        "policies": [
            {"vhost": "/", "name": "far", "definition": {"federation-upstream-set": "all"}},
            {"vhost": "/", "name": "near", "definition": {"max-length": 5}},
        ],
    }
    own, needed = split_plugins(document)
    assert {kind: [each.get("name", each.get("destination_type")) for each in rows] for kind, rows in document.items()} == {
        "exchanges": ["topic", "x-local-random"],
        "bindings": ["queue"],
        "parameters": ["vhost-limits"],
        "policies": ["near"],
    }
    assert sorted(needed) == ["?", "rabbitmq_federation", "rabbitmq_random_exchange", "rabbitmq_shovel"]
    assert {kind: len(rows) for kind, rows in own.items()} == {"exchanges": 2, "bindings": 1, "parameters": 1, "policies": 1}


def imported(node: Node, document: dict[str, Any]) -> str:
    return node.eval(f"rabbit_definitions:import_raw({erlang_binary(json.dumps(document, ensure_ascii=False))}).")


def names(node: Node, kind: str) -> str:
    return node.eval(f'[element(4, element(2, Each)) || Each <- rabbit_{kind}:list(<<"/">>)].')


@pytest.mark.interop
@pytest.mark.xdist_group("rabbitmq")
def test_a_node_without_the_plug_in_imports_the_rest_and_would_not_import_the_whole(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    _, out = rescued(tmp_path)
    rest, own = read(out / "definitions.json"), read(out / "definitions-plugins.json")
    whole = rest | {kind: rest[kind] + own[kind] for kind in own}
    with new_node() as node:
        node.start()
        assert imported(node, whole) != "ok"
        assert imported(node, rest) == "ok"
        queues = names(node, "amqqueue")
        assert "orders" in queues
        assert "plain" in queues


@pytest.mark.interop
@pytest.mark.xdist_group("rabbitmq")
def test_a_node_with_the_plug_in_imports_what_was_split_off(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    exchange = {"vhost": "/", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    binding = {"vhost": "/", "source": "hashed", "destination": "q", "destination_type": "queue", "routing_key": "1", "arguments": {}}
    document: dict[str, Any] = {
        "exchanges": [{"name": "hashed", "type": "x-consistent-hash", **exchange}],
        "queues": [queue],
        "bindings": [binding],
        "parameters": [],
        "policies": [],
    }
    own, needed = split_plugins(document)
    with new_node() as node:
        (node.base / "plugins").write_text(f"[{','.join(needed)}].")
        node.start()
        assert (imported(node, document), imported(node, own)) == ("ok", "ok")
        assert "hashed" in names(node, "exchange")


@pytest.mark.parametrize(
    ("version", "queue_version", "sentence"),
    [
        ("4.0", 1, "RabbitMQ 4.0 does not write queues of version 1: it reads them, and converts them to version 2 when it starts"),
        ("4.3", 1, "RabbitMQ 4.3 does not read queues of version 1"),
        ("3.8", 2, "RabbitMQ 3.8 does not read queues of version 2"),
    ],
)
def test_a_queue_version_that_a_release_only_reads_is_refused_as_such(
    version: str, queue_version: int, sentence: str, tmp_path: Path
) -> None:
    node = node_of("delayed-messages", tmp_path)
    said = run_cli("convert", node, "--to", tmp_path / "out", "--for", version, "--queue-version", queue_version)
    assert (said.status, sentence in said.stderr) == (2, True), said
