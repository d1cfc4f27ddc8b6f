"""Salvaged messages in a real broker: a new store that it starts from, and messages sent to it, confirmed, resumed after a break."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq import other_node
from interop.rabbitmq.adopting import Adopted, Declared, adopt, declare, drain_all
from interop.rabbitmq.node import Node, new_node
from support import golden as goldenkit
from support import quorum, streams
from support.golden import case_named, run_cli
from support.images import files_of, shuffled_image
from support.rabbitmq_index import message_id
from support.rabbitmq_wrecks import STORE, Q, body, in_journal, in_segment, in_store, vhost

from mqstore.errors import MqstoreError, TargetError
from mqstore.rabbitmq.amqp_sender import OutgoingMessage, Sender, outgoing_messages
from mqstore.rabbitmq.format import journal, segment
from mqstore.rabbitmq.message.properties import properties_to_bin
from mqstore.rabbitmq.salvage import open_wreck, salvage_store

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

B = case_named(f"{goldenkit.RABBITMQ_VERSION}/b-dirty-journal")
F = case_named(f"{goldenkit.RABBITMQ_VERSION}/f-mixed-features")


@pytest.mark.parametrize("version", [1, 2])
def test_a_node_starts_from_the_salvage_of_a_store_on_which_it_does_not_start(version: int, tmp_path: Path) -> None:
    # a segment that ends inside an entry, and a missing delivery: the node would hang during boot
    torn = segment.publish(9, message_id(9), bytes(400), size=3)[:200]
    files = {
        f"{Q}/0.idx": in_segment(1) + in_segment(0, marked=False) + in_segment(2, embedded=False) + torn,
        f"{Q}/journal.jif": journal.acknowledge(0) + in_journal(2050) + in_journal(2051)[:60],
        f"{STORE}/3.rdq": bytes(500) + in_store(2) + in_store(7),
    }
    wreck = open_wreck(vhost(tmp_path / "msg_stores", files))
    assert salvage_store(wreck, tmp_path / "fresh", version, into="saved").messages == 4
    queues = [Declared("/", "q"), Declared("/", "saved")]
    adopted = adopt(tmp_path / "fresh", queues, {"classic_queue_default_version": version})
    assert adopted.sound, adopted
    assert [(row["queue"], row["seq_id"], row["payload_len"]) for row in adopted.rows] == [
        ("q", 1, len(body(1))),
        ("q", 2, len(body(2))),
        ("q", 2050, len(body(2050))),
        ("saved", 0, len(body(7))),
    ]
    assert not [line for line in adopted.log if "[error]" in line or "crash" in line]


def test_a_node_delivers_the_messages_of_records_whose_heads_were_damaged(tmp_path: Path) -> None:
    """It finds none of the last three in the old store: a size that leads past them, a head of garbage, a wrong id."""
    long, renamed = bytearray(in_store(2)), bytearray(in_store(6))
    long[:8] = (4 * len(long)).to_bytes(8, "big")
    renamed[12] ^= 0xFF
    files = {
        f"{Q}/0.idx": b"".join(in_segment(number, embedded=False) for number in (1, 2, 4, 6)),
        f"{STORE}/0.rdq": in_store(1) + bytes(long) + b"\xee" * 24 + in_store(4)[24:] + bytes(renamed),
    }
    wreck = open_wreck(vhost(tmp_path / "msg_stores", files))
    assert salvage_store(wreck, tmp_path / "fresh", 2).messages == 4
    adopted = adopt(tmp_path / "fresh", [Declared("/", "q")], {"classic_queue_default_version": 2})
    assert adopted.sound, adopted
    assert [(row["seq_id"], row["payload_len"]) for row in adopted.rows] == [(number, len(body(number))) for number in (1, 2, 4, 6)]


def test_a_node_starts_from_a_store_of_messages_that_were_carved_out_of_an_image(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(shuffled_image(files_of([F]), 4))
    done = run_cli("salvage", image, "--to", tmp_path / "fresh", "--as", "rabbitmq", "--into", "saved", "--for", "3.10", "-o", "json")
    assert done.status == 1, done.stderr  # bytes belonged to nothing
    adopted = adopt(tmp_path / "fresh", [Declared("/", "saved")], {"classic_queue_default_version": 1})
    assert adopted.sound, adopted
    assert len(adopted.rows) == done.document["messages"] > 50
    persistent = {row["payload_sha256"] for row in goldenkit.expected(F) if row["recovered"]}
    assert persistent <= {row["payload_sha256"] for row in adopted.rows}


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[Node, list[Declared]]]:
    queues = [Declared("/", "orders.b")]
    names = {(row["queue"], row["priority_level"] is not None) for row in goldenkit.expected(F) if row["vhost"] == "/"}
    queues += [Declared("/", name, {"x-max-priority": 5} if levels else {}) for name, levels in sorted(names)]
    with new_node() as node:
        node.start()
        declare(node, queues)
        yield node, queues


def url(node: Node, vhost: str = "%2F") -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.port}/{vhost}"


def waiting(node: Node, queues: list[Declared]) -> dict[str, list[dict[str, Any]]]:
    """Return the messages that a broker delivers from each queue, in order."""
    found = Adopted()
    drain_all(node, queues, found)
    assert not found.failed, found.failed
    by_queue: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.rows:
        by_queue[row["queue"]].append(row)
    return by_queue


def purge(node: Node, queues: list[Declared]) -> None:
    connection = node.connect("/")
    for queue in queues:
        connection.channel().queue_purge(queue.queue)
    connection.close()


def test_messages_arrive_in_order_with_their_properties(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, queues = broker
    done = run_cli("salvage", goldenkit.opened(F), "--to", url(node), "-o", "json")
    assert done.status == 0, done.stderr
    want: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in goldenkit.expected(F):
        if row["vhost"] == "/":
            want[row["queue"]].append(row)
    found = waiting(node, queues)
    for name in sorted(want):
        told = [row for row in want[name] if row["recovered"]]
        got = {row["payload_sha256"]: row for row in found[name]}
        order = [row["payload_sha256"] for row in found[name] if row["payload_sha256"] in {each["payload_sha256"] for each in told}]
        assert order == [row["payload_sha256"] for row in told]
        for row in told:
            properties = dict(row["properties"])
            if "headers" in properties:
                properties["headers"] = [field for field in properties["headers"] if field[0] not in ("CC", "BCC")]
            assert got[row["payload_sha256"]]["properties"] == properties
    purge(node, queues)


def test_messages_carved_out_of_an_image_arrive(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, queues = broker
    image = tmp_path / "image"
    image.write_bytes(shuffled_image(files_of([F]), 6))
    done = run_cli("salvage", image, "--to", url(node), "--into", "orders.b", "--resume", tmp_path / "sent.json", "-o", "json")
    assert done.status == 1, done.stderr  # bytes belonged to nothing
    found = waiting(node, queues)["orders.b"]
    assert len(found) == done.document["confirmed"] > 50
    wanted = {row["payload_sha256"] for row in goldenkit.expected(F) if row["recovered"]}
    assert wanted <= {row["payload_sha256"] for row in found}
    again = run_cli("salvage", image, "--to", url(node), "--into", "orders.b", "--resume", tmp_path / "sent.json", "-o", "json")
    assert again.document["sent"] == 0
    purge(node, queues)


def logs_image(place: Path, *, quorum_case: str, stream_case: str) -> Path:
    """Return an image of the logs of quorum queues and streams."""
    nodes = (quorum.node(quorum_case) / "quorum", streams.node(stream_case) / "stream")
    paths = [path for node in nodes for path in sorted(node.rglob("*")) if path.suffix in (".wal", ".segment") and path.is_file()]
    image = place / "image"
    image.write_bytes(b"".join(b"noise" * 301 + path.read_bytes() for path in paths))
    return image


def test_messages_carved_out_of_logs_of_quorum_queues_and_streams_arrive(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, queues = broker
    image = logs_image(tmp_path, quorum_case="4.0.5/a-quorum-mix-kill9", stream_case="4.3.6-killed")
    run_cli("salvage", image, "--to", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    proved = [row for row in rows if row["verdict"] == "unindexed"]
    lasting = Counter(row["payload_sha256"] for row in proved if not (row["properties"] or {}).get("expiration"))
    done = run_cli("salvage", image, "--to", url(node), "--into", "orders.b", "-o", "json")
    assert done.status == 1, done.stderr  # bytes belonged to nothing
    assert done.document["confirmed"] == len(proved) > lasting.total() > 100
    found = Counter(row["payload_sha256"] for row in waiting(node, queues)["orders.b"])
    assert lasting <= found <= Counter(row["payload_sha256"] for row in proved)
    purge(node, queues)


@pytest.mark.parametrize("version", ["3.10", "4.3"])
def test_a_node_starts_from_a_store_of_messages_carved_out_of_logs(version: str, tmp_path: Path) -> None:
    image = logs_image(tmp_path, quorum_case="4.3.6/a-quorum-mix-kill9", stream_case="4.3.6-killed")
    done = run_cli("salvage", image, "--to", tmp_path / "fresh", "--as", "rabbitmq", "--into", "saved", "--for", version, "-o", "json")
    assert done.status == 1, done.stderr
    assert done.document["messages"] > 100
    if version == "3.10":
        adopted = adopt(tmp_path / "fresh", [Declared("/", "saved")], {"classic_queue_default_version": 1})
        assert adopted.sound, adopted
        assert len(adopted.rows) == done.document["messages"]
        return
    if reason := other_node.missing():
        pytest.skip(reason)
    with other_node.other_node() as node:
        node.start()
        node.connect("/").channel().queue_declare("saved", durable=True)
        node.stop()
        shutil.rmtree(node.data / "msg_stores")
        shutil.copytree(tmp_path / "fresh", node.data / "msg_stores")
        node.start()
        assert len(node.consume_all("saved", done.document["messages"])) == done.document["messages"]


def test_an_interrupted_run_is_resumed_after_the_last_confirm(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, queues = broker
    note = tmp_path / "sent.json"
    store = open_wreck(goldenkit.opened(B))

    def cut(messages: Iterator[OutgoingMessage], after: int) -> Iterator[OutgoingMessage]:
        for number, message in enumerate(messages):
            if number == after:
                raise TargetError("cut off")
            yield message

    intact = frozenset({"intact"})
    with pytest.raises(MqstoreError, match="cut off"):
        Sender(url(node), resume=note, about="b").send(cut(outgoing_messages(store, intact), 2500))
    confirmed = json.loads(note.read_text())["confirmed"]
    assert 0 <= confirmed <= 2500
    sent = Sender(url(node), resume=note, about="b").send(outgoing_messages(store, intact))
    assert sent.skipped == confirmed
    assert sent.confirmed == sent.sent == 3614 - confirmed
    want = [row["payload_sha256"] for row in goldenkit.expected(B)]
    found = [row["payload_sha256"] for row in waiting(node, queues)["orders.b"]]
    assert found == want[:2500] + want[confirmed:]
    # and nothing is left to do
    assert Sender(url(node), resume=note, about="b").send(outgoing_messages(store, intact)).sent == 0
    purge(node, queues)


def test_messages_without_a_queue_are_returned_and_counted(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, _ = broker
    a = case_named(f"{goldenkit.RABBITMQ_VERSION}/a-small-clean")
    done = run_cli("salvage", goldenkit.opened(a), "--to", url(node), "--rate", "200", "-o", "json")
    assert done.status == 1
    assert (done.document["confirmed"], done.document["returned"]) == (71, 71)
    assert done.document["seconds"] >= 0.3
    assert "guest:guest" not in done.stdout


def test_messages_that_were_returned_are_sent_again_by_the_next_run_until_there_is_a_queue_for_them(
    broker: tuple[Node, list[Declared]], tmp_path: Path
) -> None:
    """Every third message has a queue; bodies and routing keys repeat, so that headers alone tell some of them apart."""
    node, queues = broker
    connection = node.connect("/")
    channel = connection.channel()
    channel.exchange_declare("picky", "headers")
    channel.queue_bind("orders.b", "picky", arguments={"x-match": "all", "kind": "a"})
    url_, note = url(node), tmp_path / "sent.json"

    def messages() -> Iterator[OutgoingMessage]:
        for number in range(3000):
            body = b"%d" % (number // 30)
            if number % 3 == 0:
                yield OutgoingMessage("", "orders.b", properties_to_bin({"delivery_mode": 2}), body)
            elif number % 3 == 1:
                yield OutgoingMessage("", "later", properties_to_bin({"message_id": str(number)}), body)
            else:
                kind = "a" if number % 2 else "b"
                yield OutgoingMessage("picky", "", properties_to_bin({"headers": [["kind", "longstr", kind]]}), body)

    first = Sender(url_, resume=note, about="r").send(messages())
    assert (first.sent, first.confirmed, first.returned, first.skipped) == (3000, 3000, 1500, 0)
    again = json.loads(note.read_text())["again"]
    assert [number for low, high in again for number in range(low, high + 1)] == [
        number for number in range(3000) if number % 3 == 1 or (number % 3 == 2 and number % 2 == 0)
    ]
    # nothing has changed at the broker: the same ones are returned again, and no other is sent twice
    second = Sender(url_, resume=note, about="r").send(messages())
    assert (second.sent, second.returned, second.skipped) == (1500, 1500, 1500)
    channel.queue_declare("later", durable=True)
    third = Sender(url_, resume=note, about="r").send(messages())
    assert (third.sent, third.returned, third.skipped) == (1500, 500, 1500)
    channel.queue_bind("orders.b", "picky", arguments={"x-match": "all", "kind": "b"})
    fourth = Sender(url_, resume=note, about="r").send(messages())
    assert (fourth.sent, fourth.returned, fourth.skipped) == (500, 0, 2500)
    assert Sender(url_, resume=note, about="r").send(messages()).sent == 0
    written = json.loads(note.read_text())
    assert written.pop("sum")
    assert written == {"about": "r", "confirmed": 3000, "again": []}
    waits = {name: channel.queue_declare(name, passive=True).method.message_count for name in ("orders.b", "later")}
    assert waits == {"orders.b": 2000, "later": 1000}
    channel.queue_delete("later")
    channel.exchange_delete("picky")
    connection.close()
    purge(node, queues)


def test_the_exit_status_stays_1_until_every_message_was_delivered(broker: tuple[Node, list[Declared]], tmp_path: Path) -> None:
    node, _ = broker
    a = case_named(f"{goldenkit.RABBITMQ_VERSION}/a-small-clean")
    asked = ("salvage", goldenkit.opened(a), "--to", url(node), "--resume", tmp_path / "sent.json", "-o", "json")
    for _ in range(2):
        done = run_cli(*asked)
        assert (done.status, done.document["sent"], done.document["returned"]) == (1, 71, 71)
    connection = node.connect("/")
    channel = connection.channel()
    channel.queue_declare("small.embedded", durable=True)
    done = run_cli(*asked)
    assert (done.status, done.document["sent"], done.document["returned"]) == (0, 71, 0)
    done = run_cli(*asked)
    assert (done.status, done.document["sent"], done.document["skipped"]) == (0, 0, 71)
    assert channel.queue_delete("small.embedded").method.message_count == 71
    connection.close()


@pytest.mark.parametrize(
    ("address", "said"), [("amqp://guest:wrong@127.0.0.1:{}/%2F", "refused the connection"), ("amqp://127.0.0.1:{}/nowhere", "nowhere")]
)
def test_a_broker_that_refuses_the_connection_gives_a_one_sentence_error(
    broker: tuple[Node, list[Declared]], address: str, said: str
) -> None:
    done = run_cli("salvage", goldenkit.opened(B), "--to", address.format(broker[0].port), "--vhost", "/")
    assert done.status == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_without_a_listener_gives_a_one_sentence_error(tmp_path: Path) -> None:
    done = run_cli("salvage", goldenkit.opened(B), "--to", "amqp://127.0.0.1:1/")
    assert done.status == 2
    assert "refused the connection" in done.stderr
