"""A running node of 3.8.9: what it leaves, clean and killed, goes to 4.0 and 4.3; what is converted down goes into it; `diagnose` of it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from interop.rabbitmq.adopting import Declared
from interop.rabbitmq.other_node import SUITES, OtherNode, missing, other_node
from interop.rabbitmq.test_convert_against_node import declared, merged
from interop.rabbitmq.test_rescue_into_new_node import Message, delivered, in_time, unmarked, wanted
from support import golden as goldenkit
from support.golden import case_named, expected, run_cli, tree_checksum

from mqstore.rabbitmq.convert.convert_vhost import convert
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.store.store import RabbitMQStore

pika = pytest.importorskip("pika")
pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

QUEUES = (
    Declared("/", "large"), Declared("/", "prio", {"x-max-priority": 3}), Declared("/", "small"), Declared("/", "ttl"),
    Declared("т β", "other"),
)  # fmt: skip
NAMES = sorted((queue.vhost, queue.queue) for queue in QUEUES)
NEWER = ("trixie", "sid")
DOWN = (("3.10.8/a-small-clean",), ("4.0.5/a-v2-kill9",))


def skip_without(*suites: str) -> None:
    for suite in suites:
        if reason := missing(suite):
            pytest.skip(reason)


def declare(node: OtherNode, queues: Iterable[Declared]) -> None:
    for vhost, group in itertools.groupby(sorted(queues, key=lambda queue: queue.vhost), key=lambda queue: queue.vhost):
        if vhost != "/":
            node.ctl("add_vhost", vhost)
            node.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        with node.connect(vhost) as connection:
            channel = connection.channel()
            for queue in group:
                channel.queue_declare(queue.queue, durable=True, arguments=dict(queue.arguments) or None)


def fill(node: OtherNode, first: int, count: int) -> None:
    """Publish persistent messages, small and large, to each queue; acknowledge a few, and leave a few unacknowledged."""
    for vhost, group in itertools.groupby(NAMES, key=lambda item: item[0]):
        with node.connect(vhost) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for (_, queue), number in itertools.product(list(group), range(first, first + count)):
                body = f"{number} ".encode() * (3000 if queue == "large" else 5)
                channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, priority=number % 4, headers={"n": number}))
            if vhost == "/":
                got = [channel.basic_get("small")[0] for _ in range(7)]
                for method in got[:3]:
                    channel.basic_ack(method.delivery_tag)


def tear(data: Path) -> None:
    """Cut the last message file of the vhost `/`."""
    vhost = next(path.parent for path in data.glob("msg_stores/vhosts/*/.vhost") if path.read_bytes() == b"/")
    last = max((vhost / "msg_store_persistent").glob("*.rdq"), key=lambda path: int(path.stem))
    with open(last, "r+b") as file:
        file.truncate(last.stat().st_size * 2 // 3)


def restarted(node: OtherNode, data: Path) -> list[Message]:
    """Start a node on a copy of a data directory, and return what it delivers."""
    shutil.rmtree(node.data)
    shutil.copytree(data, node.data)
    node.start()
    found = delivered(node, NAMES)
    node.kill()
    return found


def test_4_0_and_4_3_have_every_message_of_a_running_3_8_node_that_was_stopped_or_killed(tmp_path: Path) -> None:
    skip_without("bullseye", *NEWER)
    left = {name: tmp_path / name for name in ("clean", "killed", "torn")}
    with other_node("bullseye") as old:
        assert old.version == "3.8.9"
        old.start()
        declare(old, QUEUES)
        fill(old, 0, 40)
        old.stop()
        shutil.copytree(old.data, left["clean"])
        old.start()
        fill(old, 40, 60)
        old.kill()
        shutil.copytree(old.data, left["killed"])
        tear(shutil.copytree(old.data, left["torn"]))
        want = {name: restarted(old, left[name]) for name in ("clean", "killed")}
        torn = restarted(old, left["torn"])
    assert len(want["clean"]) == 5 * 40 - 3
    assert 5 * 100 - 6 <= len(want["killed"]) <= 5 * 100 - 3  # the last acknowledgements may not have reached the disk

    # what the old node makes of a damaged directory is what `diagnose` says
    store = RabbitMQStore(left["torn"])
    said, rows = diagnose(store, "3.8.9"), list(queue_rows(store))
    assert said.starts
    assert said.loses > 0
    assert len(torn) == sum(row["messages"] + row["lost"] + row["waiting"] for row in rows) - said.loses

    for suite in NEWER:
        with other_node(suite) as new:
            outs = {}
            for name, messages in want.items():
                before = tree_checksum(left[name])
                outs[name] = new.base / name
                done = run_cli("rescue", left[name], "--to", outs[name], "--for", SUITES[suite], "--users", "-o", "json")
                assert (done.status, done.document["messages"]) == (0, len(messages)), done.stderr
                assert tree_checksum(left[name]) == before
            second = shutil.copytree(outs["killed"] / "msg_stores", new.base / "second")
            new.run_steps((outs["clean"] / "STEPS.md").read_text())
            assert delivered(new, NAMES) == want["clean"]
            new.stop()
            shutil.rmtree(new.data / "msg_stores")
            shutil.move(second, new.data / "msg_stores")
            new.start()
            assert delivered(new, NAMES) == want["killed"]


def test_3_8_boots_from_what_is_converted_down_to_it_and_delivers_every_message(tmp_path: Path) -> None:
    skip_without("bullseye")
    cases = [case_named(name) for names in DOWN for name in names]
    queues = {(queue.vhost, queue.queue): queue for case in cases for queue in declared(case)}
    with other_node("bullseye") as node:
        node.start()
        declare(node, queues.values())
        node.stop()
        for names in DOWN:
            stores = []
            for case in map(case_named, names):
                stores.append(tmp_path / case.id)
                stores[-1].parent.mkdir(exist_ok=True)
                opened = goldenkit.opened(case) if case.version == "3.10.8" else goldenkit.opened_node(case)
                assert convert(opened, stores[-1], target="3.8").version == 1
            shutil.rmtree(node.data / "msg_stores")
            shutil.copytree(merged(stores, tmp_path / "all" / names[0]) / "msg_stores", node.data / "msg_stores")
            node.start()
            rows = [row for case in map(case_named, names) for row in expected(case)]
            found = in_time(delivered(node, sorted({(row["vhost"], row["queue"]) for row in rows})), rows)
            want = wanted(rows)
            assert [unmarked(item) for item in found] == [unmarked(item) for item in want]
            # an old node marks all messages up to the last one that was delivered
            assert all(here[2]["redelivered"] for here, there in zip(found, want, strict=True) if there[2]["redelivered"])
            assert len(found) > 50
            node.kill()
