"""Which store a path leads to: archives and directories of volumes, with one node, several or a hundred."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.golden import GOLDEN, case_named, run_cli, unpack, unpack_node_site

from mqstore import places
from mqstore.errors import NotAStoreError

SMALL = "msg_stores/vhosts/AH3X9L7H14A7HOAMPG9MB569Z"  # 3 messages


def zipped(archive: Path, volume: Path, separator: str = "/") -> Path:
    """Pack what is in a volume. separator: of the names."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(volume.rglob("*")):
            if path.is_file():
                name = path.relative_to(volume).as_posix()
                # a ZipInfo with this name; the class replaces the separator of the machine only
                packed.writestr(zipfile.ZipInfo(name.replace("/", separator)), path.read_bytes())
    return archive


def small_nodes(volume: Path, number: int, tmp_path: Path) -> Path:
    vhost = unpack_node_site("plain", tmp_path / "site") / SMALL
    for each in range(number):
        shutil.copytree(vhost, volume / f"rabbit@{each:012x}" / SMALL)
    return volume


def counts(*arguments: object) -> dict[str, int]:
    return {str(row["store"]): row["messages"] for row in run_cli("inspect", *arguments, "-o", "jsonl").rows}


def test_an_archive_of_a_volume_is_the_one_store_in_it_with_the_flags_beside() -> None:
    archive = GOLDEN / "rabbitmq-sites" / "archive-of-volume.tar.gz"
    document = run_cli("inspect", archive, "-o", "json").document
    assert (document["messages"], document["suggested_version"]) == (87, "3.10 or 3.11")
    assert run_cli("diagnose", archive, "--for", "4.0").status == 2


def test_a_zip_with_the_separators_of_windows_is_opened(tmp_path: Path) -> None:
    node = unpack_node_site("windows-name", tmp_path / "volume")
    document = run_cli("diagnose", zipped(tmp_path / "volume.zip", node.parent, "\\"), "-o", "json").document
    assert (document["starts"], document["loses"], document["version"]) == (True, 0, "3.10")


def test_a_name_with_the_separators_of_windows_cannot_leave_the_directory(tmp_path: Path) -> None:
    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w") as packed:
        packed.writestr(zipfile.ZipInfo("..\\..\\outside"), b"x")
    assert "would leave the archive's directory" in run_cli("inspect", evil).stderr


def test_what_a_mac_adds_to_an_archive_is_no_store(tmp_path: Path) -> None:
    node = unpack_node_site("plain", tmp_path / "volume")
    for path in [path for path in node.parent.rglob("*") if path.is_file()]:
        beside = node.parent / "__MACOSX" / path.relative_to(node.parent).with_name(f"._{path.name}")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(b"\0\5\x16\7")
    (node.parent / "._.DS_Store").write_bytes(b"\0\5\x16\7")
    document = run_cli("inspect", zipped(tmp_path / "volume.zip", node.parent), "-o", "json").document
    assert (document["messages"], document["findings"]) == (87, [])


def test_an_archive_of_several_nodes_lists_them_and_one_is_named_by_its_directory(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    unpack_node_site("plain", volume)
    small_nodes(volume, 2, tmp_path)
    archive = zipped(tmp_path / "volume.zip", volume)
    named = [str(archive / f"rabbit@{name}") for name in ("000000000000", "000000000001", "oldhost")]
    assert counts(archive) == dict(zip(named, (3, 3, 94), strict=True))
    refused = run_cli("messages", archive)
    assert refused.status == 2
    assert f"it contains 3 stores: {', '.join(named)}; give the path of one" in refused.stderr
    assert run_cli("messages", named[1], "-o", "csv").stdout.count("\n") == 4
    assert run_cli("inspect", named[2], "-o", "json").document["suggested_version"] == "3.10 or 3.11"
    assert "does not exist" in run_cli("inspect", archive / "rabbit@other").stderr


def test_a_volume_of_a_hundred_nodes_is_listed_whole_and_named_in_part(tmp_path: Path) -> None:
    volume = small_nodes(tmp_path / "volume", 100, tmp_path)
    assert counts(volume) == {str(node): 3 for node in sorted(volume.iterdir())}
    said = run_cli("topics", volume)
    assert (said.status, said.stderr.count("rabbit@")) == (2, 10)
    assert "it contains 100 stores: " in said.stderr
    assert "and 90 more; give the path of one" in said.stderr


def test_a_store_among_more_directories_than_are_looked_at_is_not_taken_for_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_MOST_DIRECTORIES", 5)
    volume = small_nodes(tmp_path / "volume", 1, tmp_path)
    assert places.find_store(volume).path == volume / "rabbit@000000000000"
    for number in range(5):
        (volume / f"z{number}").mkdir()
    with pytest.raises(NotAStoreError, match=r"contains 1 store, and has more directories than the 5 of a level "):
        places.find_store(volume)
    shown = run_cli("inspect", volume)
    assert (shown.status, "there may be more stores" in shown.stderr) == (1, True)


def test_of_the_packed_files_in_a_directory_an_archive_is_named_first(tmp_path: Path) -> None:
    (tmp_path / "data.tar.xz").write_bytes(b"")
    (tmp_path / "a.jsonl.xz").write_bytes(b"")
    assert f"contains an archive: give its path, {tmp_path}/data.tar.xz" in run_cli("inspect", tmp_path).stderr


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_an_archive_in_an_archive_ends_in_a_sentence(suffix: str, tmp_path: Path) -> None:
    inner = (GOLDEN / "rabbitmq-sites" / "archive-of-volume.tar.gz").read_bytes()
    outer = tmp_path / f"outer{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(outer, "w") as packed:
            packed.writestr("backup/volume.tar.gz", inner)
    else:
        with tarfile.open(outer, "w") as archive:
            member = tarfile.TarInfo("backup/volume.tar.gz")
            member.size = len(inner)
            archive.addfile(member, io.BytesIO(inner))
    said = run_cli("inspect", outer)
    assert said.status == 2
    assert "contains an archive, volume.tar.gz, and archives in archives are not opened: unpack it" in said.stderr


def test_queues_of_an_archive_of_a_volume_are_converted(tmp_path: Path) -> None:
    archive = GOLDEN / "rabbitmq-sites" / "archive-of-volume.tar.gz"
    assert run_cli("convert", archive, "--to", tmp_path / "new", "--for", "4.3").status == 0
    assert run_cli("inspect", tmp_path / "new", "-o", "json").document["messages"] == 87


def test_a_store_beside_that_of_another_broker_is_not_taken_for_all_there_is(tmp_path: Path) -> None:
    """The stores of two brokers on one host, `store` and `store-b`: the first one answered for both."""
    case = case_named("4.9.3/a-clean-small")
    for name in ("store", "store-b"):
        unpack(case, tmp_path / "host" / name)
    (tmp_path / "host" / "logs").mkdir()
    assert counts(tmp_path / "host") == {str(tmp_path / "host" / name): 511 for name in ("store", "store-b")}
    done = run_cli("verify", tmp_path / "host")
    assert (done.status, "it contains 2 stores" in done.stderr) == (2, True)
    shutil.rmtree(tmp_path / "host" / "store-b")
    assert run_cli("verify", tmp_path / "host", "-o", "json").document["checked"]["messages"] == 511
    shutil.copytree(tmp_path / "host" / "store" / "commitlog", tmp_path / "host" / "disk-2" / "commitlog")
    assert run_cli("inspect", tmp_path / "host", "-o", "json").document["messages"] == 511
