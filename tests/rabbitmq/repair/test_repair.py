"""Repairs of broken RabbitMQ stores: what is planned, what a node then makes of the store, and that undoing gives back every byte."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import rabbitmq_wrecks as wrecks
from support.golden import OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, opened, unchanged, unpack
from support.rabbitmq_index import message_id, term
from support.rabbitmq_states import STATES, made, writable

from mqstore.errors import CannotOpenError, TargetError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.files.recorder import RecordedWrites
from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.erlang import dets
from mqstore.rabbitmq.format import index_v2, segment
from mqstore.rabbitmq.format.recovery_terms import read_terms
from mqstore.rabbitmq.listing import queue_rows
from mqstore.rabbitmq.repair import vhost_steps
from mqstore.rabbitmq.repair.plan import LOCKING, NodeLock, holder, plan
from mqstore.rabbitmq.repair.queue_step import QueueStep, completed
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.repair.change import chosen
from mqstore.repair.journal import apply, read_journal, undo

VERSION = "3.10.8"
Image = dict[str, tuple[bytes | None, int]]


def image(store: Path) -> Image:
    return {
        path.relative_to(store).as_posix(): (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in sorted(store.rglob("*"))
    }


def planned(store: Path) -> list[QueueStep]:
    return plan(RabbitMQStore(store))


def applied(store: Path, journal: Path, steps: list[QueueStep], **recording: object) -> None:
    apply(store, journal, completed(RabbitMQStore(store).directory, steps), LOCKING, **recording)  # type: ignore[arg-type]


def messages(store: Path) -> int:
    """Return how many messages a node would have."""
    return sum(row["messages"] for row in queue_rows(RabbitMQStore(store)))


def small(target: Path) -> Path:
    return made("journal_hole_after_a_clean_stop", target)


@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_nothing_is_to_be_repaired_in_what_a_node_left_but_an_interrupted_merge(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        steps = planned(opened(case))
    assert [step.kind for step in steps] == (["records"] if case.name.startswith("e3-") else [])


@pytest.mark.parametrize("name", sorted(STATES))
def test_after_a_repair_a_node_keeps_all_that_is_there_and_undoing_gives_back_every_byte(name: str, tmp_path: Path) -> None:
    state = STATES[name]
    store = made(name, tmp_path / "store")
    before = image(store)
    with unchanged(store):
        steps = planned(store)
    assert tuple(step.kind for step in steps) == state.steps
    assert all(step.why and step.otherwise for step in steps)
    applied(store, tmp_path / "undo", steps)
    assert planned(store) == []
    found = diagnose(RabbitMQStore(store), VERSION)
    assert found.starts
    assert messages(store) == messages(opened(case_named(f"{VERSION}/{state.case}"))) - state.lost
    read = read_journal(tmp_path / "undo")
    assert read is not None
    undo(store, read, LOCKING)
    assert image(store) == before
    assert not (tmp_path / "undo").exists()


def test_diagnose_says_what_a_repair_would_change(tmp_path: Path) -> None:
    for name, starts in (("stray_index", False), ("stray_in_store", False), ("lying_terms", True), ("lying_tables", True)):
        found = diagnose(RabbitMQStore(made(name, tmp_path / name)), VERSION)
        assert found.starts is starts
        assert found.status == (1 if starts else 2)
        assert found.next == f"mqstore repair {tmp_path / name}"
        assert found.loses or not starts or {"wrong-terms"} <= {item.finding for item in found.evidence}


def test_after_a_clean_stop_a_repair_keeps_numbers_and_marks_and_makes_the_node_read_the_files(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    place = next((store / "msg_stores" / "vhosts").iterdir())
    (noted,) = read_terms(dets.read_objects((place / "recovery.dets").read_bytes())).values()
    applied(store, tmp_path / "undo", planned(store))
    (after,) = read_terms(dets.read_objects((place / "recovery.dets").read_bytes())).values()
    assert (after.next_seq, after.next_deliver, after.reference) == (noted.next_seq, noted.next_deliver, noted.reference)
    assert after.count == (noted.count or 0) - 1
    assert after.segments == {0: after.count}
    assert not (place / "msg_store_persistent" / "clean.dot").exists()
    assert diagnose(RabbitMQStore(store), VERSION).redelivers == 11


def test_terms_of_which_a_part_can_be_read_are_kept(tmp_path: Path) -> None:
    store = unpack(case_named(f"{VERSION}/d-large-fanout"), tmp_path / "store")
    path = next(store.glob("msg_stores/vhosts/*/recovery.dets"))
    raw = bytearray(path.read_bytes())
    before = read_terms(dets.read_objects(bytes(raw)))
    raw[:200] = bytes(200)
    damaged = next(iter(before)).encode()
    raw[raw.index(damaged) - 4] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(raw)
    steps = planned(store)
    assert [step.kind for step in steps] == ["terms"]
    assert "the terms of 3 queues" in steps[0].why
    applied(store, tmp_path / "undo", steps)
    after = read_terms(dets.read_objects(path.read_bytes()))
    assert after == {name: noted for name, noted in before.items() if name != damaged.decode()}
    assert planned(store) == []


def test_only_chosen_steps_are_applied(tmp_path: Path) -> None:
    store = made("stray_index", tmp_path / "store")
    applied(store, tmp_path / "undo", chosen(planned(store), {1}))
    assert [step.file.rpartition("/")[2] for step in planned(store)] == ["core.idx"]
    with pytest.raises(UsageError, match="the last step of the plan is 1"):
        chosen(planned(store), {2})


def test_a_link_that_leads_out_of_the_store_is_named_and_left_alone(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    place = next(store.glob("msg_stores/vhosts/*/queues/*"))
    (place / "1.idx").symlink_to(tmp_path / "elsewhere")
    steps = planned(store)
    assert [(step.kind, step.possible) for step in steps] == [("index", True), ("unread", False)]


def test_a_store_on_which_a_process_writes_is_not_touched(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    steps, before = planned(store), image(store)
    dets_file = next(store.glob("msg_stores/vhosts/*/recovery.dets"))
    program = f"f = open({str(dets_file)!r}, 'r+b'); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(TargetError, match=f"in use by process {process.pid} "):
            applied(store, tmp_path / "undo", steps)
        process.communicate(b"\n")
    assert image(store) == before
    assert not (tmp_path / "undo").exists()
    assert holder(store) is None


@pytest.mark.parametrize("below", ["", "msg_stores"])
def test_a_node_is_known_by_the_directory_of_its_command_line(below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small(tmp_path / "store")
    process = tmp_path / "proc" / "999999"
    process.mkdir(parents=True)
    started = ["beam.smp", "-noshell", "-mnesia", "dir", f'"{store}"', "-mnesia", "dump_log_write_threshold", "5000"]
    (process / "cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in started))
    (process / "comm").write_text("beam.smp\n")
    monkeypatch.setattr("mqstore.rabbitmq.repair.plan.PROCESSES", tmp_path / "proc")
    assert holder(store / below) == "999999 (beam.smp)"
    assert holder(tmp_path / "proc") is None


def test_a_store_that_another_repair_has_locked_is_not_touched(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    steps, before = planned(store), image(store)
    with DurableDirectory(store) as directory:
        lock = NodeLock(directory)
        with pytest.raises(TargetError, match="another process that writes to it"):
            applied(store, tmp_path / "undo", steps)
        lock.close()
    assert image(store) == before


def test_a_journal_of_another_store_and_a_second_apply_are_refused(tmp_path: Path) -> None:
    store, other = small(tmp_path / "a" / "store"), small(tmp_path / "other")
    steps = planned(store)
    with pytest.raises(TargetError, match="inside the store"):
        applied(store, store / "undo", steps)
    applied(store, tmp_path / "a" / "undo", steps)
    before = image(store), image(other)
    found = read_journal(tmp_path / "a" / "undo")
    assert found is not None
    with pytest.raises(TargetError, match="another store"):
        undo(other, found, LOCKING)
    with pytest.raises(TargetError, match="exists already"):
        applied(store, tmp_path / "a" / "undo", steps)
    (tmp_path / "a" / "undo" / found.changes[0].blobs[0].name).write_bytes(b"")
    with pytest.raises(CannotOpenError, match="does not match its checksum"):
        undo(store, found, LOCKING)
    assert (image(store), image(other)) == before


def test_a_renamed_file_that_a_node_changed_since_is_not_given_back(tmp_path: Path) -> None:
    store = made("left_over_alone", tmp_path / "store")
    applied(store, tmp_path / "undo", planned(store))
    found = read_journal(tmp_path / "undo")
    assert found is not None
    path = store / found.changes[0].to
    path.write_bytes(path.read_bytes() + b"more")
    before = image(store)
    with pytest.raises(TargetError, match=r"2.rdq was changed after the repair"):
        undo(store, found, LOCKING)
    assert image(store) == before


class _FullDisk(RecordedWrites):
    """A recorder that fails the n-th write with ENOSPC."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def attempt(self, operation: str, path: str) -> None:
        self.left -= operation == "write"
        if self.left < 0 and operation == "write":
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("after", [0, 1, 3])
def test_without_room_for_the_journal_nothing_is_changed_and_nothing_stays(after: int, tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    before = image(store)
    with pytest.raises(TargetError):
        applied(store, tmp_path / "undo", planned(store), recorder=_FullDisk(after), within="store")
    assert image(store) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("case", ["a-small-clean", "g1-v2-small-clean"])
def test_a_directory_in_the_place_of_the_name_of_a_queue_is_taken_out(case: str, tmp_path: Path) -> None:
    """Nodes of 3.10 and 4.0 do not start such a queue: `tests/interop/rabbitmq/test_place_of_a_name.py`."""
    store = unpack(case_named(f"{VERSION}/{case}"), tmp_path / "store")
    sound = diagnose(RabbitMQStore(store), VERSION)
    name = next(store.glob("msg_stores/vhosts/*/queues/*/.queue_name"))
    raw = name.read_bytes()
    name.unlink()
    name.mkdir()
    (name / name.name).write_bytes(raw)
    before = image(store)
    found = diagnose(RabbitMQStore(store), VERSION)
    (waiting,) = (item for item in found.evidence if item.finding == "waiting")
    assert (found.starts, found.loses) == (True, waiting.messages + sound.loses)
    assert waiting.messages > 0
    assert found.next.startswith("mqstore repair ")
    steps = [step for step in planned(store) if step.possible]
    assert [(step.kind, step.file.rpartition("/")[2]) for step in steps] == [("take-out", ".queue_name")]
    applied(store, tmp_path / "undo", steps)
    assert (planned(store), diagnose(RabbitMQStore(store), VERSION).loses) == ([], sound.loses)
    journal = read_journal(tmp_path / "undo")
    assert journal is not None
    undo(store, journal, LOCKING)
    assert image(store) == before


# what no golden store has


def queue_of_2(root: Path, index: bytes, store: bytes, name: str = "0") -> Path:
    """Return a store with one queue of version 2. index: empty for none."""
    files = {f"{wrecks.Q}/{name}.qs": store} | ({f"{wrecks.Q}/{name}.qi": index} if index else {})
    return wrecks.vhost(root, files, v2=True)


def test_a_torn_entry_whose_message_is_not_there_is_cut_off(tmp_path: Path) -> None:
    index, store = wrecks.queue_store([0, 1])
    size = len(wrecks.stored(1))
    root = queue_of_2(tmp_path, index[:-8], store[:-size] + bytes(size))
    (step,) = planned(root)
    assert (step.kind, step.why) == ("torn-entry", "the last entry is incomplete: it is cut off")
    assert [(change.op, change.length) for change in step.changes] == [("resize", 64 + 32)]


def test_a_queue_store_without_a_persistent_message_gets_no_index(tmp_path: Path) -> None:
    entries = (b"no term", term(message_id(1), b"body", persistent=False))
    store = index_v2.header(0, 4096, store=True) + b"".join(map(index_v2.queue_store_entry, entries))
    assert not [step for step in planned(queue_of_2(tmp_path, b"", store)) if step.kind == "lost-index"]


def test_a_message_of_amqp_1_0_with_a_wrong_checksum_is_cleared(tmp_path: Path) -> None:
    """With a new checksum the queue process would crash on it at every attempt."""
    case, path, at = next(
        (case, path, at)
        for case in OTHER_RABBITMQ
        for path in sorted(opened(case).rglob("*.qs"))
        for at in [path.read_bytes().find(b"\x07mc_amqp")]
        if at >= 0
    )
    store = writable(unpack(case, tmp_path / "store"))
    damaged = store / path.relative_to(opened(case))
    raw = bytearray(damaged.read_bytes())
    index = damaged.with_suffix(".qi").read_bytes()
    places = [
        int.from_bytes(index[row + 4 : row + 12], "big") for row in range(64, len(index), 32) if index[row] == 1 and index[row + 3] == 2
    ]
    place = max(place for place in places if place < at)
    raw[place + 5 : place + 7] = bytes(255 - each for each in raw[place + 5 : place + 7])
    damaged.write_bytes(raw)
    (step,) = (step for step in planned(store) if step.file.endswith(damaged.with_suffix(".qi").name) and damaged.parent.name in step.file)
    assert (step.kind, step.loss) == ("unreadable", "these messages, as before")
    assert "1 message of AMQP 1.0" in step.why
    assert [change.content for change in step.changes] == [bytes(32)]


def test_a_process_that_only_reads_does_not_have_the_store(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    path = next(store.glob("msg_stores/vhosts/*/recovery.dets"))
    program = f"f = open({str(path)!r}, 'rb'); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert holder(store) is None
        process.communicate(b"\n")


def _segments(root: Path, *numbers: int, first: int = 0, config: bytes) -> Path:
    """Return a store whose queue has a segment with messages of these numbers, and after the first segment another one."""
    content = b"".join(
        segment.publish(number, message_id(number), wrecks.stored(number), size=len(wrecks.body(number))) for number in numbers
    )
    files = {f"{wrecks.Q}/{first}.idx": content}
    if not first:
        files[f"{wrecks.Q}/1.idx"] = segment.publish(3, message_id(3), wrecks.stored(3), size=len(wrecks.body(3)))
    root = wrecks.vhost(root, files)
    (root / wrecks.PLACE / ".config").write_bytes(config)
    return root


def test_a_damaged_config_that_the_segments_do_not_show_is_left_alone(tmp_path: Path) -> None:
    (step,) = (step for step in planned(_segments(tmp_path, 5, 1700, first=3, config=b"{a")) if step.kind == "config")
    assert not step.possible
    assert step.why.endswith("and the segments do not show it: `mqstore salvage` saves the messages")


def test_a_damaged_config_of_the_number_that_a_node_takes_without_one_costs_nothing(tmp_path: Path) -> None:
    (step,) = (step for step in planned(_segments(tmp_path, 5, 16383, config=b"{a")) if step.kind == "config")
    assert (step.possible, step.otherwise) == (True, "it takes the same number")


def test_without_a_config_segments_of_the_number_that_a_node_takes_then_need_none(tmp_path: Path) -> None:
    store = _segments(tmp_path, 5, 16383, config=b"")
    (store / wrecks.PLACE / ".config").unlink()
    assert [step for step in planned(store) if step.kind == "config"] == []
    (vhost,) = RabbitMQStore(store).vhosts
    assert vhost.inferred_count is None


def test_links_and_pipes_in_the_place_of_an_index_are_left_alone(tmp_path: Path) -> None:
    store = small(tmp_path / "store")
    queue = next(store.glob("msg_stores/vhosts/*/queues/*"))
    (queue / "core.idx").symlink_to("journal.jif")
    (queue / "1.idx").mkdir()
    os.mkfifo(queue / "1.idx" / "pipe")
    steps = {step.file.rpartition("/")[2]: step for step in planned(store) if step.kind == "take-out"}
    assert {name: step.possible for name, step in steps.items()} == {"core.idx": False, "1.idx": False}
    assert "it is not a regular file" in steps["core.idx"].why
    assert "it holds something that is not a regular file" in steps["1.idx"].why


def test_records_that_are_copied_fill_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made("size_of_record", tmp_path / "store")
    (whole,) = planned(store)
    monkeypatch.setattr(vhost_steps, "FILE_SIZE", 1)
    (split,) = planned(store)
    assert len(split.changes) > len(whole.changes) == 1
    assert split.file == split.changes[0].file == whole.file
    assert b"".join(change.made for change in split.changes) == whole.changes[0].made
    applied(store, tmp_path / "undo", [split])
    assert planned(store) == []


def test_tables_of_a_clean_stop_with_other_sizes_are_taken_out(tmp_path: Path) -> None:
    store = writable(unpack(case_named(f"{VERSION}/d-large-fanout"), tmp_path / "store"))
    path = next(store.glob("msg_stores/vhosts/*/msg_store_persistent/0.rdq"))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(100))
    (step,) = planned(store)
    assert step.kind == "clean-markers"
    assert f"0.rdq has {size + 100} bytes, and file_summary.ets says {size}" in step.why
