"""Many producers, many readers: in threads of one process, in another process, and in event loops."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore
from mqstore.files import ReadOnlyDirectory
from mqstore.files.recorder import Operation
from mqstore.findings import Kind
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.commit_log import CommitLog, EndOfFile, Records
from mqstore.rocketmq.format.message import Message, PutStatus
from mqstore.rocketmq.format.record import Record
from mqstore.rocketmq.query.pull import GetStatus

VERSIONS = pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
PRODUCERS = 8


def settings(version: str, **changes: object) -> StoreConfig:
    small = StoreConfig(
        version=version,
        commit_log_file_size=65536,
        consume_queue_file_size=1000,
        max_hash_slot_num=50,
        max_index_num=200,
        flush_interval_commit_log=20,
        flush_interval_consume_queue=30,
    )
    return StoreConfig(**{name: getattr(small, name) for name in StoreConfig.__slots__} | changes)


def sealed(producer: int, number: int, size: int) -> bytes:
    """Return a body with its producer, its number and a checksum."""
    text = (b"%d:%d:" % (producer, number)).ljust(size, b"%d" % (number % 10))
    return b"%08x" % zlib.crc32(text) + text


def opened(body: bytes) -> tuple[int, int]:
    """Return (producer, number) of a body, which must be intact."""
    assert int(body[:8], 16) == zlib.crc32(body[8:]), f"a torn body: {body[:40]!r}"
    producer, number, _ = body[8:].split(b":")
    return int(producer), int(number)


# threads


class Crowd:
    """Threads on one store, and the first error of any of them."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.put: list[list[tuple[int, int, int, bytes]]] = [[] for _ in range(PRODUCERS)]
        self.passed_over: list[tuple[int, range, int]] = []  # by pulls: queue, queue offsets, the start of the log afterwards
        self.rounds = dict.fromkeys(("pull", "query", "by_offset", "bounds"), 0)

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)
                self.over.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def produce(self, producer: int, count: int) -> None:
        chance = random.Random(producer)
        for number in range(count):
            body = sealed(producer, number, chance.choice([30, 200, 900]))
            queue_id = number % 2
            result = self.store.put(Message("orders", body, queue_id=queue_id, keys=f"k{number % 7}", tags=f"t{producer}"))
            assert result.status is PutStatus.PUT_OK, result
            self.put[producer].append((queue_id, result.queue_offset, result.physical_offset, body))
            if number % 40 == 0:
                time.sleep(0.002)

    def pull(self, queue_id: int) -> None:
        """Follow a queue from its beginning to its end."""
        at, numbers = 0, dict.fromkeys(range(PRODUCERS), -1)
        while True:
            over = self.over.is_set()
            got = self.store.get("g", "orders", queue_id, at)
            assert got.min_offset <= got.max_offset or got.max_offset == 0
            if got.status is GetStatus.FOUND:
                for offset, each in zip(got.queue_offsets, got.records(), strict=True):
                    if offset > at:  # a pull continues behind records that retention removed while it ran
                        self.passed_over.append((queue_id, range(at, offset), self.store.log_min))
                        at = offset
                    assert (offset, each.queue_offset, each.queue_id, each.topic) == (at, at, queue_id, "orders")
                    producer, number = opened(each.body)
                    assert number > numbers[producer], f"producer {producer}: {number} comes behind {numbers[producer]}"
                    numbers[producer] = number
                    at += 1
                self.rounds["pull"] += 1
            elif got.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL):
                # retention is ahead of this reader, which continues where the answer says, never back
                assert got.next_begin_offset >= at
                at = max(at, got.next_begin_offset)
                if got.status is not GetStatus.OFFSET_TOO_SMALL:
                    at = max(at, self.store.min_offset("orders", queue_id))
            elif over and self.store.wait_dispatched() and at >= self.store.max_offset("orders", queue_id):
                return
            else:
                time.sleep(0.001)

    def query(self) -> None:
        while not self.over.is_set():
            for each in self.store.query("orders", f"k{self.rounds['query'] % 7}").records:
                opened(each.body)
            self.rounds["query"] += 1

    def by_offset(self) -> None:
        chance = random.Random(7)
        while not self.over.is_set():
            known = self.put[chance.randrange(PRODUCERS)]
            if known:
                queue_id, queue_offset, physical, body = known[chance.randrange(len(known))]
                found = self.store.record_at(physical)
                if found is None:
                    assert physical < self.store.log_min, f"the record at {physical} is not found, the log begins at {self.store.log_min}"
                elif physical or self.store.log_min == 0:
                    assert (found.queue_id, found.queue_offset, found.body) == (queue_id, queue_offset, body)
                self.rounds["by_offset"] += 1

    def bounds(self) -> None:
        """Minimum and maximum never go back, and a time leads to an offset between them."""
        low, high, log = [0, 0], [0, 0], [-1, 0]
        began = int(time.time() * 1000)
        while not self.over.is_set():
            for queue_id in (0, 1):
                now_low, now_high = self.store.min_offset("orders", queue_id), self.store.max_offset("orders", queue_id)
                assert low[queue_id] <= now_low, "the minimum of a queue goes back"
                assert high[queue_id] <= now_high, "the maximum of a queue goes back"
                low[queue_id], high[queue_id] = now_low, now_high
                found = self.store.offset_by_time("orders", queue_id, began + self.rounds["bounds"] % 3000)
                assert 0 <= found <= self.store.max_offset("orders", queue_id)
            now = [self.store.log_min, self.store.log_max]
            assert all(a <= b for a, b in zip(log, now, strict=True))
            log = now
            self.rounds["bounds"] += 1

    def retain(self) -> None:
        while not self.over.wait(0.03):
            self.store.run_retention()


@VERSIONS
def test_readers_see_a_consistent_prefix_while_others_put_and_retention_removes(version: str, tmp_path: Path) -> None:
    config = settings(version, disk_ratio=lambda _: 0.86, delete_file_batch_max=1)  # files are removed at any age
    with MessageStore.open(tmp_path / "store", config) as store:
        crowd = Crowd(store)
        readers: list[Callable[[], None]] = [
            lambda: crowd.pull(0),
            lambda: crowd.pull(1),
            crowd.query,
            crowd.by_offset,
            crowd.bounds,
            crowd.retain,
        ]
        threads = [crowd.guarded(work) for work in readers]
        producers = [crowd.guarded(lambda producer=producer: crowd.produce(producer, 1200)) for producer in range(PRODUCERS)]  # type: ignore[misc]
        for thread in producers:
            thread.join()
        crowd.over.set()
        for thread in threads:
            thread.join()
        assert not crowd.errors, crowd.errors[0]
        assert all(crowd.rounds.values()), crowd.rounds
        assert store.log_min > 0
        put = [each for one in crowd.put for each in one]
        assert len(put) == 1200 * PRODUCERS
        for queue_id in (0, 1):
            offsets = sorted(offset for queue, offset, _, _ in put if queue == queue_id)
            assert offsets == list(range(len(offsets)))
            assert store.max_offset("orders", queue_id) == len(offsets)
        physical = {(queue, offset): at for queue, offset, at, _ in put}
        for queue_id, offsets_left_out, log_min in crowd.passed_over:
            assert physical[queue_id, offsets_left_out[-1]] < log_min, "a pull passed over a record that is in the log"


@VERSIONS
def test_many_producers_of_batches_share_a_queue_without_gaps(version: str, tmp_path: Path) -> None:
    import pyarrow as pa

    with MessageStore.open(tmp_path / "store", settings(version)) as store:
        offsets: list[int] = []

        def produce(producer: int) -> None:
            for number in range(20):
                if number % 2:
                    bodies = [sealed(producer, number * 50 + k, 100) for k in range(50)]
                    rows = {"topic": ["orders"] * 50, "body": bodies}
                    offsets.extend(store.put_batch(pa.table(rows)).queue_offsets.tolist())
                else:
                    offsets.extend(store.put(Message("orders", sealed(producer, number * 50 + k, 100))).queue_offset for k in range(50))

        crowd = Crowd(store)
        threads = [crowd.guarded(lambda producer=producer: produce(producer)) for producer in range(4)]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert not crowd.errors, crowd.errors[0]
        assert sorted(offsets) == list(range(4000))
        assert store.wait_dispatched()
        crowd.over.set()
        crowd.pull(0)


# processes


def watch(place: Path, stop: Path) -> None:
    """Read the whole store again and again while it grows, in the other process."""
    looked = most = scanned = torn = 0
    while True:
        last = stop.exists()
        reading = CommitLog(ReadOnlyDirectory(place))
        at = 0
        for event in reading.scan():
            if isinstance(event, Records):
                for position in event.positions.tolist():
                    assert event.file.start + position == at, f"the log jumps from {at} to {event.file.start + position}"
                    at += int.from_bytes(event.data[position : position + 4].tobytes(), "big")
            elif isinstance(event, EndOfFile):
                at = event.file.start + event.position + event.length
            else:
                assert event.kind is Kind.TORN_RECORD, f"damage in the log behind {at}: {event}"
                torn += 1
        assert at >= scanned, "the log has become shorter"
        scanned = at
        store = mqstore.open(place)
        rows = [row for batch in store.to_batches() for row in batch.to_pylist()]
        for row in rows:
            opened(row["body"])
        assert len(rows) >= most, "messages have gone"
        most = len(rows)
        for queue in store.view("disk").queues():
            entries = queue.entries(queue.min_offset, queue.max_offset)
            assert (entries["physical_offset"][1:] > entries["physical_offset"][:-1]).all()
        looked += 1
        if last and looked >= 2:
            break
    sys.stdout.write(json.dumps([looked, most, scanned, torn]))


@VERSIONS
def test_another_process_reads_a_prefix_without_damage_while_the_store_is_written(version: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with MessageStore.open(tmp_path / "store", settings(version, commit_log_file_size=1 << 18)) as store:
        for number in range(10):
            store.put(Message("orders", sealed(0, number, 100)))
        assert store.wait_dispatched()
        code = "import pathlib, sys; from test_threads import watch; watch(*map(pathlib.Path, sys.argv[1:]))"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        command = [sys.executable, "-c", code, str(tmp_path / "store"), str(stop)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as other:
            end = time.monotonic() + 3
            number = 10
            while time.monotonic() < end and other.poll() is None:
                for _ in range(20):
                    assert store.put(Message("orders", sealed(0, number, 30 + number * 7 % 1500), keys="k")).stored
                    number += 1
                time.sleep(0.01)
            assert store.wait_dispatched()
            stop.touch()
            out, error = other.communicate(timeout=120)
        assert error == "", error
        looked, most, scanned, torn = json.loads(out)
        assert torn <= looked
        assert looked >= 2
        assert (most, scanned) == (number, store.log_max)


# event loops


class CountingDisk:
    """Counts the syncs of log files, each of which takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.syncs = 0

    def attempt(self, operation: str, relative: str) -> None:
        if operation == "sync" and relative.startswith("commitlog/"):
            self.syncs += 1
            time.sleep(self.seconds)

    def record(self, operation: Operation) -> None:
        pass


class GatedDisk(CountingDisk):
    """Counts the syncs of log files, each of which ends when the gate is open."""

    def __init__(self) -> None:
        super().__init__(0)
        self.gate = threading.Event()
        self.gate.set()

    def attempt(self, operation: str, relative: str) -> None:
        super().attempt(operation, relative)
        if operation == "sync" and relative.startswith("commitlog/"):
            self.gate.wait(60)


def synced(place: Path, disk: CountingDisk, **changes: object) -> MessageStore:
    place.mkdir()
    config = settings("5.3.3", flush_disk_type="SYNC_FLUSH", recorder=disk, flush_interval_commit_log=60_000, **changes)
    store = MessageStore.open(place, config)
    assert store.put(Message("orders", b"first")).status is PutStatus.PUT_OK
    return store


def stored(store: MessageStore) -> list[Record]:
    assert store.wait_dispatched()
    found: list[Record] = []
    while (got := store.get("g", "orders", 0, len(found))).status is GetStatus.FOUND:
        found += got.records()
    return found


def test_two_hundred_awaited_puts_share_a_few_syncs(tmp_path: Path) -> None:
    disk = CountingDisk(0.01)

    async def all_of_them(store: MessageStore) -> list[PutStatus]:
        results = await asyncio.gather(*(store.put_async(Message("orders", b"%d" % number)) for number in range(200)))
        assert len({result.queue_offset for result in results}) == 200
        assert all(result.physical_offset + result.size <= store.log.flushed for result in results)
        return [result.status for result in results]

    with synced(tmp_path / "store", disk) as store:
        before = disk.syncs
        assert set(asyncio.run(all_of_them(store))) == {PutStatus.PUT_OK}
        assert disk.syncs - before < 20
        assert len(stored(store)) == 201


def test_two_hundred_puts_of_sixteen_threads_share_syncs(tmp_path: Path) -> None:
    disk = CountingDisk(0.01)
    with synced(tmp_path / "store", disk) as store:
        before = disk.syncs
        crowd = Crowd(store)

        def produce() -> None:
            for number in range(13):
                result = store.put(Message("orders", b"%d" % number))
                assert result.status is PutStatus.PUT_OK
                assert result.physical_offset + result.size <= store.log.flushed

        for thread in [crowd.guarded(produce) for _ in range(16)]:
            thread.join()
        assert not crowd.errors, crowd.errors[0]
        assert disk.syncs - before < 16 * 13 / 3


def test_a_call_that_no_longer_waits_does_not_affect_the_others(tmp_path: Path) -> None:
    async def some_give_up(store: MessageStore) -> None:
        before = disk.syncs
        disk.gate.clear()
        tasks = [asyncio.create_task(store.put_async(Message("orders", b"%d" % number))) for number in range(40)]
        await asyncio.sleep(0.01)  # all tasks begin
        while disk.syncs == before:
            await asyncio.sleep(0.01)
        for task in tasks[::2]:
            task.cancel()
        disk.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in done[::2])
        assert [each.status for each in done[1::2] if not isinstance(each, BaseException)] == [PutStatus.PUT_OK] * 20
        again = await store.put_async(Message("orders", b"again"))
        assert again.status is PutStatus.PUT_OK

    disk = GatedDisk()
    with synced(tmp_path / "store", disk) as store:
        asyncio.run(some_give_up(store))
        assert len(stored(store)) == 42


def test_a_loop_that_is_closed_while_somebody_waits_leaves_the_store_usable(tmp_path: Path) -> None:
    disk = GatedDisk()
    with synced(tmp_path / "store", disk) as store:
        before = disk.syncs

        async def sync_begun() -> None:
            await asyncio.sleep(0.01)  # the put begins
            while disk.syncs == before:
                await asyncio.sleep(0.01)

        disk.gate.clear()
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(store.put_async(Message("orders", b"left alone")))
        loop.run_until_complete(sync_begun())
        assert not waiting.done()
        loop.close()
        disk.gate.set()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]

        async def next_one() -> PutStatus:
            return (await store.put_async(Message("orders", b"next"))).status

        assert asyncio.run(asyncio.wait_for(next_one(), 60)) is PutStatus.PUT_OK
        assert store.put(Message("orders", b"last")).status is PutStatus.PUT_OK
        assert [each.body for each in stored(store)] == [b"first", b"left alone", b"next", b"last"]


def test_awaited_puts_of_several_loops_are_all_answered(tmp_path: Path) -> None:
    with synced(tmp_path / "store", CountingDisk(0.005)) as store:
        crowd = Crowd(store)

        async def in_turn() -> None:
            for number in range(15):
                assert (await store.put_async(Message("orders", b"%d" % number))).status is PutStatus.PUT_OK

        async def together() -> None:
            await asyncio.gather(*(in_turn() for _ in range(4)))

        for thread in [crowd.guarded(lambda: asyncio.run(asyncio.wait_for(together(), 60))) for _ in range(4)]:
            thread.join()
        assert not crowd.errors, crowd.errors[0]
        assert len(stored(store)) == 1 + 4 * 4 * 15


def test_a_failed_sync_is_reported_to_all_waiting_calls(tmp_path: Path) -> None:
    disk = CountingDisk(0.02)
    store = synced(tmp_path / "store", disk)

    class Broken(CountingDisk):
        def attempt(self, operation: str, relative: str) -> None:
            if operation == "sync":
                raise OSError(5, "Input/output error", relative)

    async def all_of_them() -> set[PutStatus]:
        results = await asyncio.gather(*(store.put_async(Message("orders", b"%d" % number)) for number in range(30)))
        assert all("Input/output error" in result.detail for result in results)
        return {result.status for result in results}

    disk.attempt = Broken(0).attempt  # type: ignore[method-assign]
    assert asyncio.run(all_of_them()) <= {PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SERVICE_NOT_AVAILABLE}
    assert store.put(Message("orders", b"after")).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.abandon()
