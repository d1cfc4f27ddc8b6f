"""Logs rebuilt with consume queues in files and in RocksDB, both opened by the real 5.5.0: it answers alike.

Beside that, the database that `rebuild` writes is compared pair for pair with the one that the real store builds from the bare log. There
are two differences, both of its recovery of a log without queues: it does not dispatch the record at physical offset 0, and it looks at
the newest ten log files only. It writes the bound `min` of a queue when that is asked for, rebuild always.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop.realbroker import Job, run, why_not
from interop.test_real_broker_opens import QUESTIONS, Opened, Rows, bare_log, report_of
from support.golden import GoldenCase, case_named, has, opened, queries
from support.stores import Store, message

from mqstore.files import ReadOnlyDirectory
from mqstore.files.rocksdb import RocksDatabase
from mqstore.jobs.rebuild import rebuild
from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.consume_queue import ConsumeQueueReader
from mqstore.rocketmq.verify.verification import verify

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

VERSION = "5.5.0"
KINDS = ("files", "rocksdb")
GOLDEN = (
    "4.9.3/d-rolled",
    "4.9.3/e-delay-transaction-batch",
    "5.3.3/i-v2-codecs-crc",
    "5.5.0/a-clean",
    "5.5.0/c-rocksdb-queues-clean",
    "5.5.0/d-rocksdb-light-queues",
    "5.5.0/i-rocksdb-kill9",
    "5.5.0/j-rocksdb-rolled",
)
AGAIN = "a queue that started again at 0"
CASES = (*GOLDEN, AGAIN)
FILES_RECOVERED = 10
INDEX = {"indexRocksDBEnable": "true"}


@dataclass(frozen=True)
class Laboratory:
    """rebuilt: stores by (case, kind). dispatched: bare logs that the real store has dispatched into RocksDB. found: its reports."""

    rebuilt: dict[tuple[str, str], Path]
    dispatched: dict[str, Path]
    found: dict[tuple[str, str], Opened]
    reads: dict[tuple[str, str], Rows]
    next_offsets: dict[tuple[str, str], list[int]]


def _options(case: GoldenCase | None, kind: str) -> dict[str, str]:
    own = {} if case is None else {name: value for name, value in case.properties.items() if name != "storeType"}
    sized = {"mappedFileSizeCommitLog": "65536"} if case is None else own
    return sized | {"enableConsumeQueueExt": "false"} | ({"storeType": "defaultRocksDB"} if kind == "rocksdb" else {})


def _started_again(root: Path) -> Path:
    """Write a log whose queue has the offsets 0 to 29 and then 0 to 9."""
    store = Store(root)
    for first, count in ((0, 30), (0, 10)):
        store.next_queue_offset["orders", 0] = first
        for number in range(count):
            store.put(message("orders", keys=f"{first}-{number}"))
    for _ in range(5):
        store.put(message("other"))
    store.write()
    shutil.rmtree(root / "consumequeue")
    return root


def _reads(store: Path) -> Rows:
    """Return pulls of all messages of all queues."""
    return [
        {"topic": queue.topic, "queue_id": queue.queue_id, "offset": offset, "max_msg_nums": 32, "tags": None}
        for queue in _queues(store)
        if queue.topic != "only-old"  # its messages are gone
        for offset in range(queue.min_offset, queue.max_offset, 32)
    ]


def _queues(store: Path) -> list[ConsumeQueueReader]:
    return sorted(open_rocketmq(store).consume_queues(), key=lambda queue: (queue.topic, queue.queue_id))


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    reason = why_not(VERSION)
    if reason is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("queue-databases")
    cases = {name: None if name == AGAIN else case_named(name) for name in CASES}
    rebuilt: dict[tuple[str, str], Path] = {}
    dispatched: dict[str, Path] = {}
    jobs, reports = [], {}
    for number, (name, case) in enumerate(cases.items()):
        source = _started_again(root / "again") if case is None else opened(case)
        dispatched[name] = root / "dispatched" / str(number)
        dispatched[name].parent.mkdir(exist_ok=True)
        if case is None:
            shutil.copytree(source, dispatched[name])
        else:
            bare_log(case, dispatched[name])
        jobs.append(Job(f"dispatch {name}", ("dispatch", str(dispatched[name])), _options(case, "rocksdb") | INDEX))
        for kind in KINDS:
            target = rebuilt[name, kind] = root / kind / str(number)
            target.parent.mkdir(exist_ok=True)
            config = None if case is None else case.config
            rebuild(source, target, threads=2, splits=3, queues=kind, version=VERSION, config=config)
            out = reports[name, kind] = root / "reports" / kind / str(number)
            out.mkdir(parents=True)
            asked = queries(case) if case is not None and has(case, "queries.jsonl") else []
            _write(out / "queries", [{word: query[word] for word in QUESTIONS} for query in asked])
            _write(out / "reads", _reads(target))
            options = ("--tmp", str(out), "--out", str(out / "report"), "--queries", str(out / "queries"), "--reads", str(out / "reads"))
            jobs.append(Job(f"report {name} {kind}", ("report", str(target), *options), _options(case, kind)))
    for job, done in run(VERSION, jobs, root / "work").items():
        assert done.error is None, f"{job}: {done.error}"
    yield Laboratory(
        rebuilt,
        dispatched,
        {key: report_of(out) for key, out in reports.items()},
        {key: _rows(out / "report" / "reads.jsonl") for key, out in reports.items()},
        _continued(root, rebuilt, cases),
    )
    shutil.rmtree(root)


def _continued(root: Path, rebuilt: dict[tuple[str, str], Path], cases: dict[str, GoldenCase | None]) -> dict[tuple[str, str], list[int]]:
    """Let the real store put a message into each queue of copies of the stores; return the queue offsets that it gives."""
    jobs = []
    for number, ((name, kind), store) in enumerate(rebuilt.items()):
        copy = root / "continued" / str(number)
        shutil.copytree(store, copy)
        script = root / "continued" / f"{number}.jsonl"
        names = [(queue.topic, queue.queue_id) for queue in _queues(store)]
        _write(script, [{"op": "put", "topic": topic, "queue_id": queue, "body": "the next"} for topic, queue in names])
        jobs.append(Job(json.dumps([name, kind]), ("append", str(copy), "--in", str(script)), _options(cases[name], kind)))
    found = {}
    for job, done in run(VERSION, jobs, root / "work-continued").items():
        assert done.error is None, f"{job}: {done.error}"
        found[tuple(json.loads(job))] = [row["queue_offset"] for row in done.rows if "queue_offset" in row]
    return found


def _write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _pairs(store: Path) -> dict[str, dict[bytes, bytes]]:
    database = RocksDatabase(ReadOnlyDirectory(store), "consumequeue")
    return {name: dict(family.items()) for name, family in database.families.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_real_store_opens_queues_of_either_kind_and_loses_nothing(laboratory: Laboratory, name: str) -> None:
    log = [row["physical_offset"] for row in laboratory.found[name, "files"].messages]
    for kind in KINDS:
        found = laboratory.found[name, kind]
        assert (found.boot["load_ok"], found.boot["walk_stopped_at"]) == (True, None)
        assert [row["physical_offset"] for row in found.messages] == log


@pytest.mark.parametrize("name", CASES)
def test_queues_of_either_kind_have_the_same_bounds_and_entries(laboratory: Laboratory, name: str) -> None:
    files, database = (laboratory.found[name, kind].queues for kind in KINDS)
    known = {(queue["topic"], queue["queue_id"]): queue for queue in files}
    if name == AGAIN:  # files append what starts again at 0 and leave out repetitions; a database replaces entries, as tested below
        known.pop(("orders", 0))
        database = [queue for queue in database if queue["topic"] != "orders"]
    alike = ("min_offset", "max_offset", "entries")
    # the real store lists a queue in RocksDB only if the log has a message of it
    wanted = {key: queue for key, queue in known.items() if queue["entries"]}
    assert {(queue["topic"], queue["queue_id"]): [queue[word] for word in alike] for queue in database} == {
        key: [queue[word] for word in alike] for key, queue in wanted.items()
    }
    assert len(wanted) > 0


@pytest.mark.parametrize("name", GOLDEN)
def test_every_pull_of_every_queue_is_answered_alike(laboratory: Laboratory, name: str) -> None:
    files, database = (laboratory.reads[name, kind] for kind in KINDS)
    assert len(files) > 0
    assert {row["status"] for row in files} == {"FOUND"}
    same = ("topic", "queue_id", "offset", "status", "min_offset", "max_offset")
    for one, other in zip(database, files, strict=True):
        assert [one[word] for word in same] == [other[word] for word in same]
        # a pull from files ends where a queue file ends; a database has no such end
        assert one["physical_offsets"][: len(other["physical_offsets"])] == other["physical_offsets"]
    listed = {entry[0] for queue in laboratory.found[name, "files"].queues for entry in queue["entries"]}
    assert {offset for row in database for offset in row["physical_offsets"]} == listed


@pytest.mark.parametrize("name", GOLDEN)
def test_key_queries_are_answered_alike(laboratory: Laboratory, name: str) -> None:
    files, database = (laboratory.found[name, kind].answers for kind in KINDS)
    assert database == files


@pytest.mark.parametrize("name", GOLDEN)
def test_the_database_is_pair_for_pair_the_one_that_the_real_store_builds(laboratory: Laboratory, name: str) -> None:
    ours, theirs = _pairs(laboratory.rebuilt[name, "rocksdb"]), _pairs(laboratory.dispatched[name])
    log_files = sorted((laboratory.rebuilt[name, "rocksdb"] / "commitlog").iterdir())
    recovered_from = int(log_files[max(0, len(log_files) - FILES_RECOVERED)].name)
    entries = {key: value for key, value in ours["default"].items() if int.from_bytes(value[:8], "big") >= max(1, recovered_from)}
    assert entries == theirs["default"]
    assert len(entries) > 0
    bounds = {key: value for key, value in ours["offset"].items() if b"\1max\1" in key and b"only-old" not in key}
    assert bounds == {key: value for key, value in theirs["offset"].items() if b"\1max\1" in key}
    if len(entries) == len(ours["default"]):
        assert theirs["offset"].items() <= ours["offset"].items()


def test_of_a_queue_that_started_again_the_newest_messages_are_listed_and_none_is_out_of_reach(laboratory: Laboratory) -> None:
    queue = next(queue for queue in laboratory.found[AGAIN, "rocksdb"].queues if queue["topic"] == "orders")
    log = [row["physical_offset"] for row in laboratory.found[AGAIN, "rocksdb"].messages]
    assert (queue["min_offset"], queue["max_offset"]) == (0, 30)
    assert [entry[0] for entry in queue["entries"]] == [*log[30:40], *log[10:30]]


@pytest.mark.parametrize("name", CASES)
def test_verify_finds_nothing_wrong_in_the_index_that_the_real_store_wrote_into_rocksdb(laboratory: Laboratory, name: str) -> None:
    store = open_rocketmq(laboratory.dispatched[name])
    report = verify(store)
    assert [item for item in report.damage if item.file == "rocksdbstore"] == []
    in_files = sum(file.index_count - 1 for file in store.index_files())
    unique = any(message["uniq_key"] for message in laboratory.found[name, "files"].messages)
    assert (report.checked.index_entries > in_files) == unique


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GOLDEN)
def test_the_real_store_continues_the_numbering_of_every_queue(laboratory: Laboratory, name: str, kind: str) -> None:
    ends = [queue.max_offset for queue in _queues(laboratory.rebuilt[name, kind])]
    assert laboratory.next_offsets[name, kind] == ends
    assert len(ends) > 0
