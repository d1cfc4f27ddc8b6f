"""The queue engine alone: what it recovers, what it refuses, and what it does when writes fail."""

from __future__ import annotations

import hashlib
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import extract_all

from mqstore.errors import CannotOpenError, MqstoreError, NotFoundError, TargetError, UnsupportedError, UsageError
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import Counts, Delivery, QueueStore
from mqstore.rabbitmq.format import message_file
from mqstore.rabbitmq.format.names import queue_directory, vhost_directory
from mqstore.testing.faults import FailingDisk, Fault, every_fault

GOLDEN = Path(__file__).parents[2] / "golden" / "rabbitmq-3.10.8"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
RESCUED = {"e3-gc-interrupted-zero-extended": 6}  # what the broker loses in an interrupted merge and the .rdt still has


def small(**changes: Any) -> EngineConfig:
    given = {
        "queue_index_embed_msgs_below": 300,
        "queue_index_segment_entry_count": 16,
        "queue_index_max_journal_entries": 24,
        "msg_store_file_size_limit": 3000,
        "classic_queue_index_v2_segment_entry_count": 12,
    }
    return EngineConfig(**(given | changes))


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [each.message.body for each in deliveries]


def queue_place(place: Path, queue: str) -> Path:
    return place / "vhosts" / vhost_directory("/") / "queues" / queue_directory("/", queue)


def store_place(place: Path) -> Path:
    return place / "vhosts" / vhost_directory("/") / "msg_store_persistent"


def golden_rows(case: str) -> list[dict[str, Any]]:
    plain = GOLDEN / case / "expected.jsonl"
    text = plain.read_bytes() if plain.exists() else lzma.decompress(Path(f"{plain}.xz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_a_store_of_a_broker_is_opened_with_all_messages_that_the_broker_recovers(case: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / case / "msg_stores.tar.xz") as archive:
        extract_all(archive, tmp_path)
    rows = golden_rows(case)
    expected: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for row in rows:
        if row["recovered"]:
            told = (row["priority_level"], row["seq_id"], row["redelivered"], row["msg_id"], row["payload_sha256"], row["properties"])
            expected.setdefault((row["vhost"], row["queue"]), []).append(told)
    more = 0
    for vhost in sorted({row["vhost"] for row in rows}):
        store = QueueStore.open(tmp_path / "msg_stores", vhost, EngineConfig(clock=lambda: 0, msg_store_file_size_limit=262144))
        for queue in store.queues:
            found = [
                (
                    each.level,
                    each.seq,
                    each.redelivered,
                    each.message.id.hex(),
                    hashlib.sha256(each.message.body).hexdigest(),
                    each.message.json_properties(),
                )
                for each in store.deliver(queue, 1 << 30)
            ]
            wanted = expected.pop((vhost, queue), [])
            more += len(found) - len(wanted)
            assert [each for each in found if each in wanted] == wanted, queue
        store.abandon()
    assert expected == {}
    assert more == RESCUED.get(case, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_messages_are_delivered_in_publish_order_and_requeued_ones_at_their_old_position(version: int, tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q", {"x-queue-version": version})
        for number in range(60):
            store.publish("q", b"%d" % number, confirm=number == 30)
        first = store.deliver("q", 10)
        store.requeue(first[3:6])
        assert bodies(store.deliver("q", 4)) == [b"3", b"4", b"5", b"10"]
        assert store.counts("q") == Counts(49, 11)


@pytest.mark.parametrize("version", [1, 2])
def test_a_clean_stop_keeps_sequence_ids_and_redelivered_marks(version: int, tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q", {"x-queue-version": version})
        for number in range(40):
            store.publish("q", b"%d" % number)
        store.acknowledge(store.deliver("q", 7)[:5])
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        found = store.deliver("q", 100)
        assert [(each.seq, each.redelivered) for each in found] == [(number, number < 7) for number in range(5, 40)]
        store.publish("q", b"next")
        assert store.deliver("q")[0].seq == 40


@pytest.mark.parametrize("version", [1, 2])
def test_after_a_kill_all_messages_are_redelivered_and_numbering_continues_at_the_next_segment(version: int, tmp_path: Path) -> None:
    store = QueueStore.open(tmp_path / "s", config=small())
    store.declare("q", {"x-queue-version": version})
    for number in range(20):
        store.publish("q", b"%d" % number, confirm=number == 19)
    store.publish("q", b"never synced")
    store.abandon()
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        found = store.deliver("q", 100)
        assert [each.seq for each in found] == list(range(20))
        assert all(each.redelivered for each in found)
        store.publish("q", b"next")
        assert store.deliver("q")[0].seq == (32 if version == 1 else 24)


def test_a_large_message_for_many_queues_is_stored_once_and_removed_with_its_last_reference(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        for queue in "abc":
            store.declare(queue)
        store.publish(["a", "b", "c"], b"x" * 3000, confirm=True)
        store.publish(["a"], b"last", confirm=True)
        assert (store_place(tmp_path / "s") / "0.rdq").stat().st_size > 3000
        for queue in "abc":
            assert (store_place(tmp_path / "s") / "0.rdq").exists()
            store.acknowledge(store.deliver(queue))
        assert [path.name for path in store_place(tmp_path / "s").iterdir()] == ["1.rdq"]


def test_neighbouring_files_are_merged_when_more_than_half_is_garbage(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with QueueStore.open(place, config=small()) as store:
        store.declare("q")
        sent = [b"%03d" % number * 200 for number in range(40)]
        for body in sent:
            store.publish("q", body)
        taken = store.deliver("q", 40)
        store.acknowledge([each for number, each in enumerate(taken) if number % 5])
        assert store.messages.merged > 0
        store.requeue([each for number, each in enumerate(taken) if number % 5 == 0])
        assert bodies(store.deliver("q", 40)) == sent[::5]
    with QueueStore.open(place, config=small()) as store:
        assert bodies(store.deliver("q", 40)) == sent[::5]
    assert sum(path.stat().st_size for path in store_place(place).iterdir()) < 40 * 700 // 2


def test_segments_without_messages_are_deleted_and_the_journal_is_empty_after_a_flush(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        for number in range(40):
            store.publish("q", b"%d" % number)
        store.acknowledge(store.deliver("q", 33))
        store.idle()
        place = queue_place(tmp_path / "s", "q")
        assert sorted(path.name for path in place.glob("*.idx")) == ["2.idx"]
        assert not (place / "journal.jif").exists() or not (place / "journal.jif").stat().st_size


def test_a_purge_drops_ready_messages_and_keeps_unacknowledged_ones(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        for number in range(30):
            store.publish("q", b"%d" % number * (1 if number % 2 else 200))
        out = store.deliver("q", 3)
        assert store.purge("q") == 27
        store.requeue(out)
        assert store.counts("q") == Counts(3, 0)
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert [each.seq for each in store.deliver("q", 9)] == [0, 1, 2]


def test_levels_of_a_priority_queue_are_delivered_from_the_highest_down(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s") as store:
        store.declare("q", {"x-max-priority": 3})
        for number, priority in enumerate([0, 2, 9, 1, 3, 2]):
            store.publish("q", b"%d" % number, properties={"delivery_mode": 2, "priority": priority})
    with QueueStore.open(tmp_path / "s") as store:
        assert [(each.level, each.message.body) for each in store.deliver("q", 9)] == [
            (3, b"2"),
            (3, b"4"),
            (2, b"1"),
            (2, b"5"),
            (1, b"3"),
            (0, b"0"),
        ]


def test_expired_messages_are_dropped_at_the_head_and_only_there(tmp_path: Path) -> None:
    now = [1_000_000]
    with QueueStore.open(tmp_path / "s", config=small(clock=lambda: now[0])) as store:
        store.declare("q", {"x-message-ttl": 100})
        store.publish("q", b"short", properties={"delivery_mode": 2, "expiration": "5"})
        store.publish("q", b"long")
        now[0] += 6_000
        assert bodies(store.deliver("q", 5)) == [b"long"]
        assert store.counts("q") == Counts(0, 1)


def test_transient_messages_are_delivered_but_never_written(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        for number in range(4):
            store.publish("q", b"%d" % number, properties={"delivery_mode": 1 + number % 2})
        assert bodies(store.deliver("q", 9)) == [b"0", b"1", b"2", b"3"]
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert bodies(store.deliver("q", 9)) == [b"1", b"3"]


def test_a_torn_segment_is_rewritten_with_its_complete_entries(tmp_path: Path) -> None:
    store = QueueStore.open(tmp_path / "s", config=small())
    store.declare("q")
    for number in range(10):
        store.publish("q", b"%d" % number)
    store.idle()
    store.abandon()
    path = queue_place(tmp_path / "s", "q") / "0.idx"
    path.write_bytes(path.read_bytes()[:-30])
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert bodies(store.deliver("q", 99)) == [b"%d" % number for number in range(1, 10)]
        store.publish("q", b"more")
        store.idle()
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert bodies(store.deliver("q", 99))[-1] == b"more"


def test_an_entry_whose_message_is_missing_is_dropped_and_reported(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        store.publish("q", b"large" * 1000)
        store.publish("q", b"small")
    for path in store_place(tmp_path / "s").iterdir():
        path.unlink()
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert bodies(store.deliver("q", 9)) == [b"small"]
        assert len(store.notes) == 1
        assert "1 entries were dropped" in store.notes[0]


@pytest.mark.parametrize("size", [0, 5, 1 << 62, "the rest of the file"])
@pytest.mark.parametrize("damaged", [0, 1, 3])
def test_a_damaged_size_field_of_a_record_costs_no_message(tmp_path: Path, size: int | str, damaged: int) -> None:
    config = small(msg_store_file_size_limit=1 << 20)
    store = QueueStore.open(tmp_path / "s", config=config)
    store.declare("q")
    for number in range(4):
        store.publish("q", b"%d" % number * 5000)
    store.idle()
    store.abandon()
    (path,) = (path for path in store_place(tmp_path / "s").iterdir() if path.suffix == ".rdq")
    raw = path.read_bytes()
    scan = message_file.strict_scan(np.frombuffer(raw, np.uint8))
    assert len(scan.at) == 4
    at = int(scan.at[damaged])
    field = len(raw) - at - 9 if isinstance(size, str) else size
    path.write_bytes(raw[:at] + field.to_bytes(8, "big") + raw[at + 8 :])
    for _ in range(2):
        store = QueueStore.open(tmp_path / "s", config=config)
        assert bodies(store.deliver("q", 9)) == [b"%d" % number * 5000 for number in range(4)]
        store.abandon()


def test_a_queue_without_a_known_name_keeps_its_messages(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        store.publish("q", b"large" * 1000)
    (queue_place(tmp_path / "s", "q") / ".queue_name").unlink()
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert store.queues == []
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        store.declare("q")
        assert bodies(store.deliver("q")) == [b"large" * 1000]


def test_unsupported_arguments_are_refused(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s") as store:
        with pytest.raises(UnsupportedError, match="x-max-length is not supported"):
            store.declare("q", {"x-max-length": 5})
        with pytest.raises(UnsupportedError, match="x-queue-type quorum"):
            store.declare("q", {"x-queue-type": "quorum"})
        with pytest.raises(UsageError, match="version 1 or 2"):
            store.declare("q", {"x-queue-version": 3})
        with pytest.raises(NotFoundError, match="no queue 'q'"):
            store.publish("q", b"")
        store.declare("q")
        with pytest.raises(UsageError, match="expiration"):
            store.publish("q", b"", properties={"delivery_mode": 2, "expiration": "soon"})
        store.publish("q", b"")
        taken = store.deliver("q")
        store.acknowledge(taken)
        with pytest.raises(UsageError, match="not unacknowledged"):
            store.acknowledge(taken)
        store.publish("q", b"")
    with QueueStore.open(tmp_path / "s") as store, pytest.raises(UsageError, match="1 levels"):
        store.declare("q", {"x-max-priority": 2})


def test_a_queue_with_messages_is_not_opened_as_the_other_version(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "s") as store:
        store.declare("q")
        store.publish("q", b"", confirm=True)
    store = QueueStore.open(tmp_path / "s")
    store._declared.clear()
    with pytest.raises(UnsupportedError, match="has version 1 on disk, not 2"):
        store.declare("q", {"x-queue-version": 2})
    store.close()


def test_a_closed_store_cannot_be_used(tmp_path: Path) -> None:
    store = QueueStore.open(tmp_path / "s")
    store.declare("q")
    store.close()
    with pytest.raises(CannotOpenError, match="the store is closed"):
        store.publish("q", b"")


def test_after_a_failed_write_the_store_must_be_opened_again(tmp_path: Path) -> None:
    disk = FailingDisk(0)
    store = QueueStore.open(tmp_path / "s", config=small(recorder=disk))
    store.declare("q")
    store.publish("q", b"first", confirm=True)
    disk.n = disk.attempts + 1
    with pytest.raises(TargetError, match="Input/output error"):
        store.publish("q", b"second", confirm=True)
    with pytest.raises(CannotOpenError, match="close the store and open it again"):
        store.publish("q", b"third")
    store.close()
    with QueueStore.open(tmp_path / "s", config=small()) as store:
        assert bodies(store.deliver("q", 9)) == [b"first"]


def _publish_all(directory: Path, disk: FailingDisk) -> list[bytes]:
    """Bodies that were confirmed before the first failed write."""
    confirmed: list[bytes] = []
    store = None
    try:
        store = QueueStore.open(directory / "s", config=small(recorder=disk))
        for queue, version in (("one", 1), ("two", 2)):
            store.declare(queue, {"x-queue-version": version})
        for number in range(24):
            body = b"%d." % number * (1 if number % 3 else 200)
            store.publish(["one", "two"], body, confirm=number % 4 == 0)
            if number % 4 == 0:
                confirmed = [b"%d." % each * (1 if each % 3 else 200) for each in range(number + 1)]
        store.close()
    except MqstoreError as error:
        if store is not None:
            store.abandon()
        if disk.met is None:
            raise error
    return confirmed


def test_whatever_write_fails_confirmed_messages_are_kept(request: pytest.FixtureRequest) -> None:
    def check(directory: Path, fault: Fault[list[bytes]]) -> None:
        assert fault.result is not None
        if not (directory / "s").exists():
            assert not fault.result
            return
        with QueueStore.open(directory / "s", config=small()) as store:
            for queue, version in (("one", 1), ("two", 2)):
                store.declare(queue, {"x-queue-version": version})
                assert bodies(store.deliver(queue, 99))[: len(fault.result)] == fault.result

    done = every_fault(_publish_all, check)
    request.node.user_properties.append(("faults", done.total))
