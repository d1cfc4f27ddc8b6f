"""Diagnoses of RabbitMQ stores, against what nodes made of the same stores when they were recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.golden import (
    OTHER_RABBITMQ,
    RABBITMQ,
    GoldenCase,
    case_id,
    case_named,
    expected,
    opened,
    run_cli,
    unchanged,
    unpack,
    unpack_node,
    unpack_node_site,
)
from support.rabbitmq_states import unpacked, writable

from mqstore.diagnosis import Diagnosis
from mqstore.errors import UsageError
from mqstore.rabbitmq.broker_version import node_version
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.format.names import queue_directory
from mqstore.rabbitmq.format.segment import mark
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection


def of(case: GoldenCase, version: str | None = None) -> Diagnosis:
    return diagnose(RabbitMQStore(opened(case)), version)


@pytest.mark.parametrize("case", RABBITMQ, ids=case_id)
def test_the_node_that_wrote_a_store_loses_what_was_recorded_and_marks_as_redelivered_what_was_recorded(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        found = of(case, "3.10.8")
    rows = expected(case)
    delivered = [row for row in rows if row["redelivered"] is not None]
    transient = [row for row in rows if row["redelivered"] is None and not row["persistent"]]
    assert (found.starts, found.loses) == (True, len(rows) - len(delivered) - len(transient))
    assert found.redelivers == sum(row["redelivered"] for row in delivered)


def test_transient_messages_are_dropped_at_every_start_and_do_not_count_as_lost() -> None:
    found = of(case_named("3.10.8/f-mixed-features"), "3.10.8")
    assert (found.starts, found.loses, found.status) == (True, 0, 1)
    assert "drops 12 transient messages of vhost '/', queue 'lazy.mixed', as at every start" in found.changes


@pytest.mark.parametrize("name", ["3.8.9/a-v1-clean", "3.10.8/d-large-fanout", "3.10.8/b-dirty-journal"])
def test_4_3_starts_on_version_1_queues_and_deletes_every_message(name: str) -> None:
    found = of(case_named(name), "4.3.6")
    assert (found.starts, found.loses, found.redelivers, found.status) == (True, len(expected(case_named(name))), 0, 1)
    assert found.next.startswith("mqstore convert ")
    assert found.next.endswith(" --for 4.3.6")


def test_3_9_deletes_every_message_of_version_2_queues() -> None:
    found = of(case_named("3.10.8/g1-v2-small-clean"), "3.9.29")
    assert found.next.startswith("mqstore convert ")
    assert found.next.endswith(" --for 3.9.29")


def test_for_a_nodes_data_directory_the_next_command_is_a_rescue_after_which_nothing_is_lost(tmp_path: Path) -> None:
    case = case_named("3.8.9/a-v1-clean")
    node = unpack_node(case, tmp_path / "node")
    found = diagnose(RabbitMQStore(node), "4.3.6")
    assert found.next == f"mqstore rescue {node} --to {node}.new --for 4.3"
    assert run_cli(*found.next.split()[1:]).status == 0
    after = diagnose(RabbitMQStore(Path(f"{node}.new")), "4.3.6")
    assert (after.starts, after.loses) == (True, 0)


def test_4_3_keeps_version_2_queues() -> None:
    assert of(case_named("4.3.6/b-small-files-kill9"), "4.3.6").status == 0
    assert of(case_named("3.10.8/g2-v2-large-dirty"), "4.3.6").loses == 0


def test_3_8_does_not_read_version_2_queues() -> None:
    found = of(case_named("3.10.8/g2-v2-large-dirty"), "3.8.9")
    assert (found.loses, found.status) == (2588, 1)


@pytest.mark.parametrize("case", [case for case in OTHER_RABBITMQ if case.version[0] == "4"], ids=case_id)
def test_a_3_10_node_crashes_on_the_messages_of_4_x(case: GoldenCase) -> None:
    found = of(case, "3.10.8")
    assert (found.starts, found.status) == (False, 2)
    assert found.evidence[0].finding == "message-containers"
    assert of(case, "4.0.5").starts


def _data_directory(place: Path, case: GoldenCase) -> Path:
    """Make the data directory of node rabbit@first around the message stores of a case."""
    shutil.copytree(opened(case), place, copy_function=shutil.copyfile)
    for directory in (place, *place.rglob("*")):
        directory.chmod(0o755)
    (place / "cluster_nodes.config").write_text("{['rabbit@first'],['rabbit@first']}.\n")
    return place


def test_a_node_of_another_name_does_not_start_or_deletes_every_queue(tmp_path: Path) -> None:
    case = case_named("3.10.8/d-large-fanout")
    own = diagnose(RabbitMQStore(_data_directory(tmp_path / "rabbit@first", case)), "3.10.8")
    other = diagnose(RabbitMQStore(_data_directory(tmp_path / "rabbit@second", case)), "3.10.8")
    assert (own.loses, own.status) == (0, 0)
    assert (other.starts, other.loses, other.status) == (False, 0, 2)
    assert "failed_to_cluster_with" in next(item.detail for item in other.evidence if item.finding == "other-node")
    (tmp_path / "rabbit@second/cluster_nodes.config").unlink()
    (tmp_path / "rabbit@second/quorum/rabbit@first").mkdir(parents=True)
    other = diagnose(RabbitMQStore(tmp_path / "rabbit@second"), "3.10.8")
    assert (other.loses, other.status) == (len(expected(case)), 1)
    assert {item.finding for item in other.evidence} >= {"other-node"}


def test_the_feature_flags_of_a_3_x_node_keep_4_x_from_starting(tmp_path: Path) -> None:
    place = _data_directory(tmp_path / "data", case_named("3.10.8/g2-v2-large-dirty"))
    (place / "feature_flags").write_text("[classic_mirrored_queue_version,\n quorum_queue].\n")
    assert diagnose(RabbitMQStore(place), "4.3.6").starts is False
    assert diagnose(RabbitMQStore(place), "4.0.5").starts is False
    assert diagnose(RabbitMQStore(place), "3.10.8").starts


def test_versions_whose_behaviour_is_not_known_are_refused() -> None:
    assert [node_version(version).name for version in ("3.8", "3.13.7", "4.3.6")] == ["3.8", "3.13", "4.3"]
    for version in ("3.7.28", "3.14.0", "4.4.0", "5.0", "four"):
        with pytest.raises(UsageError, match=r"3\.8 to 4\.3"):
            node_version(version)


def test_the_command_answers_for_rabbitmq() -> None:
    store = opened(case_named("3.8.9/a-v1-clean"))
    done = run_cli("diagnose", store, "--for", "4.3.6")
    assert done.status == 1
    assert " ".join(done.stdout.split()).startswith(f"A RabbitMQ 4.3.6 node starts on {store}; it loses 198 messages. Next: ")


def test_a_node_delivers_nothing_of_a_vhost_directory_that_has_another_name(tmp_path: Path) -> None:
    """As real nodes of 3.10.8 and 4.3.6 do; they leave the directory where it is."""
    store = unpacked("d-large-fanout", tmp_path / "store")
    listed = diagnose(RabbitMQStore(store), "3.10.8")
    assert (listed.loses, listed.status) == (0, 0)
    place = next((store / "msg_stores" / "vhosts").iterdir())
    place.rename(place.with_name(f"{place.name[:-1]}{'A' if place.name[-1] != 'A' else 'B'}"))
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert (found.loses, found.status) == (225, 1)
    assert {item.finding for item in found.evidence} >= {"unknown-directory"}


def test_message_files_with_each_others_names_lose_what_the_queues_do_not_reach(tmp_path: Path) -> None:
    """Seed 40023 of `scripts/prove --kind diagnosis-rabbitmq`, by a real 3.8.9: every queue ended at a message of 6.rdq, each time.

    None came to the last file, at a message of which the store would have ended instead, and read all files.
    """
    store = unpacked("d-large-fanout", tmp_path / "store")
    [place] = store.glob("msg_stores/vhosts/*/msg_store_persistent")
    for name, other in (("6", "x"), ("10", "6"), ("x", "10")):
        (place / f"{name}.rdq").rename(place / f"{other}.rdq")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert (found.loses, found.status, len(found.unknown)) == (225, 1, 1)


@pytest.mark.parametrize("name", ["3.10.8/g1-v2-small-clean", "4.3.6/a-v2-clean"])
def test_after_a_clean_stop_a_message_whose_checksum_is_wrong_is_lost(name: str, tmp_path: Path) -> None:
    """Seed 95 of `scripts/prove --kind diagnosis-rabbitmq`: the queue ends at it, and is started again without it."""
    unpack(case_named(name), tmp_path)
    writable(tmp_path)
    whole = RabbitMQStore(tmp_path)
    assert whole.vhosts[0].clean
    row = next(
        row
        for row in whole.to_arrow(("queue", "location", "store_file", "position"), QueueSelection(recovered=True)).to_pylist()
        if row["location"] == "queue_store"
    )
    path = tmp_path / row["store_file"]
    raw = bytearray(path.read_bytes())
    raw[row["position"] + 20] ^= 0xFF
    path.write_bytes(raw)
    before, found = diagnose(whole), diagnose(RabbitMQStore(tmp_path))
    assert (before.loses, found.loses, found.status) == (0, 1, 1)
    assert run_cli("topics", tmp_path).stdout.count("1 damaged") == 1


@pytest.mark.parametrize("case", ["3.10.8/b-dirty-journal", "3.10.8/b2-journal-replayed-twice"])
def test_without_the_journal_beside_segments_it_cannot_be_told_what_was_acknowledged(case: str, tmp_path: Path) -> None:
    unpack(case_named(case), tmp_path)
    writable(tmp_path)
    before = diagnose(RabbitMQStore(tmp_path))
    journals = [path for path in tmp_path.rglob("journal.jif") if list(path.parent.glob("*.idx"))]
    for journal in journals:
        journal.unlink()
    found = diagnose(RabbitMQStore(tmp_path))
    absent = [item for item in found.evidence if item.finding == "absent-part"]
    assert len(absent) == len(journals)
    assert all("it cannot be told which messages it acknowledged" in item.detail for item in absent)
    assert (before.status, found.status) == (0, 1)
    assert sum("journal.jif is gone" in each for each in found.unknown) == len(journals)
    assert found.next != "rabbitmq-server"
    assert run_cli("verify", tmp_path).status == 1


def test_after_a_clean_stop_an_empty_journal_that_is_gone_is_no_finding_and_a_full_one_is(tmp_path: Path) -> None:
    unpack(case_named("3.8.9/a-v1-clean"), tmp_path)
    writable(tmp_path)
    before = diagnose(RabbitMQStore(tmp_path))
    for journal in tmp_path.rglob("journal.jif"):
        assert not journal.stat().st_size
        journal.unlink()
    assert diagnose(RabbitMQStore(tmp_path)) == before
    (segment,) = tmp_path.glob(f"msg_stores/vhosts/*/queues/{queue_directory('/', b'small')}/0.idx")
    segment.write_bytes(segment.read_bytes() + 2 * mark(59))  # delivered and acknowledged
    found = diagnose(RabbitMQStore(tmp_path))
    assert any("have 32 persistent messages, and a clean stop counted 33" in each for each in found.unknown)


# each was given to the `rabbit_guid` of 3.10.8, which reads the file at the start of a node
SERIALS = {
    **dict.fromkeys((b"5.\n", b"", b"\n", b"05.\n", b"-5.", b"\x005\x00.\x00", b"5.\x8a", b"%x\n5.\n", b"$5.\n", b"16#F.\n"), True),
    **dict.fromkeys((b"5", b"5/\n", b"a.\n", b"5. 6.\n", b"5.\n6", b"\xb5.\n", b"#5.\n", b"5..\n", b".\n", b"[1].\n", b"1e3.\n"), False),
}


@pytest.mark.parametrize(("serial", "starts"), SERIALS.items(), ids=map(repr, SERIALS))
def test_a_serial_number_that_a_node_cannot_read_keeps_it_from_starting(serial: bytes, starts: bool, tmp_path: Path) -> None:
    store = unpack_node_site("plain", tmp_path)
    (store / "rabbit_serial").write_bytes(serial)
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert found.starts is starts
    assert [item.file for item in found.evidence if item.finding == "empty-file"] == ([] if starts else ["rabbit_serial"])
    newer = diagnose(RabbitMQStore(store), "4.0.5")
    assert any("rabbit_serial" in sentence for sentence in newer.unknown) is not starts


@pytest.mark.parametrize("name", ["4.0.5/a-v2-kill9", "4.3.6/a-v2-clean"])
def test_a_priority_queue_delivers_nothing_if_the_index_of_one_level_ends_inside_an_entry(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    unpack(case_named(name), store)
    writable(store)
    whole = RabbitMQStore(store)
    levels = [queue for queue in whole.queues if (queue.vhost, queue.name) == ("/", "prio")]
    held = sum(level.counts.ready for level in levels[:-1])
    assert held
    index = store / levels[-1].index_v2.index_file(0)
    index.write_bytes(index.read_bytes()[: 64 + 6])  # of the first entry, which is not acknowledged

    opened_again = RabbitMQStore(store)
    found = diagnose(opened_again, "4.0.5")
    recovered = opened_again.to_arrow(("vhost", "queue"), QueueSelection(recovered=True)).to_pylist()
    assert {"vhost": "/", "queue": "prio"} not in recovered
    assert [item.messages for item in found.evidence if item.finding == "waiting"] == [held]
    assert found.redelivers <= len(recovered)


@pytest.mark.parametrize("table", ["msg_store_index.ets", "file_summary.ets"])
def test_a_vhost_whose_table_ends_in_facts_that_are_no_list_delivers_nothing_until_a_repair(table: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    unpack(case_named("3.10.8/a-small-clean"), store)
    writable(store)
    (path,) = store.glob(f"msg_stores/vhosts/*/msg_store_persistent/{table}")
    raw = path.read_bytes()
    at = raw.rindex(b"$end_of_table") + len("$end_of_table")
    assert raw[at : at + 5] == b"l\0\0\0\1"
    path.write_bytes(raw[: at + 4] + b"\0" + raw[at + 5 :])
    whole = diagnose(RabbitMQStore(opened(case_named("3.10.8/a-small-clean"))), "3.8.9")
    found = diagnose(RabbitMQStore(store), "3.8.9")
    assert not RabbitMQStore(store).to_arrow(("queue",), QueueSelection(recovered=True)).num_rows
    held = sum(row["recovered"] for row in RabbitMQStore(opened(case_named("3.10.8/a-small-clean"))).to_arrow(("recovered",)).to_pylist())
    assert (found.starts, found.loses, found.redelivers) == (True, held, 0)
    assert found.next == f"mqstore repair {store}"
    run_cli("repair", store, "--apply")
    assert diagnose(RabbitMQStore(store), "3.8.9").loses == whole.loses


@pytest.mark.parametrize(("segment", "ends"), [(0, True), (1, False)])
def test_after_a_kill_a_queue_ends_at_a_part_of_an_entry_if_messages_of_later_segments_follow(
    segment: int, ends: bool, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    unpack(case_named("4.3.6/b-small-files-kill9"), store)
    writable(store)
    queue = next(queue for queue in RabbitMQStore(store).queues if queue.name == "gc.b")
    assert queue.index_v2.numbers == [0, 1]
    index = store / queue.index_v2.index_file(segment)
    raw = index.read_bytes()
    live = raw[64::32].index(1)
    acknowledged = raw[64::32].index(0, live)
    index.write_bytes(raw[: 64 + 32 * acknowledged + 4])
    found = diagnose(RabbitMQStore(store), "4.3.6")
    waiting = [item.messages for item in found.evidence if item.finding == "waiting"]
    left = next(queue for queue in RabbitMQStore(store).queues if queue.name == "gc.b")
    assert waiting == ([left.counts.ready] if ends else [])
    assert bool(left.crashes) == ends
