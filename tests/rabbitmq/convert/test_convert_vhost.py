"""Conversion between the queue versions: every message is kept, with its number, marks and properties."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support.golden import GoldenCase, case_id
from support.rabbitmq_index import message_id
from support.rabbitmq_wrecks import PLACE, STORE, N, Q, body, in_journal, in_segment, in_store, noted, queue_store, stored, vhost

from mqstore.errors import NotAStoreError, TargetError, UsageError
from mqstore.findings import Kind
from mqstore.rabbitmq.convert.convert_queue import EXPIRED, MISSING, UNREADABLE, QueueResult, QueueTask
from mqstore.rabbitmq.convert.convert_vhost import convert
from mqstore.rabbitmq.format import index_v2, journal
from mqstore.rabbitmq.store.store import RabbitMQStore

FIELDS = (
    "vhost", "queue", "priority_level", "pos", "seq_id", "persistent", "expiry_us", "size", "redelivered", "msg_id", "exchange",
    "routing_keys", "properties_json", "payload_len", "payload_sha256", "recovered",
)  # fmt: skip
GIVEN = [name for name in FIELDS if name != "properties_json"]


def rows(store: Path) -> list[dict[str, Any]]:
    """The messages that a broker would recover from a store, in its order."""
    found = RabbitMQStore(store).to_arrow(FIELDS).to_pylist()
    return [row for row in found if row["recovered"]]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def expected(case: GoldenCase) -> list[dict[str, Any]]:
    return [row for row in goldenkit.expected(case) if row["recovered"]]


def beyond(case: GoldenCase) -> int:
    """Return messages that exist and that the broker loses: in the left-over of a merge, after zeros."""
    return 6 if case.name == "e3-gc-interrupted-zero-extended" else 0


@pytest.mark.parametrize("case", goldenkit.RABBITMQ, ids=case_id)
def test_golden_stores_keep_every_field_through_both_versions(case: GoldenCase, tmp_path: Path) -> None:
    want = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in expected(case)}
    source = goldenkit.opened(case)
    for step, version in enumerate((2, 1, 2)):
        report = convert(source, tmp_path / f"step{step}", version)
        assert report.messages == len(want) + beyond(case)
        source = tmp_path / f"step{step}"
        found = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]): row for row in rows(source)}
        assert len(found) == report.messages
        for key, row in want.items():
            got = found[key]
            assert {name: got[name] for name in GIVEN if name != "pos" or not beyond(case)} == {
                name: row[name] for name in GIVEN if name != "pos" or not beyond(case)
            }
            assert json.loads(got["properties_json"]) == row["properties"]
    files = {path.suffix for path in source.rglob("*") if path.is_file()}
    assert not files & {".idx", ".jif", ".rdt", ".ets", ".dot"}


def numbers(store: Path) -> list[int]:
    """The messages of `wrecks` that a broker would recover."""
    return [int(bytes(row["payload"]).split()[1]) for row in RabbitMQStore(store).to_arrow().to_pylist() if row["recovered"]]


def test_a_queue_with_nothing_but_a_journal_loses_nothing(tmp_path: Path) -> None:
    # a broker that opens it as version 2 silently ignores this journal
    journal_bytes = b"".join(in_journal(n) for n in range(300)) + b"".join(journal.acknowledge(n) for n in range(0, 300, 3))
    for v2 in (False, True):
        store = vhost(tmp_path / f"old{v2}", {f"{Q}/journal.jif": journal_bytes}, v2=v2)
        report = convert(store, tmp_path / f"new{v2}", 2)
        assert report.messages == 200
        assert report.queues[0].beyond == (200 if v2 else 0)
        assert numbers(tmp_path / f"new{v2}") == [n for n in range(300) if n % 3]


def test_a_missing_delivery_in_segment_0_does_not_bring_an_acknowledged_message_back(tmp_path: Path) -> None:
    # issues 3253 and 7904 of rabbitmq-server: the journal acknowledges what the segment has only published; the node does not boot
    files = {f"{Q}/0.idx": in_segment(1) + in_segment(0, marked=False), f"{Q}/journal.jif": journal.acknowledge(0)}
    report = convert(vhost(tmp_path / "old", files), tmp_path / "new", 2)
    assert [item.kind for item in report.findings] == [Kind.BROKER_CRASH]
    assert numbers(tmp_path / "new") == [1]
    assert not report.ok


def test_a_journal_without_its_segments_yields_its_messages(tmp_path: Path) -> None:
    # issue 3836: the segments are missing, the journal still delivers and acknowledges their messages
    left = journal.deliver(1) + journal.acknowledge(2) + journal.deliver(3) + journal.acknowledge(3)
    report = convert(vhost(tmp_path / "old", {f"{Q}/journal.jif": left + in_journal(N + 5)}), tmp_path / "new", 2)
    assert numbers(tmp_path / "new") == [N + 5]
    assert report.messages == 1


@pytest.mark.parametrize("damage", [slice(0, 2000), slice(1340, 1400), slice(1200, 1500)], ids=["all", "object", "across"])
def test_damaged_terms_cost_the_marks_and_no_message(tmp_path: Path, damage: slice) -> None:
    # issue 2192: a broker before 3.8.3 does not start on a damaged recovery.dets
    whole = bytearray(noted(9, 2, count=3))
    store = vhost(tmp_path / "sound", {f"{Q}/journal.jif": b"".join(map(in_journal, range(3))), f"{PLACE}/recovery.dets": bytes(whole)})
    convert(store, tmp_path / "first", 2)
    assert [row["redelivered"] for row in rows(tmp_path / "first")] == [True, True, False]
    whole[damage] = bytes(len(whole[damage]))
    (store / PLACE / "recovery.dets").write_bytes(whole)
    convert(store, tmp_path / "second", 2)
    assert numbers(tmp_path / "second") == [0, 1, 2]
    assert [row["redelivered"] for row in rows(tmp_path / "second")] == [True, True, True]


def test_an_index_without_its_queue_store_costs_its_own_messages_only(tmp_path: Path) -> None:
    # issue 13390: no_file for a .qs
    index, queue = queue_store([0, 1, 2])
    away = index_v2.shared_entry(message_id(7), size=len(body(7)))
    files = {f"{Q}/0.qi": index + away, f"{STORE}/0.rdq": in_store(7)}
    report = convert(vhost(tmp_path / "old", files, v2=True), tmp_path / "new", 1)
    assert numbers(tmp_path / "new") == [7]
    assert report.left_out == {UNREADABLE: 3}
    assert not report.ok
    sound = vhost(tmp_path / "sound", files | {f"{Q}/0.qs": queue}, v2=True)
    assert convert(sound, tmp_path / "whole", 1).messages == 4


def test_a_message_file_deleted_by_hand_costs_its_own_messages_only(tmp_path: Path) -> None:
    # issue 13228
    index = b"".join(in_segment(n, embedded=n % 2 == 0) for n in range(6))
    files = {f"{Q}/0.idx": index, f"{STORE}/4.rdq": in_store(3)}
    report = convert(vhost(tmp_path / "old", files), tmp_path / "new", 2)
    assert numbers(tmp_path / "new") == [0, 2, 3, 4]
    assert report.left_out == {MISSING: 2}


def test_queues_do_not_depend_on_the_name_of_the_node(tmp_path: Path) -> None:
    # issue 984: a data directory copied to another node
    vhost(tmp_path / "rabbit@old" / "msg_stores", {f"{Q}/journal.jif": in_journal(4)})
    report = convert(tmp_path / "rabbit@old", tmp_path / "rabbit@new", 2)
    assert report.messages == 1
    assert numbers(tmp_path / "rabbit@new" / "msg_stores") == [4]


def test_records_left_over_by_a_merge_and_after_zeros_are_written_to_new_files(tmp_path: Path) -> None:
    index = b"".join(in_segment(n, embedded=False) for n in range(5))
    files = {
        f"{Q}/0.idx": index,
        f"{STORE}/0.rdq": in_store(0) + bytes(200) + in_store(1),
        f"{STORE}/0.rdt": in_store(2),
        f"{STORE}/1.rdq": in_store(3) + in_store(9) + in_store(4)[:-1] + b"\0" + in_store(8)[:40],
    }
    report = convert(vhost(tmp_path / "old", files), tmp_path / "new", 2)
    assert report.messages == 5
    assert report.store.written == 2
    assert numbers(tmp_path / "new") == [0, 1, 2, 3, 4]
    new = tmp_path / "new" / STORE
    assert sorted(path.name for path in new.iterdir()) == ["0.rdq", "1.rdq"]
    assert (new / "0.rdq").read_bytes() == in_store(0) + in_store(1) + in_store(2)
    assert (new / "1.rdq").read_bytes() == in_store(3) + in_store(4)


def test_an_interrupted_conversion_is_finished(tmp_path: Path) -> None:
    index, queue = queue_store([0, 1, 2])
    files = {f"{Q}/0.qi": index, f"{Q}/0.qs": queue, f"{Q}/0.idx": b"".join(map(in_segment, range(5))), f"{Q}/1.idx": in_segment(N)}
    for version in (1, 2):
        report = convert(vhost(tmp_path / f"old{version}", files, v2=True), tmp_path / f"new{version}", version)
        assert report.messages == 6
        assert numbers(tmp_path / f"new{version}") == [0, 1, 2, 3, 4, N]


def test_expired_messages_at_the_head_are_left_out_if_a_time_is_given(tmp_path: Path) -> None:
    entries = b"".join(
        journal.publish(n, message_id(n), stored(n), size=len(body(n)), expiry=expiry) + journal.deliver(n)
        for n, expiry in enumerate((50, 60, 0, 70))
    )
    store = vhost(tmp_path / "old", {f"{Q}/journal.jif": entries})
    assert convert(store, tmp_path / "all", 2).messages == 4
    assert convert(store, tmp_path / "later", 2, now=100).left_out == {EXPIRED: 2}
    assert numbers(tmp_path / "later") == [2, 3]
    assert [row["expiry_us"] for row in rows(tmp_path / "all")] == [50, 60, None, 70]


def test_only_the_queues_asked_for_change_their_version(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/d-large-fanout")
    report = convert(goldenkit.opened(case), tmp_path / "new", 2, queues=[("/", "fan.2")])
    assert {queue.queue: queue.version for queue in report.queues} == {"fan.1": 1, "fan.2": 2, "fan.3": 1, "solo.d": 1}
    assert len(rows(tmp_path / "new")) == 225
    with pytest.raises(match="no queue 'fan"):
        convert(goldenkit.opened(case), tmp_path / "other", 2, queues=[("/", "fan.9")])
    assert not (tmp_path / "other").exists()


def test_message_files_are_copied_unless_links_are_requested(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/d-large-fanout")
    source = goldenkit.unpack(case, tmp_path / "old")
    assert convert(source, tmp_path / "copied", 2).store.linked == 0
    assert convert(source, tmp_path / "linked", 2, link=True).store.linked == 11
    for name, links in (("copied", 1), ("linked", 2)):
        files = list((tmp_path / name).rglob("*.rdq"))
        assert {path.stat().st_nlink for path in files} == {links}


def test_a_priority_level_keeps_its_own_name(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/f-mixed-features")
    convert(goldenkit.opened(case), tmp_path / "new", 2)
    old = {path.parent.name: path.read_bytes() for path in goldenkit.opened(case).rglob(".queue_name")}
    new = {path.parent.name: path.read_bytes() for path in (tmp_path / "new").rglob(".queue_name")}
    assert new == {directory: content + b"INDEX: v2\n" for directory, content in old.items()}


@pytest.mark.parametrize("name", [b"Q\xc3\xbc", b"Q\xff\xfe", b"a\nb", b"q" * 255], ids=["utf-8", "not-utf-8", "control", "long"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_queue_directory_that_no_broker_named_keeps_its_name_and_its_messages(tmp_path: Path, name: bytes, version: int) -> None:
    """Someone renamed it, or saved a copy beside it; such a directory has no digest for a name."""
    own = os.fsdecode(name)
    place = f"{PLACE}/queues/{own}"
    files = {
        f"{place}/0.idx": in_segment(3) + in_segment(5, embedded=False),
        f"{STORE}/0.rdq": in_store(5),
        f"{Q}/journal.jif": in_journal(8),
    }
    store = vhost(tmp_path / "old", files)
    report = convert(store, tmp_path / "new", version)
    assert (report.messages, report.ok) == (3, True)
    assert (tmp_path / "new" / place).is_dir()
    found = RabbitMQStore(tmp_path / "new").to_arrow(("queue", "payload", "store_file")).to_pylist()
    # bytes that are not UTF-8 are escaped in every output
    shown = name.decode("utf-8", "backslashreplace") if b"\xff" not in name else "Q\\udcff\\udcfe"
    assert {(row["queue"], row["payload"]) for row in found} == {(shown, body(3)), (shown, body(5)), ("q", body(8))}
    for command in ("messages", "topics", "verify", "inspect"):
        for form in ("text", "json"):
            told = goldenkit.run_cli(command, tmp_path / "new", "-o", form)
            assert (told.status, "a bug in mqstore" in told.stderr) == (0, False), told


def test_the_old_store_is_not_touched_and_a_failed_run_leaves_nothing(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/a-small-clean")
    source = goldenkit.unpack(case, tmp_path / "old")
    with goldenkit.unchanged(source):
        convert(source, tmp_path / "new", 2)
        with pytest.raises(TargetError, match="exists already"):
            convert(source, tmp_path / "new", 2)
        with pytest.raises(TargetError, match="inside the store"):
            convert(source, source / "msg_stores" / "new", 2)
        with pytest.raises(UsageError, match="must be 1 or 2, not 3"):
            convert(source, tmp_path / "third", 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStoreError, match="no RabbitMQ vhost"):
        convert(tmp_path / "empty", tmp_path / "third", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new", "old"]


def test_tasks_run_in_any_process_and_can_be_repeated(tmp_path: Path) -> None:
    case = goldenkit.case_named(f"{goldenkit.RABBITMQ_VERSION}/d-large-fanout")
    source = goldenkit.opened(case)

    def elsewhere(tasks: Sequence[QueueTask], function: Callable[[QueueTask], QueueResult]) -> list[QueueResult]:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            list(pool.map(function, tasks))  # an attempt whose answer is lost
            return list(pool.map(function, tasks))

    convert(source, tmp_path / "threads", 2)
    convert(source, tmp_path / "processes", 2, run=elsewhere)
    assert contents(tmp_path / "threads") == contents(tmp_path / "processes")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_costs_messages_and_never_more(data: st.DataObject) -> None:
    index, queue = queue_store([0, 3, 4])
    files = {
        f"{Q}/journal.jif": b"".join(map(in_journal, range(N, N + 6))) + journal.acknowledge(N),
        f"{Q}/0.idx": b"".join(in_segment(n, embedded=n % 2 == 0) for n in range(5, 12)),
        f"{STORE}/0.rdq": b"".join(map(in_store, range(5, 12))),
        f"{Q}/0.qi": index,
        f"{Q}/0.qs": queue,
        f"{PLACE}/recovery.dets": noted(N + 6, 3, count=15),
    }
    name = data.draw(st.sampled_from(sorted(files)))
    raw = bytearray(files[name])
    at = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["cut", "change", "zero", "gone"])):
        case "cut":
            del raw[at:]
        case "change":
            raw[at] ^= data.draw(st.integers(1, 255))
        case "zero":
            raw[at : at + 64] = bytes(len(raw[at : at + 64]))
        case _:
            raw.clear()
    files[name] = bytes(raw)
    with tempfile.TemporaryDirectory() as place:
        store = vhost(Path(place) / "old", files)
        for version in (1, 2):
            report = convert(store, Path(place) / f"new{version}", version)
            assert report.messages <= 16
            assert len(rows(Path(place) / f"new{version}")) == report.messages
