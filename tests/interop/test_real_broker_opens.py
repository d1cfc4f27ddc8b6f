"""The store that `rebuild` wrote, opened by the real brokers.

For each golden store three directories are made: what `rebuild` writes from seven splits on Spark, what the real store of
the same version builds from the bare log, and copies of the former that both broker versions load, start on and query.
Queue and index files must be equal byte for byte, except for the names of index files, which are their creation times.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop.realbroker import VERSIONS, Done, Job, run, why_not
from support.golden import FURTHER, PLAIN, GoldenCase, boot, case_id, case_named, expected, has, opened, queries, unpack

from mqstore.jobs.rebuild import rebuild

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

# rebuild writes queues without the extension, whose entries hold the tags code itself; so does a broker that has it switched off
PLAIN_QUEUES = {"enableConsumeQueueExt": "false"}
QUEUE_FOLDERS = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
OPENINGS = tuple((case, version) for case in PLAIN for version in VERSIONS if version >= case.version)
QUESTIONS = ("topic", "key", "max_num", "begin", "end")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Opened:
    """A real store's report on a directory: boot.json, queues.jsonl, expected.jsonl and queries.jsonl of the oracle."""

    boot: dict[str, Any]
    queues: Rows
    messages: Rows
    answers: Rows


@dataclass(frozen=True)
class Laboratory:
    """rebuilt, dispatched: store directories by case id. opened: reports by (case id, broker version); reference: of `dispatched`."""

    rebuilt: dict[str, Path]
    dispatched: dict[str, Path]
    outcomes: dict[str, Done]
    opened: dict[tuple[str, str], Opened]
    reference: dict[str, Opened]


def bare_log(case: GoldenCase, target: Path) -> Path:
    """Copy only the log of a store."""
    unpack(case, target)
    for path in target.iterdir():
        if path.name != "commitlog":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return target


def _report(case: GoldenCase, store: Path, out: Path, name: str) -> Job:
    out.mkdir(parents=True)
    questions = out / "questions.jsonl"
    asked = queries(case) if has(case, "queries.jsonl") else []
    questions.write_text("".join(json.dumps({word: query[word] for word in QUESTIONS}) + "\n" for query in asked), encoding="utf-8")
    return Job(name, ("report", str(store), "--tmp", str(out), "--out", str(out / "report"), "--queries", str(questions)), case.properties)


def _lines(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def report_of(out: Path) -> Opened:
    report = out / "report"
    if not (report / "queues.jsonl").exists():
        return Opened(_lines(report / "boot.json")[0], [], [], [])
    return Opened(
        _lines(report / "boot.json")[0],
        _lines(report / "queues.jsonl"),
        _lines(report / "expected.jsonl"),
        _lines(report / "queries.jsonl"),
    )


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    for version in VERSIONS:
        reason = why_not(version)
        if reason is not None:
            pytest.skip(reason)
    root = tmp_path_factory.mktemp("interop")
    rebuilt = {case.id: root / "rebuilt" / case.id for case in PLAIN}
    spark = request.getfixturevalue("spark")
    for case in PLAIN:
        rebuilt[case.id].parent.mkdir(parents=True, exist_ok=True)
        rebuild(opened(case), rebuilt[case.id], spark=spark, splits=7, copy=True)
    dispatched = {case.id: bare_log(case, root / "dispatched" / case.id) for case in PLAIN}
    outcomes: dict[str, Done] = {}
    found: dict[tuple[str, str], Opened] = {}
    reference: dict[str, Opened] = {}
    for version in VERSIONS:
        own = [case for case in PLAIN if case.version == version]
        dispatches = [Job(case.id, ("dispatch", str(dispatched[case.id])), case.properties | PLAIN_QUEUES) for case in own]
        outcomes |= run(version, dispatches, root / "work" / version / "dispatch")
        reports = root / "reports" / version
        jobs = [_report(case, dispatched[case.id], reports / "reference" / case.id, f"reference {case.id}") for case in own]
        jobs += [
            _report(case, rebuilt[case.id], reports / "rebuilt" / case.id, f"rebuilt {case.id}") for case, by in OPENINGS if by == version
        ]
        for name, done in run(version, jobs, root / "work" / version / "report").items():
            assert done.error is None, f"{name}: {done.error}"
        reference |= {case.id: report_of(reports / "reference" / case.id) for case in own}
        found |= {(case.id, version): report_of(reports / "rebuilt" / case.id) for case, by in OPENINGS if by == version}
    yield Laboratory(rebuilt, dispatched, outcomes, found, reference)
    shutil.rmtree(root)


def _is_idle(name: object) -> bool:
    """Return whether a queue file, or the topic of a queue, is that of the golden stores' queue without messages in the log."""
    return "only-old" in str(name).split("/")


def _files(root: Path, folder: str) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted((root / folder).rglob("*")) if path.is_file()}


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_queue_files_are_byte_for_byte_those_that_the_real_store_builds(laboratory: Laboratory, case: GoldenCase) -> None:
    for folder in QUEUE_FOLDERS:
        ours, theirs = _files(laboratory.rebuilt[case.id], folder), _files(laboratory.dispatched[case.id], folder)
        # a store that dispatches a bare log cannot know the queues whose messages are gone; rebuild keeps their last files
        theirs |= {name: data for name, data in _files(opened(case), folder).items() if _is_idle(name)}
        assert sorted(ours) == sorted(theirs)
        assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_index_files_are_byte_for_byte_those_that_the_real_store_builds(laboratory: Laboratory, case: GoldenCase) -> None:
    outcome = laboratory.outcomes[case.id]
    assert outcome.error is None
    assert not outcome.rows[0].get("index_names_collided"), "two index files of the real store were made in one millisecond"
    ours, theirs = _files(laboratory.rebuilt[case.id], "index"), _files(laboratory.dispatched[case.id], "index")
    assert len(ours) == len(theirs)
    for (our_name, our_bytes), (their_name, their_bytes) in zip(sorted(ours.items()), sorted(theirs.items()), strict=True):
        assert our_bytes[:40] == their_bytes[:40], f"headers of {our_name} and {their_name}"
        assert our_bytes == their_bytes, f"{our_name} and {their_name}"


@pytest.mark.parametrize(("case", "version"), OPENINGS, ids=lambda value: case_id(value) or str(value))
def test_the_real_store_opens_what_we_rebuilt_and_loses_nothing(laboratory: Laboratory, case: GoldenCase, version: str) -> None:
    found = laboratory.opened[case.id, version]
    assert found.boot["load_ok"] is True
    assert found.boot["max_phy_offset"] == boot(case)["max_phy_offset_after_load"]
    assert found.boot["walk_stopped_at"] is None
    assert [row["physical_offset"] for row in found.messages] == [row["physical_offset"] for row in expected(case)]
    assert found.boot["before"]["abort"] is False
    assert found.boot["after"]["index"] == found.boot["before"]["index"], "an intact index is neither dropped nor grown"


@pytest.mark.parametrize(("case", "version"), OPENINGS, ids=lambda value: case_id(value) or str(value))
def test_queues_and_answers_are_those_of_a_store_that_dispatched_the_log_itself(
    laboratory: Laboratory, case: GoldenCase, version: str
) -> None:
    found, reference = laboratory.opened[case.id, version], laboratory.reference[case.id]
    queues = [queue for queue in found.queues if not _is_idle(queue["topic"])]
    assert [queue["max_offset"] for queue in found.queues if _is_idle(queue["topic"])] == [15] * (len(found.queues) - len(queues))
    if version == case.version:
        assert queues == reference.queues
    else:
        # a newer broker keeps the older one's entries; it may count the newest indexed record of an empty queue differently
        names = ("topic", "queue_id", "max_offset", "entries")
        assert [[queue[name] for name in names] for queue in queues] == [[queue[name] for name in names] for queue in reference.queues]
    assert found.answers == reference.answers


@pytest.mark.parametrize("case", [case for case in FURTHER if case.version in ("4.3.0", "4.7.1", "5.1.4")], ids=case_id)
def test_a_store_of_a_further_version_is_rebuilt_and_opens_in_its_version(case: GoldenCase, tmp_path: Path) -> None:
    if reason := why_not(case.version):
        pytest.skip(reason)
    rebuild(opened(case), tmp_path / "rebuilt", threads=2, config=case.config, version=case.version)
    done = run(case.version, [_report(case, tmp_path / "rebuilt", tmp_path / "out", case.id)], tmp_path / "work")
    assert done[case.id].error is None
    found, said = report_of(tmp_path / "out"), boot(case)
    assert found.boot["load_ok"] is True
    assert found.boot["walk_stopped_at"] is None
    assert (found.boot["min_phy_offset"], found.boot["max_phy_offset"]) == (said["min_phy_offset"], said["max_phy_offset"])
    assert len(found.messages) == said["messages"]
    assert found.boot["after"]["index"] == found.boot["before"]["index"], "an intact index is neither dropped nor grown"
    asked = queries(case)
    assert [row["index_offsets"] for row in found.answers] == [row["index_offsets"] for row in asked]
    assert any(row["index_offsets"] for row in asked)


@pytest.mark.parametrize("identity", ["4.9.3/d-rolled", "5.3.3/k-rolled"])
def test_the_real_store_continues_the_numbering_of_a_queue_whose_messages_are_gone(identity: str, tmp_path: Path) -> None:
    case = case_named(identity)
    rebuild(opened(case), tmp_path / "store", threads=2, config=case.config)
    script = tmp_path / "puts.jsonl"
    script.write_text(json.dumps({"op": "put", "topic": "only-old", "queue_id": 0, "body": "the next"}) + "\n", encoding="utf-8")
    job = Job("append", ("append", str(tmp_path / "store"), "--in", str(script)), case.properties)
    done = run(case.version, [job], tmp_path / "work")["append"]
    assert done.error is None, done.error
    assert [row["queue_offset"] for row in done.rows if "queue_offset" in row] == [15], done.rows
