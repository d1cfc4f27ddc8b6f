"""Bad input: directories that are not stores, files that cannot be read, hostile stores. One sentence or a finding, never a traceback."""

from __future__ import annotations

import gc
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from support.golden import case_named, expected, opened
from support.stores import Store, message

import mqstore
from mqstore.errors import CannotOpenError, MqstoreError, NotAStoreError, TargetError, UnsupportedError, UsageError
from mqstore.findings import Damage, Kind, Report
from mqstore.rocketmq.format.index_geometry import HEADER_SIZE
from mqstore.rocketmq.lookup.explain import query
from mqstore.rocketmq.query.index_search import query_offsets
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify
from mqstore.table.columns import Selection


def small(root: Path, count: int = 30, **settings: object) -> Store:
    store = Store(root, **settings)  # type: ignore[arg-type]
    for number in range(count):
        store.put(message("orders", b"body %d" % number, keys=f"k{number}"))
    store.write()
    return store


def read_all(store: RocketMQStore) -> list[dict[str, object]]:
    return [row for batch in store.to_batches() for row in batch.to_pylist()]


def kinds(report: Report) -> set[Kind]:
    return {item.kind for item in report.damage}


# not a store


def refused(path: Path, kind: type[MqstoreError]) -> str:
    with pytest.raises(kind) as caught:
        mqstore.open(path)
    assert type(caught.value) is kind
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


def test_a_directory_of_other_files_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "readme.txt").write_text("nothing to see")
    assert "neither commitlog/ nor" in refused(tmp_path, NotAStoreError)


def test_an_empty_directory_is_not_a_store(tmp_path: Path) -> None:
    assert "is empty" in refused(tmp_path, NotAStoreError)


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "gone", CannotOpenError)


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"no record")
    assert "is a file" in refused(path, NotAStoreError)


def test_the_directory_of_the_log_itself_is_not_a_store(tmp_path: Path) -> None:
    small(tmp_path)
    assert "give the directory that" in refused(tmp_path / "commitlog", NotAStoreError)


@pytest.mark.parametrize("name", ["msg_stores", "recovery.dets", "0.rdq", "segment.qs", "journal.jif"])
def test_parts_of_a_store_of_another_broker_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert "RabbitMQ" in refused(tmp_path, UnsupportedError)


def test_a_store_one_level_down_is_found(tmp_path: Path) -> None:
    small(tmp_path / "store")
    assert len(read_all(mqstore.open(tmp_path))) == 30


def test_a_commitlog_that_is_a_file_is_refused(tmp_path: Path) -> None:
    small(tmp_path)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    (tmp_path / "commitlog").rmdir()
    (tmp_path / "commitlog").write_bytes(b"no directory")
    with pytest.raises(CannotOpenError, match="commitlog is not a directory"):
        mqstore.open(tmp_path)


def test_an_unknown_view_or_version_is_refused(tmp_path: Path) -> None:
    small(tmp_path)
    store = mqstore.open(tmp_path)
    with pytest.raises(UsageError, match="no view 'live'"):
        store.view("live")
    with pytest.raises(UsageError, match="no rules of version '3'"):
        store.view("recovered", "3")
    with pytest.raises(UsageError, match="no column"):
        list(store.to_batches(("topic", "colour")))
    with pytest.raises(UsageError, match="range is empty"):
        Selection(from_offset=5, to_offset=4)


# no permission: root may read everything, so another user reads

ASK = """
import os, sys
import mqstore
from mqstore.rocketmq.verify.verification import verify
os.chdir(sys.argv[1])
# everything is imported before the rights to do so are given up
assert verify(mqstore.open("sound")).ok
assert sum(batch.num_rows for batch in mqstore.open("sound").to_batches()) == 30
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    store = mqstore.open("broker")
    rows = sum(batch.num_rows for batch in store.to_batches())
    print(rows, sorted({item.kind + " " + item.file for item in verify(store).damage}))
except mqstore.MqstoreError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[[str], str]:
    """Open the store `broker` below tmp_path as a user without permission for one place in it."""
    small(tmp_path / "broker", file_size=2048)
    small(tmp_path / "sound")
    for path in (tmp_path / "broker", *(tmp_path / "broker").rglob("*")):
        path.chmod(0o755)
    tmp_path.chmod(0o755)

    def ask(place: str) -> str:
        target = tmp_path / "broker" / place
        target.chmod(0)
        try:
            done = subprocess.run([sys.executable, "-c", ASK, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
        finally:
            target.chmod(0o755)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return ask


@pytest.mark.parametrize("place", ["consumequeue", "consumequeue/orders", "consumequeue/orders/0", "index"])
def test_a_directory_of_queues_or_index_without_permission_is_a_finding(as_nobody: Callable[[str], str], place: str) -> None:
    assert as_nobody(place) == f"30 ['unreadable {place}']"


@pytest.mark.parametrize("place", ["", "commitlog"])
def test_a_store_or_log_without_permission_is_one_sentence(as_nobody: Callable[[str], str], place: str) -> None:
    told = as_nobody(place)
    assert told.startswith("CannotOpenError broker")
    assert "permission denied" in told
    assert "\n" not in told


def test_a_log_file_without_permission_is_one_sentence_or_a_finding(as_nobody: Callable[[str], str]) -> None:
    told = as_nobody(f"commitlog/{2048:020d}")
    assert told.startswith("CannotOpenError") or "unreadable commitlog" in told
    assert "\n" not in told


def test_an_index_file_without_permission_is_a_finding(as_nobody: Callable[[str], str], tmp_path: Path) -> None:
    (name,) = (path.name for path in (tmp_path / "broker" / "index").iterdir())
    assert as_nobody(f"index/{name}") == f"30 ['unreadable index/{name}']"


# unusual names and texts


def test_names_and_texts_that_are_not_utf8_are_read_all_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.put(message("orders", b"\xff\xfe body %d" % number))
    odd = store.put(message("or\u00e9ers", b"x", properties=b"KEYS\x01\xff\xfe k\x02"))
    store.write()
    at = odd.raw.index("or\u00e9ers".encode())
    store.patch_log(odd.offset + at + 2, b"\xff\xff")
    os.rename(tmp_path / "consumequeue" / "or\u00e9ers", os.fsencode(tmp_path / "consumequeue") + b"/or\xff\xffers")
    (Path(os.fsdecode(os.fsencode(tmp_path / "consumequeue" / "orders") + b"/\xff"))).mkdir()
    opened_store = mqstore.open(tmp_path)
    rows = read_all(opened_store)
    assert [row["verdict"] for row in rows] == ["intact"] * 5 + ["damaged"]
    assert [row["body"] for row in rows[:5]] == [b"\xff\xfe body %d" % number for number in range(5)]
    assert rows[5]["topic"] == "or\ufffd\ufffders"
    assert Kind.BAD_TEXT in kinds(verify(opened_store))
    assert sorted(queue.topic for queue in opened_store.view().queues()) == ["orders", "or\ufffd\ufffders"]
    json.dumps([item.as_dict() for item in verify(opened_store).damage]).encode()


def test_property_text_without_separators_is_reported_and_harmless(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("orders", keys="k"))
    store.put(message("orders", properties=b"x" * 32767))
    store.put(message("orders", properties=b"\x01" * 300))
    store.put(message("orders", properties=b"\x02" * 300))
    store.write()
    rows = read_all(mqstore.open(tmp_path))
    assert [row["verdict"] for row in rows] == ["intact", "damaged", "damaged", "intact"]
    assert [row["properties"] for row in rows[1:]] == [[], [], []]
    assert kinds(verify(mqstore.open(tmp_path))) == {Kind.BAD_PROPERTIES}


# hostile numbers


@pytest.mark.parametrize("at", [0, 84])
@pytest.mark.parametrize("value", [2**31 - 1, -1, -(2**31), 0, 1, 90, 91])
def test_an_impossible_length_costs_one_message(tmp_path: Path, at: int, value: int) -> None:
    store = small(tmp_path)
    victim = store.puts[10]
    store.patch_log(victim.offset + at, struct.pack(">i", value))
    offsets = [row["physical_offset"] for row in read_all(mqstore.open(tmp_path))]
    assert offsets == [put.offset for put in store.puts if put is not victim]
    report = verify(mqstore.open(tmp_path))
    (lost,) = (item for item in report.damage if item.file.startswith("commitlog/"))
    assert (lost.offset, lost.length) == (victim.offset, len(victim.raw))


def test_an_index_chain_that_loops_ends(tmp_path: Path) -> None:
    store = small(tmp_path, slots=1)
    (name,) = (path.name for path in (tmp_path / "index").iterdir())
    for number, previous in ((5, 20), (20, 20)):
        store.patch(f"index/{name}", HEADER_SIZE + 4 + 20 * number + 16, struct.pack(">i", previous))
        opened_store = mqstore.open(tmp_path)
        answer = query_offsets(opened_store.index_files(), "orders", "k2")
        assert answer.offsets == ()
        assert Kind.BAD_INDEX_CHAIN in kinds(verify(opened_store))
        assert query(opened_store, opened_store.view(), "orders", "k2").missing == (store.puts[2].offset,)


@pytest.mark.parametrize(
    "raw", [b"", bytes(200), b'{"offsetTable":{"orders@group":{0:2', b"[" * 100_000, b"\xff" * 50, b"null", b'{"offsetTable":7}']
)
@pytest.mark.parametrize("bak", [False, True])
def test_an_offset_file_that_is_broken_is_a_finding_and_its_backup_is_used(tmp_path: Path, raw: bytes, bak: bool) -> None:
    store = small(tmp_path)
    store.write_file("config/consumerOffset.json", raw)
    if bak:
        store.write_file("config/consumerOffset.json.bak", b'{"offsetTable":{"orders@group":{0:2}}}')
    opened_store = mqstore.open(tmp_path)
    offsets = [(item.group, item.topic, item.offset) for item in opened_store.view().consumer_offsets()]
    readable = raw == b'{"offsetTable":7}'
    assert offsets == ([("group", "orders", 2)] if bak and not readable else [])
    assert Kind.BAD_CONFIG in kinds(verify(opened_store))


# files that vanish or shrink


def test_a_log_file_that_vanishes_is_one_sentence(tmp_path: Path) -> None:
    small(tmp_path, file_size=2048)
    for use in (read_all, verify, lambda store: query(store, store.view(), "orders", "k29", explain=True)):
        store = mqstore.open(tmp_path)
        path = tmp_path / "commitlog" / f"{2048:020d}"
        raw = path.read_bytes()
        path.unlink()
        with pytest.raises(CannotOpenError, match="no longer exists"):
            use(store)
        path.write_bytes(raw)


def test_a_log_file_that_vanishes_after_it_was_mapped_is_still_read(tmp_path: Path) -> None:
    small(tmp_path, file_size=2048)
    store = mqstore.open(tmp_path)
    before = read_all(store)
    for path in (tmp_path / "commitlog").iterdir():
        path.unlink()
    assert read_all(store) == before


# archives


def packed(root: Path, target: Path) -> Path:
    """Return the directory as an archive of the kind that the target's suffix names."""
    name = target.name
    if name.endswith(".zip"):
        with zipfile.ZipFile(target, "w") as archive:
            for path in sorted(root.rglob("*")):
                archive.write(path, f"backup/{path.relative_to(root)}")
        return target
    raw = io.BytesIO()
    mode = {"gz": "w:gz", "tgz": "w:gz", "xz": "w:xz", "txz": "w:xz"}.get(name.rpartition(".")[2], "w")
    with tarfile.open(fileobj=raw, mode=mode) as archive:  # type: ignore[call-overload]
        archive.add(root, "backup/store")
    target.write_bytes(zstandard.compress(raw.getvalue()) if name.endswith(".zst") else raw.getvalue())
    return target


KINDS_OF_ARCHIVE = ["s.tar", "s.tar.gz", "s.tgz", "s.tar.xz", "s.txz", "s.tar.zst", "s.zip", "S.TAR.GZ"]


@pytest.mark.parametrize("name", KINDS_OF_ARCHIVE)
def test_an_archive_is_read_like_the_directory_in_it(tmp_path: Path, name: str) -> None:
    small(tmp_path / "store")
    archive = packed(tmp_path / "store", tmp_path / name.lower())
    archive = archive.rename(tmp_path / name)
    store = mqstore.open(archive)
    assert read_all(store) == read_all(mqstore.open(tmp_path / "store"))
    place = store.directory.root
    assert place.exists()
    del store
    gc.collect()
    assert not place.exists()


@pytest.mark.parametrize("name", KINDS_OF_ARCHIVE[:-1])
def test_a_cut_archive_is_one_sentence(tmp_path: Path, name: str) -> None:
    small(tmp_path / "store")
    archive = packed(tmp_path / "store", tmp_path / name)
    raw = archive.read_bytes()
    for length in (0, 1, len(raw) // 3, len(raw) // 2):
        archive.write_bytes(raw[:length])
        with pytest.raises((CannotOpenError, NotAStoreError)) as caught:
            mqstore.open(archive)
        assert str(archive) in str(caught.value)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize("name", ["../outside", "/tmp-outside", "commitlog/../../outside"])
@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_a_member_that_would_leave_its_place_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    archive = tmp_path / f"hostile{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as opened_zip:
            opened_zip.writestr(name, "evil")
    else:
        with tarfile.open(archive, "w") as opened_tar:
            opened_tar.addfile(member(name), io.BytesIO(b"evil"))
    with pytest.raises(CannotOpenError, match="would leave"):
        mqstore.open(archive)
    assert not (tmp_path / "outside").exists()


def test_two_members_of_one_name_where_one_is_a_directory_are_one_sentence(tmp_path: Path) -> None:
    archive = tmp_path / "hostile.tar"
    with tarfile.open(archive, "w") as made:
        made.addfile(member("commitlog"), io.BytesIO(b"file"))
        made.addfile(member("commitlog/0"), io.BytesIO(b"file"))
    with pytest.raises((CannotOpenError, TargetError), match=r"hostile\.tar"):
        mqstore.open(archive)


# a configuration


def test_a_configuration_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    small(tmp_path / "store")
    with pytest.raises(MqstoreError, match=r"broker\.conf"):
        mqstore.open(tmp_path / "store", config=tmp_path / "broker.conf")


def test_a_real_store_is_opened_with_its_configuration() -> None:
    case = case_named("4.9.3/a-clean-small")
    store = mqstore.open(opened(case), config=case.config)
    assert (store.family, store.version_hint, store.unsupported, store.unclean) == ("rocketmq", "4.9.3", (), False)
    assert sum(batch.num_rows for batch in store.to_batches(("size",))) == len(expected(case))


def test_parts_that_are_not_read_are_named(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "tiered_index_file").mkdir()
    (tmp_path / "tiered_index_file" / "1795425569295").write_bytes(b"\x01")
    (tmp_path / "kvStore").mkdir()
    (tmp_path / "kvStore" / "000009.sst").write_bytes(b"\x01")
    named = mqstore.open(tmp_path).unsupported
    assert [item.partition(" ")[0] for item in named] == ["tiered", "messages"]


def test_parts_that_hold_nothing_are_not_named(tmp_path: Path) -> None:
    small(tmp_path)
    (tmp_path / "tiered_index_file" / "compacting").mkdir(parents=True)
    (tmp_path / "kvStore").mkdir()
    (tmp_path / "kvStore" / "000004.log").write_bytes(b"")
    (tmp_path / "kvStore" / "MANIFEST-000005").write_bytes(b"\x01")
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "tieredStoreMetadata.json").write_text(
        '{"commitLogFileSegmentTable":{"broker-a/orders/0":{0:{"path":"broker-a/orders/0","type":0,"baseOffset":0,"size":0}}}}'
    )
    assert mqstore.open(tmp_path).unsupported == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"commitLogFileSegmentTable":[1]}', '{"commitLogFileSegmentTable":{"q":[0],"r":{0:7}}}'])
def test_a_list_of_tiered_segments_that_cannot_be_read_is_no_failure(tmp_path: Path, text: str) -> None:
    small(tmp_path)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "tieredStoreMetadata.json").write_text(text)
    assert len(mqstore.open(tmp_path).unsupported) == (not text.startswith('{"'))


def test_damage_can_be_written_as_json() -> None:
    item = Damage("commitlog/0", 1, 2, Kind.BAD_FRAME, "a sentence", 3)
    assert json.loads(json.dumps(item.as_dict()))["kind"] == "bad-frame"
