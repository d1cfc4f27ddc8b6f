"""States of a RocketMQ store in which a broker refuses to start, or loses something: each made from a store that a real broker wrote.

`STATES` maps a name to a function that changes an unpacked store. `made(state, case, target)` unpacks the case and applies it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from support.golden import GoldenCase, unpack

State = Callable[[Path], None]


def _log_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "commitlog").iterdir() if any(path.read_bytes()))


def _a_queue(store: Path) -> Path:
    """Return the directory of the queue with the most files of an ordinary topic."""
    queues = [path for path in sorted(store.glob("consumequeue/*/*")) if not path.parent.name.startswith(("SCHEDULE", "%", "RMQ"))]
    return max(queues, key=lambda path: len(list(path.iterdir())))


def record_starts(raw: bytes) -> list[int]:
    starts, at = [], 0
    while at + 8 <= len(raw):
        size, magic = struct.unpack_from(">iI", raw, at)
        if magic not in (0xDAA320A7, 0xDAA320AB):
            break
        starts.append(at)
        at += size
    return starts


def abort(store: Path) -> None:
    (store / "abort").write_bytes(b"")


def torn_tail(store: Path) -> None:
    """Kill the broker while it writes its last record: the second half of it is zeros."""
    abort(store)
    path = _log_files(store)[-1]
    raw = bytearray(path.read_bytes())
    last = record_starts(raw)[-1]
    (size,) = struct.unpack_from(">i", raw, last)
    raw[last + size // 2 : last + size] = bytes(size - size // 2)
    path.write_bytes(raw)


def offset_flip(store: Path) -> None:
    """Change the physical offset that two records in the middle of the last written log file have of themselves."""
    path = _log_files(store)[-1]
    raw = bytearray(path.read_bytes())
    starts = record_starts(raw)
    for number in (len(starts) // 2, len(starts) // 2 + 1):
        raw[starts[number] + 29] ^= 1
    path.write_bytes(raw)


def body_flip(store: Path) -> None:
    """Flip a bit of a body in the middle of the last written log file."""
    path = _log_files(store)[-1]
    raw = bytearray(path.read_bytes())
    starts = record_starts(raw)
    raw[starts[len(starts) // 2] + 88] ^= 1  # the first byte of the body, as both hosts are IPv4
    path.write_bytes(raw)


def body_flip_after_a_kill(store: Path) -> None:
    abort(store)
    body_flip(store)


def zeroed_page(store: Path) -> None:
    path = _log_files(store)[0]
    raw = bytearray(path.read_bytes())
    raw[8192:12288] = bytes(4096)
    path.write_bytes(raw)


def missing_log_file(store: Path) -> None:
    """Remove a log file, in the middle if there are three or more."""
    files = _log_files(store)
    files[len(files) // 2].unlink()


def no_log(store: Path) -> None:
    for path in (store / "commitlog").iterdir():
        path.unlink()


def stray_file(store: Path) -> None:
    (store / "commitlog" / "core.4711").write_bytes(b"a file of somebody else")


def stray_directory(store: Path) -> None:
    (store / "commitlog" / "old").mkdir()


def stray_file_of_full_size(store: Path) -> None:
    path = _log_files(store)[0]
    (store / "commitlog" / "backup").write_bytes(path.read_bytes())


def short_log_file(store: Path) -> None:
    path = _log_files(store)[-1]
    starts = record_starts(path.read_bytes())
    with path.open("r+b") as file:
        file.truncate(starts[-1] + 10)


def empty_last_log_file(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    (store / "commitlog" / f"{int(files[-1].name) + files[-1].stat().st_size:020d}").write_bytes(b"")


def short_queue_file(store: Path) -> None:
    path = sorted(_a_queue(store).iterdir())[0]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 60)


def empty_last_queue_file(store: Path) -> None:
    files = sorted(_a_queue(store).iterdir())
    (files[-1].parent / f"{int(files[-1].name) + files[-1].stat().st_size:020d}").write_bytes(b"")


def stray_queue_file(store: Path) -> None:
    (_a_queue(store) / ".DS_Store").write_bytes(b"x" * 100)


def missing_queue(store: Path) -> None:
    queue = _a_queue(store)
    for path in queue.iterdir():
        path.unlink()
    queue.rmdir()


def shifted_queue_entries(store: Path) -> None:
    """Overwrite two entries of a queue with bytes that lead nowhere."""
    path = sorted(_a_queue(store).iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[40:80] = struct.pack(">qiq", 77, 300, 0) * 2
    path.write_bytes(raw)


def _changed_entry(store: Path, physical: int) -> None:
    """Let an entry in the middle of a queue lead to a physical offset, in a file that is not the last one if there are several."""
    files = sorted(_a_queue(store).iterdir())
    path = files[len(files) // 2 - 1] if len(files) > 1 else files[0]
    raw = bytearray(path.read_bytes())
    written = sum(any(raw[at : at + 20]) for at in range(0, len(raw), 20))
    struct.pack_into(">qiq", raw, written // 2 * 20, physical, 300, 0)
    path.write_bytes(raw)


def twice(store: Path, queue: str, source: int, target: int) -> None:
    """Let the entry of one place of a queue, `topic/id`, be at another place of its first file, too."""
    path = min((store / "consumequeue" / queue).iterdir())
    raw = bytearray(path.read_bytes())
    raw[20 * target : 20 * target + 20] = raw[20 * source : 20 * source + 20]
    path.write_bytes(raw)


def entry_past_the_end(store: Path) -> None:
    _changed_entry(store, 1 << 40)


def negative_entry(store: Path) -> None:
    _changed_entry(store, -5)


def checkpoint_in_the_future(store: Path) -> None:
    abort(store)
    path = store / "checkpoint"
    raw = bytearray(path.read_bytes())
    raw[:24] = struct.pack(">qqq", *[4_102_444_800_000] * 3)
    path.write_bytes(raw)


def no_checkpoint(store: Path) -> None:
    abort(store)
    (store / "checkpoint").unlink()


def stray_index_file(store: Path) -> None:
    (store / "index" / "notes.txt").write_bytes(b"a file of somebody else")


def _tear(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3])


def torn_consumer_offsets(store: Path) -> None:
    _tear(store / "config" / "consumerOffset.json")
    (store / "config" / "consumerOffset.json.bak").unlink()


def torn_consumer_offsets_with_bak(store: Path) -> None:
    _tear(store / "config" / "consumerOffset.json")


def torn_consumer_offsets_and_bak(store: Path) -> None:
    _tear(store / "config" / "consumerOffset.json")
    _tear(store / "config" / "consumerOffset.json.bak")


def torn_delay_offsets(store: Path) -> None:
    (store / "config" / "delayOffset.json").write_bytes(b'{\n\t"offsetTable":{1:1,2')
    (store / "config" / "delayOffset.json.bak").write_bytes(b"")


def torn_delay_offsets_and_bak(store: Path) -> None:
    torn_delay_offsets(store)
    (store / "config" / "delayOffset.json.bak").write_bytes(b'{\n\t"offsetTable":{1:')


def torn_topics_and_bak(store: Path) -> None:
    _tear(store / "config" / "topics.json")
    _tear(store / "config" / "topics.json.bak")


STATES: dict[str, State] = {
    state.__name__: state
    for state in (
        abort,
        torn_tail,
        offset_flip,
        body_flip,
        body_flip_after_a_kill,
        zeroed_page,
        missing_log_file,
        no_log,
        stray_file,
        stray_directory,
        stray_file_of_full_size,
        short_log_file,
        empty_last_log_file,
        short_queue_file,
        empty_last_queue_file,
        stray_queue_file,
        missing_queue,
        shifted_queue_entries,
        entry_past_the_end,
        negative_entry,
        checkpoint_in_the_future,
        no_checkpoint,
        stray_index_file,
        torn_consumer_offsets,
        torn_consumer_offsets_with_bak,
        torn_consumer_offsets_and_bak,
        torn_delay_offsets,
        torn_delay_offsets_and_bak,
        torn_topics_and_bak,
    )
}
CONFIGURATION = frozenset(name for name in STATES if name.startswith("torn_") and name != "torn_tail")


def made(state: str, case: GoldenCase, target: Path) -> Path:
    """Unpack a golden store into target, and bring it into a state."""
    unpack(case, target)
    STATES[state](target)
    return target
