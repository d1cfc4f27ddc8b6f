"""Rebuild: the new store holds, byte for byte, what the broker itself built from the same log."""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.golden import CASES, GoldenCase, case_id, case_named, opened, unchanged, unpack
from support.limits import files_of_at_most
from support.rocketmq_states import STATES, made, record_starts
from support.stores import Store, message

import mqstore
from mqstore.diagnosis import Diagnosis
from mqstore.errors import CannotOpenError, MqstoreError, TargetError
from mqstore.findings import Kind
from mqstore.jobs.rebuild import rebuild
from mqstore.places import open_rocketmq
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import encode
from mqstore.rocketmq.rebuild_steps import DispatchResult, DispatchTask, scan_split
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.log_proof import LogSplit, SplitCheck, check_split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DERIVED = ("consumequeue", "batchconsumequeue", "index")

# stores whose brokers had dispatched everything and deleted nothing, so that their own files are the expectation
WHOLE = [
    case_named(name)
    for name in (
        "4.9.3/a-clean-small",
        "4.9.3/c-index-collisions",
        "4.9.3/e-delay-transaction-batch",
        "4.9.3/f-broker-offsets",
        "4.9.3/l-default-sizes",
        "5.3.3/g-clean-small",
        "5.3.3/i-v2-codecs-crc",
        "5.3.3/j-broker-offsets",
        "5.3.3/o-batch-queue",
        "5.3.3/p-upgraded",
    )
]


def derived(root: Path) -> dict[str, bytes]:
    """Return the bytes of every derived file; index files by rank, since their names depend on the clock."""
    found = {}
    for place in DERIVED:
        for number, path in enumerate(sorted(path for path in (root / place).rglob("*") if path.is_file())):
            data = path.read_bytes().rstrip(b"\0") if path.stat().st_size > 1 << 24 else path.read_bytes()
            found[f"index/{number}" if place == "index" else path.relative_to(root).as_posix()] = data
    return found


@pytest.mark.parametrize("case", WHOLE, ids=case_id)
def test_what_is_rebuilt_equals_the_brokers_own_files(case: GoldenCase, tmp_path: Path) -> None:
    source = opened(case)
    with unchanged(source):
        report = rebuild(source, tmp_path / "out", threads=2, config=case.config)
    assert report.ok
    assert derived(tmp_path / "out") == derived(source)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_number_of_splits_does_not_change_a_byte(case: GoldenCase, tmp_path: Path) -> None:
    found = []
    for count in (1, 7, 40):
        out = tmp_path / str(count)
        rebuild(opened(case), out, threads=2, splits=count, config=case.config)
        found.append((derived(out), (out / "checkpoint").read_bytes(), sorted(path.name for path in (out / "index").iterdir())))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_rebuilt_store_verifies_as_intact_if_its_log_is(case: GoldenCase, tmp_path: Path) -> None:
    from mqstore.rocketmq.verify.verification import verify

    report = rebuild(opened(case), tmp_path / "out", threads=1, config=case.config, check_crc=True)
    again = verify(mqstore.open(tmp_path / "out", config=case.config))
    derived_damage = {item.kind for item in again.damage if item.file.startswith(DERIVED)}
    # a lost record shifts the entries after it, as it does in a broker
    assert derived_damage <= ({Kind.QUEUE_ENTRY_MISMATCH, Kind.MISSING_QUEUE_ENTRY} if report.damage else set())


def test_log_files_are_links_and_copies_if_asked(tmp_path: Path) -> None:
    source = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "source")
    *full, last = sorted((source / "commitlog").iterdir())
    for copy in (False, True):
        report = rebuild(source, tmp_path / str(copy), threads=1, copy=copy)
        assert report.linked is not copy
        # a broker continues to write the last file, so that one is never shared
        assert not os.path.samefile(last, tmp_path / str(copy) / "commitlog" / last.name)
        assert (tmp_path / str(copy) / "commitlog" / last.name).read_bytes() == last.read_bytes()
        for path in full:
            there = tmp_path / str(copy) / "commitlog" / path.name
            assert os.path.samefile(path, there) is not copy
            assert there.read_bytes() == path.read_bytes()


def test_a_rebuilt_store_is_a_cleanly_closed_one(tmp_path: Path) -> None:
    case = case_named("4.9.3/b3-kill9-torn")
    source = opened(case)
    assert (source / "abort").exists()
    report = rebuild(source, tmp_path / "out", threads=1, config=case.config)
    store = mqstore.open(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint", "commitlog", "consumequeue", "index"]
    assert not store.unclean
    last = store.log.record(max(int(e["physical_offset"][-1]) for q in store.consume_queues() if len(e := q.entries(0, q.max_offset))))
    assert last is not None
    assert store.checkpoint.physic == store.checkpoint.logics == last.store_timestamp
    # the file allocated ahead of the log is omitted
    assert [file.name for file in store.log.files] == [file.name for file in mqstore.open(source).log.files[:-1]]
    assert [item.kind for item in report.damage] == [Kind.TORN_RECORD]


def test_configuration_comes_along(tmp_path: Path) -> None:
    case = case_named("5.3.3/j-broker-offsets")
    rebuild(opened(case), tmp_path / "out", threads=1, config=case.config)
    for path in (opened(case) / "config").iterdir():
        assert (tmp_path / "out/config" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "out/timerwheel").exists()


def small(root: Path, count: int = 200) -> Store:
    store = Store(root, file_size=8192, queue_entries=20, positions=150)
    for number in range(count):
        store.put(message("orders", b"x" * (number % 90), keys=f"k{number}", queue_id=number % 2))
    return store


def test_a_log_file_that_was_cut_is_filled_up_to_its_length(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    store.write()
    base = max(store.files)
    cut = store.root / f"commitlog/{base:020d}"
    os.truncate(cut, 3000)
    report = rebuild(store.root, tmp_path / "out", threads=1)
    assert (tmp_path / "out/commitlog" / cut.name).stat().st_size == 8192
    assert (cut.stat().st_size, cut.stat().st_nlink) == (3000, 1)
    assert not report.ok


def test_a_queue_without_its_head_begins_with_blanks(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    store.write()
    first = min(base for base in store.files)
    (store.root / f"commitlog/{first:020d}").unlink()
    report = rebuild(store.root, tmp_path / "out", threads=1, splits=3)
    assert report.exact_queues == 0
    kept = [put for put in store.puts if put.offset >= 8192 and put.record.queue_id == 0]
    begin = kept[0].record.queue_offset
    path = min((tmp_path / "out/consumequeue/orders/0").iterdir())
    assert int(path.name) == 20 * (begin - begin % 20)
    assert path.read_bytes()[: 20 * (begin % 20)] == bytes.fromhex("00000000000000007fffffff0000000000000000") * (begin % 20)
    assert mqstore.open(tmp_path / "out").view().queue("orders", 0).min_offset == begin


def test_a_lost_record_shifts_its_queue_as_in_a_broker_and_is_reported(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    store.write()
    lost = next(put for put in store.puts if put.offset > 10_000)
    store.patch_log(lost.offset + 4, b"\xff\xff\xff\xff")
    for splits in (1, 5):
        report = rebuild(store.root, tmp_path / str(splits), threads=2, splits=splits)
        assert report.messages == 199
        assert report.exact_queues == 1
        assert [(item.kind, item.offset, item.messages) for item in report.damage] == [(Kind.BAD_FRAME, lost.offset % 8192, 1)]
        assert not report.coverage.complete
        entries = mqstore.open(tmp_path / str(splits)).view().queue("orders", lost.record.queue_id).entries(0, 1000)
        others = [put.offset for put in store.puts if put.record.queue_id == lost.record.queue_id and put is not lost]
        assert entries["physical_offset"].tolist() == others


def test_a_mended_queue_that_skips_a_number_lists_every_message_at_its_own(tmp_path: Path) -> None:
    """As a repair of the new store would, which was advised after such a rebuild."""
    store = small(tmp_path / "store", 30)
    store.next_queue_offset["orders", 0] += 1
    for number in range(30):
        store.put(message("orders", keys=f"after{number}"))
    store.write()
    report = rebuild(store.root, tmp_path / "out", threads=2, mend=True)
    assert not report.damage
    queue = mqstore.open(tmp_path / "out").view("recovered").queue("orders", 0)
    for put in store.puts:
        if put.record.queue_id == 0:
            assert queue.entries(put.record.queue_offset, put.record.queue_offset + 1)["physical_offset"].tolist() == [put.offset]
    assert mqstore.open(tmp_path / "out").diagnose().next.startswith("sh bin/mqbroker")


@pytest.mark.parametrize("name", ["4.9.3/c-index-collisions", "5.3.3/j-broker-offsets"])
def test_a_restored_record_has_its_place_and_its_keys_as_if_it_had_never_been_damaged(name: str, tmp_path: Path) -> None:
    case = case_named(name)
    store = unpack(case, tmp_path / "store")
    log = sorted((store / "commitlog").iterdir())[0]
    raw = bytearray(log.read_bytes())
    at = next(at for at in record_starts(raw)[3:] if b"KEYS\x01" in raw[at : at + struct.unpack_from(">i", raw, at)[0]])
    raw[at : at + 8] = bytes(8)
    log.write_bytes(raw)
    report = rebuild(store, tmp_path / "out", threads=2, mend=True, config=case.config)
    assert [item.kind for item in report.damage] == [Kind.ZEROED]
    assert derived(tmp_path / "out") == derived(opened(case))
    whole = rebuild(opened(case), tmp_path / "whole", threads=2, config=case.config)
    assert (report.index_files, report.index_keys) == (whole.index_files, whole.index_keys)
    assert (tmp_path / "out" / "checkpoint").read_bytes() == (tmp_path / "whole" / "checkpoint").read_bytes()


def test_a_body_that_does_not_fit_its_checksum_is_reported_on_request_and_queued_either_way(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    store.write()
    hit = store.puts[77]
    store.patch_log(hit.offset + 88, b"!")
    assert rebuild(store.root, tmp_path / "fast", threads=1).ok
    report = rebuild(store.root, tmp_path / "checked", threads=1, check_crc=True)
    assert [(item.kind, item.offset) for item in report.damage] == [(Kind.BAD_CHECKSUM, hit.offset % 8192)]
    assert report.coverage.complete
    assert derived(tmp_path / "fast") == derived(tmp_path / "checked") == derived(store.root)


def test_records_copied_into_a_body_leave_no_trace_in_the_queues(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", file_size=1 << 18)
    for number in range(20):
        store.put(message("orders", b"x" * 1000, keys=f"k{number}"))
    base, copies = len(store.files[0]) + 88, b""
    for number in range(200):
        forged = message("orders" if number % 2 else "forged", b"y" * 500, keys="evil", queue_offset=3 + number % 5)
        copies += encode(replace(forged, physical_offset=base + len(copies)))
    store.put(message("orders", copies))
    for number in range(50):
        store.put(message("orders", b"z" * 1000, keys=f"l{number}"))
    store.write()
    for splits in (1, 2, 3, 4, 5, 9):
        report = rebuild(store.root, tmp_path / str(splits), threads=2, splits=splits)
        assert derived(tmp_path / str(splits)) == derived(store.root)
        assert report.messages == 71
    assert report.rewalked


def test_a_queue_that_started_again_at_zero_is_appended_to_as_a_broker_does(tmp_path: Path) -> None:
    store = small(tmp_path / "store", 30)
    store.next_queue_offset["orders", 0] = 0
    for number in range(30):
        store.put(message("orders", keys=f"again{number}"))
    store.write()
    report = rebuild(store.root, tmp_path / "out", threads=2, splits=3)
    entries = mqstore.open(tmp_path / "out").view().queue("orders", 0).entries(0, 100)
    physical = [put.offset for put in store.puts if put.record.queue_id == 0]
    # offset 0 is appended wherever the queue ends; the others up to there are duplicates
    wanted = [*physical[:15], physical[15], *physical[15 + 16 :]]
    assert entries["physical_offset"].tolist() == wanted
    assert report.exact_queues == 1


def test_a_store_without_a_message_gives_a_store_without_queues(tmp_path: Path) -> None:
    source = tmp_path / "store"
    (source / "commitlog").mkdir(parents=True)
    (source / "commitlog" / ("0" * 20)).write_bytes(bytes(65536))
    report = rebuild(source, tmp_path / "out", threads=2)
    assert report.ok
    assert (report.messages, report.queues, report.index_files, report.splits) == (0, 0, 0, 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["checkpoint", "commitlog", "consumequeue", "index"]


# targets and failures


def test_a_target_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").write_text("mine")
    with pytest.raises(TargetError, match="exists already"):
        rebuild(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", threads=1)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious"]


def test_a_target_inside_the_store_is_refused(tmp_path: Path) -> None:
    source = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "source")
    before = sorted(source.rglob("*"))
    with pytest.raises(TargetError, match="is inside the store"):
        rebuild(source, source / "new", threads=1)
    assert sorted(source.rglob("*")) == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rebuild_that_fails_leaves_nothing(tmp_path: Path, threads: int) -> None:
    source = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "source")
    before = {path.name for path in tmp_path.iterdir()}

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(source, tmp_path / "out", threads=threads, splits=9, progress=fail)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_what_is_not_a_store_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(CannotOpenError):
            rebuild(path, tmp_path / "out", threads=1)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    source = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "source")
    # a file size limit fails a write the way a full disk does
    with files_of_at_most(4096), pytest.raises(TargetError, match="limit"):
        rebuild(source, tmp_path / "out", threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


IDLE = [case_named("4.9.3/d-rolled"), case_named("5.3.3/k-rolled")]


@pytest.mark.parametrize("case", IDLE, ids=case_id)
def test_a_queue_whose_messages_are_all_gone_keeps_its_last_file_and_its_numbering(case: GoldenCase, tmp_path: Path) -> None:
    source, out = opened(case), tmp_path / "out"
    report = rebuild(source, out, threads=2, config=case.config)
    kept = "consumequeue/only-old/0/00000000000000000000"
    assert (out / kept).read_bytes() == (source / kept).read_bytes()
    assert any("'only-old', queue 0: its last file is kept, so that its offsets continue at 15" in note for note in report.notes)
    with MessageStore.open(out, StoreConfig(version=case.version, services=False)) as store:
        assert store.put(Message("only-old", b"the next")).queue_offset == 15


def test_a_queue_whose_entries_refer_into_the_log_is_not_kept(tmp_path: Path) -> None:
    source = unpack(IDLE[0], tmp_path / "store")
    queue = source / "consumequeue/only-old/0/00000000000000000000"
    entries = bytearray(queue.read_bytes())
    entries[14 * 20 : 14 * 20 + 8] = (1 << 20).to_bytes(8, "big")
    queue.write_bytes(entries)
    report = rebuild(source, tmp_path / "out", threads=1, config=IDLE[0].config)
    assert not (tmp_path / "out/consumequeue/only-old").exists()
    assert any("which had reached 15, will start at 0" in note for note in report.notes)


def test_an_idle_batch_queue_keeps_its_last_file_and_its_numbering(tmp_path: Path) -> None:
    case = case_named("5.3.3/o-batch-queue")
    source = unpack(case, tmp_path / "store")
    idle = source / "batchconsumequeue/batched/7"
    idle.mkdir()
    units = np.frombuffer((source / "batchconsumequeue/batched/1/00000000000000000000").read_bytes(), UNIT).copy()
    units["physical_offset"] = 100  # before the log, whose first file goes
    (idle / "00000000000000000000").write_bytes(units.tobytes())
    (source / "commitlog/00000000000000000000").unlink()
    rebuild(source, tmp_path / "out", threads=1, config=case.config)
    kept = tmp_path / "out/batchconsumequeue/batched/7/00000000000000000000"
    assert kept.read_bytes() == units.tobytes()
    ends = {queue.queue_id: queue.max_offset for queue in RocketMQStore(tmp_path / "out").batch_queues()}
    assert ends[7] == int(units["base_offset"][-1] + units["count"][-1])


# on Spark


@pytest.mark.versions
@pytest.mark.parametrize(
    "name", ["4.9.3/d-rolled", "4.9.3/a-clean-small", "4.9.3/c-index-collisions", "4.9.3/m-damaged/16-everything", "5.3.3/o-batch-queue"]
)
def test_spark_writes_the_bytes_that_threads_write(name: str, tmp_path: Path, spark: SparkSession) -> None:
    case = case_named(name)
    done: list[tuple[int, int]] = []
    on_spark = rebuild(
        opened(case), tmp_path / "spark", spark=spark, splits=7, config=case.config, progress=lambda *told: done.append(told)
    )
    in_process = rebuild(opened(case), tmp_path / "threads", threads=2, splits=1, config=case.config)
    assert derived(tmp_path / "spark") == derived(tmp_path / "threads")
    told = ("messages", "queues", "queue_entries", "exact_queues", "index_files", "index_keys", "damage", "coverage", "notes")
    assert [getattr(on_spark, field) for field in told] == [getattr(in_process, field) for field in told]
    assert done[-1][0] == done[-1][1] > 0


def test_tasks_that_die_after_they_wrote_are_repeated_without_a_trace(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def dies_at_first(task: DispatchTask) -> DispatchResult:
        result = scan_split(task)
        mark = marks / str(task.split.number)
        if task.split.number % 2 and not mark.exists():
            mark.touch()
            os._exit(1)
        return result

    monkeypatch.setattr("mqstore.jobs.rebuild.scan_split", dies_at_first)
    case = case_named("4.9.3/a-clean-small")
    report = rebuild(opened(case), tmp_path / "out", spark=spark, splits=6, config=case.config)
    assert len(list(marks.iterdir())) == 3
    assert report.messages == 511
    assert derived(tmp_path / "out") == derived(opened(case))


def test_a_task_that_fails_for_good_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(task: DispatchTask) -> DispatchResult:
        result = scan_split(task)
        if task.split.number == 3:
            raise TargetError("the disk is full")
        return result

    monkeypatch.setattr("mqstore.jobs.rebuild.scan_split", full)
    with pytest.raises(MqstoreError, match=r"^the disk is full$"):
        rebuild(opened(case_named("4.9.3/a-clean-small")), tmp_path / "out", spark=spark, splits=6)
    assert list(tmp_path.iterdir()) == []


DAMAGED_LOGS = {
    "b3-kill9-torn",
    *(
        f"m-damaged/{name}"
        for name in ("01-body-flip", "03-size-field", "05-zero-4k", "06-length-fields", "07-truncate-last", "16-everything")
    ),
}


def _after(source: Path, out: Path, case: GoldenCase) -> tuple[bool, Diagnosis, Diagnosis]:
    """Rebuild a store. Returns whether its records are intact, and what a broker makes of the new store: as known, and as read again."""
    report = rebuild(source, out, threads=1, config=case.config, mend=True)
    store = open_rocketmq(out, config=case.config)
    return report.intact, diagnose(store, rebuilt=report.queue_entries if report.intact else None, known=report.known), diagnose(store)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_what_a_broker_makes_of_a_new_store_is_known_without_reading_all_of_it_again(case: GoldenCase, tmp_path: Path) -> None:
    intact, known, whole = _after(opened(case), tmp_path / "out", case)
    assert intact is (case.name not in DAMAGED_LOGS)
    assert known == whole


@pytest.mark.parametrize("name", ["4.9.3/f-broker-offsets", "5.3.3/j-broker-offsets"])
@pytest.mark.parametrize("state", sorted(STATES.keys() - {"no_log"}))
def test_also_where_anything_else_was_wrong(state: str, name: str, tmp_path: Path) -> None:
    case = case_named(name)
    intact, known, whole = _after(made(state, case, tmp_path / "store"), tmp_path / "out", case)
    assert known == whole
    assert not (intact and "flip" in state)


@pytest.mark.real_sizes
def test_a_damaged_log_is_read_once_to_be_mended_but_for_what_is_near_the_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small(tmp_path / "store")
    store.write()
    hit = store.puts[77]
    store.patch_log(hit.offset, bytes(len(encode(hit.record))))
    read: Counter[tuple[int, int]] = Counter()  # by the start of the file, and of the split in it

    def counted(log: CommitLog, split: LogSplit, *others: Any) -> SplitCheck:
        read[split.file.start, split.start] += 1
        return check_split(log, split, *others)

    monkeypatch.setattr("mqstore.rocketmq.verify.verification.check_split", counted)
    report = rebuild(store.root, tmp_path / "out", threads=2, mend=True)
    diagnose(open_rocketmq(tmp_path / "out"), known=report.known)
    assert {file for (file, _), times in read.items() if times > 1} == {hit.offset // 8192 * 8192}
    assert {file for file, _ in read} == set(store.files)
