"""Sparse stores of any size on paper: each log file holds one message and an end-of-file record over a hole.

    sparse_store(tmp_path, 100_000)      # 100,000 log files of 1 GiB, some 400 MB on disk

All messages have queue entries, so that every log file is accounted for; message k is in file k, has the key `k<k>`, and is number
k // QUEUES of queue k % QUEUES.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

from support.stores import BEGIN, message

from mqstore.rocketmq.format.record import blank, encode

FILE_SIZE = 1 << 30
QUEUES = 4
TOPIC = "orders"
_QUEUE_FILE = 300_000 * 20


def sparse_store(root: Path, files: int, *, file_size: int = FILE_SIZE, queues: bool = True) -> Path:
    """Write a store with that many log files. queues: with its consume queues."""
    log = root / "commitlog"
    log.mkdir(parents=True)
    entries = [bytearray() for _ in range(QUEUES)]
    for number in range(files):
        base = number * file_size
        made = replace(
            message(TOPIC, keys=f"k{number}"),
            physical_offset=base,
            queue_id=number % QUEUES,
            queue_offset=number // QUEUES,
            store_timestamp=BEGIN + number,
            born_timestamp=BEGIN + number,
        )
        raw = encode(made)
        entries[number % QUEUES] += struct.pack(">qiq", base, len(raw), 0)
        descriptor = os.open(log / f"{base:020d}", os.O_CREAT | os.O_WRONLY, 0o644)
        try:
            os.write(descriptor, raw + blank(file_size - len(raw)))
            os.ftruncate(descriptor, file_size)
        finally:
            os.close(descriptor)
    for queue_id, run in enumerate(entries if queues else []):
        for start in range(0, len(run), _QUEUE_FILE):
            path = root / "consumequeue" / TOPIC / str(queue_id) / f"{start:020d}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(run[start : start + _QUEUE_FILE])
                file.truncate(_QUEUE_FILE)
    return root
