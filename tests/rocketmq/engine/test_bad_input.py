"""Bad input to the engine: messages that cannot be stored, queries without an answer, disks that refuse, unusual or hostile stores,
clocks that jump. A status or an error of one sentence; nothing lost, no traceback, no hang.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import limits
from support.privilege import needs_permissions, without_privilege

import mqstore
from mqstore.errors import MqstoreError, RefusedError, TargetError, UnsupportedError, UsageError
from mqstore.files.recorder import Operation
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format import checkpoint
from mqstore.rocketmq.format.message import Inner, Message, MessageBatch, PutResult, PutStatus
from mqstore.rocketmq.format.record import Record, encode, encode_properties
from mqstore.rocketmq.query.pull import GetStatus
from mqstore.testing.crashes import scratch_directory
from mqstore.testing.faults import FailingDisk

NOW = 1_700_000_000_000
VERSIONS = pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
ILLEGAL = PutStatus.MESSAGE_ILLEGAL


class Clock:
    def __init__(self, *times: int) -> None:
        self.times = list(times) or [NOW]

    def __call__(self) -> int:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def settings(version: str = "5.3.3", **changes: object) -> StoreConfig:
    small = StoreConfig(
        version=version,
        services=False,
        commit_log_file_size=16384,
        consume_queue_file_size=400,
        max_hash_slot_num=8,
        max_index_num=24,
        max_message_size=4000,
        clock=Clock(),
    )
    return StoreConfig(**{name: getattr(small, name) for name in StoreConfig.__slots__} | changes)


@pytest.fixture(params=["4.9.3", "5.3.3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", settings(request.param)) as opened:
        yield opened


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """Return all messages of a queue, pulled in steps."""
    store.dispatch_now()
    found: list[bytes] = []
    at = store.min_offset(topic, queue_id)
    while (got := store.get("g", topic, queue_id, at)).status is GetStatus.FOUND:
        found += [each.body for each in got.records()]
        at = got.next_begin_offset
    assert at == store.max_offset(topic, queue_id)
    return found


def filled(place: Path, version: str = "5.3.3", count: int = 40, **changes: object) -> list[bytes]:
    """A store that was closed cleanly."""
    with MessageStore.open(place, settings(version, **changes)) as opened:
        sent = [b"%d" % number for number in range(count)]
        for body in sent:
            assert opened.put(Message("orders", body, keys="k", tags="t")).status is PutStatus.PUT_OK
        opened.offsets.commit("g", "orders", 0, 7)
    return sent


# messages


def refused(result: PutResult, status: PutStatus) -> str:
    assert result.status is status, result
    assert (result.stored, result.msg_id) == (False, "")
    assert result.detail
    assert "\n" not in result.detail
    return result.detail


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", "/etc", "nul\0", "x" * 128, "ü" * 64, "\ud800", "x\udcff", "x" * 256])
def test_a_topic_that_no_directory_can_have_is_refused(store: MessageStore, topic: str) -> None:
    refused(store.put(Message(topic, b"x")), ILLEGAL)
    refused(store.put_messages(MessageBatch(Message(topic), [Inner(b"x")])), ILLEGAL)
    with pytest.raises(UsageError):
        columns(store, topic)
    assert store.log_max == 0
    assert store.put(Message("orders", b"next")).status is PutStatus.PUT_OK
    assert bodies(store) == [b"next"]


def columns(store: MessageStore, topic: str) -> None:
    import pyarrow as pa

    try:
        table = pa.table({"topic": [topic], "body": [b"x"]})
    except UnicodeEncodeError:
        raise UsageError("Arrow has no text for it either") from None
    store.put_batch(table)


def test_topics_that_look_odd_are_stored(store: MessageStore) -> None:
    for topic in ("x" * 127, "ü" * 63, " ", "a b", "-", "...", "%", "a\nb", "\x01\x02", "名前", "*"):
        assert store.put(Message(topic, topic.encode())).status is PutStatus.PUT_OK
    for topic in ("x" * 127, "ü" * 63, " ", "a b", "-", "...", "%", "a\nb", "\x01\x02", "名前", "*"):
        assert bodies(store, topic) == [topic.encode()]


def test_a_body_over_the_limit_and_a_record_that_no_file_holds(store: MessageStore, tmp_path: Path) -> None:
    assert "maxMessageSize" in refused(store.put(Message("orders", bytes(4001))), ILLEGAL)
    refused(store.put_messages(MessageBatch(Message("orders"), [Inner(bytes(2000))] * 2)), ILLEGAL)
    with pytest.raises(UsageError):
        store.put_batch(table(["orders"], [bytes(4001)]))
    tiny = settings(store.version, commit_log_file_size=1024)
    with MessageStore.open(tmp_path / "tiny", tiny) as other:
        assert "fit into this store" in refused(other.put(Message("orders", bytes(950))), ILLEGAL)
        refused(other.put_messages(MessageBatch(Message("orders"), [Inner(bytes(500))] * 2)), ILLEGAL)
        assert other.put(Message("orders", bytes(900))).status is PutStatus.PUT_OK
        assert other.log_max == 900 + 97


def table(topics: list[str], texts: list[bytes], **more: object) -> object:
    import pyarrow as pa

    return pa.table({"topic": topics, "body": texts} | more)


def test_properties_beyond_32767_bytes(store: MessageStore) -> None:
    five = store.version != "4.9.3"
    longest = encode_properties({"n": "x" * 32764}, trailing=five)[:32767]
    assert store.put(Message("orders", b"fits", properties=longest, keys=None)).status in (PutStatus.PUT_OK, ILLEGAL)
    ascii_text = Message("orders", b"x", properties={"n": "x" * 32768})
    refused(store.put(ascii_text), PutStatus.PROPERTIES_SIZE_EXCEEDED if five else ILLEGAL)
    # 4.9.3 counts characters first, and bytes only afterwards
    refused(store.put(Message("orders", b"x", properties={"n": "ü" * 20000})), PutStatus.PROPERTIES_SIZE_EXCEEDED)
    refused(store.put_messages(MessageBatch(Message("orders"), [Inner(b"x", b"n\x01" + b"x" * 32766)])), ILLEGAL)
    refused(
        store.put_messages(MessageBatch(Message("orders", properties=b"n\x01" + b"x" * 32766), [Inner(b"x")])),
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
    )


@pytest.mark.parametrize(
    "host", ["", "nowhere", "1.2.3.4", "1.2.3.4:", "1.2.3:5", "[::1]", "::1", "1.2.3.4:99999999999", "a:b", "\0:1", "1.2.3.4:x"]
)
def test_an_invalid_host(store: MessageStore, host: str) -> None:
    refused(store.put(Message("orders", b"x", born_host=host)), ILLEGAL)
    refused(store.put(Message("orders", b"x", store_host=host)), ILLEGAL)
    refused(store.put_messages(MessageBatch(Message("orders", born_host=host), [Inner(b"x")])), ILLEGAL)
    assert bodies(store) == []


def test_an_invalid_store_host_is_an_error_and_leaves_the_store_unlocked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        MessageStore.open(tmp_path / "store", settings(store_host="nowhere"))
    assert bodies_after(tmp_path / "store") == []


def bodies_after(place: Path, version: str = "5.3.3", **changes: object) -> list[bytes]:
    with MessageStore.open(place, settings(version, **changes)) as opened:
        return bodies(opened)


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1, 1 << 63, -(1 << 63) - 1, 1 << 200])
def test_a_number_that_its_field_does_not_hold(store: MessageStore, number: int) -> None:
    wide = number in (1 << 31, -(1 << 31) - 1)
    for name in ("queue_id", "flag", "sys_flag", "reconsume_times", "born_timestamp", "prepared_transaction_offset"):
        message = Message("orders", b"x", **{name: number})  # type: ignore[arg-type]
        if wide and name in ("born_timestamp", "prepared_transaction_offset"):
            assert store.put(message).status is PutStatus.PUT_OK
            continue
        end = store.log_max
        refused(store.put(message), ILLEGAL)
        if name not in ("prepared_transaction_offset", "flag"):
            refused(store.put_messages(MessageBatch(message, [Inner(b"x"), Inner(b"y")])), ILLEGAL)
        assert store.log_max == end
    refused(store.put_messages(MessageBatch(Message("orders"), [Inner(b"x"), Inner(b"y", b"", number)])), ILLEGAL)
    assert bodies(store) == ([b"x", b"x"] if wide else [])
    store.put(Message("orders", b"last"))
    assert bodies(store)[-1:] == [b"last"]
    assert not store.log.view(store.log.files[-1])[store.log_max :].tobytes().strip(b"\0"), "nothing is left after the end of the log"


def test_a_queue_id_below_zero_is_kept_over_a_restart(tmp_path: Path) -> None:
    for version in ("4.9.3", "5.3.3"):
        with MessageStore.open(tmp_path / version, settings(version)) as opened:
            result = opened.put(Message("orders", b"minus", queue_id=-1))
            if not result.stored:
                refused(result, ILLEGAL)
                continue
            assert bodies(opened, "orders", -1) == [b"minus"]
        with MessageStore.open(tmp_path / version, settings(version)) as opened:
            assert bodies(opened, "orders", -1) == [b"minus"]
            assert opened.put(Message("orders", b"again", queue_id=-1)).queue_offset == 1


@pytest.mark.parametrize("level", ["x", "", "99999999999", "-1", "1.5", "٣"])
def test_an_invalid_delay_level(store: MessageStore, level: str) -> None:
    result = store.put(Message("orders", b"x", properties={"DELAY": level}))
    assert result.status in (ILLEGAL, PutStatus.PUT_OK)
    if result.status is ILLEGAL:
        refused(result, ILLEGAL)


def test_a_batch_without_messages_and_one_of_a_transaction(store: MessageStore) -> None:
    refused(store.put_messages(MessageBatch(Message("orders"), [])), ILLEGAL)
    refused(store.put_messages(MessageBatch(Message("orders", sys_flag=4), [Inner(b"x")])), ILLEGAL)
    assert store.put_batch([]).count == 0


def test_lone_surrogates_in_properties_are_stored_as_they_are_and_nothing_breaks(store: MessageStore) -> None:
    result = store.put(Message("orders", b"x", keys="\ud800", properties={"a\udfff": "b"}))
    assert result.status in (PutStatus.PUT_OK, ILLEGAL)
    store.dispatch_now()
    assert store.query("orders", "\ud800").records == [] or store.query("orders", "\ud800").records[0].body == b"x"
    assert store.put(Message("orders", b"y", keys="k")).stored
    assert bodies(store)[-1] == b"y"


# queries


HUGE = (1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 100)


def test_pulls_with_absurd_numbers(tmp_path: Path) -> None:
    for version in ("4.9.3", "5.3.3"):
        sent = filled(tmp_path / version, version)
        with MessageStore.open(tmp_path / version, settings(version)) as opened:
            for offset in (*HUGE, *(-number for number in HUGE), -1):
                got = opened.get("g", "orders", 0, offset)
                assert got.records() == []
                assert got.status in (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL)
            for count in (*HUGE, 5_000_000):
                assert [each.body for each in opened.get("g", "orders", 0, 0, count).records()] == sent[:20]  # one queue file
            for count in (0, -1, *(-number for number in HUGE)):
                assert len(opened.get("g", "orders", 0, 0, count).records()) <= 1
            for queue_id in (*HUGE, -1, 7):
                assert opened.get("g", "orders", queue_id, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
            for topic in ("", "../orders", "no such", "nul\0", "\ud800"):
                assert opened.get("g", topic, 0, 0).records() == []
                assert (opened.min_offset(topic, 0), opened.max_offset(topic, 0)) == (0, 0)
                assert opened.query(topic, "k").records == []
                assert opened.offset_by_time(topic, 0, NOW) == 0
            for tags in ("", "*", "x" * 100_000, " || ".join(map(str, range(5000))), "\ud800"):
                opened.get("g", "orders", 0, 0, 32, tags)
            with pytest.raises(UsageError, match="names no tag"):
                opened.get("g", "orders", 0, 0, 32, "||")


def test_queries_with_absurd_ranges(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    with MessageStore.open(tmp_path / "store", settings()) as opened:
        for begin, end in [(1, 0), (NOW + 1, NOW - 1), ((1 << 63) - 1, 0), (-(1 << 63), -1), (1 << 100, 1 << 101), (-(1 << 100), -1)]:
            assert opened.query("orders", "k", 64, begin, end).records == []
        assert len(opened.query("orders", "k", 64, -(1 << 100), 1 << 100).records) > 20
        for most in (0, -1, -(1 << 100)):
            assert len(opened.query("orders", "k", most).records) <= 1
        assert len(opened.query("orders", "k", 1 << 100).records) > 20
        for key in ("", "\0", "x" * 1_000_000, "\ud800"):
            assert opened.query("orders", key).records == []
        for physical in (*HUGE, *(-number for number in HUGE), -1, 1, opened.log_max):
            assert opened.record_at(physical) is None
            assert opened.slice(physical, 100) is None or physical == 1
        for size in (-1, -(1 << 63), 1 << 62, 1 << 100):
            assert opened.slice(0, size) is None
        for moment in (*HUGE, *(-number for number in HUGE)):
            assert 0 <= opened.offset_by_time("orders", 0, moment) <= 40
        for text in ("", "x", "0" * 31, "G" * 32, "0" * 57, "\ud800", "F" * 32):
            if len(text) == 32 and text.strip("0123456789ABCDEF") == "":
                assert opened.record_by_id(text) is None
            else:
                with pytest.raises(UsageError, match="message id"):
                    opened.record_by_id(text)


# disks and directories


class ReadOnlyDisk:
    """Refuses every change, like a read-only file system. healed: accepts changes again."""

    def __init__(self) -> None:
        self.healed = False

    def attempt(self, operation: str, relative: str) -> None:
        if not self.healed:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), relative)

    def record(self, operation: Operation) -> None:
        pass


def sentence(error: pytest.ExceptionInfo[MqstoreError]) -> str:
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


@VERSIONS
def test_a_read_only_file_system(version: str, tmp_path: Path) -> None:
    sent = filled(tmp_path / "store", version)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    with pytest.raises(TargetError) as error:
        MessageStore.open(tmp_path / "store", settings(version, recorder=ReadOnlyDisk()))
    assert "read-only" in sentence(error)
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
    assert bodies_after(tmp_path / "store", version) == sent


@VERSIONS
def test_a_file_system_that_becomes_read_only_under_a_store(version: str, tmp_path: Path) -> None:
    disk = ReadOnlyDisk()
    disk.healed = True
    (tmp_path / "store").mkdir()
    opened = MessageStore.open(tmp_path / "store", settings(version, recorder=disk, flush_disk_type="SYNC_FLUSH"))
    assert opened.put(Message("orders", b"before")).status is PutStatus.PUT_OK
    disk.healed = False
    assert "read-only" in opened.put(Message("orders", b"while")).detail
    with pytest.raises(TargetError):
        opened.close()
    assert bodies_after(tmp_path / "store", version)[0] == b"before"


@needs_permissions
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    (tmp_path / "store").chmod(0o500)
    with without_privilege(), pytest.raises(TargetError) as error:
        MessageStore.open(tmp_path / "store", settings())
    assert "permission denied" in sentence(error)


def test_a_place_that_cannot_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for place in (tmp_path / "file", tmp_path / "no" / "such", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(MqstoreError) as error:
            MessageStore.open(place, settings())
        assert str(place) in sentence(error)
    with pytest.raises(UsageError, match=r"4\.9\.9"):
        MessageStore.open(tmp_path / "new", settings("4.9.9"))


FULL = """
import resource, sys
from pathlib import Path
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.config.store_config import StoreConfig
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
config = StoreConfig(version=sys.argv[2], services=False, commit_log_file_size=1 << 20, consume_queue_file_size=2000)
store = MessageStore.open(sys.argv[1], config)
print(store.put(Message("orders", b"before")).status.value)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for number in range(20):
    result = store.put(Message("orders", bytes(100_000)))
    if not result.stored:
        break
print(number, result.status.value, result.detail)
try:
    store.dispatch_now()
    store.close()
except Exception as error:
    print(type(error).__name__, error)
"""


@VERSIONS
def test_a_file_size_limit_ends_puts_with_a_status(version: str, tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "store"), version],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (program.returncode, program.stderr) == (0, "")
    first, then, *_ = program.stdout.splitlines()
    assert first == "PUT_OK"
    assert "CREATE_MAPPED_FILE_FAILED" in then
    assert "file size limit" in then
    config = StoreConfig(version=version, services=False, commit_log_file_size=1 << 20, consume_queue_file_size=2000)
    with MessageStore.open(tmp_path / "store", config) as opened:
        assert bodies(opened)[0] == b"before"


@VERSIONS
def test_a_full_disk_takes_messages_again_once_there_is_room(version: str, tmp_path: Path) -> None:
    disk = FailingDisk(0, errno.ENOSPC)
    (tmp_path / "store").mkdir()
    with MessageStore.open(tmp_path / "store", settings(version, recorder=disk)) as opened:
        kept = []
        for number in range(60):
            if number % 20 == 5:
                disk.n, disk.lasting = disk.attempts + 1, True
            if number % 20 == 15:
                disk.heal()
            result = opened.put(Message("orders", b"%d" % number, properties=b"n\x01" + b"x" * 900))
            if result.stored:
                kept.append(b"%d" % number)
            else:
                assert "the disk is full" in refused(result, PutStatus.CREATE_MAPPED_FILE_FAILED)
        assert 20 < len(kept) < 50
        assert bodies(opened) == kept
    assert bodies_after(tmp_path / "store", version) == kept


@VERSIONS
def test_a_full_disk_under_queues_and_index_stops_puts_until_there_is_room(version: str, tmp_path: Path) -> None:
    disk = FailingDisk(0, errno.ENOSPC)
    (tmp_path / "store").mkdir()
    with MessageStore.open(tmp_path / "store", settings(version, recorder=disk)) as opened:
        sent = [b"%d" % number for number in range(70)]
        for body in sent:
            assert opened.put(Message("orders", body, keys="k")).stored
        failed = 0
        for n in range(40):
            disk.n = disk.attempts + 1 + n % 7
            try:
                opened.dispatch_now()
                break
            except TargetError:
                failed += 1
                refused(opened.put(Message("orders", b"not now")), PutStatus.SERVICE_NOT_AVAILABLE)
        disk.heal()
        assert failed > 3
        assert bodies(opened) == sent
        assert opened.put(Message("orders", b"now")).stored
        assert bodies(opened) == [*sent, b"now"]
    assert bodies_after(tmp_path / "store", version) == [*sent, b"now"]


# locks and reopening


def test_a_store_is_open_once_in_a_process(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", settings()) as opened:
        for path in (tmp_path / "store", tmp_path / "." / "store"):
            with pytest.raises(TargetError) as error:
                MessageStore.open(path, settings())
            assert "this process" in sentence(error)
        assert opened.put(Message("orders", b"x")).status is PutStatus.PUT_OK
    assert bodies_after(tmp_path / "store") == [b"x"]


def test_a_store_that_another_process_has_open_is_left_alone(tmp_path: Path) -> None:
    hold = (
        "import sys; from mqstore.rocketmq.engine.message_store import MessageStore\n"
        "from mqstore.rocketmq.config.store_config import StoreConfig\n"
        "store = MessageStore.open(sys.argv[1], StoreConfig(services=False)); print('held', flush=True); sys.stdin.read(); store.close()"
    )
    sent = filled(tmp_path / "store")
    command = [sys.executable, "-c", hold, str(tmp_path / "store")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(TargetError) as error:
            MessageStore.open(tmp_path / "store", settings())
        assert "another process" in sentence(error)
        other.stdin.close()
        assert other.wait(60) == 0
    assert bodies_after(tmp_path / "store") == sent


def test_a_closed_store_takes_nothing_and_changes_nothing(tmp_path: Path) -> None:
    for end in (MessageStore.close, MessageStore.abandon):
        opened = MessageStore.open(tmp_path / end.__name__, settings())
        assert opened.put(Message("orders", b"x")).stored
        end(opened)
        end(opened)
        opened.close()
        opened.abandon()
        before = {path: path.read_bytes() for path in (tmp_path / end.__name__).rglob("*") if path.is_file()}
        assert "closed" in refused(opened.put(Message("orders", b"y")), PutStatus.SERVICE_NOT_AVAILABLE)
        refused(opened.put_messages(MessageBatch(Message("orders"), [Inner(b"y")])), PutStatus.SERVICE_NOT_AVAILABLE)
        assert opened.put_batch([Message("orders", b"y")]).status is PutStatus.SERVICE_NOT_AVAILABLE
        works: list[Callable[[], object]] = [opened.flush, opened.dispatch_now, opened.run_retention, opened.persist]
        for work in works:
            with pytest.raises(TargetError, match="closed"):
                work()
        assert {path: path.read_bytes() for path in (tmp_path / end.__name__).rglob("*") if path.is_file()} == before
        assert bodies_after(tmp_path / end.__name__) == [b"x"]


@VERSIONS
def test_a_directory_that_is_removed_under_a_store(version: str, tmp_path: Path) -> None:
    opened = MessageStore.open(tmp_path / "store", settings(version))
    assert opened.put(Message("orders", b"x")).stored
    shutil.rmtree(tmp_path / "store")
    for number in range(30):
        result = opened.put(Message("orders", b"%d" % number, properties=b"n\x01" + b"x" * 900))
    refused(result, PutStatus.CREATE_MAPPED_FILE_FAILED)
    with pytest.raises(TargetError) as error:
        opened.dispatch_now()
    sentence(error)
    with pytest.raises(TargetError):
        opened.close()
    assert not (tmp_path / "store").exists()
    assert bodies_after(tmp_path / "store", version) == []


def test_a_store_behind_a_link_and_one_under_a_name_that_is_not_text(tmp_path: Path) -> None:
    sent = filled(tmp_path / "store")
    (tmp_path / "link").symlink_to("store")
    with MessageStore.open(tmp_path / "link", settings()) as opened:
        with pytest.raises(TargetError, match="this process"):
            MessageStore.open(tmp_path / "store", settings())
        assert bodies(opened) == sent
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    filled(odd)
    assert bodies_after(odd) == sent
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(MqstoreError) as error:
        MessageStore.open(tmp_path / "loop", settings())
    sentence(error)


def test_opening_and_closing_a_thousand_times_leaves_no_descriptor_open(small: bool) -> None:
    with scratch_directory() as place:
        open_and_close(100 if small else 1000, Path(place))


def open_and_close(times: int, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config").mkdir()
    (tmp_path / "other" / "config" / "rdb").mkdir()

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once(number: int) -> None:
        opened = MessageStore.open(tmp_path / "store", settings(services=number % 50 == 0, flush_disk_type="ASYNC_FLUSH"))
        opened.put(Message("orders", b"x", keys="k"))
        opened.get("g", "orders", 0, 0)
        opened.close() if number % 3 else opened.abandon()
        with pytest.raises(UnsupportedError):
            MessageStore.open(tmp_path / "other", settings())

    once(0)
    gc.collect()
    before = most = count()
    for number in range(times):
        once(number)
        most = max(most, count())
    assert most <= before + 200, "what is closed does not wait for the garbage collector but for a few maps"
    gc.collect()
    assert count() <= before


# interrupts


@VERSIONS
def test_a_put_that_is_interrupted_half_way_leaves_a_store_that_recovers(version: str, tmp_path: Path) -> None:
    opened = MessageStore.open(tmp_path / "store", settings(version))
    opened.put(Message("orders", b"before"))
    kept = opened.log.appended

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    opened.log.appended = interrupted  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        opened.put(Message("orders", b"half"))
    opened.log.appended = kept  # type: ignore[method-assign]
    assert "interrupted" in refused(opened.put(Message("orders", b"after")), PutStatus.SERVICE_NOT_AVAILABLE)
    opened.close()
    assert (tmp_path / "store" / "abort").exists()
    assert bodies_after(tmp_path / "store", version) in ([b"before"], [b"before", b"half"])


@VERSIONS
def test_after_a_clock_that_failed_messages_are_stored(version: str, tmp_path: Path) -> None:
    times = [1640995200000]

    def clock() -> int:
        return times[0]

    with MessageStore.open(tmp_path / "store", settings(version, clock=clock)) as opened:
        batch = MessageBatch(Message("orders", born_timestamp=1), [Inner(b"first"), Inner(b"second")])
        now = times.pop()
        with pytest.raises(IndexError):
            opened.put_messages(batch)
        times.append(now)
        assert opened.put_messages(batch).status is PutStatus.PUT_OK


@VERSIONS
def test_a_dispatch_that_is_interrupted_half_way_leaves_a_store_that_recovers(version: str, tmp_path: Path) -> None:
    opened = MessageStore.open(tmp_path / "store", settings(version))
    sent = [b"%d" % number for number in range(30)]
    for body in sent:
        opened.put(Message("orders", body, keys="k"))

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    index = opened._recovery.index
    assert index is not None
    index.add = interrupted  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        opened.dispatch_now()
    with pytest.raises(TargetError, match="interrupted"):
        opened.dispatch_now()
    refused(opened.put(Message("orders", b"after")), PutStatus.SERVICE_NOT_AVAILABLE)
    opened.close()
    with MessageStore.open(tmp_path / "store", settings(version)) as again:
        assert bodies(again) == sent
        assert len(again.query("orders", "k").records) == 30


# unusual and hostile stores


@pytest.mark.parametrize("place", ["consumequeue/CURRENT", "config/rdb/CURRENT", "config/consumerOffsets/CURRENT", "config/topics/CURRENT"])
def test_a_store_with_parts_in_rocksdb_is_refused_and_left_alone(place: str, tmp_path: Path) -> None:
    filled(tmp_path / "store")
    target = tmp_path / "store" / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("MANIFEST-000001\n")
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    with pytest.raises(UnsupportedError) as error:
        MessageStore.open(tmp_path / "store", settings())
    assert "RocksDB" in sentence(error)
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


@VERSIONS
@pytest.mark.parametrize("unclean", [False, True])
def test_a_checkpoint_that_is_newer_than_the_log(version: str, unclean: bool, tmp_path: Path) -> None:
    sent = filled(tmp_path / "store", version)
    newer = checkpoint.Checkpoint(NOW + 10**9, NOW + 10**9, NOW + 10**9, 0, 1 << 40, exists=True)
    (tmp_path / "store" / "checkpoint").write_bytes(checkpoint.encode(newer))
    if unclean:
        (tmp_path / "store" / "abort").touch()
    assert bodies_after(tmp_path / "store", version) == sent


@VERSIONS
@pytest.mark.parametrize("unclean", [False, True])
def test_a_queue_that_is_longer_than_the_log(version: str, unclean: bool, tmp_path: Path) -> None:
    sent = filled(tmp_path / "store", version)
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    whole = log.read_bytes()
    with MessageStore.open(tmp_path / "store", settings(version)) as opened:
        opened.dispatch_now()
        queue = opened.queue_or_none("orders", 0)
        assert queue is not None
        end = int(queue.entries(30, 31)["physical_offset"][0])
    log.write_bytes(whole[:end] + bytes(len(whole) - end))
    if unclean:
        (tmp_path / "store" / "abort").touch()
    with MessageStore.open(tmp_path / "store", settings(version)) as opened:
        assert bodies(opened) == sent[:30]
        assert opened.put(Message("orders", b"next")).queue_offset == 30
        assert bodies(opened) == [*sent[:30], b"next"]


FILES = [
    "checkpoint",
    "abort",
    "config/consumerOffset.json",
    "config/topics.json",
    "config/subscriptionGroup.json",
    "config/delayOffset.json",
]


@VERSIONS
def test_garbage_in_small_files_does_not_reach_the_messages(version: str, tmp_path: Path) -> None:
    sent = filled(tmp_path / "store", version)
    chance = random.Random(9)
    contents = [
        b"",
        b"\0" * 4096,
        b"{",
        b"[]",
        b"{}",
        b'{"offsetTable": 7}',
        b'{"offsetTable":{"a@b":{"x":"y"}}}',
        b'"\\ud800"',
        b"[" * 100_000,
    ]
    contents += [chance.randbytes(size) for size in (1, 100, 4096)]
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    for name in FILES:
        for content in contents:
            place = tmp_path / "copy"
            shutil.copytree(tmp_path / "store", place)
            (place / name).write_bytes(content)
            assert bodies_after(place, version) == sent, (name, content[:20])
            shutil.rmtree(place)


@VERSIONS
def test_garbage_in_any_file_opens_or_is_refused_in_a_sentence(version: str, tmp_path: Path) -> None:
    sent = filled(tmp_path / "store", version, 120)
    paths = sorted(path.relative_to(tmp_path / "store") for path in (tmp_path / "store").rglob("*") if path.is_file())
    paths = [path for path in paths if path.parts[0] in ("commitlog", "consumequeue", "index")]
    assert {path.parts[0] for path in paths} == {"commitlog", "consumequeue", "index"}
    refusals: list[str] = []
    chance = random.Random(10)
    for path in paths:
        for unclean in (False, True):
            for damage in (spotted, overwritten, shortened, emptied, lengthened):
                place = tmp_path / "copy"
                shutil.copytree(tmp_path / "store", place)
                (place / path).write_bytes(damage((place / path).read_bytes(), chance))
                if unclean:
                    (place / "abort").touch()
                try:
                    with MessageStore.open(place, settings(version)) as opened:
                        opened.dispatch_now()
                        for key in ("k", "none"):
                            opened.query("orders", key)
                        opened.get("g", "orders", 0, 0)
                        opened.offset_by_time("orders", 0, NOW)
                        assert opened.put(Message("after", b"wards")).stored
                        assert bodies(opened, "after") == [b"wards"]
                        if path.parts[0] == "index":
                            assert bodies(opened) == sent
                except (RefusedError, TargetError, UsageError) as error:
                    refusals.append(str(error))
                shutil.rmtree(place)
    assert refusals
    assert all(refusals)
    assert not any("\n" in text for text in refusals)


def spotted(content: bytes, chance: random.Random) -> bytes:
    raw = bytearray(content)
    for _ in range(20):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw)


def overwritten(content: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(len(content))


def shortened(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def emptied(content: bytes, chance: random.Random) -> bytes:
    return b""


def lengthened(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(100)


@VERSIONS
@pytest.mark.parametrize("unclean", [False, True])
def test_hostile_topics_in_a_log_stay_inside_the_directory(version: str, unclean: bool, tmp_path: Path) -> None:
    place = tmp_path / "outer" / "store"
    (place / "commitlog").mkdir(parents=True)
    raw = b""
    topics = ["../x", "../../x", "..", ".", "", "a/b", "nul\0", "/absolute", "good", "x" * 127]
    for number, topic in enumerate(topics):
        each = Record(topic, b"%d" % number, 0, physical_offset=len(raw), store_timestamp=NOW, properties=b"KEYS\x01k")
        raw += encode(each)
    (place / "commitlog" / f"{0:020d}").write_bytes(raw.ljust(16384, b"\0"))
    if unclean:
        (place / "abort").touch()
    for _ in range(2):
        with MessageStore.open(place, settings(version)) as opened:
            assert bodies(opened, "good") == [b"8"]
            for topic in topics:
                opened.get("g", topic, 0, 0)
                opened.query(topic, "k")
            opened.run_retention(NOW + 10**12)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["outer"]
        assert [path.name for path in (tmp_path / "outer").iterdir()] == ["store"]
        assert {path.name for path in place.iterdir()} <= {
            "abort.bak",
            "checkpoint",
            "commitlog",
            "config",
            "consumequeue",
            "index",
            "lock",
        }
        assert {path.name for path in (place / "consumequeue").iterdir()} <= {"good", "x" * 127}


# clocks


@VERSIONS
@pytest.mark.parametrize(
    "times",
    [
        [NOW, NOW - 10_000, NOW + 5, NOW - 86_400_000, NOW],
        [NOW, 0, -1, -(10**15), NOW],
        [NOW, 1, 253_402_300_799_999, 253_402_300_800_000, 10**18, NOW],
        [-5],
        [0],
        [(1 << 63) - 1],
    ],
    ids=["back", "before the epoch", "far ahead", "negative", "zero", "the last"],
)
def test_clocks_that_jump_lose_nothing(version: str, times: list[int], tmp_path: Path) -> None:
    place = tmp_path / "store"
    sent: list[bytes] = []
    for life in range(3):
        clock = Clock(*[moment for moment in times for _ in range(15)])
        opened = MessageStore.open(place, settings(version, clock=clock))
        assert bodies(opened) == sent
        for number in range(30):
            body = b"%d.%d" % (life, number)
            assert opened.put(Message("orders", body, keys=f"k{number}", properties={"n": "x" * 400})).status is PutStatus.PUT_OK
            sent.append(body)
            if number % 7 == 0:
                opened.dispatch_now()
            if number % 11 == 0:
                opened.flush()
        assert bodies(opened) == sent
        names = [path.name for path in sorted((place / "index").iterdir())]
        assert names
        assert all(len(name) == 17 and name.isdigit() for name in names), names
        assert {each.name for each in opened.index_files()} == set(names)
        opened.abandon() if life % 2 else opened.close()
    assert bodies_after(place, version) == sent
    assert len(list(mqstore.open(place).to_batches())) > 0


@VERSIONS
def test_a_disk_that_fills_up_between_queues_loses_and_doubles_no_entry(version: str, tmp_path: Path) -> None:
    """Without a recorder: the entries of all queues are written by one call, of which any part may fail."""
    large = settings(version, commit_log_file_size=1 << 20, consume_queue_file_size=1 << 20)
    with limits.small_disk(tmp_path / "disk", 9000) as disk, MessageStore.open(disk / "store", large) as opened:
        sent = [b"%d" % number for number in range(90)]
        for at, body in enumerate(sent[:30]):
            assert opened.put(Message("orders", body, queue_id=at)).stored
        opened.dispatch_now()  # creates the files
        for round_number in (1, 2):
            for at, body in enumerate(sent[30 * round_number : 30 * round_number + 30]):
                for _ in range(250 * round_number - 1):  # further pages of each queue
                    assert opened.put(Message("orders", b"", queue_id=at)).stored
                assert opened.put(Message("orders", body, queue_id=at)).stored
            with (disk / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
                while True:
                    other.write(bytes(4096))
            with pytest.raises(TargetError, match="the disk is full"):
                opened.dispatch_now()
            (disk / "other").unlink()
            opened.dispatch_now()
        for at in range(30):
            assert [body for body in bodies(opened, queue_id=at) if body] == sent[at::30]
            assert opened.max_offset("orders", at) == 1 + 250 + 500
