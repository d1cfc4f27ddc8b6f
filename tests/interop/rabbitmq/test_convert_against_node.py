"""Converted stores and the real broker: it boots from them and delivers the same, and its own conversion writes the same bytes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import goldenkit
import pytest
from goldenkit import GoldenCase, case_named
from interop.rabbitmq.adopting import Declared, adopt_in, declare, differences
from interop.rabbitmq.node import Node, new_node

from mqstore.rabbitmq.convert import convert

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.xdist_group("interop")]

PLACES = {1: {"queue_store": "index"}, 2: {"index": "queue_store"}}
SETTINGS = {"msg_store_file_size_limit": 262144}


def declared(case: GoldenCase) -> list[Declared]:
    """The queues of a golden store, with their levels."""
    most: dict[tuple[str, str], int | None] = {}
    for row in goldenkit.expected(case):
        key, level = (row["vhost"], row["queue"]), row["priority_level"]
        most[key] = level if level is None else max(level, most.get(key) or 0)
    if case.name == "f-mixed-features":
        most = {key: None if level is None else 5 for key, level in most.items()}
    return [Declared(*key, {} if level is None else {"x-max-priority": level}) for key, level in sorted(most.items())]


def wanted(case: GoldenCase, version: int) -> list[dict[str, Any]]:
    """What the broker is to deliver from a converted store: the golden rows, in the places of that version."""
    return [
        row | {"location": PLACES[version].get(row["location"], row["location"])} for row in goldenkit.expected(case) if row["recovered"]
    ]


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def node(request: pytest.FixtureRequest) -> Iterator[tuple[Node, int]]:
    """A stopped node whose queues have that version, and which knows the queues of all golden stores."""
    with new_node(SETTINGS | {"classic_queue_default_version": request.param}, boot_timeout=40) as node:
        node.start()
        declare(node, list({(q.vhost, q.queue): q for case in goldenkit.RABBITMQ for q in declared(case)}.values()))
        node.stop()
        yield node, request.param


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=goldenkit.case_id)
def test_a_node_boots_from_every_converted_golden_store_and_delivers_the_same(
    node: tuple[Node, int], case: GoldenCase, tmp_path: Path
) -> None:
    running, version = node
    source = goldenkit.opened(case)
    if version == 1:
        convert(source, tmp_path / "other", 2)
        source = tmp_path / "other"
    report = convert(source, tmp_path / "new", version)
    store = tmp_path / "new"
    adopted = adopt_in(running, store, declared(case))
    assert adopted.sound, adopted
    want = wanted(case, version)
    assert report.messages == len(adopted.rows)
    lost_by_the_broker = {(row["queue"], row["seq_id"]) for row in goldenkit.expected(case) if not row["recovered"]}
    got = [row for row in adopted.rows if (row["queue"], row["seq_id"]) not in lost_by_the_broker]
    ignored = ["pos"] if len(got) < len(adopted.rows) else []
    assert differences(got, want, ignored) == []
    assert len(got) == len(want)
    assert not [line for line in adopted.log if "[error]" in line or "crash" in line]


@pytest.mark.parametrize("name", ["b-dirty-journal", "c-segments-16384", "d-large-fanout"])
def test_the_brokers_own_conversion_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    case = case_named(f"{goldenkit.RABBITMQ_VERSION}/{name}")
    queues = declared(case)
    with new_node(SETTINGS) as node:
        node.start()
        declare(node, queues)
        node.stop()
        shutil.rmtree(node.stores)
        shutil.copytree(goldenkit.opened(case) / "msg_stores", node.stores)
        make_writable(node.stores)
        for version in (2, 1):
            before = tmp_path / f"before{version}"
            shutil.copytree(node.stores, before / "msg_stores")
            node.start()
            switch(node, queues, version)
            node.stop()
            convert(before, tmp_path / f"ours{version}", version)
            assert queue_files(tmp_path / f"ours{version}") == queue_files(node.data)


def make_writable(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def switch(node: Node, queues: list[Declared], version: int) -> None:
    """Bring all queues of a running node to a version by policy, and wait for it."""
    for vhost in sorted({queue.vhost for queue in queues}):
        policy = f'rabbit_policy:set(<<"{vhost}">>, <<"version">>, <<".*">>, [{{<<"queue-version">>, {version}}}], 0, <<"queues">>, <<"t">>).'
        assert node.eval(policy) == "ok"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        states = [node.eval(f'oracle:info(<<"{queue.vhost}">>, <<"{queue.queue}">>).') for queue in queues]
        if all(f"{{version,{version}}}" in state for state in states):
            return
        time.sleep(0.2)
    raise AssertionError(states)


def queue_files(root: Path) -> dict[str, bytes]:
    """Names and bytes of the files of all queues; an empty journal says nothing."""
    found = {}
    for path in sorted(root.glob("msg_stores/vhosts/*/queues/*/*")):
        if path.suffix in (".qi", ".qs", ".idx") or path.name == ".queue_name" or (path.suffix == ".jif" and path.stat().st_size):
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    assert found
    return found
