"""Steps of a RabbitMQ repair that cannot be made, because a link, a pipe or a directory has the place of a file.

They are named, the steps of other queues are made, and `diagnose` advises a repair only where at least one is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.golden import case_named, run_cli, tree_checksum, unpack

LAZY, SMALL = "CEJTL5UVOH4KMRDQ3IVTT91DM", "39MBGW1Y0C52U0YH20YJ0LNT7"  # directories of two queues


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack(case_named("3.10.8/g1-v2-small-clean"), tmp_path / "copy") / "msg_stores"


def _index(store: Path, queue: str) -> Path:
    (path,) = store.glob(f"vhosts/*/queues/{queue}/0.qi")
    return path


def _linked(index: Path) -> None:
    index.unlink()
    index.symlink_to("..")


def _piped(index: Path) -> None:
    index.unlink()
    os.mkfifo(index)


def _filled(index: Path) -> None:
    index.unlink()
    index.mkdir()
    os.mkfifo(index / "pipe")


@pytest.mark.parametrize("damage", [_linked, _piped, _filled])
def test_a_queue_whose_index_cannot_be_made_is_left_alone_and_its_messages_are_saved(damage: Callable[[Path], None], store: Path) -> None:
    damage(_index(store, LAZY))
    before = tree_checksum(store, times=False)
    answer = run_cli("diagnose", store, "-o", "json").document
    assert answer["loses"] > 0
    assert answer["next"] == f"mqstore salvage {store} --to {store}.jsonl"
    steps = run_cli("repair", store, "-o", "json").document
    assert {step["step"] for step in steps} >= {"lost-index"}
    assert not any(step["possible"] for step in steps)
    assert run_cli("repair", store, "--apply").status == 1
    assert tree_checksum(store, times=False) == before


def test_a_directory_in_place_of_an_index_keeps_its_queue_from_starting_although_it_cannot_be_taken_out(store: Path) -> None:
    _linked(_index(store, LAZY))
    unknown = run_cli("diagnose", store, "-o", "json").document["unknown"]
    assert any(f"{LAZY}/0.qi delivers" in sentence and "the queue does not start" in sentence for sentence in unknown)


def test_the_other_queue_is_repaired(store: Path) -> None:
    _piped(_index(store, LAZY))
    index = _index(store, SMALL)
    index.write_bytes(index.read_bytes() + b"torn")
    before = tree_checksum(store, times=False)
    assert run_cli("diagnose", store, "-o", "json").document["next"] == f"mqstore repair {store}"
    planned = {step["step"]: step for step in run_cli("repair", store, "-o", "json").document}
    assert planned["torn-entry"]["possible"]
    assert not planned["lost-index"]["possible"]
    assert planned["lost-index"]["why"].endswith("0.qi is not a regular file; move it away first")
    assert run_cli("repair", store, "--apply").status == 1  # not all could be repaired
    assert not index.read_bytes().endswith(b"torn")
    assert run_cli("repair", store, "--undo").status == 0
    assert tree_checksum(store, times=False) == before


@pytest.mark.parametrize("name", ["recovery.dets", "msg_store_persistent/clean.dot"])
def test_a_vhost_whose_files_of_a_clean_stop_cannot_be_replaced_is_not_repaired(name: str, store: Path) -> None:
    index = _index(store, SMALL)
    index.write_bytes(index.read_bytes() + b"torn")
    (file,) = store.glob(f"vhosts/*/{name}")
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")
    if name == "recovery.dets":
        file.write_bytes(bytes(100))
    assert not any(step["possible"] for step in run_cli("repair", store, "-o", "json").document)
    assert not run_cli("diagnose", store, "-o", "json").document["next"].startswith("mqstore repair")


def test_an_index_that_is_made_in_place_of_a_directory_is_undone(store: Path) -> None:
    index = _index(store, SMALL)
    index.unlink()
    index.mkdir()
    before = tree_checksum(store, times=False)
    assert run_cli("repair", store, "--apply").status == 0
    assert index.is_file()
    assert run_cli("repair", store, "--undo").status == 0
    assert index.is_dir()
    assert tree_checksum(store, times=False) == before
