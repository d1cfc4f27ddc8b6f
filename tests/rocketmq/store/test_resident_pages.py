"""Pages of a store's files leave the memory of a process with the task that read them, as the kernel counts them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore
from mqstore.jobs.lookup import lookup
from mqstore.jobs.rebuild import rebuild
from mqstore.rocketmq.format.record import Record, encode, encode_properties
from mqstore.rocketmq.lookup.pruning import Offsets, PointTask, read_points
from mqstore.rocketmq.scan.planned_files import token_of
from mqstore.rocketmq.scan.splits import plan
from mqstore.rocketmq.store.split_reader import ReadTask, read_split
from mqstore.table.columns import ROCKETMQ_COLUMNS, Selection

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the kernel does not report resident pages"),
    pytest.mark.real_sizes,  # pages are dropped whole, so those between two small batches stay
]

MESSAGES = 2000
BODY = bytes(range(256)) * 128
MOST = 8 << 20  # bytes that may stay: a page fault loads neighbouring pages, two megabytes with large pages


def resident(root: Path) -> int:
    """Return the bytes of the maps of a directory's files that are in this process's memory."""
    found = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = str(root) in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 66 MB of log."""
    log = tmp_path_factory.mktemp("pages") / "bare" / "commitlog"  # beside no map that another test of this process has left
    log.mkdir(parents=True)
    written = bytearray()
    for number in range(MESSAGES):
        properties = encode_properties({"KEYS": f"key-{number}"})
        written += encode(Record("T", BODY, queue_offset=number, physical_offset=len(written), properties=properties))
    (log / f"{0:020d}").write_bytes(written.ljust(1 << 27, b"\0"))
    config = log.parent.with_name("broker.conf")
    config.write_text("maxHashSlotNum=1000\nmaxIndexNum=4000\n")
    store = log.parent.with_name("store")
    rebuild(log.parent, store, config=config, threads=1)
    return store


def read_splits(root: Path) -> int:
    store = mqstore.open(root)
    splits = plan(store.log, count=3)
    tasks = [ReadTask(store.place, store.config, token_of(store.log), split, ROCKETMQ_COLUMNS, Selection()) for split in splits]
    return sum(batch.num_rows for task in tasks for batch in read_split(task))


def read_places(root: Path) -> int:
    store = mqstore.open(root)
    places = Offsets.of(store.view().queue("T", 0).entries(0, MESSAGES)["physical_offset"].astype("i8"))
    task = PointTask(store.place, store.config, token_of(store.log), places, ROCKETMQ_COLUMNS, Selection())
    return sum(batch.num_rows for batch in read_points(task))


def look_up(root: Path) -> int:
    keys = [("T", f"key-{number}") for number in range(MESSAGES)]
    return sum(lookup(root, keys, root.with_name(f"{by}.parquet"), by=by, threads=1).found for by in ("scan", "sweep")) // 2


def walk(root: Path) -> int:
    return sum(batch.num_rows for batch in mqstore.open(root).view().batches(["body"]))


@pytest.mark.parametrize("read", [read_splits, read_places, look_up, walk])
def test_jobs_that_read_a_whole_store_drop_its_pages(root: Path, read: Callable[[Path], int]) -> None:
    before = resident(root.parent)
    assert read(root) == MESSAGES
    assert resident(root.parent) - before <= MOST


def test_a_touched_map_counts_as_resident(root: Path) -> None:
    log = mqstore.open(root).log
    mapped = log.mapped(log.files[0])
    assert int(mapped.data[: 1 << 25].max()) == 255
    assert resident(root.parent) > 1 << 24
    mapped.drop(0, mapped.size)
    assert resident(root.parent) <= MOST
