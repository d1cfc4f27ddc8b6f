"""Operation scripts and queries, run by our own store engine; the answers have the oracle's fields (rocketmq/README.md)."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from interop.scripts import KEYS, Operation, decoded_batch
from interop.storeimage import copied
from support.golden import Row

from mqstore.rocketmq.config.store_config import StoreConfig, now_ms
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.java_map import JavaMap
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutResult
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.record import encode_properties
from mqstore.rocketmq.format.tag_filter import TagFilter

ENTRY_FIELDS = ("physical_offset", "size", "tags_code", "base_offset", "count")
LONG_AGO = 1000 * 3600 * 1000  # ms by which a file's time is set back to make it expire


class Clock:
    """A store's clock: the wall clock until it is set, then the time it is set to, advanced by a step after each put."""

    def __init__(self) -> None:
        self.fixed: int | None = None
        self.step = 0

    def __call__(self) -> int:
        return now_ms() if self.fixed is None else self.fixed

    def set(self, operation: Operation) -> None:
        if "set" in operation:
            self.fixed = operation["set"]
        if "add" in operation:
            self.fixed = self() + operation["add"]
        if "step" in operation:
            self.step = operation["step"]

    def tick(self) -> None:
        if self.fixed is not None:
            self.fixed += self.step


def settings(version: str, options: dict[str, str]) -> StoreConfig:
    """Return the settings of a store without background services, from the broker's own option names."""
    config = StoreConfig(version=version, services=False, disk_ratio=lambda _: 0.5, store_host="127.0.0.1:10911")
    return config.with_broker(options)


def answer(result: PutResult, version: str) -> Row:
    """Return a put result as the oracle prints it."""
    row: Row = {"status": result.status.spelled(version)}
    if result.stored:
        row |= {
            "physical_offset": result.physical_offset,
            "size": result.size,
            "queue_offset": result.queue_offset,
            "store_timestamp": result.store_timestamp,
            "msg_id": result.msg_id,
        }
    return row


def comparable(row: Row) -> Row:
    """Return a put result of the oracle without the fields that only its classes have; 4.7.1 gives zeros for what it refused."""
    refused = row.get("msg_id") == ""
    return {name: value for name, value in row.items() if name == "status" or not (refused or name == "append_status")}


def property_text(operation: Operation, version: str) -> bytes:
    """Return the property text of a message: the given text, or that of a Java map with the given properties."""
    if operation.get("properties_text") is not None:
        return str(operation["properties_text"]).encode()
    values: dict[str, str] = dict(operation.get("properties") or {})
    for name, field in (("KEYS", "keys"), ("TAGS", "tags"), ("UNIQ_KEY", "uniq_key")):
        if operation.get(field) is not None:
            values[name] = operation[field]
    if "delay_level" in operation:
        values["DELAY"] = str(operation["delay_level"])
    return encode_properties(dict(JavaMap.of(values).items()), trailing=version_rules(version).ends_with_separator)


def message(operation: Operation, version: str, clock: Clock) -> Message:
    """Return the message of a put, or the envelope of a batch."""
    body = base64.b64decode(operation["body_base64"]) if "body_base64" in operation else operation.get("body", "").encode()
    return Message(
        operation["topic"],
        body,
        queue_id=operation.get("queue_id", 0),
        properties=property_text(operation, version),
        flag=operation.get("flag", 0),
        sys_flag=operation.get("sys_flag", 0),
        born_timestamp=operation.get("born_timestamp", clock() - 3),
        born_host=operation.get("born_host", "10.1.2.3:40000"),
        store_host=operation.get("store_host", "127.0.0.1:10911"),
        reconsume_times=operation.get("reconsume_times", 0),
        prepared_transaction_offset=operation.get("prepared_transaction_offset", 0),
    )


class Replayer:
    """Runs operations on a store of ours."""

    def __init__(self, path: Path, version: str, options: dict[str, str]) -> None:
        self.path, self.version = path, version
        self.clock = Clock()
        self.config = replace(settings(version, options), clock=self.clock)
        self.dispatching = True
        self.store = MessageStore.open(path, self.config)

    def run(self, script: Iterable[Operation]) -> list[Row]:
        """Run all operations, then close cleanly; return the answers to the puts."""
        answers = []
        for operation in script:
            row = self.one(operation)
            if row is not None:
                answers.append(row)
        self.store.close()
        return answers

    def one(self, operation: Operation) -> Row | None:
        name = operation.get("op", "put")
        if name in ("put", "batch"):
            if "store_timestamp" in operation:
                self.clock.fixed = operation["store_timestamp"]
            envelope = message(operation, self.version, self.clock)
            if name == "put":
                result = self.store.put(envelope)
            else:
                parts = decoded_batch(base64.b64decode(operation["encoded_base64"]))
                result = self.store.put_messages(
                    MessageBatch(envelope, [Inner(body, properties, flag) for body, properties, flag in parts])
                )
            self.clock.tick()
            self.caught_up()
            return answer(result, self.version)
        match name:
            case "clock":
                self.clock.set(operation)
            case "flush":
                self.store.flush()
            case "checkpoint":
                self.store.write_checkpoint()
            case "stop_dispatch":
                self.dispatching = False
            case "start_dispatch":
                self.dispatching = True
                self.caught_up()
            case "retention":
                self.retention(operation["expire_files"])
            case "snapshot":
                copied(self.path, Path(operation["to"]))
            case "reopen":
                self.store.close()
                self.store = MessageStore.open(self.path, self.config)
            case _:
                raise ValueError(f"unknown operation {name}")
        return None

    def caught_up(self) -> None:
        if self.dispatching:
            self.store.dispatch_now()

    def retention(self, expired: int) -> None:
        names = sorted(path.name for path in (self.path / "commitlog").iterdir())
        size = (self.path / "commitlog" / names[0]).stat().st_size
        full = [name for name in names if int(name) + size <= self.store.log_max]
        for name in full[:expired]:
            at = (now_ms() - LONG_AGO) / 1000
            os.utime(self.path / "commitlog" / name, (at, at))
        self.store.delete_files_manually()
        self.store.run_retention()


def apply(path: Path, version: str, options: dict[str, str], script: Iterable[Operation]) -> list[Row]:
    """Run a script on our store, created if necessary, and close it; return the answers to the puts in the form of `comparable`."""
    path.mkdir(parents=True, exist_ok=True)
    return Replayer(path, version, options).run(script)


# contents of a store


def messages(store: MessageStore) -> list[Row]:
    """Return every message in log order, found by walking the log."""
    found: list[Row] = []
    at = store.log_min
    while at < store.log_max:
        head = store.slice(at, 8)
        assert head is not None, f"nothing is readable at {at}"
        size, magic = struct.unpack(">ii", head)
        if magic != record.MAGIC_BLANK:
            found.append(_message_row(store, at, size))
        at += size
    return found


def _message_row(store: MessageStore, at: int, size: int) -> Row:
    stored = store.record_at(at)
    assert stored is not None, f"no record at {at}"
    properties = stored.property_map()
    return {
        "physical_offset": stored.physical_offset,
        "size": size,
        "topic": stored.topic,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "sys_flag": stored.sys_flag,
        "flag": stored.flag,
        "born_timestamp": stored.born_timestamp,
        "born_host": stored.born_host,
        "store_timestamp": stored.store_timestamp,
        "store_host": stored.store_host,
        "msg_id": record.offset_message_id(record.parse_host(stored.store_host), at),
        "reconsume_times": stored.reconsume_times,
        "prepared_transaction_offset": stored.prepared_transaction_offset,
        "body_crc": stored.body_crc,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "uniq_key": properties.get("UNIQ_KEY"),
        "properties": properties,
        "stored_body_len": len(stored.body),
        "body_sha256": hashlib.sha256(stored.body).hexdigest(),
    }


def queues(store: MessageStore) -> list[Row]:
    """Return every consume queue that has files, with its entries from minimum to maximum."""
    found: list[Row] = []
    for queue in store.queues():
        if queue.files:
            names = queue.row.names or ()
            rows = queue.entries(queue.min_offset, queue.max_offset).tolist()
            if not queue.batch and not any(file.start <= 20 * queue.min_offset < file.end for file in queue.files):
                rows = []  # the minimum is in a file that retention has removed: a walk from there finds nothing
            entries = [[value for name, value in zip(names, row, strict=True) if name in ENTRY_FIELDS] for row in rows]
            place: Row = {"topic": queue.topic, "queue_id": queue.queue_id}
            found.append(place | {"min_offset": queue.min_offset, "max_offset": queue.max_offset, "entries": entries})
    return found


# queries


def reads(store: MessageStore, questions: Sequence[Row]) -> list[Row]:
    """Return our answers to getMessage queries."""
    found = []
    for question in questions:
        tags = question["tags"]
        got = store.get(
            "oracle",
            question["topic"],
            question["queue_id"],
            question["offset"],
            question["max_msg_nums"],
            None if tags is None else TagFilter.parse(tags),
        )
        found.append(
            question
            | {
                "status": str(got.status),
                "next_begin_offset": got.next_begin_offset,
                "min_offset": got.min_offset,
                "max_offset": got.max_offset,
                # from the records: if the log starts later, a broker answers offset 0 with the first record it has
                "physical_offsets": [int.from_bytes(raw[28:36], "big", signed=True) if len(raw) >= 36 else -1 for raw in got.slices],
                "buffer_total_size": got.total_bytes,
            }
        )
    return found


def queries(store: MessageStore, questions: Sequence[Row]) -> list[Row]:
    """Return our answers to key queries: physical offsets and the position of the index."""
    found = []
    for question in questions:
        got = store.query(question["topic"], question["key"], question["max_num"], question["begin"], question["end"])
        found.append(
            question
            | {
                "expected": list(got.physical_offsets),
                "result_last_update_timestamp": got.index_last_update_timestamp,
                "result_last_update_phyoffset": got.index_last_update_physical_offset,
            }
        )
    return found


def times(store: MessageStore, questions: Sequence[Row]) -> list[Row]:
    """Return our answers to queries for a queue offset by time."""
    found = []
    for question in questions:
        asked = (question["topic"], question["queue_id"], question["timestamp"])
        if store.version == "4.9.3":
            found.append(question | {"offset": store.offset_by_time(*asked)})
        else:
            found.append(question | {boundary: store.offset_by_time(*asked, boundary) for boundary in ("lower", "upper")})
    return found


@dataclass(frozen=True)
class Questions:
    """Queries to a store; each list is one of the oracle's query files."""

    reads: list[Row]
    queries: list[Row]
    bytime: list[Row]


def questions(store: MessageStore, path: Path, seed: int) -> Questions:
    """Return queries for every queue at and around its ends, every key, and times of and between messages."""
    pick = random.Random(seed)
    ask_reads: list[Row] = []
    ask_times: list[Row] = []
    topics = set()
    for queue in store.queues():
        topics.add(queue.topic)
        low, high = queue.min_offset, queue.max_offset
        middle = pick.randrange(low, high) if low < high else low
        for offset in sorted({0, low - 1, low, low + 1, middle, high - 1, high, high + 1}):
            for count, tags in ((32, None), (1, "TagA"), (3, "TagA || 标签"), (32, "*")):
                where = {"topic": queue.topic, "queue_id": queue.queue_id, "offset": offset}
                ask_reads.append(where | {"max_msg_nums": count, "tags": tags})
        stamps = [found.store_timestamp for found in store.get("", queue.topic, queue.queue_id, low, 32).records()]
        if store.version == "4.9.3" and len(list((path / "consumequeue" / queue.topic / str(queue.queue_id)).glob("*"))) != 1:
            continue  # 4.9.3 selects the file by its modification time
        asked = sorted({0, *stamps, *(stamp + pick.choice((-1, 1, 100)) for stamp in stamps[:5]), 2**40})
        ask_times += [{"topic": queue.topic, "queue_id": queue.queue_id, "timestamp": stamp} for stamp in asked]
    ask_reads.append({"topic": "no-such-topic", "queue_id": 0, "offset": 0, "max_msg_nums": 32, "tags": None})
    ask_queries = [
        {"topic": topic, "key": key, "max_num": most, "begin": begin, "end": end}
        for topic in sorted(topics)
        for key in (*KEYS, *(f"key-{pick.randrange(60)}" for _ in range(5)), f"{pick.randrange(1, 40):032X}")
        for most, begin, end in (
            (64, 0, 2**63 - 1),
            (2, store.earliest_time() - 1000 + pick.randrange(30_000), store.earliest_time() + 60_000),
        )
    ]
    return Questions(ask_reads, ask_queries, ask_times)
