"""Scans of what RabbitMQ leaves: message files (`.rdq`), write-ahead logs of quorum queues, and segments of streams.

Message files: finding all records and reading their ids, one file per task, on two threads. The peer is the broker's own scan of the same
files inside the real node, which reads them through its file cache, one after the other.

Quorum queues: the whole way from a write-ahead log to the state of each queue, one thread; a log is made with commands as 4.3 writes them.
Streams: every chunk proved by its checksum, without and with the records of its entries, one thread.
Both together: commands on the directory of a real 4.3 node that was killed; the peer is the start of that node on the same directory.
"""

from __future__ import annotations

import re
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rabbitkit
from benchkit import Bench, Child, Row, Target, child, costs, divided, mqstore, timed
from interop.rabbitmq.other_node import OtherNode, missing, other_node

from mqstore.files import ReadOnlyDirectory
from mqstore.rabbitmq.erlang.terms import Atom, Opaque, Term, encode
from mqstore.rabbitmq.quorum.queue import QuorumQueue
from mqstore.rabbitmq.quorum.raft_log import raft_systems
from mqstore.rabbitmq.store.message_store import MessageStore
from mqstore.rabbitmq.streams.entries import walk_records
from mqstore.rabbitmq.streams.segment import HEADER, chunk, entry, walk_segment
from mqstore.rabbitmq.streams.stream import Stream

COUNT = 200_000
SIZES = (5000, 500)
THEIRS = 4  # files
MARK = 0x7A0B0C0D  # stands for a number that changes
NO_REPLY = Atom("noreply")
ENTRIES = 1_000_000
STREAM_BYTES, CHUNK_BYTES = 1 << 30, 64 << 10
KEPT = {"quorum": (200_000, 200), "stream": (200_000, 1000)}  # of the node that is killed: messages, and bytes of each
STARTED = re.compile(r"Time to start RabbitMQ: (\d+) ms")


def main() -> None:
    bench = Bench(__doc__ or "")
    for size in SIZES:
        count = rabbitkit.scaled(bench, COUNT * 5000 // size)
        config = rabbitkit.EngineConfig(queue_index_embed_msgs_below=1)
        place = next((rabbitkit.store(bench, count, size, config, "-stored") / "vhosts").iterdir())
        total = sum(file.stat().st_size for file in place.glob("msg_store_persistent/*.rdq"))

        def scan(place=place, count=count) -> None:
            store = MessageStore(ReadOnlyDirectory(place), "msg_store_persistent")
            with ThreadPoolExecutor(2) as pool:
                found = sum(len(records.at) for records in pool.map(store.records, store.files))
            assert found == count

        def whole(place=place, count=count) -> None:
            assert len(MessageStore(ReadOnlyDirectory(place), "msg_store_persistent")) == count

        files = sorted(place.glob("msg_store_persistent/*.rdq"))[:THEIRS]
        sizes = sum(file.stat().st_size for file in files)
        runs, tables, theirs = [], [], []
        with rabbitkit.node() as node:
            node.start()
            for _ in range(bench.rounds):
                runs.append(timed(scan))
                tables.append(timed(whole).seconds)
                start = time.perf_counter()
                for file in files:
                    node.eval(f'oracle:rdq("{file}", "{node.base}/scanned").')
                theirs.append(sizes / (time.perf_counter() - start) / 1e9)
        rates = [total / run.seconds / 1e9 for run in runs]
        bench.emit(
            Row(
                f"scan of .rdq files, messages of {size} B",
                [Target(">=", 1, "GB/s on 2 cores", rates)],
                {"GB/s": rates, "one thread, sorted by id": [total / seconds / 1e9 for seconds in tables], **costs(runs)},
                {"GB/s": theirs},
                divided(rates, theirs),
                f"{count} messages, {total / 1e9:.2f} GB, files in the page cache",
            )
        )
    _quorum_queues(bench)
    _streams(bench)
    _started(bench)


def _quorum_queues(bench: Bench) -> None:
    # queues, publishes for each settle, messages behind, consumers
    shapes = {
        "1 queue": (1, 1, 50),
        "300 queues": (300, 1, 50),
        "1 queue, settles of 300": (1, 300, 300),
        "1 queue, 100,000 ready": (1, 1, 100_000),
    }
    for name, (queues, ids, behind) in shapes.items():
        count = max(1000, int(ENTRIES * bench.options.scale) // queues)
        with bench.scratch(f"quorum-{queues}-{ids}-{behind}") as place:
            _write_log(place / "quorum" / "rabbit@host", queues, count, ids, behind)
            rabbitkit.warm(place)

            def replay(place: Path = place, queues: int = queues, count: int = count) -> None:
                (system,) = raft_systems(ReadOnlyDirectory(place), "quorum")
                states = [QuorumQueue(system.member(uid)).replay() for uid in system.uids]
                assert [state.applied for state in states] == [count] * queues
                assert not any(state.uncertain for state in states)

            runs = [timed(replay) for _ in range(bench.rounds)]
        rates = [count * queues / run.cpu for run in runs]
        bench.emit(
            Row(
                f"quorum queues, log to state: {name}",
                [Target(">=", 300_000, "entries/s a core", rates)],
                {"entries/s of processor time": rates, "entries/s": [count * queues / run.seconds for run in runs], **costs(runs)},
                conditions=f"{count * queues} entries, bodies of 200 B, one thread, files in the page cache",
            )
        )


def _write_log(place: Path, queues: int, count: int, ids: int, behind: int) -> None:
    """Write a write-ahead log with the entries of some queues in turn."""
    lives = []
    for number in range(queues):
        name, uid = b"q%d" % number, b"2F_Q%08d" % number
        (place / uid.decode()).mkdir(parents=True)
        resource = b'queue_resource => {resource,<<"/">>,queue,<<"%s">>}' % name
        config = b'#{uid => <<"%s">>,machine => {module,rabbit_fifo,#{%s}},initial_machine_version => 8,initial_members => []}.' % (
            uid,
            resource,
        )
        (place / uid.decode() / "config").write_bytes(config)
        lives.append((number, uid, _entries(count, ids, behind)))
    with (place / "0000000000000001.wal").open("wb") as file:
        file.write(b"RAWA\x01")
        for index in range(1, count + 1):
            for number, uid, life in lives:
                body = struct.pack(">QQ", index, 1) + (text := next(life))
                head = ((index > 1) << 22 | number).to_bytes(3, "big") + (b"" if index > 1 else len(uid).to_bytes(2, "big") + uid)
                file.write(head + struct.pack(">II", zlib.adler32(body), len(text)) + body)


def _entries(count: int, ids: int, behind: int) -> Iterator[bytes]:
    """Yield entries: publishes, and settles of so many messages whenever so many more than `behind` are in the queue."""

    def command(*fields: Term, mode: Term = NO_REPLY) -> bytes:
        return encode((Atom("$usr"), {Atom("ts"): 1_795_603_199_726}, fields, mode))

    def process(number: int) -> Opaque:
        return Opaque(b"Xw\x0brabbit@host" + number.to_bytes(4, "big") + bytes(8))

    yield encode((Atom("noop"), {Atom("ts"): 1_795_603_199_726}, 8))
    yield command(Atom("checkout"), (b"ctag", process(5)), (Atom("auto"), (Atom("simple_prefetch"), 2 * ids + 100)), {})
    content = (Atom("content"), 60, Atom("none"), b"\x10\0\2", Atom("rabbit_framing_amqp_0_9_1"), [bytes(200)])
    message = (Atom("mc"), Atom("mc_amqpl"), content, {Atom("x"): b"", Atom("rk"): [b"q"]})
    mark = struct.pack(">I", MARK)
    publish = command(Atom("e"), MARK, message, (3, 200), mode=(Atom("notify"), MARK, process(7))).split(mark)
    settle = command(Atom("settle"), 2, [MARK]).split(mark)
    published = settled = 0
    for _ in range(count - 2):
        if published - settled >= behind + ids:
            yield struct.pack(">I", settled).join(settle) if ids == 1 else command(Atom("settle"), 2, list(range(settled, settled + ids)))
            settled += ids
        else:
            published += 1
            yield struct.pack(">I", published).join(publish)


def _streams(bench: Bench) -> None:
    size = max(CHUNK_BYTES, int(STREAM_BYTES * bench.options.scale))
    for length in (1000, 100):
        with bench.scratch(f"stream-{length}") as place:
            place.mkdir()
            first, each = 0, CHUNK_BYTES // (length + 4)
            with (place / f"{0:020}.segment").open("wb") as file:
                file.write(HEADER)
                texts = rabbitkit.bodies(length)
                while file.tell() < size:
                    text = texts[first % 256]
                    file.write(chunk(first, [entry(text)] * each))
                    first += each
            rabbitkit.warm(place)

            def prove(place: Path = place, total: int = first) -> None:
                stream = Stream(ReadOnlyDirectory(place), "")
                data, _ = stream.open(0)
                assert sum(int(chunks.records.sum()) for chunks, damage in stream.walk(0, data) if not damage) == total

            def read(place: Path = place, total: int = first) -> None:
                data, _ = Stream(ReadOnlyDirectory(place), "").open(0)
                found = (len(records) for chunks, _ in walk_segment(data, 0) for records, _ in walk_records(data, chunks))
                assert sum(found) == total

            runs = [(timed(prove), timed(read)) for _ in range(bench.rounds)]
        proved, listed = ([size / run.seconds / 1e9 for run in each] for each in zip(*runs, strict=True))
        bench.emit(
            Row(
                f"streams, every chunk proved, messages of {length} B",
                [Target(">=", 1, "GB/s", proved)],
                {"GB/s": proved, "with the place of every record": listed, **costs([run for run, _ in runs])},
                conditions=f"{first} messages in chunks of 64 KiB, {size / 1e9:.2f} GB, one thread",
            )
        )


def _started(bench: Bench) -> None:
    """Commands on a directory with a quorum queue and a stream, and the start of its node on a copy of it."""
    reason = missing()
    if reason:
        sys.exit(f"This benchmark needs a real 4.3 node as its peer: {reason}.")
    sizes = {kind: (rabbitkit.scaled(bench, count), length) for kind, (count, length) in KEPT.items()}
    ours: dict[str, list[Child]] = {"inspect": [], "topics": [], "messages": []}
    logged: list[float] = []
    told: list[float] = []
    with bench.scratch("killed") as place, other_node() as node:
        bare = _start(node)
        channel = node.connect("/").channel()
        for kind, (count, length) in sizes.items():
            channel.queue_declare(kind, durable=True, arguments={"x-queue-type": kind})
            rabbitkit.pika_windows(node.port, rabbitkit.bodies(length), count, kind)
        node.kill()
        node.data.rename(place)
        total = rabbitkit.warm(place)
        for _ in range(bench.rounds):
            for name, found in ours.items():
                done = child(*mqstore(name, place, "-o", "jsonl"))
                assert done.status == 0, name
                found.append(done)
            shutil.copytree(place, node.data, symlinks=True)
            begun = time.perf_counter()
            logged.append(_start(node))
            ready = node.connect("/").channel().queue_declare("quorum", passive=True).method.message_count
            told.append(time.perf_counter() - begun)
            assert ready == sizes["quorum"][0]
            node.kill()
            shutil.rmtree(node.data)
    theirs = {"seconds by its log": logged, "until a client has the count": told, "by its log, with no queue": bare}
    kept = ", ".join(f"a {kind} with {count} messages of {length} B" for kind, (count, length) in sizes.items())
    conditions = f"{node.version}, kill -9, {total / 1e6:.0f} MB: {kept}; files in the page cache"
    for name, found in ours.items():
        what = f"{name} on the directory of a killed node with queues of both types"
        bench.emit(Row(what, (), costs(found), theirs, divided(costs(found)["seconds"], logged), conditions))


def _start(node: OtherNode) -> float:
    """Start a node and return the seconds that its log states."""
    before = len(node.log())
    node.start()
    return int(STARTED.findall(node.log()[before:])[-1]) / 1000


if __name__ == "__main__":
    sys.exit(main())
