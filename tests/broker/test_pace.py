"""Requests handled in the event loop and in threads; frames however they are split in transit."""

from __future__ import annotations

import asyncio
import inspect
import time
from pathlib import Path

import pytest
from support.broker import OPEN, SMALL, BrokerThread, Wire, heartbeat_body, records

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.queries import KeyQueries, query_message
from mqstore.broker.handlers.topic_creation import TopicsAndGroups
from mqstore.broker.protocol.frames import Frame

FOREVER = (1 << 63) - 1


def asked(end: int = FOREVER) -> dict[str, str]:
    return {"topic": "T", "key": "k-7", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(end)}


@pytest.fixture
def stored(tmp_path: Path):
    with BrokerThread(tmp_path / "store", settings=OPEN, config=SMALL) as thread, Wire(thread.address) as wire:
        wire.make_topic("T", 1)
        for number in range(10):
            assert wire.send("T", b"%d" % number, properties=f"KEYS\x01k-{number}").code == 0
        assert thread.broker.store.writable.wait_dispatched()
        yield thread, wire


def test_a_key_query_finds_the_same_in_the_event_loop_and_in_a_thread(stored) -> None:
    thread, wire = stored
    in_loop = wire.call(12, asked())
    thread.broker.context.component(KeyQueries).took(1.0)
    in_thread = wire.call(12, asked())
    assert (in_loop.code, in_loop.ext, in_loop.body) == (in_thread.code, in_thread.ext, in_thread.body)
    assert [each.body for each in records(in_loop.body)] == [b"7"]


@pytest.mark.parametrize(
    ("slow", "end", "waits"),
    [(0.0, FOREVER, False), (1.0, FOREVER, True), (0.0, 1_000_000, True)],
    ids=["quick", "after-slow", "of-the-past"],
)
def test_a_key_query_that_may_take_long_leaves_the_event_loop_alone(stored, slow: float, end: int, waits: bool) -> None:
    thread, _ = stored
    context = thread.broker.context

    async def answered() -> bool:
        context.component(KeyQueries).took(slow)
        work = query_message(context, next(iter(context.connections)), Frame(12, ext=asked(end)))
        later = inspect.isawaitable(work)
        if later:
            await work
        return later

    assert thread.run(answered()) is waits


@pytest.mark.parametrize("ser", [0, 1], ids=["JSON", "ROCKETMQ"])
def test_requests_are_answered_in_order_wherever_the_bytes_are_split(stored, ser: int) -> None:
    _, wire = stored
    asked_for = {"topic": "T", "queueId": "0"}
    frames, opaques = zip(*[wire.frame(code, asked_for, b"body", ser=ser) for code in (30, 31, 30)], strict=True)
    whole = b"".join(frames)
    for cut in range(1, len(whole), 7):
        wire.socket.sendall(whole[:cut])
        wire.socket.sendall(whole[cut:])
        told = [wire.read() for _ in opaques]
        assert [each.opaque for each in told] == list(opaques)
        assert [each.ext for each in told] == [{"offset": "10"}, {"offset": "0"}, {"offset": "10"}]


def test_requests_before_a_malformed_frame_are_answered(stored) -> None:
    thread, _ = stored
    with Wire(thread.address) as wire:
        first, opaque = wire.frame(30, {"topic": "T", "queueId": "0"})
        wire.socket.sendall(first + b"\x7f\xff\xff\xff garbage")
        assert wire.answer(opaque).ext == {"offset": "10"}
        assert wire.closed()


def test_large_responses_to_requests_that_arrived_together_are_complete_and_in_order(stored) -> None:
    thread, wire = stored
    for _ in range(40):
        assert wire.send("T", b"z" * 60_000).code == 0
    assert thread.broker.store.writable.wait_dispatched()
    opaques = [wire.post_pull("T", offset, flag=4, count=4) for offset in range(0, 48, 4)]
    told = [wire.read() for _ in opaques]
    assert [each.opaque for each in told] == opaques
    bodies = [each.body for answer in told for each in records(answer.body)]
    assert bodies == [b"%d" % number for number in range(10)] + [b"z" * 60_000] * 38


def test_members_are_notified_once_a_new_group_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right before the response: a client that is notified earlier rebalances, and cannot send its subscription until it has it."""
    saved: list[bool] = []
    notify = Membership.changed

    def changed(self: Membership, groups: list[str]) -> None:
        topics = tmp_path / "store" / "config" / "topics.json"
        saved.append(topics.exists() and "%RETRY%g" in topics.read_text(encoding="utf-8"))
        notify(self, groups)

    monkeypatch.setattr(Membership, "changed", changed)
    with BrokerThread(tmp_path / "store", settings=OPEN, config=SMALL) as thread, Wire(thread.address) as wire:
        wire.make_topic("T", 1)
        assert wire.heartbeat("c@a", "g", {"T": "*"}).code == 0
        assert wire.pushed.pop().code == 40
        assert saved == [True]
        assert wire.call(38, {"consumerGroup": "g"}).json() == {"consumerIdList": ["c@a"]}


def test_a_client_that_leaves_while_its_group_is_saved_is_not_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = TopicsAndGroups.save

    async def slowly(self: TopicsAndGroups) -> None:
        await asyncio.sleep(0.5)
        await save(self)

    with BrokerThread(tmp_path / "store", settings=OPEN, config=SMALL) as thread, Wire(thread.address) as wire:
        wire.make_topic("T", 1)
        monkeypatch.setattr(TopicsAndGroups, "save", slowly)
        with Wire(thread.address) as other:
            other.post(34, {}, heartbeat_body("c@b", "g", {"T": "*"}))
        time.sleep(1)
        assert wire.call(38, {"consumerGroup": "g"}).remark == "no consumer for this group, g"
