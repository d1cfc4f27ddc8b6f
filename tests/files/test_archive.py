"""Archives: every member is unpacked or refused by name, links included, and nothing is written outside or without bound."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.golden import run_cli

import mqstore.files.archive
from mqstore.errors import CannotOpenError, MqstoreError, TargetError
from mqstore.files import ReadOnlyDirectory
from mqstore.files import archive as archive_module
from mqstore.files.archive import UnpackedArchive
from mqstore.files.readonly import walk_tree


class Entry(NamedTuple):
    """A member of a tar file: content of a file, or target of a link."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    mtime: float = 0
    headers: dict[str, str] | None = None


def link(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.SYMTYPE, target=target)


def hard_link(name: str, target: str) -> Entry:
    return Entry(name, kind=tarfile.LNKTYPE, target=target)


def tar(place: Path, *entries: Entry) -> Path:
    archive = place / "store.tar"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as made:
        for entry in entries:
            about = tarfile.TarInfo(entry.name)
            about.type, about.linkname, about.size, about.mtime = entry.kind, entry.target, len(entry.content), entry.mtime
            about.pax_headers = entry.headers or {}
            made.addfile(about, io.BytesIO(entry.content))
    return archive


def contents(archive: UnpackedArchive) -> dict[str, bytes]:
    found = {}
    for directory, _, names in os.walk(archive.root, followlinks=True):
        for name in names:
            path = Path(directory, name)
            found[str(path.relative_to(archive.root))] = path.read_bytes()
    return found


def refusal(archive: Path, of: type[MqstoreError] = CannotOpenError) -> str:
    with pytest.raises(of) as caught:
        UnpackedArchive(archive)
    text = str(caught.value)
    assert text.startswith(str(archive))
    assert "TMPDIR" not in text or of is TargetError
    return text


def sentence(archive: Path) -> str | None:
    """Return why an archive is refused; None if it is not."""
    try:
        UnpackedArchive(archive)
    except MqstoreError as error:
        return str(error)
    return None


# links


def test_links_inside_lead_to_their_targets_whatever_their_order(tmp_path: Path) -> None:
    unpacked = UnpackedArchive(
        tar(
            tmp_path,
            link("store/commitlog", "../disk2/./log"),
            link("disk2/log", "commitlog.0"),
            Entry("disk2/commitlog.0/0000", b"records"),
            hard_link("store/copy", "disk2/commitlog.0/0000"),
            link("store/again", "copy"),
            hard_link("store/twice", "store/again"),
        )
    )
    assert contents(unpacked) == {
        "disk2/commitlog.0/0000": b"records",
        "disk2/log/0000": b"records",
        "store/commitlog/0000": b"records",
        "store/copy": b"records",
        "store/again": b"records",
        "store/twice": b"records",
    }


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([link("store/commitlog", "/data/commitlog")], "member 'store/commitlog' is a link to '/data/commitlog', outside of the archive"),
        ([link("store/commitlog", "../../elsewhere")], "member 'store/commitlog' is a link to '../../elsewhere', outside of the archive"),
        ([link("a/b", "."), link("c", "a/b/../../x")], "member 'c' is a link to 'a/b/../../x', outside of the archive"),
        (
            [link("a", "b/.."), link("b", "d/e"), Entry("d/e/f"), link("x", "a/../..")],
            "member 'x' is a link to 'a/../..', outside of the archive",
        ),
        ([hard_link("passwords", "/etc/passwd")], "member 'passwords' is a hard link to '/etc/passwd', outside of the archive"),
        ([hard_link("a", "../b")], "member 'a' is a hard link to '../b', outside of the archive"),
        ([hard_link("0001", "0000")], "member '0001' is a hard link to '0000', which does not come before it in the archive"),
        ([link("log", "/var"), Entry("log/0", b"x")], "member 'log/0' is below 'log', which is a link"),
        ([Entry("log/0", b"x"), link("log", "other")], "member 'log' is a link and a directory"),
        ([Entry("null", kind=tarfile.CHRTYPE)], "member 'null' is a device"),
        ([Entry("part", kind=b"M")], "member 'part' is of type b'M', which is not known"),
    ],
)
def test_what_leads_out_of_an_archive_is_refused_by_name(tmp_path: Path, entries: list[Entry], named: str) -> None:
    assert named in refusal(tar(tmp_path, Entry("store/abort", b""), *entries))
    assert [path.name for path in tmp_path.iterdir()] == ["store.tar"]


def test_links_that_lead_nowhere_or_in_a_circle_stay_and_hide_nothing(tmp_path: Path) -> None:
    unpacked = UnpackedArchive(tar(tmp_path, Entry("0", b"x"), link("a", "b"), link("b", "a"), link("gone", "no/such")))
    assert {path.name for path in unpacked.root.iterdir()} == {"0", "a", "b", "gone"}
    assert (unpacked.root / "0").read_bytes() == b"x"


def test_a_later_member_replaces_a_file_and_not_the_other_names_of_it(tmp_path: Path) -> None:
    unpacked = UnpackedArchive(
        tar(tmp_path, Entry("a", b"first"), hard_link("b", "a"), Entry("b", b"second"), Entry("c", b"3"), Entry("c", b"4"))
    )
    assert contents(unpacked) == {"a": b"first", "b": b"second", "c": b"4"}


def test_links_in_a_zip_file_are_links(tmp_path: Path) -> None:
    archive = tmp_path / "store.zip"
    for target, refused in (("../disk2", False), ("/data", True)):
        with zipfile.ZipFile(archive, "w") as made:
            made.writestr("disk2/0", b"records")
            about = zipfile.ZipInfo("store/commitlog")
            about.external_attr = (stat.S_IFLNK | 0o777) << 16
            made.writestr(about, target)
        if refused:
            assert "member 'store/commitlog' is a link to '/data', outside of the archive" in refusal(archive)
        else:
            assert contents(UnpackedArchive(archive))["store/commitlog/0"] == b"records"


def test_a_pipe_in_an_archive_is_a_pipe(tmp_path: Path) -> None:
    unpacked = UnpackedArchive(tar(tmp_path, Entry("0", b"x"), Entry("pipe", kind=tarfile.FIFOTYPE)))
    assert stat.S_ISFIFO((unpacked.root / "pipe").stat().st_mode)


# what cannot be read


def test_an_encrypted_zip_file_is_refused_by_name(tmp_path: Path) -> None:
    archive = tmp_path / "store.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("commitlog/0", b"records")
    raw = bytearray(archive.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(mark) + flags] |= 1
    archive.write_bytes(raw)
    assert "member 'commitlog/0' is encrypted" in refusal(archive)


@pytest.mark.parametrize("method", [9, 93, 98, 0xFFFF])
def test_a_compression_that_is_not_known_is_named(tmp_path: Path, method: int) -> None:
    archive = tmp_path / "store.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("commitlog/0", b"records")
    raw = bytearray(archive.read_bytes())
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", raw, raw.index(mark) + at, method)
    archive.write_bytes(raw)
    assert f"member 'commitlog/0' cannot be read (compression method {method})" in refusal(archive)


@pytest.mark.parametrize("mtime", ["1e300", "-1e300", "inf", "nan", "99999999999999999999", "-99999999999", "yesterday"])
def test_absurd_times_are_left_out(tmp_path: Path, mtime: str) -> None:
    unpacked = UnpackedArchive(tar(tmp_path, Entry("0", b"x", headers={"mtime": mtime})))
    assert contents(unpacked) == {"0": b"x"}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz", ".tar.zst", ".tar"])
def test_a_damaged_archive_is_said_to_be_damaged_and_not_that_space_is_short(tmp_path: Path, suffix: str) -> None:
    import bz2
    import gzip
    import lzma

    import zstandard

    raw = tar(tmp_path, Entry("0", bytes(range(256)) * 4000)).read_bytes()
    packed = {".tar.gz": gzip.compress, ".tar.xz": lzma.compress, ".tar.zst": zstandard.compress, ".tar": bz2.compress}[suffix](raw)
    archive = tmp_path / f"damaged{suffix}"
    for at in range(len(packed) // 3, len(packed), max(1, len(packed) // 7)):
        archive.write_bytes(packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :])
        told = sentence(archive)
        assert told is None or (str(archive) in told and "TMPDIR" not in told)


@pytest.mark.parametrize("kind", ["tar", "zip", "tar.gz"])
def test_any_changed_byte_of_an_archive_is_at_most_one_sentence(tmp_path: Path, kind: str) -> None:
    import gzip

    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "store.zip", "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("commitlog/0", b"records" * 9)
            made.writestr("abort", b"")
        raw = (tmp_path / "store.zip").read_bytes()
    else:
        raw = tar(tmp_path, link("a/b", "c"), Entry("0" * 120, b"x", headers={"mtime": "1.5"})).read_bytes()[:5120]
        raw = gzip.compress(raw) if kind == "tar.gz" else raw
    archive = tmp_path / f"changed.{kind}"
    refused = 0
    for at in range(len(raw)):
        if raw[at] == 0 and at % 16:
            continue
        for change in (0xFF, 0x01, 0x40):
            archive.write_bytes(raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :])
            refused += sentence(archive) is not None
    assert refused


@pytest.mark.parametrize(
    ("cut", "named"), [(512 + 512, "it ends too early"), (512 + 512 + 100, "it ends too early"), (3 * 1024, "it ends too early")]
)
def test_an_archive_cut_where_a_member_would_begin_is_damaged(tmp_path: Path, cut: int, named: str) -> None:
    archive = tar(tmp_path, Entry("commitlog/1", b"a"), Entry("commitlog/2", b"b"), Entry("commitlog/3", b"c"))
    whole = archive.read_bytes()
    assert cut < len(whole)
    archive.write_bytes(whole[:cut])
    with pytest.raises(CannotOpenError, match=f"is not a valid archive: {named}"):
        UnpackedArchive(archive)


def test_a_damaged_header_is_not_taken_as_the_end_of_the_archive(tmp_path: Path) -> None:
    archive = tar(tmp_path, Entry("commitlog/1", b"a"), Entry("commitlog/2", b"b"))
    octets = bytearray(archive.read_bytes())
    octets[1024 + 3] ^= 1
    archive.write_bytes(octets)
    with pytest.raises(CannotOpenError, match="the bytes at 1,024 are not the header of a member"):
        UnpackedArchive(archive)


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ([Entry("commitlog", b"file"), Entry("commitlog/0", b"file")], "member 'commitlog/0' is a file and a directory at once"),
        ([Entry("commitlog/0", b"file"), Entry("commitlog", b"file")], "member 'commitlog' is a file and a directory at once"),
        ([Entry("x" * 300, b"file")], "is too long for this file system"),
        ([Entry("/".join(["d" * 200] * 40), b"file")], "is too long for this file system"),
        ([Entry("a/" * 90 + "b", kind=tarfile.SYMTYPE, target="t" * 5000)], "is too long for this file system"),
    ],
)
def test_names_that_cannot_be_made_are_named_without_wrong_advice(tmp_path: Path, entries: list[Entry], named: str) -> None:
    assert named in refusal(tar(tmp_path, *entries))


def test_a_large_header_is_not_read_into_memory(tmp_path: Path) -> None:
    assert "a header has" in refusal(tar(tmp_path, Entry("0", b"x", headers={"comment": "c" * (2 << 20)})))


# bounds


def test_unpacking_stops_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar(tmp_path, Entry("zeros", bytes(4 << 20)), Entry("0", os.urandom(1 << 20)))
    free = archive_module._SPARE + (3 << 19)
    monkeypatch.setattr(archive_module.shutil, "disk_usage", lambda path: _Usage(free))
    assert contents(UnpackedArchive(archive))["zeros"] == bytes(4 << 20)
    free = archive_module._SPARE + (1 << 19)
    assert "set TMPDIR to a directory with enough space" in refusal(archive, TargetError)
    assert not list(Path(mqstore.files.archive.tempfile.gettempdir()).glob("mqstore-*/zeros"))


class _Usage(NamedTuple):
    free: int


def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, source: Any, out: Any, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive_module.UnpackedTree, "_copy", full)
    assert "set TMPDIR to a directory with enough space" in refusal(tar(tmp_path, Entry("0", b"x")), TargetError)


def test_a_temporary_directory_that_cannot_be_used_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqstore.files.archive.tempfile, "tempdir", str(tmp_path / "missing"))
    assert "set TMPDIR to a directory that can be written" in refusal(tar(tmp_path, Entry("0", b"x")), TargetError)


def test_members_and_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar(tmp_path, *(Entry(str(number), b"x") for number in range(20)))
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 19)
    assert "it has more than 19 members" in refusal(archive)
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 20)
    assert len(contents(UnpackedArchive(archive))) == 20


def test_an_archive_deeper_than_any_store_is_refused_by_name_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    for levels, refused in ((1500, True), (101, True), (100, False)):
        with tarfile.open(tmp_path / "deep.tar", "w") as packed:
            packed.addfile(tarfile.TarInfo("d/" * (levels - 1) + "file"))
        if refused:
            with pytest.raises(CannotOpenError, match="levels deep, more than 100; unpack it yourself"):
                UnpackedArchive(tmp_path / "deep.tar")
        else:
            UnpackedArchive(tmp_path / "deep.tar").close()
        assert not list((tmp_path / "scratch").iterdir())


def test_directories_deeper_than_any_store_end_no_walk_in_a_traceback(tmp_path: Path) -> None:
    place = tmp_path / "store"
    (place / "commitlog").mkdir(parents=True)
    here = os.open(place, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(CannotOpenError, match="is more than 100 levels deep, which no store is; move that part away"):
        list(ReadOnlyDirectory(place).walk())
    with pytest.raises(CannotOpenError, match="is more than 100 levels deep"):
        list(ReadOnlyDirectory(place).directories())
    with pytest.raises(CannotOpenError, match="is more than 100 levels deep"):
        list(walk_tree(place))
    for command in ("inspect", "verify", "messages", "usage"):
        outcome = run_cli(command, place)
        assert outcome.status in (0, 1), outcome
        assert "a bug in mqstore" not in outcome.stderr
    assert "is more than 100 levels deep" in " ".join(run_cli("inspect", place).stdout.split())
    salvaged = run_cli("salvage", place, "--to", tmp_path / "rows.jsonl")
    assert "is more than 100 levels deep" in salvaged.stderr
    assert salvaged.status == 2
    # Python 3.11 removes such a tree by recursion, too
    for above, directories, _ in os.walk(place):
        if above.count("/") - str(place).count("/") == 90:
            os.rename(f"{above}/{directories[0]}", tmp_path / "rest")
            break
    while (tmp_path / "rest" / "d").exists():
        (tmp_path / "rest" / "d").rename(tmp_path / "next")
        (tmp_path / "rest").rmdir()
        (tmp_path / "next").rename(tmp_path / "rest")


def test_a_zip_file_of_too_many_members_is_refused_before_the_first_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 3)
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as packed:
        for number in range(4):
            packed.writestr(str(number), b"x")
    monkeypatch.setattr(archive_module.UnpackedTree, "file", lambda *_: pytest.fail("a member was written"))
    with pytest.raises(CannotOpenError, match="it has more than 3 members; unpack it yourself"):
        UnpackedArchive(tmp_path / "many.zip")


def test_a_sparse_member_takes_the_time_of_its_data(tmp_path: Path) -> None:
    """A member of half a tebibyte with one byte of data, as GNU tar writes it; read as zeros it would take many minutes."""
    size, at = 1 << 39, (1 << 38) + 4096
    header = tarfile.TarInfo("0.rdq")
    header.size, header.type = 512, tarfile.GNUTYPE_SPARSE
    raw = bytearray(header.tobuf(tarfile.GNU_FORMAT))

    def number(value: int) -> bytes:
        return b"\x80" + value.to_bytes(11, "big")

    for k, (offset, length) in enumerate([(at, 512), (size, 0)]):
        raw[386 + 24 * k : 410 + 24 * k] = number(offset) + number(length)
    raw[483:495] = number(size)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    archive = tmp_path / "sparse.tar"
    archive.write_bytes(bytes(raw) + b"A" * 512 + bytes(1024))
    unpacked = UnpackedArchive(archive)
    status = (unpacked.root / "0.rdq").stat()
    assert status.st_size == size
    assert status.st_blocks <= 64
    with (unpacked.root / "0.rdq").open("rb") as file:
        file.seek(at - 1)
        assert file.read(514) == b"\0" + b"A" * 512 + b"\0"


def test_unpacked_paths_are_named_below_the_archive_and_others_as_they_are(tmp_path: Path) -> None:
    archive = tar(tmp_path, Entry("store/commitlog/0", b"x"))
    unpacked = UnpackedArchive(archive)
    assert unpacked.named(str(unpacked.root / "store" / "commitlog")) == f"{archive}/store/commitlog"
    assert unpacked.named(str(tmp_path / "elsewhere")) == str(tmp_path / "elsewhere")
    unpacked.close()
