"""What the structural fuzzer has found, each told by a test of its own (docs/reliability.md)."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import extract_all
from support.golden import case_named, run_cli, unpack
from support.special_files import time_limit

import mqstore
from mqstore.errors import MqstoreError
from mqstore.findings import Kind
from mqstore.rabbitmq.engine.queue_store import QueueStore
from mqstore.rabbitmq.format.journal import DELIVER, PUBLISH_SIZE, PUBLISH_TRANSIENT, acknowledge, deliver, read_journal
from mqstore.rocketmq import Message, MessageStore, StoreConfig
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import QueueSelection


def unpacked(name: str, place: Path) -> Path:
    return unpack(case_named(name), place / "store")


def offsets(root: Path) -> list[int]:
    """Return the physical offsets of all messages that are reported and not damaged."""
    rows = [row for batch in mqstore.open(root).to_batches(("physical_offset", "verdict")) for row in batch.to_pylist()]
    return [row["physical_offset"] for row in rows if row["verdict"] != "damaged"]


@pytest.mark.parametrize("name", ["consumequeue", "index"])
@pytest.mark.parametrize("kind", ["loop", "nowhere", "file", "pipe"])
def test_a_directory_replaced_by_something_else_is_reported_and_the_log_is_read(name: str, kind: str, tmp_path: Path) -> None:
    """A link to itself in place of `consumequeue` made every command refuse the store; one in place of `index` was not mentioned."""
    root = unpacked("5.3.3/p-upgraded", tmp_path)
    before = offsets(root)
    shutil.rmtree(root / name)
    match kind:
        case "loop" | "nowhere":
            (root / name).symlink_to(name if kind == "loop" else "nowhere")
        case "file":
            (root / name).write_bytes(b"x")
        case _:
            os.mkfifo(root / name)
    assert offsets(root) == before
    store = mqstore.open(root)
    assert isinstance(store, RocketMQStore)
    assert (name, Kind.UNREADABLE) in [(item.file, item.kind) for item in verify(store).damage]
    outcome = run_cli("verify", root)
    assert outcome.status == 1
    assert "put the directory back" in " ".join(outcome.stdout.split())


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".zip"])
@pytest.mark.parametrize("content", [b"", b"no archive at all, and longer than a header " * 40])
def test_what_is_not_an_archive_is_refused_in_one_line(suffix: str, content: bytes, tmp_path: Path) -> None:
    """The error listed all methods of compression that were tried, on lines of their own."""
    archive = tmp_path / f"store{suffix}"
    archive.write_bytes(content)
    with pytest.raises(MqstoreError, match="is not a valid archive") as refused:
        mqstore.open(archive)
    assert "\n" not in str(refused.value)
    assert ": ;" not in str(refused.value)


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_a_pipe_in_place_of_the_transient_messages_does_not_stop_the_start_of_a_vhost(kind: str, tmp_path: Path) -> None:
    """What is there is removed at each start; the removal opened the pipe and waited for a writer forever."""
    stores = unpacked("3.10.8/g1-v2-small-clean", tmp_path) / "msg_stores"
    (transient,) = stores.glob("vhosts/*/msg_store_transient")
    with QueueStore.open(stores) as store:
        expected = [each.term for each in store.deliver("v2.small", 1 << 20)]
    shutil.rmtree(transient, ignore_errors=True)
    os.mkfifo(transient) if kind == "pipe" else transient.write_bytes(b"x")
    with time_limit(60), QueueStore.open(stores) as store:
        assert [each.term for each in store.deliver("v2.small", 1 << 20)] == expected
    assert expected
    assert not transient.is_fifo()


def test_bodies_in_the_directory_of_the_transient_store_are_counted_by_convert_as_lost_to_a_broker(tmp_path: Path) -> None:
    """The two message stores of a vhost were swapped: convert failed with an index that is out of bounds."""
    stores = unpacked("3.10.8/d-large-fanout", tmp_path) / "msg_stores"
    (vhost,) = stores.glob("vhosts/*")
    (vhost / "msg_store_transient").rename(vhost / "kept")
    (vhost / "msg_store_persistent").rename(vhost / "msg_store_transient")
    (vhost / "kept").rename(vhost / "msg_store_persistent")
    outcome = run_cli("convert", stores, "--to", tmp_path / "to", "--queue-version", "2", "-o", "json")
    assert outcome.status == 1
    left_out = json.loads(outcome.stdout)["left_out"]
    assert left_out["the body is in msg_store_transient, which a broker empties at every start"] > 0


@pytest.mark.parametrize("changed", [False, True])
def test_a_message_of_one_store_with_the_id_of_another_in_the_other_store_is_listed(changed: bool, tmp_path: Path) -> None:
    """An index entry that is read from one store hid each message with its id in the other store, also if it is another message."""
    stores = unpacked("3.10.8/d-large-fanout", tmp_path) / "msg_stores"
    before = messages(stores, QueueSelection(everything=True))
    (source,) = stores.glob("vhosts/*/msg_store_persistent/0.rdq")
    raw = bytearray(source.read_bytes())
    row = next(row for row in before if row["store_file"].endswith("/msg_store_persistent/0.rdq"))
    if changed:
        raw[raw.index(bytes.fromhex(row["msg_id"])) + 4000] ^= 0xFF  # in the middle of a body
    (source.parent.parent / "msg_store_transient" / "7.rdq").write_bytes(raw)
    found = messages(stores, QueueSelection(everything=True))
    added = [row for row in found if row not in before]
    assert len(found) == len(before) + changed
    if changed:
        assert added[0]["store_file"].endswith("/msg_store_transient/7.rdq")
        assert added[0]["verdict"] == "unindexed"
        assert added[0]["msg_id"] == row["msg_id"]


def test_a_message_whose_publish_a_later_damaged_one_replaces_is_reported(tmp_path: Path) -> None:
    """A segment file was followed by a shifted copy of itself: of two publishes only the damaged one was reported."""
    stores = unpacked("3.10.8/b-dirty-journal", tmp_path) / "msg_stores"
    (segment,) = stores.glob("vhosts/*/queues/*/3.idx")
    raw = segment.read_bytes()
    before = {(row["msg_id"], row["payload_sha256"]) for row in messages(stores) if (row["store_file"] or "").endswith("/3.idx")}
    broken = bytearray(raw)
    for place in range(200, len(raw), 1000):
        broken[place] ^= 0xFF
    segment.write_bytes(raw + bytes(broken))
    found = [row for row in messages(stores) if (row["store_file"] or "").endswith("/3.idx")]
    assert before
    assert before <= {(row["msg_id"], row["payload_sha256"]) for row in found}
    assert {"duplicate", "damaged"} <= {row["verdict"] for row in found}


def test_a_damaged_name_of_a_vhost_that_is_too_long_for_one_is_not_repeated_in_each_row(tmp_path: Path) -> None:
    """A hole at the end of `.vhost` made 4,096 bytes of zeros the name, which the JSON of each message repeated: 118 MB in all."""
    stores = unpacked("3.10.8/b2-journal-replayed-twice", tmp_path) / "msg_stores"
    (name,) = stores.glob("vhosts/*/.vhost")
    (queue,) = stores.glob("vhosts/*/queues/*/.queue_name")
    queue.unlink()
    count = len(messages(stores))
    with open(name, "r+b") as file:
        file.truncate(1 << 20)
    rows = [row for batch in mqstore.open(stores).to_batches(["vhost"]) for row in batch.to_pylist()]
    assert (len(rows), {row["vhost"] for row in rows}) == (count, {None})
    assert any(item.kind is Kind.BAD_QUEUE_NAME for item in mqstore.open(stores).verify().damage)


def test_a_publish_of_the_journal_that_the_segment_has_otherwise_is_reported(tmp_path: Path) -> None:
    """Two segment files were swapped: publishes of the journal whose sequence ids they hold as well, with other messages, were left out."""
    stores = unpacked("3.10.8/b2-journal-replayed-twice", tmp_path) / "msg_stores"
    (journal,) = stores.glob("vhosts/*/queues/*/journal.jif")
    every = QueueSelection(everything=True)
    before = {(row["msg_id"], row["payload_sha256"]) for row in messages(stores, every) if row["store_file"].endswith("/journal.jif")}
    segments = [journal.parent / name for name in ("2.idx", "3.idx")]
    for path, raw in zip(segments, [path.read_bytes() for path in reversed(segments)], strict=True):
        path.write_bytes(raw)
    found = [row for row in messages(stores) if (row["store_file"] or "").endswith("/journal.jif")]
    assert before
    assert before <= {(row["msg_id"], row["payload_sha256"]) for row in found}
    assert {row["verdict"] for row in found} == {"duplicate"}
    assert any(item.kind is Kind.REPEATED_ENTRY for item in mqstore.open(stores).verify().damage)


def test_an_acknowledged_message_whose_sequence_id_the_journal_publishes_again_is_listed(tmp_path: Path) -> None:
    """A journal was followed by a damaged copy of itself: of an acknowledged message only the second publish was listed."""
    stores = unpacked("3.10.8/b-dirty-journal", tmp_path) / "msg_stores"
    (path,) = stores.glob("vhosts/*/queues/*/journal.jif")
    raw = path.read_bytes()
    found = read_journal(np.frombuffer(raw, np.uint8))
    publishes = np.flatnonzero(found.kind <= PUBLISH_TRANSIENT)
    embedded = [int(k) for k in publishes if k + 1 < len(found.at) and found.at[k + 1] - found.at[k] > PUBLISH_SIZE + 10]
    action = embedded[-1]
    start, end, seq = int(found.at[action]), int(found.at[action + 1]), int(found.seq[action])
    every = QueueSelection(everything=True)
    before = messages(stores, every)
    actions = deliver(seq) * (not np.any((found.seq == seq) & (found.kind == DELIVER))) + acknowledge(seq)
    again = raw[start : end - 1] + bytes([raw[end - 1] ^ 0xFF])

    path.write_bytes(raw + actions + again)
    after = messages(stores, every)
    assert len(after) == len(before) + 1
    assert {row["payload_sha256"] for row in before} <= {row["payload_sha256"] for row in after}
    assert sum(row["verdict"] == "consumed" for row in after) == sum(row["verdict"] == "consumed" for row in before) + 1

    path.write_bytes(raw + actions + raw[start:end])
    assert sorted(map(str, messages(stores, every))) == sorted(map(str, before)), "the same publish again is the same message"


def messages(stores: Path, selection: QueueSelection = QueueSelection()) -> list[dict[str, Any]]:
    columns = ["msg_id", "store_file", "verdict", "payload_sha256"]
    return [row for batch in mqstore.open(stores).to_batches(columns, selection) for row in batch.to_pylist()]


def test_log_files_that_are_all_a_byte_too_long_are_all_read(tmp_path: Path) -> None:
    """The files seemed to overlap, and after a surplus byte most records of the second one contradicted its name: it was not read."""
    root = unpacked("4.9.3/a-clean-small", tmp_path)
    first, second, *others = sorted((root / "commitlog").iterdir())
    before = offsets(root)
    for other in others:
        other.unlink()
    start = int(second.name)
    raw = second.read_bytes()
    surplus = min(at for at in before if at > start + 5000) - start
    second.write_bytes(raw[:surplus] + b"x" + raw[surplus:])
    with open(first, "ab") as file:
        file.write(b"\0")
    assert set(offsets(root)) >= {at for at in before if at < start + surplus}
    damaged = {item.file for item in verify(RocketMQStore(root)).damage if item.kind == Kind.WRONG_SIZE}
    assert damaged == {f"commitlog/{first.name}", f"commitlog/{second.name}"}


def test_log_files_too_long_by_the_same_and_a_copy_of_one_under_a_name_between_them(tmp_path: Path) -> None:
    """The copy stood between the two in the order of names, and so the surplus did not show: the second file was not read."""
    root = unpacked("4.9.3/a-clean-small", tmp_path)
    first, second, *_ = sorted((root / "commitlog").iterdir())
    before = offsets(root)
    with open(first, "ab") as file:
        file.write(bytes(512))
    shutil.copy(first, first.with_name(f"{int(first.name) + 1:020d}"))
    for other in sorted((root / "commitlog").iterdir())[3:]:
        other.unlink()
    last = int(second.name) + second.stat().st_size
    assert set(offsets(root)) == {at for at in before if at < last}
    damaged = {(item.file, item.kind) for item in verify(RocketMQStore(root)).damage}
    assert (f"commitlog/{int(first.name) + 1:020d}", Kind.STRAY_FILE) in damaged
    assert (f"commitlog/{first.name}", Kind.WRONG_SIZE) in damaged


def test_a_small_file_between_log_files_does_not_set_the_size_of_all(tmp_path: Path) -> None:
    """A queue file had been moved into the log, to between two files, one of them too long: all seemed to have its size."""
    root = unpacked("4.9.3/a-clean-small", tmp_path)
    first, second, *others = sorted((root / "commitlog").iterdir())
    before = offsets(root)
    for other in others:
        other.unlink()
    with open(first, "ab") as file:
        file.write(bytes(512))
    first.with_name(f"{200:020d}").write_bytes(bytes(range(200)))
    last = int(second.name) + second.stat().st_size
    assert set(offsets(root)) == {at for at in before if at < last}


def test_a_hole_in_a_queue_file_is_one_finding(tmp_path: Path) -> None:
    """A hole of 64 MB with a byte at its end gave a finding for each of three million entries, in 1.4 GB of memory."""
    root = unpacked("4.9.3/a-clean-small", tmp_path)
    (path, *_) = sorted(
        path for path in (root / "consumequeue").rglob("0" * 20) if not path.with_name(f"{path.stat().st_size:020d}").exists()
    )
    with open(path, "r+b") as file:
        file.truncate(20 << 20)
        file.seek(-20, os.SEEK_END)
        file.write(b"\xff" * 20)
    with time_limit(60):
        found = [item for item in verify(RocketMQStore(root)).damage if item.kind is Kind.QUEUE_GAP]
    assert len(found) == 1
    assert found[0].length > 19 << 20


def test_a_delayed_message_stored_at_the_end_of_time_has_a_delivery_time_that_wraps(tmp_path: Path) -> None:
    """Its delivery time does not fit into the queue entry: `verify` ended with "int too large to convert"; a broker wraps it."""
    root = unpacked("4.9.3/e-delay-transaction-batch", tmp_path)
    rows = [row for batch in mqstore.open(root).to_batches(("topic", "physical_offset")) for row in batch.to_pylist()]
    at = next(row["physical_offset"] for row in rows if row["topic"] == "SCHEDULE_TOPIC_XXXX")
    with open(root / "commitlog" / f"{0:020}", "r+b") as log:
        log.seek(at + 56)
        log.write((2**63 - 1).to_bytes(8, "big"))
    assert Kind.QUEUE_ENTRY_MISMATCH in [item.kind for item in verify(RocketMQStore(root)).damage]
    assert run_cli("rebuild", root, "--to", tmp_path / "rebuilt").status == 0
    assert not verify(RocketMQStore(tmp_path / "rebuilt")).damage


@pytest.mark.parametrize("name", ["20991126397019061", "9", "2099112210205"])
def test_an_index_file_whose_name_is_not_a_moment_is_followed_by_one_with_a_greater_name(name: str, tmp_path: Path) -> None:
    """The engine took the name of the newest index file for a date, and a put that began the next file ended with a ValueError."""
    config = StoreConfig(version="5.3.3", max_hash_slot_num=10, max_index_num=20, services=False)
    with MessageStore.open(tmp_path / "store", config) as store:
        for number in range(30):
            assert store.put(Message("t", b"", keys=f"k{number}")).stored
        store.dispatch_now()
    index = tmp_path / "store" / "index"
    max(index.iterdir()).rename(index / name)
    with MessageStore.open(tmp_path / "store", config) as store:
        for number in range(30, 90):
            assert store.put(Message("t", b"", keys=f"k{number}")).stored
        store.dispatch_now()
    names = sorted(path.name for path in index.iterdir())
    assert names.index(name) < len(names) - 1
    for key in ("k0", "k29", "k30", "k89"):
        assert run_cli("query", tmp_path / "store", "--topic", "t", "--key", key).status == 0


def test_a_queue_file_shorter_than_an_entry_does_not_set_the_size_of_all(tmp_path: Path) -> None:
    """A lock file of four bytes was copied over a queue's only file: `inspect` took four bytes for the size of queue files."""
    config = StoreConfig(version="5.3.3", consume_queue_file_size=400, services=False)
    with MessageStore.open(tmp_path / "store", config) as store:
        assert store.put(Message("t", b"x")).stored
        store.dispatch_now()
    (tmp_path / "store/consumequeue/t/0/00000000000000000000").write_bytes(b"lock")
    for command in ("inspect", "verify", "diagnose", "messages", "topics"):
        done = run_cli(command, tmp_path / "store")
        assert "Traceback" not in done.stderr
        assert (command, done.status) in {("inspect", 1), ("verify", 1), ("diagnose", 2), ("messages", 0), ("topics", 0)}


def test_a_message_is_no_duplicate_of_a_prepared_one(tmp_path: Path) -> None:
    """A prepared message has queue offset 0, and no entry: a damaged entry that points at it made message 0 of the queue a duplicate."""
    with tarfile.open(Path(__file__).parent / "stores" / "5.3.3-plain.tar.xz") as packed:
        extract_all(packed, tmp_path)
    entries = tmp_path / "consumequeue" / "orders" / "0" / "00000000000000000000"
    columns = ["physical_offset", "verdict"]
    before = mqstore.open(tmp_path).to_arrow(columns).to_pylist()
    raw = entries.read_bytes()
    first = int.from_bytes(raw[:8], "big")
    entries.write_bytes(bytes(8) + raw[8:])
    after = mqstore.open(tmp_path).to_arrow(columns).to_pylist()
    assert [row for row in after if row not in before] == [{"physical_offset": first, "verdict": "unindexed"}]
    assert first > 0


def test_messages_in_the_surplus_of_a_log_file_are_those_of_the_next_one(tmp_path: Path) -> None:
    """Two log files were twice as long as they should be, the first with the records of the second: these were reported twice."""
    root = unpacked("4.9.3/d-rolled", tmp_path)
    before = offsets(root)
    files = sorted((root / "commitlog").iterdir())
    assert len(files) > 1
    first, second = files[-2:]
    size = second.stat().st_size
    second.write_bytes(second.read_bytes() * 2)
    first.write_bytes(first.read_bytes() + second.read_bytes()[:size])
    assert offsets(root) == before


def test_a_config_of_64_mb_is_a_finding(tmp_path: Path) -> None:
    """It was read as text, all of it."""
    stores = unpacked("3.10.8/b2-journal-replayed-twice", tmp_path) / "msg_stores"
    (config,) = stores.glob("vhosts/*/.config")
    count = len(messages(stores))
    with open(config, "r+b") as file:
        file.truncate(64 << 20)
    with time_limit(60):
        assert len(messages(stores)) >= count
        assert any(item.kind is Kind.BAD_CONFIG for item in mqstore.open(stores).verify().damage)
