"""One process on a store, to be killed from outside: a program that puts with all services and threads running.

    python -m support.crash_life DIRECTORY ORACLE LIFE SEED VERSION

Each thread has an oracle file, ORACLE/LIFE-THREAD: a line before a put with what is sent, a line after it with what the store
acknowledged. A line is one write, so the end of the process loses no acknowledgement.

    {"sent": BODY, "topic": …, "properties": …}
    {"kept": BODY, "queue": [TOPIC, QUEUE ID], "queue_offset": …, "physical_offset": …}

ORACLE/LIFE-open is made when the store is open, ORACLE/LIFE-closed when it was closed cleanly.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import pyarrow as pa

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutStatus

THREADS = 3
TOPICS = ("a", "orders", "%RETRY%g")
KINDS = [0, 0, 0, 0, 0, record.TRANSACTION_PREPARED, record.TRANSACTION_COMMIT, record.TRANSACTION_ROLLBACK]


def settings(version: str, **changes: object) -> StoreConfig:
    """Return settings with small files, so that all of them roll often; retention removes files as soon as it checks them."""
    small = StoreConfig(
        version=version,
        commit_log_file_size=32768,
        consume_queue_file_size=2000,
        max_hash_slot_num=50,
        max_index_num=100,
        file_reserved_hours=2 / 3600,
        delete_when=";".join(f"{hour:02d}" for hour in range(24)),
        disk_ratio=lambda _: 0.5,
        flush_interval_commit_log=20,
        flush_interval_consume_queue=30,
        flush_consumer_offset_interval=50,
    )
    return StoreConfig(**{name: getattr(small, name) for name in StoreConfig.__slots__} | changes)


class Producer:
    """The puts of one thread, and its oracle file."""

    def __init__(self, store: MessageStore, oracle: Path, life: int, number: int, chance: random.Random) -> None:
        self.store = store
        self.name = f"{life}.{number}"
        self.chance = chance
        self.count = 0
        self.lines = os.open(oracle / f"{life}-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, lines: Iterable[dict[str, object]]) -> None:
        os.write(self.lines, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def body(self) -> str:
        self.count += 1
        return f"{self.name}.{self.count}:".ljust(self.chance.choice([20, 100, 700]), "x")

    def properties(self) -> str:
        keys = " ".join(f"k{self.chance.randrange(30)}" for _ in range(self.chance.randint(0, 2)))
        return f"KEYS\x01{keys}\x02" if keys else ""

    def sent(self, bodies: Iterable[str], topic: str, properties: str) -> None:
        self.say({"sent": body, "topic": topic, "properties": properties} for body in bodies)

    def kept(self, bodies: Iterable[str], topic: str, queue_id: int, offsets: Iterable[tuple[int, int]]) -> None:
        self.say(
            {"kept": body, "queue": [topic, queue_id], "queue_offset": queue_offset, "physical_offset": physical}
            for body, (queue_offset, physical) in zip(bodies, offsets, strict=True)
        )

    def put(self) -> None:
        topic, queue_id, properties = self.chance.choice(TOPICS), self.chance.randrange(2), self.properties()
        what = self.chance.random()
        if what < 0.9:
            bodies = [self.body()]
            self.sent(bodies, topic, properties)
            kind = self.chance.choice(KINDS)
            message = Message(topic, bodies[0].encode(), queue_id=queue_id, properties=properties.encode(), sys_flag=kind)
            result = self.store.put(message)
            assert result.status is PutStatus.PUT_OK, result
            self.kept(bodies, topic, queue_id, [(result.queue_offset, result.physical_offset)])
        elif what < 0.95:
            bodies = [self.body() for _ in range(4)]
            self.sent(bodies, topic, properties)
            inner = [Inner(body.encode(), properties.encode()) for body in bodies]
            result = self.store.put_messages(MessageBatch(Message(topic, queue_id=queue_id), inner))
            assert result.status is PutStatus.PUT_OK, result
            places = [record.parse_message_id(text)[1] for text in result.msg_id.split(",")]
            self.kept(bodies, topic, queue_id, [(result.queue_offset + k, place) for k, place in enumerate(places)])
        else:
            bodies = [self.body() for _ in range(12)]
            self.sent(bodies, topic, "")
            rows = {"topic": [topic] * 12, "queue_id": pa.array([queue_id] * 12, pa.int32()), "body": [body.encode() for body in bodies]}
            stored = self.store.put_batch(pa.table(rows))
            assert stored.status is PutStatus.PUT_OK, stored
            self.kept(bodies, topic, queue_id, zip(stored.queue_offsets.tolist(), stored.physical_offsets.tolist(), strict=True))

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.put()
            if self.chance.random() < 0.2:
                time.sleep(self.chance.random() / 200)


def main(place: Path, oracle: Path, life: int, seed: int, version: str) -> None:
    signal.signal(signal.SIGTERM, _end)
    chance = random.Random(seed * 1_000_003 + life)
    config = settings(version, flush_disk_type=chance.choice(["SYNC_FLUSH", "ASYNC_FLUSH"]))
    stop = threading.Event()
    producers: list[threading.Thread] = []
    try:
        with MessageStore.open(place, config) as store:
            (oracle / f"{life}-open").touch()
            try:
                for number in range(THREADS):
                    producer = Producer(store, oracle, life, number, random.Random(chance.random()))
                    producers.append(threading.Thread(target=producer.run, args=[stop], daemon=True))
                    producers[-1].start()
                while all(producer.is_alive() for producer in producers):
                    time.sleep(chance.random() / 10)
                    store.offsets.commit("g", "a", 0, chance.randrange(100))
                    if chance.random() < 0.3:
                        store.run_retention()
                    elif chance.random() < 0.3:
                        store.flush()
            finally:
                stop.set()
                for producer in producers:
                    producer.join()
    except (KeyboardInterrupt, SystemExit):
        (oracle / f"{life}-closed").touch()


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background of a shell has it ignored
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
