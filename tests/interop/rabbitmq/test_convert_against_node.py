"""Converted stores and the real broker: it boots from them and delivers the same, and its own conversion writes the same bytes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.adopting import Declared, adopt_in, declare, differences
from interop.rabbitmq.node import Node, new_node
from support import golden as goldenkit
from support.golden import GoldenCase, case_named

from mqstore.rabbitmq.convert.convert_vhost import convert
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, read_terms, write_terms

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

PLACES = {1: {"queue_store": "index"}, 2: {"index": "queue_store"}}
SETTINGS = {"msg_store_file_size_limit": 262144}


def declared(case: GoldenCase) -> list[Declared]:
    """Return the queues of a golden store, with their levels."""
    most: dict[tuple[str, str], int | None] = {}
    for row in goldenkit.expected(case):
        key, level = (row["vhost"], row["queue"]), row["priority_level"]
        most[key] = level if level is None else max(level, most.get(key) or 0)
    if case.name == "f-mixed-features":
        most = {key: None if level is None else 5 for key, level in most.items()}
    return [Declared(*key, {} if level is None else {"x-max-priority": level}) for key, level in sorted(most.items())]


def wanted(case: GoldenCase, version: int) -> list[dict[str, Any]]:
    """Return the rows that the broker must deliver from a converted store: the golden rows with the locations of that version."""
    return [
        row | {"location": PLACES[version].get(row["location"], row["location"])} for row in goldenkit.expected(case) if row["recovered"]
    ]


def has_expired(row: dict[str, Any]) -> bool:
    """Return whether a node running now drops the message instead of delivering it."""
    return row["expiry_us"] is not None and row["expiry_us"] <= time.time_ns() // 1000


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def node(request: pytest.FixtureRequest) -> Iterator[tuple[Node, int]]:
    """Yield a stopped node that knows the queues of all golden stores, with queues of that version."""
    with new_node(SETTINGS | {"classic_queue_default_version": request.param}) as node:
        node.start()
        declare(node, list({(q.vhost, q.queue): q for case in goldenkit.RABBITMQ for q in declared(case)}.values()))
        node.stop()
        yield node, request.param


# one boot each; e and e2 have the queues of d
TOGETHER = ["a-small-clean", "b-dirty-journal", "b2-journal-replayed-twice", "d-large-fanout", "f-mixed-features", "g1-v2-small-clean"]
ALONE = ["c-segments-16384", "e-gc-combined", "e2-gc-interrupted", "e3-gc-interrupted-zero-extended"]
BATCHES = [[*TOGETHER, "g2-v2-large-dirty"], *([name] for name in ALONE)]


@pytest.mark.parametrize("names", BATCHES, ids=lambda names: "+".join(name.split("-")[0] for name in names))
def test_a_node_boots_from_converted_golden_stores_and_delivers_the_same(node: tuple[Node, int], names: list[str], tmp_path: Path) -> None:
    running, version = node
    cases = [case_named(f"{goldenkit.RABBITMQ_VERSION}/{name}") for name in names]
    stores, messages = [], 0
    for case in cases:
        source = goldenkit.opened(case)
        if version == 1:
            source = tmp_path / f"other-{case.name}"
            convert(goldenkit.opened(case), source, 2)
        report = convert(source, tmp_path / case.name, version)
        messages += report.messages
        stores.append(tmp_path / case.name)
    adopted = adopt_in(running, merged(stores, tmp_path / "all"), [queue for case in cases for queue in declared(case)])
    assert adopted.sound, adopted
    given = [row for case in cases for row in goldenkit.expected(case)]
    lost_by_the_broker = {(row["queue"], row["seq_id"]) for row in given if not row["recovered"]}
    got = [row for row in adopted.rows if (row["queue"], row["seq_id"]) not in lost_by_the_broker]
    want = [row for case in cases for row in wanted(case, version)]
    # a consumer never receives an expired message, and the node uses the current time
    alive = [row for row in want if not has_expired(row)]
    assert messages == len(adopted.rows) + len(want) - len(alive)
    assert differences(got, alive, ["pos"] if len(got) < messages else []) == []
    assert len(got) == len(alive)
    assert not [line for line in adopted.log if "[error]" in line or "crash" in line]


@pytest.mark.parametrize("names", [["b-dirty-journal", "d-large-fanout"], ["c-segments-16384"]], ids=["b+d", "c"])
def test_the_brokers_own_conversion_writes_the_same_bytes(names: list[str], tmp_path: Path) -> None:
    cases = [case_named(f"{goldenkit.RABBITMQ_VERSION}/{name}") for name in names]
    queues = [queue for case in cases for queue in declared(case)]
    with new_node(SETTINGS) as node:
        node.start()
        declare(node, queues)
        node.stop()
        shutil.rmtree(node.stores)
        shutil.copytree(merged([goldenkit.opened(case) for case in cases], tmp_path / "all") / "msg_stores", node.stores)
        for version in (2, 1):
            before = tmp_path / f"before{version}"
            shutil.copytree(node.stores, before / "msg_stores")
            node.start()
            switch(node, queues, version)
            node.stop()
            convert(before, tmp_path / f"ours{version}", version)
            assert queue_files(tmp_path / f"ours{version}") == queue_files(node.data)


def merged(stores: list[Path], target: Path) -> Path:
    """Merge several stores into one for a single boot: queues side by side, message files renumbered, terms in one table."""
    if len(stores) == 1:
        return stores[0]
    numbers: dict[Path, int] = {}
    terms: dict[Path, dict[str, QueueTerms]] = {}
    for store in stores:
        for place in sorted((store / "msg_stores" / "vhosts").iterdir()):
            to = target / "msg_stores" / "vhosts" / place.name
            (to / "msg_store_persistent").mkdir(parents=True, exist_ok=True)
            for name in (".vhost", ".config"):
                assert not (to / name).exists() or (to / name).read_bytes() == (place / name).read_bytes()
                shutil.copyfile(place / name, to / name)
            for queue in sorted((place / "queues").iterdir()):
                shutil.copytree(queue, to / "queues" / queue.name)
            for file in sorted((place / "msg_store_persistent").glob("*.rdq"), key=lambda file: int(file.stem)):
                numbers[to] = numbers.get(to, -1) + 1
                shutil.copyfile(file, to / "msg_store_persistent" / f"{numbers[to]}.rdq")
            noted = place / "recovery.dets"
            terms.setdefault(to, {}).update(read_terms(dets.read_objects(noted.read_bytes())) if noted.exists() else {})
    for to, found in terms.items():
        (to / "recovery.dets").write_bytes(write_terms(found))
    make_writable(target)
    return target


def make_writable(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def switch(node: Node, queues: list[Declared], version: int) -> None:
    """Convert all queues of a running node to a version by policy, and wait for it."""
    for vhost in sorted({queue.vhost for queue in queues}):
        policy = (
            f'rabbit_policy:set(<<"{vhost}">>, <<"version">>, <<".*">>, [{{<<"queue-version">>, {version}}}], 0, <<"queues">>, <<"t">>).'
        )
        assert node.eval(policy) == "ok"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        states = [node.eval(f'oracle:info(<<"{queue.vhost}">>, <<"{queue.queue}">>).') for queue in queues]
        if all(f"{{version,{version}}}" in state for state in states):
            return
        time.sleep(0.2)
    raise AssertionError(states)


def queue_files(root: Path) -> dict[str, bytes]:
    """Return names and bytes of the files of all queues; an empty journal is skipped."""
    found = {}
    for path in sorted(root.glob("msg_stores/vhosts/*/queues/*/*")):
        if path.suffix in (".qi", ".qs", ".idx") or path.name == ".queue_name" or (path.suffix == ".jif" and path.stat().st_size):
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    assert found
    return found
