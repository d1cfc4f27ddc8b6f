"""`rescue` with real nodes: a node of 4.0.5 or newer has every field of every message that 3.8.9 and 3.10.8 nodes left, whole or damaged.

One node takes the messages of several old ones, whose queues have different names. The commands are those of STEPS.md.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import shutil
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.adopting import Declared, declare
from interop.rabbitmq.amqp import json_bytes, json_properties, typed_tables
from interop.rabbitmq.node import Node, new_node
from interop.rabbitmq.other_node import SUITES, OtherNode, missing, other_node
from interop.rabbitmq.test_convert_against_node import has_expired, merged
from support.golden import Row, case_named, expected, opened_node, run_cli, tree_checksum
from support.rabbitmq_nodes import damaged, delivered_by_the_old_node, unpacked

from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.store.store import RabbitMQStore

pika = pytest.importorskip("pika")
pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

OLD = case_named("3.8.9/a-v1-clean")
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "rabbitmq.md"
PLUGINS = ("rabbitmq_management",)
Message = tuple[str, str, dict[str, Any]]


def message(vhost: str, queue: str, row: Row) -> Message:
    """Return what a consumer sees of a message. Headers are a set: 4.0 sorts them."""
    properties = dict(row["properties"])
    if isinstance(properties.get("headers"), list):
        properties["headers"] = sorted(properties["headers"], key=str)
    names = ("exchange", "redelivered", "payload_len", "payload_sha256")
    return vhost, queue, {name: row[name] for name in names} | {"properties": properties, "routing_key": row["routing_keys"][0]}


def wanted(rows: Iterable[Row]) -> list[Message]:
    """Return the messages that a consumer would receive now, queue by queue, in the order of delivery."""
    alive = (row for row in rows if row["recovered"] and not has_expired(row))
    return sorted((message(row["vhost"], row["queue"], row) for row in alive), key=lambda item: item[:2])


def stored(store: Path) -> list[Row]:
    """Return the messages of a store that a broker recovers."""
    return run_cli("messages", store, "--view", "recovered", "--body", "sha256", "-o", "jsonl").rows


def queues_of(outs: Iterable[Path]) -> list[tuple[str, str]]:
    """Return vhost and name of all queues that are defined."""
    documents = [json.loads((out / "definitions.json").read_text()) for out in outs]
    return sorted({(queue["vhost"], queue["name"]) for document in documents for queue in document["queues"]})


def unmarked(item: Message) -> Message:
    """Return a message without the mark of an earlier delivery."""
    return (*item[:2], {name: value for name, value in item[2].items() if name != "redelivered"})


def in_time(found: Iterable[Message], rows: Iterable[Row]) -> list[Message]:
    """Return delivered messages without those of `rows` that have expired: a node still delivers one that expired behind others."""
    late = [unmarked(message(row["vhost"], row["queue"], row)) for row in rows if row["recovered"] and has_expired(row)]
    return [item for item in found if unmarked(item) not in late]


def delivered(node: OtherNode | Node, queues: Iterable[tuple[str, str]]) -> list[Message]:
    """Get all messages of queues, in order, without acknowledging; they return to their queues, marked as redelivered."""
    found: list[Message] = []
    for vhost, names in itertools.groupby(queues, key=lambda item: item[0]):
        connection = node.connect(vhost)
        with typed_tables():
            for _, name in names:
                channel = connection.channel()
                while True:
                    method, properties, body = channel.basic_get(name)
                    if method is None:
                        break
                    row = {
                        "exchange": json_bytes(method.exchange.encode()), "redelivered": method.redelivered, "payload_len": len(body),
                        "payload_sha256": hashlib.sha256(body).hexdigest(), "properties": json_properties(properties),
                        "routing_keys": [method.routing_key],
                    }  # fmt: skip
                    found.append(message(vhost, name, row))
                channel.close()
        connection.close()
    return found


def rescued(sources: dict[str, Path], base: Path, version: str) -> dict[str, Path]:
    """Rescue each source into a directory of its own below base; return these."""
    outs = {}
    for name, data in sources.items():
        before = tree_checksum(data)
        outs[name] = base / f"out-{name}"
        done = run_cli("rescue", data, "--to", outs[name], "--for", version, "--users", "-o", "json")
        assert done.status == int("damaged" in name), done.stderr
        assert tree_checksum(data) == before
        promised = run_cli("diagnose", outs[name], "--for", version, "-o", "json").document
        assert (promised["starts"], promised["loses"]) == (True, 0), promised
        assert len(stored(outs[name])) == done.document["messages"]
    return outs


def together(outs: Iterable[Path], target: Path) -> Path:
    """Put the stores of several rescues into one directory."""
    chosen = list(outs)
    for out in chosen[1:]:  # 3.8 has other segments than 3.10; queues of version 2 have none
        for file in out.rglob(".config"):
            shutil.copyfile(next(chosen[0].rglob(".config")), file)
    return merged(chosen, target) / "msg_stores"


def check(node: OtherNode, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Return status and sentences of `rescue --check`."""
    monkeypatch.setenv("MQSTORE_MANAGEMENT_USER", "guest")
    monkeypatch.setenv("MQSTORE_MANAGEMENT_PASSWORD", "guest")
    address = f"http://127.0.0.1:{node.management_port}"
    done = run_cli("rescue", out, "--check", address, "--for", node.version, "-o", "json")
    assert "guest" not in done.stdout + done.stderr
    assert done.status in (0, 1), done.stderr
    assert done.document["version"] == node.version
    return done.status, done.document["missing"]


def imported(node: OtherNode, out: Path) -> None:
    """Import the definitions through the management interface; the steps do so with rabbitmqctl."""
    send(node, "POST", "definitions", (out / "definitions.json").read_bytes())


def send(node: OtherNode, method: str, path: str, body: bytes) -> None:
    """Send a request to the management interface."""
    key = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{node.management_port}/api/{path}", body, headers, method=method)
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_a_new_node_has_every_message_of_older_ones_and_works_on_with_them(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := missing(suite):
        pytest.skip(reason)
    names = ("3.8.9-killed", "3.10.8-clean", "3.10.8-killed")
    whole = {"3.8.9-clean": opened_node(OLD), **{name: unpacked(name, tmp_path / name) for name in names}}
    torn = {
        f"{name}-damaged": damaged(unpacked(name, tmp_path / f"{name}-damaged"), segment=name.startswith("3.8"))
        for name in ("3.8.9-killed", "3.10.8-killed")
    }
    with other_node(suite, plugins=PLUGINS) as node:
        outs, torn_outs = rescued(whole, node.base, SUITES[suite]), rescued(torn, node.base, SUITES[suite])
        first = outs["3.8.9-clean"]
        node.start()
        for out in outs.values():
            imported(node, out)
        # what lacks is named, and nothing else
        assert [check(node, out, monkeypatch) for out in outs.values()] == [(0, [])] * 4
        with node.connect("/") as connection:
            connection.channel().queue_delete("fan.b")
        status, sentences = check(node, first, monkeypatch)
        lost = "No binding from exchange 'mix.x' to queue 'fan.b' with key 'fan.b' in vhost '/'."
        assert (status, sentences) == (1, ["No queue 'fan.b' of vhost '/'.", lost])
        address = f"http://127.0.0.1:{node.management_port}"
        shown = GUIDE.read_text().partition("```text check\n")[2].partition("```")[0]
        said = run_cli("rescue", first, "--check", address).stdout
        assert said.split() == shown.replace("http://127.0.0.1:15672", address).replace("4.3.6", node.version).split()

        wrong = run_cli("rescue", first, "--check", address.replace("//", "//guest:wrong@"))
        assert (wrong.status, "refuses the user or the password" in wrong.stderr, "wrong" in wrong.stderr) == (2, True, False)
        send(node, "PUT", "users/seer", b'{"password": "seer", "tags": "management"}')
        partly = run_cli("rescue", first, "--check", address.replace("//", "//seer:seer@"))
        assert (partly.status, "is shown only a part" in partly.stderr) == (2, True)
        in_use = run_cli("rescue", node.data, "--to", tmp_path / "out", "--for", "4.3")
        assert (in_use.status, "is in use: process" in in_use.stderr, (tmp_path / "out").exists()) == (2, True, False)

        # the steps, with the stores of all in place of those of the first
        every = together(outs.values(), node.base / "every")
        shutil.rmtree(first / "msg_stores")
        shutil.move(every, first / "msg_stores")
        node.run_steps((first / "STEPS.md").read_text())
        queues = queues_of(outs.values())
        sent = [*expected(OLD), *(row for name in names for row in delivered_by_the_old_node(name))]
        want = wanted(sent)
        assert in_time(delivered(node, queues), sent) == want
        assert len(want) > 800

        # publish, acknowledge, kill -9, restart: what was not acknowledged is there, and what was confirmed
        connection = node.connect("/")
        channel = connection.channel()
        channel.confirm_delivery()
        got = [channel.basic_get("small") for _ in range(5)]
        for method, _, _ in got[:3]:
            channel.basic_ack(method.delivery_tag)
        for number in range(4):
            publish(channel, "small", b"new" * (1 + 3000 * (number % 2)), number)
        node.kill()
        node.start()
        ids = [item[2]["properties"].get("message_id") for item in delivered(node, [("/", "small")])]
        before = [item[2]["properties"].get("message_id") for item in want if item[:2] == ("/", "small")]
        assert ids[-4:] == ["new-0", "new-1", "new-2", "new-3"]
        acknowledged = {properties.message_id for _, properties, _ in got[:3]}
        assert [each for each in ids[:-4] if each not in acknowledged] == [each for each in before if each not in acknowledged]

        # damaged stores: all that was promised, and nothing else
        node.stop()
        shutil.rmtree(node.data / "msg_stores")
        shutil.move(together(torn_outs.values(), node.base / "torn"), node.data / "msg_stores")
        promised = [row for out in torn_outs.values() for row in stored(out)]
        want = wanted(promised)
        node.start()
        got = delivered(node, queues)
        assert in_time(got, promised) == want
    for name, data in torn.items():
        check_promise(name, data, got)


def publish(channel: Any, queue: str, body: bytes, number: int) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, message_id=f"new-{number}"))


def check_promise(name: str, data: Path, found: list[Message]) -> None:
    """Compare what a damaged directory gave with what `diagnose` says of it, and with what the old node had delivered before the damage."""
    store = RabbitMQStore(data)
    said, rows = diagnose(store, name.partition("-")[0]), list(queue_rows(store))
    had = wanted(delivered_by_the_old_node(name.removesuffix("-damaged")))
    here = [item for item in found if item[:2] in {each[:2] for each in had}]
    lost = {(row["vhost"], row["queue"]): row["lost"] for row in rows if row["lost"]}
    every = run_cli("messages", data, "--body", "sha256", "-o", "jsonl").rows
    expired = sum(map(has_expired, every))  # of which a node still delivers some that are behind others
    assert 0 <= sum(row["messages"] + row["waiting"] for row in rows) - len(here) <= expired
    if said.starts:
        assert 0 <= sum(row["messages"] + row["lost"] + row["waiting"] for row in rows) - said.loses - len(here) <= expired
    left = [json.dumps(item[2] | {"redelivered": True}) for item in here]
    gone = [item for item in had if json.dumps(item[2] | {"redelivered": True}) not in left]
    assert Counter(item[:2] for item in gone) == lost
    assert all(item[2]["payload_len"] > 4000 or item[2]["properties"] for item in gone)


def test_4_3_starts_on_a_copy_of_a_3_10_directory_by_the_steps_in_place_and_3_10_by_those_back(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    queues = [
        Declared("/", "large"),
        Declared("/", "prio", {"x-max-priority": 3}),
        Declared("/", "small"),
        Declared("\u0442 \u03b2", "other"),
    ]
    with new_node() as old, other_node(name=old.name) as new:
        old.start()
        declare(old, queues)
        old.eval('rabbit_policy:set(<<"/">>, <<"short">>, <<"^none$">>, [{<<"max-length">>, 5}], 1, <<"queues">>, <<"mqstore">>).')
        old.eval('rabbit_auth_backend_internal:add_user(<<"keeper">>, <<"secret">>, <<"mqstore">>).')
        for vhost in ("/", "\u0442 \u03b2"):
            fill(old, vhost, [queue.queue for queue in queues if queue.vhost == vhost])
        # a directory in use is refused, and nothing is left of it
        done = run_cli("rescue", old.data, "--to", tmp_path / "out", "--for", "4.3", "--in-place")
        assert done.status == 2
        assert f"{old.data} is in use: process " in done.stderr
        assert list(tmp_path.iterdir()) == []
        old.kill()
        shutil.move(old.data, new.data)
        shutil.move(old.base / "feature_flags", f"{new.data}-feature_flags")
        want = wanted(stored(new.data))
        assert len(want) == 160

        before = tree_checksum(new.data)
        done = run_cli("rescue", new.data, "--to", new.base / "out", "--for", "4.3", "--in-place", "-o", "json")
        assert (done.status, done.document["messages"]) == (0, 160), done.stderr
        assert tree_checksum(new.data) == before
        assert sorted(path.name for path in (new.base / "out").iterdir()) == ["STEPS.md", "msg_stores"]
        there, found, back = (new.base / "out" / "STEPS.md").read_text().partition("## To go back")
        assert found
        assert "small\t40" in new.run_steps(there)
        names = sorted((queue.vhost, queue.queue) for queue in queues)
        assert delivered(new, names) == want
        assert "keeper" in new.ctl("list_users")
        assert "max-length" in new.ctl("list_policies")

        back, found, _ = back.rpartition("systemctl start rabbitmq-server")
        assert found
        new.run_steps(back)
        shutil.move(new.data, old.data)
        shutil.move(f"{new.data}-feature_flags", old.base / "feature_flags")
        old.start()
        assert delivered(old, names) == want


def fill(node: Node, vhost: str, queues: list[str]) -> None:
    """Publish 40 persistent messages to each queue, small and large."""
    connection = node.connect(vhost)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(40):
        for queue in queues:
            body = f"{number} ".encode() * (3000 if queue == "large" else 5)
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, priority=number % 4, headers={"n": number}))
    connection.close()
