"""carving: every whole message out of a disk image of 4 GB, two threads, with a warm page cache.

The image is made of fragments of a real log (3 parts), of message files of RabbitMQ (a quarter part) and of noise (1 part), cut at
blocks of 4 KiB and shuffled. `cat` of the same image is the floor: reading, without looking. A second figure adds every check of every
record (checksum, compression, text): the verdicts.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
from benchkit import Bench, Row, Target, child, divided, timed

from mqstore.rabbitmq.format.message_file import record
from mqstore.rabbitmq.message.message_term import MessageTerm, write_message

SIZE = 4_000_000_000
BLOCK = 4096
FRAGMENT = (16, 4096)  # blocks

SEARCH = """
import json, sys, time
from pathlib import Path
from dataclasses import replace
import pyarrow, pyarrow.compute
from mqstore.files.image import Image
from mqstore.rocketmq.salvage import Piece
from mqstore.wreck.search import carve, source_files
from mqstore.jobs.runner import ThreadRunner
from mqstore.rocketmq.salvage import rows_of

def check(placed):
    piece = Piece("image", Image(sys.argv[1]))  # one for each thread
    each = replace(placed, stretch=replace(placed.stretch, piece=piece))
    words = (word for batch in rows_of([each], ("physical_offset", "verdict")) for word in batch.column("verdict").to_pylist())
    return sum(word == "intact" for word in words)

runner = ThreadRunner(2)
started, before = time.perf_counter(), time.process_time()
wreck = carve(source_files(Path(sys.argv[1])), runner)
found, between = time.perf_counter(), time.process_time()
intact = sum(runner.each(wreck.placed, check))
ended, after = time.perf_counter(), time.process_time()
print(json.dumps({"find": found - started, "all": ended - started,
                  "find_cpu": between - before, "all_cpu": after - before, "bytes": wreck.bytes, "records": wreck.records,
                  "messages": wreck.messages, "intact": intact, "unclaimed": wreck.gap_bytes}))
"""


def make_image(path: Path, log: Path, size: int) -> None:
    rng, noise = random.Random(1), np.random.default_rng(1)
    pieces = [(each, at) for each in sorted(log.iterdir()) for at in _cuts(each.stat().st_size, rng)]
    rng.shuffle(pieces)
    terms = [_rabbitmq(number) for number in range(2000)]
    written = number = 0
    with path.open("wb") as image:
        while written < size:
            kind = rng.random() * 4.25
            if kind < 3:
                if not pieces:
                    break
                file, (low, high) = pieces.pop()
                with file.open("rb") as source:
                    source.seek(low)
                    part = source.read(high - low)
            elif kind < 3.25:
                part = b"".join(_renumbered(terms[k % 2000], number + k) for k in range(1000))
                number += 1000
            else:
                part = noise.integers(0, 256, rng.randrange(*FRAGMENT) * BLOCK, np.uint8).tobytes()
            part += bytes(-len(part) % BLOCK)
            written += image.write(part)


def _cuts(length: int, rng: random.Random) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < length:
        stop = min(length, at + rng.randrange(*FRAGMENT) * BLOCK)
        found.append((at, stop))
        at = stop
    return found


def _rabbitmq(number: int) -> bytes:
    body = random.Random(number).randbytes(1024)
    return write_message(MessageTerm(bytes(16), b"/", b"", (b"orders",), True, (body,), b"\x10\x00\x02"))


def _renumbered(term: bytes, number: int) -> bytes:
    identity = number.to_bytes(16, "big")
    return record(identity, term.replace(bytes(16), identity))


def main() -> None:
    bench = Bench(__doc__ or "")
    store = bench.store("s2")
    size = int(SIZE * bench.options.scale)
    image = bench.options.work / "carving.img"
    make_image(image, Path(store) / "commitlog", size)
    try:
        cat, runs = [], []
        for _ in range(bench.rounds):
            cat.append(timed(subprocess.run, ["cat", str(image)], stdout=subprocess.DEVNULL, check=True).seconds)
            runs.append(child(sys.executable, "-c", SEARCH, str(image)))
        reports = [json.loads(run.stdout) for run in runs]
        total, first = reports[0]["bytes"], reports[0]
        counts = {"records": first["records"], "RabbitMQ messages": first["messages"], "peak RSS MB": max(run.rss for run in runs) / 1e6}
        conditions = f"{total / 1e9:.2f} GB image, {first['unclaimed'] / 1e9:.2f} GB of noise"
        for what, name in (("carving of an image", "find"), ("the same, and every check of every record", "all")):
            ours = [each[name] for each in reports]
            rates = [total / seconds / 1e9 for seconds in ours]
            per_core = [total / each[f"{name}_cpu"] / 1e9 for each in reports]
            row = Row(
                f"{what}, two threads",
                [Target(">=", 1, "GB/s", rates)],
                {"GB/s": rates, "GB per second of CPU": per_core, **counts},
                {"GB/s of cat": [total / seconds / 1e9 for seconds in cat]},
                divided(cat, ours),
                conditions,
            )
            bench.emit(row)
    finally:
        image.unlink()


if __name__ == "__main__":
    main()
