"""Each golden store, replayed record by record through our engine, is the same store: log, consume queues and index byte for byte.

Times and hosts are the recorded ones, the clock is set to each record's store time. A record that begins a log file although the one
before had room for it was part of a batch, and is put as one. Of a killed store, dispatch goes as far as the broker's had come.

A store whose head was removed by retention is continued, not created: its log starts with an empty file where the recorded one
starts, and its queues with the entries of removed records. Its index cannot be truncated to that moment, so it is not compared; stores
whose files were never removed prove the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import pytest
from interop.replaying import Clock, settings
from interop.storeimage import QUEUE_FOLDERS, first_difference, folder_image, index_image, log_image
from support.golden import PLAIN, GoldenCase, boot, case_id, expected, opened

from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.consume_queue import ENTRY, ENTRY_SIZE
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch
from mqstore.rocketmq.format.record import CRC_PROPERTY, CRC_PROPERTY_SIZE, Record, decode


@dataclass(frozen=True)
class Recorded:
    """A record of a golden store and its size in the log."""

    record: Record
    size: int

    def shared(self) -> Record:
        """Return the fields that all messages of a batch share."""
        return replace(self.record, body=b"", properties=b"", flag=0, body_crc=0, queue_offset=0, physical_offset=0)


@pytest.fixture(scope="module", params=PLAIN, ids=case_id)
def replayed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenCase, Path]:
    """Return the case and a directory with the same messages, written by our engine."""
    case: GoldenCase = request.param
    target = tmp_path_factory.mktemp("replayed") / "store"
    target.mkdir()
    records = list(_records(case))
    if records[0].record.physical_offset:
        _lay_head(case, records, target)
    _replay(case, records, target)
    return case, target


def _records(case: GoldenCase) -> Iterator[Recorded]:
    size = int(case.properties["mappedFileSizeCommitLog"])
    files = {int(path.name): path.read_bytes() for path in (opened(case) / "commitlog").iterdir()}
    for row in expected(case):
        at = row["physical_offset"]
        start = at - at % size
        raw = files[start][at - start : at - start + row["size"]]
        yield Recorded(decode(raw), row["size"])


def _lay_head(case: GoldenCase, records: list[Recorded], target: Path) -> None:
    """Create an empty log file where the log starts, and queues that end before the first existing record."""
    size = int(case.properties["mappedFileSizeCommitLog"])
    start = min(int(path.name) for path in (opened(case) / "commitlog").iterdir())
    (target / "commitlog").mkdir()
    (target / "commitlog" / f"{start:020d}").write_bytes(bytes(size))
    first: dict[tuple[str, str], int] = {}
    for each in records:
        first.setdefault((each.record.topic, str(each.record.queue_id)), each.record.queue_offset)
    for name, raw in folder_image(opened(case), "consumequeue").items():
        _, topic, queue, file = name.split("/")
        keep = len(raw)
        if (topic, queue) in first:
            keep = min(keep, max(0, first[topic, queue] * ENTRY_SIZE - int(file)))
        if keep:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(raw[:keep].ljust(len(raw), b"\0"))


def _dispatched(case: GoldenCase) -> int:
    """Return the physical offset of the last record in the broker's queues."""
    import numpy as np

    last = -1
    for name, raw in folder_image(opened(case), "consumequeue").items():
        rows = np.frombuffer(raw, ENTRY)
        if not name.startswith("consumequeue/%LMQ%"):
            last = max(last, int(rows["physical_offset"][(rows["size"] > 0) & (rows["size"] < 0x7FFFFFFF)].max(initial=-1)))
    return last


def _replay(case: GoldenCase, records: list[Recorded], target: Path) -> None:
    clock = Clock()
    config = replace(settings(case.version, case.properties), clock=clock)
    file = int(case.properties["mappedFileSizeCommitLog"])
    last = _dispatched(case) if boot(case)["before"]["abort"] else None
    with MessageStore.open(target, config) as store:
        number = 0
        while number < len(records):
            one = records[number]
            clock.fixed = one.record.store_timestamp
            room = file - store.log_max % file
            begins_file = one.record.physical_offset % file == 0 and room < file
            if begins_file and one.size + 8 <= room:
                batch = list(takewhile(lambda other, one=one: other.shared() == one.shared(), records[number:]))
                result = store.put_messages(_as_batch(batch))
                number += len(batch)
            else:
                result = store.put_stored(one.record)
                number += 1
            assert result.stored, result
            assert (result.physical_offset, result.queue_offset) == (one.record.physical_offset, one.record.queue_offset)
            if last is None or result.physical_offset <= last:
                store.dispatch_now()
        if last is not None:
            store.abandon()


def _as_batch(batch: list[Recorded]) -> MessageBatch:
    head = batch[0].record
    envelope = Message(
        head.topic,
        queue_id=head.queue_id,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=head.born_host,
        store_host=head.store_host,
        reconsume_times=head.reconsume_times,
    )
    return MessageBatch(envelope, [Inner(each.record.body, _own_properties(each.record), each.record.flag) for each in batch])


def _own_properties(stored: Record) -> bytes:
    """Return the property text without the CRC property that a store adds."""
    text = stored.properties
    return text[:-CRC_PROPERTY_SIZE] if text[-CRC_PROPERTY_SIZE:].startswith(CRC_PROPERTY) else text


def _cut(files: dict[str, bytes], end: int) -> dict[str, bytes]:
    """Return the log files up to a physical offset."""
    cut = {name: raw[: max(0, end - int(name))] for name, raw in files.items()}
    return {name: raw for name, raw in cut.items() if raw}


def _same(ours: dict[str, bytes], theirs: dict[str, bytes]) -> None:
    assert sorted(ours) == sorted(theirs)
    wrong = [f"{name}: {first_difference(ours[name], theirs[name])}" for name in ours if ours[name] != theirs[name]]
    assert not wrong, "\n".join(wrong)


def test_the_log_of_a_replayed_store_is_the_broker_s(replayed: tuple[GoldenCase, Path]) -> None:
    case, store = replayed
    end = boot(case)["max_phy_offset_after_load"]
    _same(_cut(log_image(store / "commitlog"), end), _cut(log_image(opened(case) / "commitlog"), end))


@pytest.mark.parametrize("folder", QUEUE_FOLDERS)
def test_the_queues_of_a_replayed_store_are_the_broker_s(replayed: tuple[GoldenCase, Path], folder: str) -> None:
    case, store = replayed
    _same(folder_image(store, folder), folder_image(opened(case), folder))


def test_the_index_of_a_replayed_store_is_the_broker_s(replayed: tuple[GoldenCase, Path]) -> None:
    case, store = replayed
    if expected(case)[0]["physical_offset"]:
        pytest.skip("the index of a store without its head cannot be truncated to the start of the replay")
    _same(index_image(store), index_image(opened(case)))
