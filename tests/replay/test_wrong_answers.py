"""What a node may answer during a replay: garbage, half frames, another request's number, nothing at all, or one byte at a time."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from support.golden import run_cli
from support.proxy import Proxy

from mqstore.broker.protocol import frames
from mqstore.replay import rocketmq_target
from mqstore.replay.outgoing import ReplayMessage
from mqstore.replay.rocketmq_target import ClientError, Producer, RemotingConnection
from mqstore.rocketmq import Message, MessageStore
from mqstore.testing import RunningBroker

ROUNDS = int(os.environ.get("MQSTORE_ROUNDS", "12"))


def source(place: Path, messages: int = 40, queues: int = 4) -> Path:
    with MessageStore.open(place / "source") as store:
        for number in range(messages):
            assert store.put(Message("orders", b"body %d" % number, queue_id=number % queues, keys=f"o-{number}")).stored
    return place / "source"


class Liar:
    """Changes answers at random: flips bytes, drops, repeats or cuts them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.guard = threading.Lock()

    def __call__(self, piece: bytes) -> bytes:
        with self.guard:
            if self.random.random() > 0.15:
                return piece
            kind = self.random.randrange(5)
            at = self.random.randrange(len(piece))
            if kind == 0:
                return piece[:at] + bytes([self.random.randrange(256)]) + piece[at + 1 :]
            if kind == 1:
                return piece[:at]
            if kind == 2:
                return piece + piece
            if kind == 3:
                return self.random.randbytes(len(piece))
            return piece.replace(b'"opaque":', b'"opaque":9').replace(b'"queueOffset":"', b'"queueOffset":"-9')


def test_answers_changed_at_random_end_the_run_in_one_sentence_or_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_target, "PAUSE", 0.001)
    monkeypatch.setattr(rocketmq_target, "DISPATCHED", 0.01)
    monkeypatch.setattr("mqstore.replay.rocketmq_target.DISPATCHED", 0.01)
    monkeypatch.setattr("mqstore.replay.rocketmq_target.LAST", 0.05)
    original = RemotingConnection.__init__
    monkeypatch.setattr(RemotingConnection, "__init__", lambda self, address, **kept: original(self, address, **{**kept, "timeout": 0.1}))
    origin = source(tmp_path, 16, 2)
    statuses = set()
    with RunningBroker(tmp_path / "broker") as broker:
        for seed in range(ROUNDS):
            liar = Liar(seed)
            with Proxy(int(broker.address.rpartition(":")[2]), answers=liar) as proxy:

                def rerouted(piece: bytes, liar: Liar = liar, own: bytes = b"127.0.0.1:%d" % proxy.port) -> bytes:
                    return liar(piece).replace(broker.address.encode(), own)

                proxy.answers = rerouted
                done = run_cli("replay", origin, "--to", f"rocketmq://127.0.0.1:{proxy.port}", "--resume", tmp_path / f"{seed}.journal")
                statuses.add(done.status)
                assert done.status in (0, 1, 2)
                assert "Traceback" not in done.stderr
                assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert {0, 2} <= statuses


def drip(server: socket.socket, answer: bytes) -> None:
    """Answer each connection with these bytes, one every 50 ms."""
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            peer.recv(4096)
            try:
                for each in answer:
                    peer.sendall(bytes([each]))
                    time.sleep(0.05)
            except OSError:
                continue


def test_an_answer_that_comes_byte_by_byte_ends_with_the_time_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = frames.encode(frames.Frame(0, {"a": "x" * 200}, flag=1, opaque=1))
        threading.Thread(target=drip, args=(server, answer), daemon=True).start()
        begun = time.monotonic()
        with (
            RemotingConnection(f"127.0.0.1:{server.getsockname()[1]}", timeout=0.3) as connection,
            pytest.raises(ClientError, match="timed out") as raised,
        ):
            connection.request(105, {"topic": "orders"})
        assert raised.value.late
        assert time.monotonic() - begun < 5


def test_a_route_of_countless_queues_is_not_believed() -> None:
    body = (
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"127.0.0.1:1"}}],'
        b'"queueDatas":[{"brokerName":"b","perm":6,"writeQueueNums":2000000000}]}'
    )
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(frames.encode(frames.Frame(0, {}, body, flag=1, opaque=1)))

        threading.Thread(target=serve, daemon=True).start()
        asked = Producer(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Exception, match="sent a route that is not one"):
            asked.queues("orders")
        asked.close()


def test_a_message_larger_than_a_frame_is_passed_over(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "broker") as broker:
        sender = Producer(broker.address)
        message = ReplayMessage("orders/0", 1, "m", "orders", bytes(17 << 20))
        with pytest.raises(rocketmq_target.RefusedError, match="bytes") as refused:
            sender.post(message, sender.queue_for(message))
        assert refused.value.code == rocketmq_target.TOO_LARGE
        sender.close()


def test_a_broker_that_is_slow_but_answers_gets_each_message_once(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "broker") as broker, Proxy(int(broker.address.rpartition(":")[2]), delay=0.01) as proxy:
        own = b"127.0.0.1:%d" % proxy.port
        proxy.answers = lambda piece: piece.replace(broker.address.encode(), own)
        assert run_cli("replay", source(tmp_path), "--to", f"rocketmq://127.0.0.1:{proxy.port}").status == 0
    assert run_cli("messages", tmp_path / "broker", "-o", "jsonl", "--topic", "orders").stdout.count("\n") == 40
