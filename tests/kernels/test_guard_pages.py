"""No kernel accesses a byte outside of the buffers that it gets, whatever is damaged: the fuzzer of both families between guard pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.batches import check_images
from fuzz.images import FAMILIES
from support.golden import case_named, opened
from support.guard_pages import PLACES, VARIABLE

TESTS = Path(__file__).parent.parent
FEW, MANY = 3, 100
SIGSEGV = -11


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = [str(TESTS), *(each for each in sys.path if each)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment, timeout=300
    )


OUTSIDE = """
import ctypes, sys
import numpy as np
from support.guard_pages import guarded
place, size, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
array = guarded(np.arange(size, dtype=np.uint8), place)
assert array.tolist() == [number % 256 for number in range(size)]
address = array.__array_interface__["data"][0]
print("inside", flush=True)
ctypes.string_at(address + (size - 1 + step if place == "end" else -step), 1)
print("survived")
"""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [1, 4096, 5000])
def test_one_byte_outside_of_a_guarded_buffer_ends_the_process_and_none_inside(place: str, size: int) -> None:
    outside = run(OUTSIDE, place, size, 1)
    assert (outside.returncode, outside.stdout) == (SIGSEGV, "inside\n"), outside.stderr
    assert run(OUTSIDE, place, size, 0).stdout == "inside\nsurvived\n"


TRUSTING = """
import sys
import numpy as np
from support import guard_pages
guard_pages.install(sys.argv[1])
from mqstore.kernels.rocketmq import frames
out = np.zeros((frames.FIELD_COUNT, 1), np.int64)
frames.fields(np.zeros(100, np.uint8), np.array([int(sys.argv[2])], np.int64), out)
print("returned")
"""


@pytest.mark.parametrize(("place", "position"), [("end", 90), ("start", -30)])
def test_a_kernel_that_reads_outside_ends_the_process(place: str, position: int) -> None:
    """`frames.fields` trusts the positions that `frames.check` has accepted; no caller gives others."""
    assert run(TRUSTING, place, position).returncode == SIGSEGV
    assert run(TRUSTING, place, 0).stdout == "returned\n"


WRITES = """
import numpy as np
from support import guard_pages
guard_pages.install("end")
array = np.zeros(10, np.uint8)
array.flags.writeable = False
copy = guard_pages.guarded(array, "end")
import ctypes
ctypes.memset(copy.__array_interface__["data"][0], 1, 1)
"""


def test_a_read_only_buffer_cannot_be_written() -> None:
    assert run(WRITES).returncode == SIGSEGV


MAPPED = """
import ctypes, mmap, sys
from support import guard_pages
guard_pages.install("end")
with open(sys.argv[1], "rb") as file:
    maps = [mmap.mmap(file.fileno(), 8192, access=mmap.ACCESS_READ) for _ in range(50)]
assert (guard_pages.FencedMap.fenced, guard_pages.FencedMap.unfenced) == (50, 0), vars(guard_pages.FencedMap)
import numpy as np
address = np.frombuffer(maps[int(sys.argv[2])], np.uint8).__array_interface__["data"][0]
ctypes.string_at(address + 8191, 1)
print("inside", flush=True)
ctypes.string_at(address + int(sys.argv[3]), 1)
print("survived")
"""


@pytest.mark.parametrize(("number", "position"), [(0, 8192), (25, 8192), (49, -1)])
def test_one_byte_outside_of_a_map_of_a_file_ends_the_process(number: int, position: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 32)
    done = run(MAPPED, tmp_path / "file", number, position)
    assert (done.returncode, done.stdout) == (SIGSEGV, "inside\n"), done.stderr


ENGINE = """
import sys
from support import guard_pages
guard_pages.install("end")
from mqstore.rocketmq import Message, MessageStore, StoreConfig
sizes = {"commit_log_file_size": 16384, "consume_queue_file_size": 4000, "max_hash_slot_num": 100, "max_index_num": 1000}
with MessageStore.open(sys.argv[1], StoreConfig(version=sys.argv[2], **sizes)) as store:
    for number in range(600):
        body = bytes([number % 256]) * (number * 7 % 1500)
        store.put(Message("orders", body, queue_id=number % 3, keys=f"k{number}", tags="a" if number % 2 else "b"))
    assert store.wait_dispatched()
    taken = 0
    for queue_id in range(3):
        offset = 0
        while offset < store.max_offset("orders", queue_id):
            found = store.get("group", "orders", queue_id, offset, 32)
            taken += found.message_count
            offset = found.next_begin_offset
print(taken, guard_pages.FencedMap.fenced > 60, guard_pages.FencedMap.unfenced)
"""


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_the_engine_puts_and_pulls_in_maps_between_guard_pages(version: str, tmp_path: Path) -> None:
    done = run(ENGINE, tmp_path / "store", version)
    assert (done.returncode, done.stdout) == (0, "600 True 0\n"), done.stderr[-3000:]


READS = """
import sys
from support import guard_pages
guard_pages.install(sys.argv[1])
from mqstore.cli.main import run
status = [run([verb, store]) for store in sys.argv[2:] for verb in ("verify", "messages", "topics", "usage")]
print("\\n".join(["", "kernels:", *guard_pages.calls]))
sys.exit(max(status))
"""


@pytest.mark.parametrize("place", PLACES)
def test_intact_stores_are_read_between_guard_pages_with_the_same_result(place: str) -> None:
    stores = [opened(case_named(name)) for name in ("4.9.3/f-broker-offsets", "5.3.3/o-batch-queue", "3.10.8/f-mixed-features")]
    done = run(READS, place, *stores)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    assert done.stdout.count("Intact: nothing is damaged.") == len(stores), done.stdout[:2000]
    used = set(done.stdout.partition("\nkernels:\n")[2].split())
    for name in ("frames.walk", "frames.fields", "dispatch.dispatch", "index_chains.check", "record_decode.Decoder.record"):
        assert any(each.endswith(name) for each in used) or name.startswith("record_decode"), (name, used)
    assert {"rabbitmq.queue_index.journal_walk", "rabbitmq.terms.shapes"} <= used, used


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_leaves_its_buffers_in_a_few_damaged_stores(family: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(family, place, range(FEW), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_leaves_its_buffers_in_any_damaged_store(family: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = (20 if family == "quorum" else MANY) // len(PLACES)
    first = count * PLACES.index(place)  # each store in one of the two ways
    sweep(family, place, range(first, first + count), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("place", ["end", pytest.param("start", marks=pytest.mark.slow)])
def test_the_sweep_of_damage_passes_between_guard_pages(place: str) -> None:
    paths = [str(TESTS), *(each for each in sys.path if each)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), VARIABLE: place}
    command = [sys.executable, "-m", "pytest", "-v", "-n0", "-p", "no:cacheprovider", "-p", "support.guard_pages"]
    command += ["--all", "--rootdir", str(TESTS.parent), str(TESTS / "fuzz/test_corruption_sweep.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=TESTS.parent, timeout=1800)
    # -v and the fault handler: a crash names its test
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def sweep(family: str, place: str, numbers: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check damaged stores in a process whose kernels are guarded. A crash is a failure that names the store and its damage."""
    monkeypatch.setenv(VARIABLE, place)
    batch = check_images(family, numbers)
    assert not batch.failures, "\n\n".join(f"{failure.error}\n{failure.image}\n{failure.trace}" for failure in batch.failures)
    assert batch.done == len(numbers)
