"""Compaction topics: what a real 5.3.3 hands out of its compaction log, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import run_cli, unpack_site

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.record import BODY_AT
from mqstore.rocketmq.store.compacted import compacted_queues


def test_queues_are_those_that_the_broker_answers_from(tmp_path: Path) -> None:
    store = unpack_site("compaction-533", tmp_path)
    answers = [json.loads(line) for line in (tmp_path / "reads.jsonl").read_text().splitlines()]
    queues = list(compacted_queues(ReadOnlyDirectory(store)))
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("prices", 0), ("prices", 1)]
    for queue in queues:
        own = [answer for answer in answers if answer["queue_id"] == queue.queue_id]
        assert {(answer["min_offset"], answer["max_offset"]) for answer in own} == {(queue.min_offset, queue.max_offset)}
        assert len({offset for answer in own for offset in answer["physical_offsets"]}) == queue.messages
        assert queue.without == 0
        listed = [row["physical_offset"] for file in queue.files for row in run_cli("messages", store / file, "-o", "jsonl").rows]
        assert listed == sorted({offset for answer in own for offset in answer["physical_offsets"]})


def test_messages_that_consumers_get_are_counted_found_and_not_called_known(tmp_path: Path) -> None:
    store = unpack_site("compaction-533", tmp_path)
    said = "of topic 'prices', consumers get 59 messages of 2 queues in compaction/compactionLog, and not those of the log"
    found = run_cli("inspect", store, "-o", "json").document
    assert [part.partition(";")[0] for part in found["unsupported"]] == [f"compaction topics: {said}"]
    assert {part["state"] for part in found["site"] if part["part"].startswith("compaction")} == {"here"}
    assert any(said in sentence for sentence in run_cli("diagnose", store, "-o", "json").document["unknown"])
    assert said in run_cli("topics", store).stderr
    done = run_cli("find", store, "item-3", "--whole-key")
    assert "1 message with it in compaction/compactionLog/prices/1/00000000000000000000, from which consumers get them" in done.stderr
    assert "2 messages with it in compaction/compactionLog/prices/0/00000000000000016560" in done.stderr


def test_records_and_units_that_are_gone_are_said(tmp_path: Path) -> None:
    store = unpack_site("compaction-533", tmp_path)
    (store / "compaction/compactionLog/prices/0/00000000000000016560").unlink()
    (part,) = run_cli("inspect", store, "-o", "json").document["unsupported"]
    assert "consumers get 41 messages of 2 queues" in part
    assert part.endswith("and 18 records listed there cannot be found")
    (store / "compaction/compactionCq").rename(store / "compaction/away")
    (part,) = run_cli("inspect", store, "-o", "json").document["unsupported"]
    assert part.endswith("2 queues are in compaction/compactionLog, which is not read")
    (store / "compaction/away").rename(store / "compaction/compactionCq")
    cut = store / "compaction/compactionCq/prices/1/00000000000000016560"
    cut.write_bytes(cut.read_bytes()[:100])
    (part,) = run_cli("inspect", store, "-o", "json").document["unsupported"]
    assert "consumers get 26 messages of 2 queues" in part
    cut.unlink()
    cut.mkdir()
    assert run_cli("inspect", store).status in (0, 1)


@pytest.mark.parametrize("damage", ["none", "body", "offset", "record", "file"])
def test_verify_checks_what_consumers_get_of_a_compaction_topic(damage: str, tmp_path: Path) -> None:
    store = unpack_site("compaction-533", tmp_path)
    file = store / "compaction/compactionLog/prices/0" / f"{16560:020d}"
    size = int.from_bytes(file.read_bytes()[:4], "big")
    if damage == "file":
        file.unlink()
    elif damage != "none":
        at = {"body": BODY_AT, "offset": 27, "record": 7}[damage]
        with file.open("r+b") as raw:
            raw.seek(at)
            raw.write(b"\xff")
    report = run_cli("verify", store, "-o", "json").document
    found = [(item["kind"], item["file"].partition("/prices/")[0], item["length"]) for item in report["damage"]]
    where = "compaction/compactionLog" if damage != "file" else "compaction/compactionCq"
    assert found[:1] == ([] if damage == "none" else [("bad-compaction", where, size if damage != "file" else 46)])
    assert report["messages"]["affected"] == {"none": 0, "file": 18}.get(damage, 1)
    assert any("59 messages that consumers get" in note for note in report["notes"])
    for command in (("sql", store, "SELECT count(*) FROM messages"), ("messages", store)):
        assert f"consumers get {41 if damage == 'file' else 59} messages" in run_cli(*command).stderr
