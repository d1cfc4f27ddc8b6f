"""The message table of RabbitMQ stores: equal to what the real broker delivered, field by field; and of damaged stores."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.golden import OTHER_RABBITMQ, RABBITMQ, case_id, case_named, expected, opened, opened_node, run_cli, unpack
from support.rabbitmq_index import message_id, term, write
from support.rabbitmq_states import lying_tables, writable

import mqstore
from mqstore.errors import MqstoreError, NotAStoreError, NotFoundError, UnsupportedError, UsageError
from mqstore.findings import Kind
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format import index_v2, journal, message_file, segment
from mqstore.rabbitmq.format.names import priority_name, queue_directory, queue_name_file, vhost_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, write_terms
from mqstore.rabbitmq.store.message_store import MessageStore, StoreFile
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, QueueSelection

ALL = RABBITMQ_COLUMNS + RABBITMQ_EXTRA_COLUMNS
EVERYTHING = QueueSelection(everything=True)
# in e2 the records of three messages were already deleted when the node was killed: the tree has no byte of them
GONE = {"3e8da91bb8f06a3d2fefaa674dba45d6", "087dbef3942faed50b8a4b104864e302", "ce02ac5e86664f5cfeb7af20c3ebcb73"}


def rows(store: RabbitMQStore, selection: QueueSelection = QueueSelection(), columns: tuple[str, ...] = ALL) -> list[dict[str, Any]]:
    return [row for batch in store.to_batches(columns, selection) for row in batch.to_pylist()]


def key(row: dict[str, Any]) -> tuple[str, str, int, int]:
    return row["vhost"], row["queue"], -1 if row["priority_level"] is None else row["priority_level"], row["seq_id"]


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_every_message_is_what_the_broker_delivered_and_would_not_recover(case):
    found = rows(mqstore.open(opened(case) / "msg_stores"))
    wanted = {key(row): row for row in expected(case)}
    assert {key(row) for row in found} == set(wanted)
    assert len(found) == len(wanted)
    for row in found:
        row["properties"] = None if row["properties_json"] is None else json.loads(row["properties_json"])
        line = wanted[key(row)]
        # the golden data have no contents for a message that the broker loses; we may still have them
        assert {name: row[name] for name in line} == line
        assert row["verdict"] == ("unreachable" if row["msg_id"] in GONE else "intact")


@pytest.mark.parametrize("text", [b"", b"{segment_entry_count, many}.", b"{segment_entry, 2048}."])
def test_where_the_broker_knows_no_segment_size_the_segments_show_it(text: bytes, tmp_path: Path) -> None:
    """Seed 606 of `scripts/prove --kind advice-rabbitmq`: 627 acknowledged messages were listed as intact."""
    case = case_named("3.10.8/b-dirty-journal")
    path = unpack(case, tmp_path / "store") / "msg_stores"
    (config,) = path.glob("vhosts/*/.config")
    config.write_bytes(text)
    assert [row["verdict"] for row in rows(mqstore.open(path))] == ["intact"] * len(expected(case))
    known = run_cli("inspect", path, "-o", "json").document
    assert known["settings"] | known["settings_known_from"] == {"segment_entry_count": "the segments, as .config does not state it"}
    assert known["settings"] == {"segment_entry_count": 2048}


@pytest.mark.parametrize("case", OTHER_RABBITMQ, ids=case_id)
def test_every_message_of_a_node_of_another_version_is_what_that_version_delivered(case):
    found = rows(mqstore.open(opened_node(case)), QueueSelection(recovered=True, queue_types=frozenset({"classic"})))
    wanted = {key(row): row for row in expected(case)}
    assert {key(row) for row in found} == set(wanted)
    assert len(found) == len(wanted)
    for row in found:
        row["properties"] = json.loads(row["properties_json"])
        line = wanted[key(row)]
        assert {name: row[name] for name in line} == line
        assert row["verdict"] == "intact"


@pytest.mark.parametrize("case", OTHER_RABBITMQ, ids=case_id)
def test_a_store_without_the_metadata_of_its_node_reads_the_same(case):
    columns = ("vhost", "queue", "priority_level", "seq_id", "properties_json")
    alone = rows(mqstore.open(opened(case) / "msg_stores" / "vhosts"), columns=columns)
    assert alone == rows(mqstore.open(opened_node(case)), QueueSelection(queue_types=frozenset({"classic"})), columns=columns)


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_messages_are_ordered_by_vhost_queue_priority_and_position(case):
    found = rows(mqstore.open(opened(case)), columns=("vhost", "queue", "priority_level", "seq_id", "pos"))
    order = [
        (row["vhost"], row["queue"], -(-1 if row["priority_level"] is None else row["priority_level"]), row["seq_id"]) for row in found
    ]
    assert order == sorted(order)
    by_queue: dict[tuple[str, str], list[int]] = {}
    for row in found:
        if row["pos"] is not None:
            by_queue.setdefault((row["vhost"], row["queue"]), []).append(row["pos"])
    assert all(positions == list(range(len(positions))) for positions in by_queue.values())


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_a_golden_store_has_no_damage_except_missing_messages(case):
    findings = mqstore.open(opened(case)).findings
    assert [item.kind for item in findings] == [Kind.MISSING_BODY] * (3 if case.name == "e2-gc-interrupted" else 0)


def test_the_leftover_of_a_merge_yields_what_the_broker_loses():
    store = mqstore.open(opened(case_named("3.10.8/e3-gc-interrupted-zero-extended")))
    lost = [row for row in rows(store) if not row["recovered"]]
    assert len(lost) == 6
    assert {row["verdict"] for row in lost} == {"intact"}
    assert {row["store_file"].rpartition("/")[2] for row in lost} == {"0.rdt"}
    assert all(row["payload_len"] == row["size"] for row in lost)


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_counts_of_queues_match_the_rows(case):
    store = mqstore.open(opened(case))
    wanted = expected(case)
    assert sum(queue.counts.ready for queue in store.queues) == sum(row["recovered"] for row in wanted)
    assert sum(queue.counts.fates.transient for queue in store.queues) == sum(not row["persistent"] for row in wanted)


def test_acknowledged_messages_are_included_only_on_request():
    store = mqstore.open(opened(case_named("3.10.8/a-small-clean")))
    consumed = [row for row in rows(store, EVERYTHING) if row["verdict"] == "consumed"]
    assert len(consumed) == 29
    assert not any(row["recovered"] for row in consumed)
    assert len(rows(store)) == 71


# where a store is given


def test_every_level_of_the_tree_and_an_archive_may_be_given(tmp_path):
    case = case_named("3.10.8/f-mixed-features")
    whole = [row["msg_id"] for row in rows(mqstore.open(case.archive))]
    root = opened(case)
    assert len(whole) == 118
    assert [row["msg_id"] for row in rows(mqstore.open(root))] == whole
    assert [row["msg_id"] for row in rows(mqstore.open(root / "msg_stores"))] == whole
    assert [row["msg_id"] for row in rows(mqstore.open(root / "msg_stores/vhosts"))] == whole
    single = rows(mqstore.open(root / "msg_stores/vhosts" / vhost_directory("/")))
    assert [row["msg_id"] for row in single] == [row["msg_id"] for row in rows(mqstore.open(root)) if row["vhost"] == "/"]
    packed = tmp_path / "vhost.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(root / "msg_stores/vhosts" / vhost_directory("/"), "copied")
    assert [row["msg_id"] for row in rows(mqstore.open(packed))] == [row["msg_id"] for row in single]


def test_reading_changes_nothing_in_a_store(tmp_path):
    root = unpack(case_named("3.10.8/e2-gc-interrupted"), tmp_path / "store")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}
    rows(mqstore.open(root), EVERYTHING)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()} == before


def test_parts_of_a_store_are_named(tmp_path):
    (tmp_path / "0.rdq").write_bytes(b"")
    with pytest.raises(UnsupportedError, match="give the msg_stores directory"):
        mqstore.open(tmp_path)
    (tmp_path / "0.rdq").unlink()
    with pytest.raises(NotAStoreError):
        mqstore.open(tmp_path)


# stores written here


VHOST = vhost_directory("/")


def store_of(path: Path, queues: dict[str, dict[str, bytes]], *, persistent: dict[str, bytes] | None = None, **more: bytes) -> Path:
    """Return a vhost `/` with these queues, by name; more: files of the vhost, `__` for a slash."""
    files = {".vhost": b"/", ".config": b"{segment_entry_count, 2048}.\n", "msg_store_persistent/0.rdq": b""}
    for name, content in queues.items():
        place = f"queues/{queue_directory('/', name)}"
        files[f"{place}/.queue_name"] = queue_name_file("/", name)
        files.update({f"{place}/{file}": raw for file, raw in content.items()})
    files.update({f"msg_store_persistent/{file}": raw for file, raw in (persistent or {}).items()})
    files.update({file.replace("__", "/"): raw for file, raw in more.items()})
    return write(path, {f"msg_stores/vhosts/{VHOST}/{file}": raw for file, raw in files.items()})


def embedded(seq: int, body: bytes = b"body", *, persistent: bool = True, own: bool | None = None, expiry: int = 0) -> bytes:
    stored = term(message_id(seq), body, persistent=persistent if own is None else own)
    return journal.publish(seq, message_id(seq), stored, size=len(body), persistent=persistent, expiry=expiry)


def shared(seq: int, size: int, *, persistent: bool = True, number: int | None = None) -> bytes:
    return journal.publish(seq, message_id(seq if number is None else number), b"", size=size, persistent=persistent)


def record(number: int, body: bytes) -> bytes:
    return message_file.record(message_id(number), term(message_id(number), body))


def verdicts(path: Path, selection: QueueSelection = QueueSelection()) -> list[tuple[int | None, str, bool]]:
    return [(row["seq_id"], row["verdict"], row["recovered"]) for row in rows(mqstore.open(path), selection)]


def test_after_a_crash_every_message_is_redelivered_and_numbering_continues_at_the_next_segment(tmp_path):
    store = mqstore.open(store_of(tmp_path, {"q": {"journal.jif": embedded(2050) + journal.deliver(2050)}}))
    assert [(row["pos"], row["redelivered"]) for row in rows(store)] == [(0, True)]
    assert store.queues[0].next_seq == 4096
    assert store.queues[0].start.name == "dirty"


def test_with_terms_and_an_unclean_store_marks_and_numbers_come_from_the_terms(tmp_path):
    noted = QueueTerms({0: 2}, None, 12, 1, bytes(16), 2, 8)
    recovery = write_terms({queue_directory("/", "q"): noted})
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0) + embedded(1)}}, **{"recovery.dets": recovery})
    store = mqstore.open(path)
    assert [row["redelivered"] for row in rows(store)] == [True, False]
    assert (store.queues[0].next_seq, store.queues[0].start.name) == (12, "terms")


def test_terms_of_3_8_take_the_redelivered_mark_from_the_delivery(tmp_path):
    noted = QueueTerms({0: 2}, None, None, None, bytes(16), 2, 8)
    path = store_of(
        tmp_path,
        {"q": {"journal.jif": embedded(0) + journal.deliver(0) + embedded(1)}},
        **{"recovery.dets": write_terms({queue_directory("/", "q"): noted})},
    )
    assert [row["redelivered"] for row in rows(mqstore.open(path))] == [True, False]


def test_a_dirty_start_keeps_an_embedded_message_by_its_own_persistent_mark(tmp_path):
    raw = embedded(0, own=False) + embedded(1, persistent=False, own=True) + embedded(2, persistent=False)
    path = store_of(tmp_path, {"q": {"journal.jif": raw}})
    assert verdicts(path) == [(0, "intact", False), (1, "intact", True), (2, "intact", False)]
    assert mqstore.open(path).queues[0].counts.fates.transient == 1


def test_a_dirty_start_keeps_a_stored_message_if_the_scan_finds_its_id(tmp_path):
    body = b"x" * 5000
    raw = b"".join(shared(seq, 5000) for seq in range(4))
    files = {"0.rdq": record(0, body) + bytes(64) + record(1, body), "1.rdq": record(2, body)}
    path = store_of(tmp_path, {"q": {"journal.jif": raw}}, persistent=files)
    assert verdicts(path) == [(0, "intact", True), (1, "intact", False), (2, "intact", True), (3, "unreachable", False)]
    counts = mqstore.open(path).queues[0].counts
    assert (counts.ready, counts.fates.missing) == (2, 1)
    assert [item.kind for item in mqstore.open(path).findings] == [Kind.MISSING_BODY]


def test_stored_messages_without_an_entry_are_included_only_on_request(tmp_path):
    body = b"x" * 5000
    files = {"0.rdq": record(0, body) + record(7, body) + record(0, body), "1.rdq": record(7, body)}
    path = store_of(tmp_path, {"q": {"journal.jif": shared(0, 5000)}}, persistent=files)
    assert verdicts(path) == [(0, "intact", True)]
    everything = rows(mqstore.open(path), EVERYTHING)
    assert [(row["queue"], row["verdict"], row["msg_id"][-1], row["payload_len"]) for row in everything] == [
        ("q", "intact", "0", 5000),
        (None, "duplicate", "0", 5000),
        (None, "unindexed", "7", 5000),
        (None, "duplicate", "7", 5000),
    ]


def test_transient_messages_of_the_transient_store_are_shown_and_not_recovered(tmp_path):
    path = store_of(
        tmp_path,
        {"q": {"journal.jif": shared(0, 5000, persistent=False)}},
        **{"msg_store_transient__0.rdq": record(0, b"t" * 5000)},
    )
    row = rows(mqstore.open(path))[0]
    assert (row["location"], row["verdict"], row["recovered"], row["payload_len"]) == ("msg_store_transient", "intact", False, 5000)


def test_a_leftover_is_appended_to_its_file_before_the_scan(tmp_path):
    body = b"x" * 5000
    raw = shared(0, 5000) + shared(1, 5000)
    appended = store_of(
        tmp_path / "a", {"q": {"journal.jif": raw}}, persistent={"0.rdq": record(0, body), "0.rdt": record(1, body), "1.rdq": b""}
    )
    zeros = {"0.rdq": record(0, body) + bytes(100), "0.rdt": record(1, body), "1.rdq": b""}
    behind_zeros = store_of(tmp_path / "z", {"q": {"journal.jif": raw}}, persistent=zeros)
    assert verdicts(appended) == [(0, "intact", True), (1, "intact", True)]
    assert verdicts(behind_zeros) == [(0, "intact", True), (1, "intact", False)]


def test_a_leftover_without_its_file_stops_the_broker(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": shared(0, 5000)}}, persistent={"7.rdt": record(0, b"x" * 5000)})
    store = mqstore.open(path)
    assert verdicts(path) == [(0, "intact", False)]
    assert "7.rdq is missing" in store.vhosts[0].refusals[0]


def test_one_index_that_crashes_the_broker_stops_all_queues_of_the_vhost(tmp_path):
    broken = segment.publish(0, message_id(0), term(message_id(0), b"body"), size=4) + segment.mark(5)
    path = store_of(tmp_path, {"sound": {"journal.jif": embedded(0)}, "broken": {"0.idx": broken}})
    assert verdicts(path) == [(0, "intact", False), (0, "intact", False)]
    assert "broken" in mqstore.open(path).vhosts[0].refusals[0]


def test_an_embedded_message_that_is_not_a_term_crashes_the_broker(tmp_path):
    raw = journal.publish(0, message_id(0), b"\x00 no term", size=4) + embedded(1)
    path = store_of(tmp_path, {"q": {"journal.jif": raw}})
    assert verdicts(path) == [(0, "damaged", False), (1, "intact", False)]
    assert "not a term" in mqstore.open(path).vhosts[0].refusals[0]


@pytest.mark.parametrize(("identity", "size"), [(6, 4), (5, 9)])
def test_a_message_that_does_not_match_its_entry_is_damaged(tmp_path, identity, size):
    raw = journal.publish(5, message_id(identity), term(message_id(5), b"body"), size=size)
    assert [row[1] for row in verdicts(store_of(tmp_path, {"q": {"journal.jif": raw}}))] == ["damaged"]


def test_an_acknowledgement_after_damage_is_reported_if_the_broker_delivers_the_message_again(tmp_path):
    raw = bytearray(embedded(0) + journal.deliver(0) + embedded(1) + embedded(2) + journal.acknowledge(0))
    raw[len(embedded(0)) + 8 + 36] = 0xFF
    path = store_of(tmp_path, {"q": {"journal.jif": bytes(raw)}})
    assert verdicts(path) == [(0, "consumed", True), (2, "intact", False)]


def test_a_repeated_publish_shows_both(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0) + embedded(0, b"another")}})
    assert [row[1] for row in verdicts(path)] == ["intact", "duplicate"]


def test_priority_levels_are_one_queue_with_continuous_positions(tmp_path):
    files = {".vhost": b"/"}
    for level in (0, 7):
        name = priority_name("p", level)
        place = f"queues/{queue_directory('/', name)}"
        files[f"{place}/.queue_name"] = queue_name_file("/", name)
        files[f"{place}/journal.jif"] = embedded(0)
    write(tmp_path / "v", files)
    found = rows(mqstore.open(tmp_path / "v"))
    assert [(row["queue"], row["priority_level"], row["pos"]) for row in found] == [("p", 7, 0), ("p", 0, 1)]


def test_expired_messages_are_counted_also_those_at_the_head(tmp_path):
    raw = embedded(0, expiry=100) + embedded(1) + embedded(2, expiry=100) + embedded(3, expiry=300)
    path = store_of(tmp_path, {"q": {"journal.jif": raw}})
    store = mqstore.open(path, now=200)
    assert [row["expired"] for row in rows(store)] == [True, False, True, False]
    assert (store.queues[0].counts.expired, store.queues[0].counts.expired_at_head) == (2, 1)
    assert [row["expired"] for row in rows(mqstore.open(path))] == [None] * 4


def test_a_queue_without_name_is_named_by_its_directory_or_by_a_matching_name(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0)}})
    directory = queue_directory("/", "q")
    (path / "msg_stores/vhosts" / VHOST / "queues" / directory / ".queue_name").unlink()
    assert [row["queue"] for row in rows(mqstore.open(path))] == [directory]
    assert [row["queue"] for row in rows(RabbitMQStore(path, names=[("/", "other"), ("/", "q")]))] == ["q"]


def test_a_queue_ends_at_messages_that_the_table_of_a_clean_stop_has_elsewhere(tmp_path):
    store = unpack(case_named("3.10.8/d-large-fanout"), tmp_path)
    lying_tables(writable(store))
    crashes = {queue.name: queue.crashes for queue in mqstore.open(store).queues}
    lead = "the message of sequence id 0 and 10 more is not where msg_store_index.ets has it; the queue ends there at every attempt"
    assert crashes["fan.1"] == (lead,)


def test_the_next_sequence_id_after_a_clean_stop_is_the_noted_one():
    queues = [queue for queue in mqstore.open(opened(case_named("3.10.8/f-mixed-features"))).queues if queue.start.terms is not None]
    assert queues
    assert [queue.next_seq for queue in queues] == [queue.start.terms.next_seq for queue in queues]


def test_a_name_that_does_not_match_its_directory_is_reported(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0)}})
    target = path / "msg_stores/vhosts" / VHOST / "queues"
    shutil.copytree(target / queue_directory("/", "q"), target / "COPY")
    store = mqstore.open(path)
    assert sorted(row["queue"] for row in rows(store)) == ["COPY", "q"]
    assert [item.kind for item in store.findings] == [Kind.BAD_QUEUE_NAME]


def test_links_out_of_the_store_are_not_followed(tmp_path):
    outside = write(tmp_path / "outside", {"journal.jif": embedded(0), "0.rdq": record(0, b"x" * 5000)})
    path = store_of(tmp_path / "store", {"q": {}})
    place = path / "msg_stores/vhosts" / VHOST
    (place / "queues" / queue_directory("/", "q") / "0.idx").symlink_to(outside / "journal.jif")
    (place / "queues" / "LINK").symlink_to(outside)
    (place / "msg_store_persistent/1.rdq").symlink_to(outside / "0.rdq")
    assert rows(mqstore.open(path), EVERYTHING) == []


def test_an_unreadable_config_means_16384_entries(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(3000)}}, **{".config": b"{segment_entry"})
    store = mqstore.open(path)
    assert store.vhosts[0].entry_count == 16384
    assert [item.kind for item in store.findings] == [Kind.BAD_CONFIG]


def test_a_damaged_recovery_dets_counts_as_missing(tmp_path):
    raw = bytearray(dets.write_objects([(list(queue_directory("/", "q").encode()), [])]))
    raw[1340:] = b"\x12\x34\x56\x78" * 40
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0)}}, **{"recovery.dets": bytes(raw)})
    assert verdicts(path) == [(0, "intact", True)]


# version 2


def v2_files(count: int = 3, *, checked: bool = True) -> tuple[bytes, bytes]:
    index, store = index_v2.header(0, 4096), index_v2.header(0, 4096, store=True)
    for seq in range(count):
        stored = term(message_id(seq), b"body")
        index += index_v2.stored_entry(len(store), len(stored), size=4)
        store += index_v2.queue_store_entry(stored, checked=checked)
    return index, store


@pytest.mark.parametrize("checked", [True, False])
def test_a_version_2_queue_is_read_with_and_without_checksums(tmp_path, checked):
    index, store = v2_files(checked=checked)
    path = store_of(tmp_path, {"q": {"0.qi": index, "0.qs": store}})
    assert verdicts(path) == [(seq, "intact", True) for seq in range(3)]
    assert {row["queue_version"] for row in rows(mqstore.open(path))} == {2}
    assert mqstore.open(path).queues[0].next_seq == 4096


def test_a_wrong_checksum_loses_the_message_for_the_broker(tmp_path):
    index, store = v2_files()
    store = store.replace(b"body", b"bodx", 1)
    path = store_of(tmp_path, {"q": {"0.qi": index, "0.qs": store}})
    assert verdicts(path) == [(0, "damaged", False), (1, "intact", True), (2, "intact", True)]
    assert [item.kind for item in mqstore.open(path).findings] == [Kind.BAD_QUEUE_FILE]


@pytest.mark.parametrize("cut", [1, 2, 31])
def test_an_incomplete_entry_crashes_the_queue_and_costs_us_one_message(tmp_path, cut):
    index, store = v2_files()
    path = store_of(tmp_path, {"q": {"0.qi": index[: 64 + 64 + cut], "0.qs": store}})
    found = mqstore.open(path)
    assert [row["seq_id"] for row in rows(found)] == [0, 1]
    assert found.queues[0].crashes
    assert not any(row["recovered"] for row in rows(found))


def test_an_index_without_its_header_is_deleted_by_the_broker(tmp_path):
    index, store = v2_files()
    path = store_of(tmp_path, {"q": {"0.qi": b"XXXX" + index[4:], "0.qs": store}})
    assert verdicts(path) == [(seq, "intact", False) for seq in range(3)]


def test_a_missing_queue_store_yields_entries_without_messages(tmp_path):
    path = store_of(tmp_path, {"q": {"0.qi": v2_files()[0]}})
    assert verdicts(path) == [(seq, "unreachable", False) for seq in range(3)]


def test_a_queue_store_without_index_yields_its_messages_as_unindexed(tmp_path):
    path = store_of(tmp_path, {"q": {"0.qs": v2_files()[1]}})
    assert verdicts(path) == []
    assert verdicts(path, EVERYTHING) == [(None, "unindexed", False)] * 3


def test_acknowledged_entries_of_version_2_leave_their_messages(tmp_path):
    index, store = v2_files()
    cleared = index[:64] + bytes(32) + b"\x00" + index[97:]
    path = store_of(tmp_path, {"q": {"0.qi": cleared, "0.qs": store}})
    assert verdicts(path) == [(2, "intact", True)]
    # one entry has only its status cleared, the other is all zeros
    assert verdicts(path, EVERYTHING) == [(1, "consumed", False), (2, "intact", True), (None, "unindexed", False)]


def test_memory_only_entries_and_transient_ones_are_dropped_after_a_crash(tmp_path):
    index = index_v2.header(0, 4096) + bytes([1, 1, 0, 0]) + bytes(28) + index_v2.shared_entry(message_id(1), size=5000, persistent=False)
    path = store_of(tmp_path, {"q": {"0.qi": index}}, persistent={"0.rdq": record(1, b"x" * 5000)})
    assert verdicts(path) == [(0, "unreachable", False), (1, "intact", False)]


def test_a_preallocated_index_and_one_of_another_entry_count_are_read(tmp_path):
    stored = term(message_id(1), b"body")
    index = index_v2.header(256, 256) + bytes(32) + index_v2.stored_entry(64, len(stored), size=4) + bytes(32 * 254)
    path = store_of(tmp_path, {"q": {"1.qi": index, "1.qs": index_v2.header(256, 256, store=True) + index_v2.queue_store_entry(stored)}})
    assert verdicts(path) == [(257, "intact", True)]


def test_an_interrupted_conversion_is_one_queue_in_order(tmp_path):
    index, store = v2_files(2)
    path = store_of(tmp_path, {"q": {"0.qi": index, "0.qs": store, "journal.jif": b"".join(embedded(seq) for seq in range(4))}})
    found = rows(mqstore.open(path))
    assert sorted((row["seq_id"], row["queue_version"], row["verdict"]) for row in found) == [
        (0, 2, "intact"),
        (1, 2, "intact"),
        (2, 1, "intact"),
        (3, 1, "intact"),
    ]


def test_a_journal_alone_opened_as_version_2_would_be_lost(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": embedded(0)}})
    directory = path / "msg_stores/vhosts" / VHOST / "queues" / queue_directory("/", "q")
    (directory / ".queue_name").write_bytes(queue_name_file("/", "q", True))
    assert verdicts(path) == [(0, "intact", False)]
    assert [item.kind for item in mqstore.open(path).findings] == [Kind.BROKER_LOSES]


# selections


def test_selections_narrow_the_table():
    store = mqstore.open(opened(case_named("3.10.8/f-mixed-features")))
    assert {row["vhost"] for row in rows(store, QueueSelection(vhosts=frozenset({"/"})))} == {"/"}
    assert {row["queue"] for row in rows(store, QueueSelection(queues=frozenset({"ttl.q"})))} == {"ttl.q"}
    assert len(rows(store, QueueSelection(limit=5))) == 5
    assert len(rows(store, QueueSelection(recovered=False))) == 12
    grep = rows(store, QueueSelection(grep=__import__("re").compile(rb"prio-1\d"), queues=frozenset({"prio.q"})))
    assert grep
    assert all(b"prio-1" in row["payload"] for row in grep)
    some = rows(store, QueueSelection(queues=frozenset({"ttl.q"}), from_seq=3, to_seq=5))
    assert [row["seq_id"] for row in some] == [3, 4]


def test_columns_of_entries_need_no_messages(tmp_path):
    path = store_of(tmp_path, {"q": {"journal.jif": journal.publish(0, message_id(0), b"\x83j", size=4)}})
    assert rows(mqstore.open(path), columns=("seq_id", "size")) == [{"seq_id": 0, "size": 4}]


def test_unknown_columns_and_queues_are_refused():
    store = mqstore.open(opened(case_named("3.10.8/a-small-clean")))
    with pytest.raises(UsageError, match="there is no column 'topic'"):
        next(store.to_batches(["topic"]))
    with pytest.raises(NotFoundError, match=r"it has small\.embedded"):
        store.queue("/", "big")
    with pytest.raises(NotFoundError):
        store.get(id="00" * 16)


def test_one_message_is_found_by_id_and_by_position():
    store = mqstore.open(opened(case_named("3.10.8/d-large-fanout")))
    row = store.get(vhost="/", queue="fan.1", seq=4).row
    assert row["seq_id"] == 4
    assert store.get(id=row["msg_id"]).row["payload_b64"] == row["payload_b64"]


def test_a_store_of_rabbitmq_is_refused_where_only_rocketmq_is_read():
    from mqstore.places import open_rocketmq

    with pytest.raises(MqstoreError, match="RocketMQ stores only"):
        open_rocketmq(opened(case_named("3.10.8/a-small-clean")))


# verify, and damaged bytes


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_golden_stores_are_verified(case):
    report = mqstore.open(opened(case)).verify()
    document = report.as_dict()
    assert document["family"] == "rabbitmq"
    assert document["checked"]["queue_entries"] >= len(expected(case))
    lost = {"e2-gc-interrupted": Kind.MISSING_BODY, "e3-gc-interrupted-zero-extended": Kind.BROKER_LOSES}.get(case.name)
    assert report.ok == (lost is None)
    assert {item.kind for item in report.damage} == ({lost} if lost else set())


@pytest.mark.parametrize("case", OTHER_RABBITMQ, ids=case_id)
def test_what_a_node_of_another_version_left_is_sound(case):
    report = mqstore.open(opened_node(case)).verify()
    assert (report.ok, report.damage) == (True, ())
    assert report.as_dict()["checked"]["queue_entries"] >= len(expected(case))


def test_verify_reports_a_message_that_does_not_match_its_entry(tmp_path):
    raw = journal.publish(5, message_id(5), term(message_id(5), b"body"), size=9)
    report = mqstore.open(store_of(tmp_path, {"q": {"journal.jif": raw}})).verify()
    assert [(item.kind, item.offset, item.messages) for item in report.damage] == [(Kind.BAD_TERM, 40, 1)]


SMALL = ("a-small-clean", "f-mixed-features", "g1-v2-small-clean")


def own_bytes(root: Path, found: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[Path, int, int]]:
    """Return file, start and end of the record of each message, by its id and body; of an embedded one also its entry."""
    own = {}
    for row in found:
        path, at = root / row["store_file"], row["position"]
        raw = path.read_bytes()
        match path.suffix:
            case ".rdq":
                size = 9 + int.from_bytes(raw[at : at + 8])
            case ".qs":
                size = 8 + int.from_bytes(raw[at : at + 4])
            case suffix:
                head = 40 if suffix == ".jif" else 34
                size = head + int.from_bytes(raw[at + head - 4 : at + head])
        own[row["msg_id"], row["payload_sha256"]] = path, at, at + size
    return own


@pytest.mark.parametrize("name", SMALL)
def test_exactly_the_messages_with_untouched_bytes_are_intact(tmp_path, name, whole, record_property):
    """A sweep: a bit, eight or 64 bytes or the rest of one file is changed, and the whole table is read.

    Every message whose own bytes are as they were comes out as it was. Two things the format does not let anyone tell: in a journal or a
    segment, entries have no marks where they begin, and damage may take the one behind it along; and where the entry of a `.qi` is touched,
    its message may be beyond reach. 60 changes of each store in CI; `--whole` makes 2,000.
    """
    import random

    chance = random.Random(name)
    root = unpack(case_named(f"3.10.8/{name}"), tmp_path / "store")
    files = [
        path
        for path in sorted(root.rglob("*"))
        if path.suffix in (".jif", ".idx", ".rdq", ".qi", ".qs", ".dets", ".dot") and path.stat().st_size
    ]
    columns = ("queue", "priority_level", "seq_id", "msg_id", "payload_sha256", "properties_json")
    sound = {tuple(row.values()) for row in rows(mqstore.open(root), columns=columns)}
    own = own_bytes(root, rows(mqstore.open(root), EVERYTHING, columns=("msg_id", "payload_sha256", "store_file", "position")))
    changes = 2000 if whole else 60
    for _ in range(changes):
        path = chance.choice(files)
        raw = path.read_bytes()
        changed = bytearray(raw)
        kind = chance.randrange(4)
        at = chance.randrange(len(raw))
        stop = (at + 1, len(raw), at + 64, at + 8)[kind]
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at:] = b""
        elif kind == 2:
            changed[at : at + 64] = bytes(len(changed[at : at + 64]))
        else:
            changed[at : at + 8] = b"\xff" * len(changed[at : at + 8])
        path.write_bytes(bytes(changed))
        found = rows(mqstore.open(root), EVERYTHING, columns=(*columns, "verdict", "recovered"))
        assert mqstore.open(root).verify().family == "rabbitmq"
        told = {(row["msg_id"], row["payload_sha256"]) for row in found}
        lost = [key for key, (file, start, end) in own.items() if (file != path or end <= at or stop <= start) and key not in told]
        most = 1 if path.suffix in (".jif", ".idx") else {0: 1, 1: 1, 2: 3, 3: 2}[kind] if path.suffix == ".qi" else 0
        assert len(lost) <= most, (path.name, kind, at, lost)
        kept = {tuple(row[column] for column in columns) for row in found}
        if path.suffix in (".jif", ".idx", ".rdq", ".qs") and kind == 0:
            # a changed bit costs one message of each queue that has it, at most two if it was in the size of an entry
            assert len({row[2:] for row in sound - kept}) <= 3, (path.name, at)
        path.write_bytes(raw)
    assert {tuple(row.values()) for row in rows(mqstore.open(root), columns=columns)} == sound
    record_property("queue_images", changes)


@pytest.mark.parametrize("names", [[], ["/"]])
def test_an_empty_queue_of_version_2_is_listed_and_not_called_version_1(tmp_path: Path, names: list[str]) -> None:
    """It has no files: its version is in `.queue_name`, or in the terms of a clean stop."""
    place = f"vhosts/{vhost_directory('/')}"
    named, unnamed = queue_directory("/", "named"), queue_directory("/", "unnamed")
    terms = QueueTerms(None, {}, 7, 7, bytes(16), 0, 0)
    root = write(
        tmp_path,
        {
            f"{place}/.vhost": b"/",
            f"{place}/queues/{named}/.queue_name": queue_name_file("/", "named", True),
            f"{place}/recovery.dets": write_terms({unnamed: terms}),
        },
    )
    (root / place / "queues" / unnamed).mkdir()
    store = RabbitMQStore(root, names=[(vhost, "unnamed") for vhost in names])
    assert {queue.name: (queue.version, queue.counts.ready) for queue in store.queues} == {
        "named": (2, 0),
        "unnamed" if names else unnamed: (2, 0),
    }


def test_a_queue_without_messages_in_the_message_store_is_read_without_a_scan_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def scanned(self: MessageStore, file: StoreFile) -> None:
        raise AssertionError(f"{file.name} was scanned")

    monkeypatch.setattr(MessageStore, "records", scanned)
    vhost = mqstore.open(opened(case_named("3.10.8/a-small-clean"))).vhosts[0]
    (queue,) = vhost.queues
    assert sum(len(table.entries) for table in queue.entry_tables()) > 0
    assert vhost.persistent.files


@pytest.mark.parametrize("block", [1, 2, 40])
def test_messages_of_no_queue_are_all_listed_once_however_many_are_read_at_once(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack(case_named("3.10.8/d-large-fanout"), tmp_path)
    for queues in store.glob("msg_stores/vhosts/*/queues"):
        shutil.rmtree(queues)
    whole = rows(RabbitMQStore(store), EVERYTHING)
    monkeypatch.setattr("mqstore.rabbitmq.store.message_table._BLOCK", block)
    assert rows(RabbitMQStore(store), EVERYTHING) == whole
    assert len({row["msg_id"] for row in whole}) == len(whole) == 96
