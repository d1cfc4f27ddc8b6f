"""Random operation scripts for a RocketMQ store, which every implementation must run with the same result.

A script is a list of operations as the oracle's `append` mode takes them (rocketmq/README.md). The generator tracks
the end of the log, so that it can aim at the edges: records that just fit into a file and that just do not, batches across
the end of a file. File sizes are small, so that a hundred messages roll every kind of file.

Three versions are compared with the rules of 4.9.3 or 5.3.3, so their scripts leave out what they do in another way: 4.7.1 gives the
messages of a batch the wall clock's time, does not have multi-dispatch, and reads malformed properties differently; and where an extended
consume queue goes on after a kill was compared for 4.9.3 and 5.3.3 only.

    >>> script = random_script(7, "4.9.3")
    >>> script == random_script(7, "4.9.3")
    True
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mqstore.rocketmq.format.profile import profile

Operation = dict[str, Any]

START = 1_640_995_200_123
SNAPSHOT = "@snapshot"  # placeholder for the directory of a run

TAGS = ("TagA", "TagB", "polygenelubricants", "标签", "t" * 40, "😀", "")
KEYS = ("Aa", "BB", "AaAa", "BBBB", "AaBB", "order-1", "order-2", "ключ", "订单号#42", "ogaQmc", "😀", "k" * 60)
NAMES = ("a", "b", "CLUSTER", "INSTANCE_ID", "PGROUP", "цвет", "note", "__SHARDINGKEY", "WAIT", "REAL_TOPIC_OF_MINE")
MALFORMED = ("novalue", "\x01value", "name\x01", "", "x\x01y\x01z")
HOSTS = ("10.1.2.3:40000", "[::1]:124", "[2001:db8::ff00:42:8329]:65535", "255.255.255.255:1", "0.0.0.0:0")


@dataclass(frozen=True)
class Script:
    """options: by the broker's own names. first: includes a copy of the directory (`snapshot`), then continues to a clean close.

    second: operations for a store after `first`, by either implementation.
    """

    seed: int
    version: str
    options: dict[str, str]
    first: list[Operation] = field(repr=False)
    second: list[Operation] = field(repr=False)


def placed(script: list[Operation], snapshot: str) -> list[Operation]:
    """Return the operations with the snapshot's directory filled in."""
    return [{**operation, "to": snapshot} if operation.get("op") == "snapshot" else operation for operation in script]


def encoded_batch(messages: list[tuple[bytes, str, int]]) -> bytes:
    """Return a producer's batch body: for each (body, property text, flag) its size, magic 0, crc 0, flag, body and properties."""
    parts = []
    for body, text, flag in messages:
        properties = text.encode()
        head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
        parts.append(head + body + struct.pack(">h", len(properties)) + properties)
    return b"".join(parts)


def decoded_batch(encoded: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Return the (body, property text, flag) of each message in a producer's batch body."""
    at = 0
    while at < len(encoded):
        _, _, _, flag, length = struct.unpack_from(">iiiii", encoded, at)
        body = encoded[at + 20 : at + 20 + length]
        (size,) = struct.unpack_from(">h", encoded, at + 20 + length)
        at += 22 + length + size
        yield body, encoded[at - size : at], flag


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs that a broker parses from a property text."""
    found = {}
    for pair in text.split("\x02"):
        name, separator, value = pair.partition("\x01")
        if name and separator and value:
            found[name] = value
    return found


def _size(text: str) -> int:
    return len(text.encode())


class _Generator:
    def __init__(self, seed: int, version: str) -> None:
        self.random = random.Random(f"{version} {seed}")
        self.five = profile(version).rules != "4.9.3"
        self.reproduced = version in ("4.9.3", "5.3.3")
        self.old = version == "4.7.1"
        self.ends = profile(version).ends_properties
        self.shares = profile(version).shares_properties
        pick = self.random.random()
        if pick < 0.45:
            self.file, entries, slots, positions = 8192, 10, 8, 20
        elif pick < 0.85:
            self.file, entries, slots, positions = 32768, 20, 16, 60
        else:
            self.file, entries, slots, positions = 131072, 100, 100, 400
        self.limit = self.file // 3
        self.long_properties = self.file >= 131072
        self.options = {
            "mappedFileSizeCommitLog": str(self.file),
            "mappedFileSizeConsumeQueue": str(entries * 20),
            "maxHashSlotNum": str(slots),
            "maxIndexNum": str(positions),
            "maxMessageSize": str(self.limit),
        }
        self.topics = ["TopicTest", "orders", "%RETRY%group", "pipe|and%percent", "T" * 127]
        self.batch_topic = self.five and self.random.random() < 0.2
        self.extended = self.random.random() < 0.12 and self.reproduced
        self.multi = self.random.random() < 0.12 and not self.old
        self.crc_property = self.five and self.random.random() < 0.15
        if self.five:
            self.topics += ["%RETRY%" + "g" * 121, "%RETRY%" + "g" * 120, "%RETRY%" + "h" * 248]
        if self.batch_topic:
            self.topics.append("batched")
            self.options |= {"queueType.batched": "BatchCQ", "mapperFileSizeBatchConsumeQueue": str(46 * 6)}
        if self.extended:
            self.options |= {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "300"}
        if self.multi:
            self.options |= {"enableMultiDispatch": "true", "enableLmq": "true"}
        if self.crc_property:
            self.options["enabledAppendPropCRC"] = "true"
        self.at = 0  # the end of the log, as far as it is known beforehand
        self.number = 0
        self.stopped = False

    # parts of a message

    def keys(self) -> str:
        picked = [
            self.random.choice(KEYS) if self.random.random() < 0.5 else f"key-{self.random.randrange(60)}" for _ in range(self.some_keys())
        ]
        separator = " " if self.random.random() < 0.9 else "  "
        return separator.join(picked)

    def some_keys(self) -> int:
        return self.random.choice((1, 1, 1, 1, 2, 2, 3, 7))

    def text(self) -> str:
        """Return a property text: mostly as a producer sends it, sometimes malformed, with or without the last separator."""
        roll = self.random.random
        pairs = []
        if roll() < 0.7:
            pairs.append(f"KEYS\x01{self.keys()}")
        if roll() < 0.6:
            pairs.append(f"TAGS\x01{self.random.choice(TAGS)}")
        if roll() < 0.4:
            self.number += 1
            pairs.append(f"UNIQ_KEY\x01{self.number if roll() < 0.8 else 1:032X}")
        values = ("true", "false", "é", "订单 42", "v" * self.random.randrange(1, 30))
        for name in self.random.choices(NAMES, k=self.random.choice((0, 0, 0, 1, 2, 9))):
            pairs += [f"{name}\x01{self.random.choice(values)}"]
        if roll() < 0.05 and not self.old:
            pairs.append(self.random.choice(MALFORMED))
        if roll() < 0.05 and pairs:
            pairs.append(self.random.choice(pairs))
        self.random.shuffle(pairs)
        if self.multi and roll() < 0.5:
            names = self.random.sample(("%LMQ%one", "%LMQ%two", "%LMQ%three"), self.random.randrange(1, 4))
            pairs.append("INNER_MULTI_DISPATCH\x01" + ",".join(names))
        if self.multi and not _pairs("\x02".join(pairs)):
            pairs.append("a\x01b")  # 4.9.3 stops dispatching at a record without properties
        text = "\x02".join(pairs)
        return text + "\x02" if text and roll() < (0.9 if self.five else 0.1) else text

    def body(self, most: int) -> bytes:
        pick = self.random.random()
        if pick < 0.05:
            return b""
        length = self.random.randrange(1, 200) if pick < 0.9 else self.random.randrange(most // 2)
        return self.random.randbytes(length) if pick < 0.3 else (b"0123456789abcdef" * (length // 16 + 1))[:length]

    def envelope(self) -> Operation:
        topic = self.random.choice(self.topics[: -1 if self.batch_topic else None])
        operation: Operation = {
            "topic": topic,
            "queue_id": self.random.choice((0, 0, 1, 2, 3, 117)) if self.random.random() < 0.5 else 0,
            "born_timestamp": START - self.random.randrange(1000),
        }
        if self.random.random() < 0.1:
            operation["born_host"] = self.random.choice(HOSTS)
        if self.random.random() < 0.05:
            operation["store_host"] = self.random.choice(HOSTS)
        if self.random.random() < 0.1:
            operation["reconsume_times"] = self.random.randrange(20)
        if self.random.random() < 0.3:
            operation["flag"] = self.random.choice((1, -1, 2**31 - 1, 7))
        return operation

    # sizes

    def record_size(self, operation: Operation, body: int, properties: int) -> int:
        topic = _size(operation["topic"])
        wide = 1 if self.five and len(operation["topic"]) > 127 else 0
        hosts = sum(12 for name in ("born_host", "store_host") if operation.get(name, "").startswith("["))
        return 91 + wide + hosts + body + topic + properties

    def properties_size(self, operation: Operation) -> int:
        """Return the size of the property text as it will be stored."""
        text = operation["properties_text"]
        size = _size(text)
        level = int(_pairs(text).get("DELAY", "0"))
        if level > 0 and operation.get("sys_flag", 0) & 0xC in (0, 8):
            stored = _pairs(text) | {"REAL_TOPIC": operation["topic"], "REAL_QID": str(operation["queue_id"])}
            size = sum(_size(name) + _size(value) + 2 for name, value in stored.items()) - (0 if self.ends else 1)
            text = "\x02" if self.ends else "x"
        if self.crc_property:
            size += 20 + (1 if text and not text.endswith("\x02") else 0)
        return size

    def room(self) -> int:
        """Return the bytes left in the current log file."""
        return self.file - self.at % self.file

    def advance(self, size: int) -> None:
        if size + 8 > self.room():
            self.at += self.room()
        self.at += size

    # operations

    def put(self, fit: int | None = None) -> Operation:
        """Return a put; with fit, one that leaves that many bytes of the file, if possible."""
        operation = self.envelope()
        text = self.text()
        roll = self.random.random
        if roll() < 0.1:
            operation["sys_flag"] = self.random.choice((2, 4, 8, 0xC, 4 | 2))
            if operation["sys_flag"] & 8:
                operation["prepared_transaction_offset"] = self.random.randrange(max(1, self.at))
        if roll() < 0.12 and not self.multi:
            level = self.random.choice((1, 2, 3, 5, 18, 19, 99, 0, -1))
            text = f"{text}{'' if not text or text.endswith(chr(2)) else chr(2)}DELAY\x01{level}"
        if roll() < 0.03:
            operation |= {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 3}
            text = "KEYS\x01k"
        operation["properties_text"] = text
        body = self.body(self.limit // 2)
        overhead = self.record_size(operation, 0, self.properties_size(operation))
        if int(_pairs(text).get("DELAY", "0")) > 0:
            topic = _size("SCHEDULE_TOPIC_XXXX") - _size(operation["topic"])
            overhead += topic - (1 if self.five and len(operation["topic"]) > 127 else 0)
        if fit is not None and 0 <= self.room() - fit - overhead <= self.limit - overhead:
            body = b"f" * (self.room() - fit - overhead)
        operation["body_base64"] = base64.b64encode(body).decode()
        self.advance(overhead + len(body))
        return operation

    def batch(self, *, wide: bool = False) -> Operation:
        """Return a put of a producer's batch; wide: one that most likely does not fit into the current file."""
        operation = {"op": "batch", **self.envelope()}
        count = self.random.randrange(1, 9)
        each = min(self.room() // count + 1, self.limit // (count + 1)) if wide else 60
        messages = []
        for _ in range(count):
            text = self.text()
            messages.append(
                (
                    self.body(120) if not wide else bytes(max(0, each - 100 - _size(text) - _size(operation["topic"]))),
                    text,
                    self.random.choice((0, 0, 5)),
                )
            )
        shared = self.random.choice(("", "", "CLUSTER\x01DefaultCluster"))
        if shared and self.five:
            shared += "\x02"
        operation["properties_text"] = shared
        sizes = []
        stored = "" if not self.shares else shared if self.ends else shared.removesuffix("\x02")
        for body, text, _ in messages:
            both = _size(text) + _size(stored) + (1 if text and stored and not text.endswith("\x02") else 0)
            sizes.append(self.record_size(operation, len(body), both + (20 if self.crc_property else 0)))
        if sum(sizes) > self.limit:
            return self.put()
        operation["encoded_base64"] = base64.b64encode(encoded_batch(messages)).decode()
        self.advance(sum(sizes))
        return operation

    def inner_batch(self) -> Operation:
        """Return a put of one record that holds a whole batch, on a topic with a batch queue."""
        count = self.random.randrange(1, 7)
        messages = [(self.body(120), "KEYS\x01k\x02", 0) for _ in range(count)]
        operation = {
            **self.envelope(),
            "topic": "batched",
            "queue_id": self.random.randrange(2),
            "sys_flag": 0xC0,
            "properties_text": f"UNIQ_KEY\x01{self.random.randrange(2**60):032X}\x02INNER_NUM\x01{count}\x02",
        }
        body = encoded_batch(messages)
        operation["body_base64"] = base64.b64encode(body).decode()
        self.advance(self.record_size(operation, len(body), _size(operation["properties_text"]) + len("INNER_BASE") + 3))
        return operation

    def refused(self) -> Operation:
        """Return a put that a broker refuses."""
        operation = self.envelope() | {"properties_text": "KEYS\x01refused", "body": "x"}
        kinds = ["body", "topic", "batch-delay", "batch-transaction", "characters"]
        if not self.five:
            kinds.append("batch-body")
        kind = self.random.choice(kinds)
        if kind == "body":
            operation["body"] = "x" * (self.limit + 1)
        elif kind == "topic":
            operation["topic"] = ("%RETRY%" + "g" * 249) if self.five and self.random.random() < 0.5 else "x" * 128
        elif kind == "characters":
            operation["properties_text"] = "a\x01" + "v" * 32766
        elif kind == "batch-body":
            encoded = encoded_batch([(bytes(self.limit), "", 0)])
            operation |= {"op": "batch", "properties_text": "", "encoded_base64": base64.b64encode(encoded).decode()}
        else:
            operation |= {
                "op": "batch",
                "encoded_base64": base64.b64encode(encoded_batch([(b"a", "", 0), (b"b", "KEYS\x01k", 0)])).decode(),
            }
            operation["properties_text"] = "DELAY\x012" if kind == "batch-delay" else ""
            if kind == "batch-transaction":
                operation["sys_flag"] = self.random.choice((4, 8, 0xC))
        return operation

    def long_text(self) -> Operation:
        """Return a put whose property text has the maximum length or a little more, in characters of one byte or of three."""
        operation = self.envelope() | {"topic": "TopicTest", "body": ""}
        room = 32767 - (20 if self.crc_property else 0)
        if self.random.random() < 0.7:
            room += self.random.choice((-40, -1, 0, 1))
            operation["properties_text"] = "a\x01" + "v" * (room - 3) + "\x02"
        else:
            operation["properties_text"] = "a\x01" + "订" * (room // 3 + self.random.choice((-2, 0)))
        size = _size(operation["properties_text"]) + (20 if self.crc_property else 0)
        if size <= 32767:
            self.advance(self.record_size(operation, 0, size))
        return operation

    def one(self) -> Iterator[Operation]:
        pick = self.random.random()
        if pick < 0.60:
            yield self.put()
        elif pick < 0.68:
            yield self.put(fit=self.random.choice((8, 8, 9, 7, 0, 16, 100)))
        elif pick < 0.76:
            yield self.put() if self.old else self.batch()
        elif pick < 0.79:
            yield self.put() if self.old else self.batch(wide=True)
        elif pick < 0.83:
            yield self.inner_batch() if self.batch_topic else self.put()
        elif pick < 0.86:
            yield self.refused()
        elif pick < 0.88:
            yield self.long_text() if self.long_properties else self.put()
        elif pick < 0.93:
            yield {"op": "clock", "add": self.random.choice((1, 999, 1000, 1001, 61_000, 3_600_000, -5_000, -400, 0))}
        elif pick < 0.94:
            yield {"op": "clock", "step": self.random.choice((0, 1, 7, 211, 1500))}
        elif pick < 0.955:
            yield {"op": "checkpoint"}
        elif pick < 0.97:
            yield {"op": "flush"}
        elif pick < 0.98 and not self.stopped and self.at > 3 * self.file:
            yield {"op": "retention", "expire_files": self.random.randrange(1, 3)}
        elif pick < 0.985 and not self.stopped:
            yield {"op": "reopen"}
        elif not self.multi:
            yield {"op": "start_dispatch" if self.stopped else "stop_dispatch"}
            self.stopped = not self.stopped

    def run(self, count: int) -> list[Operation]:
        operations: list[Operation] = []
        while len(operations) < count:
            operations += self.one()
        return operations

    def running(self) -> list[Operation]:
        if not self.stopped:
            return []
        self.stopped = False
        return [{"op": "start_dispatch"}]


def random_script(seed: int, version: str) -> Script:
    """Return the script of that number: about two hundred operations, a hundred of them before the snapshot."""
    make = _Generator(seed, version)
    clock = {"op": "clock", "set": START, "step": make.random.choice((1, 7, 137, 1500))}
    first = [clock, *make.run(make.random.randrange(10, 90)), {"op": "snapshot", "to": SNAPSHOT}]
    first += [*make.run(make.random.randrange(20)), *make.running()]
    second = [{"op": "clock", "set": START + 90_000_000, "step": 13}, *make.run(make.random.randrange(10, 50)), *make.running()]
    return Script(seed, version, make.options, first, second)
