"""Scattered files as the directory they came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import AliasDirectory, MountedDirectory


def test_scattered_files_are_where_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f1").write_bytes(b"one")
    (tmp_path / "f2").write_bytes(b"two")
    (tmp_path / "other").write_bytes(b"not of it")
    store = AliasDirectory(tmp_path, {"x/y/1": "a/f1", "x/2": "f2", "gone": "not there"})
    assert [entry.name for entry in store.entries()] == ["x"]
    assert [(entry.name, entry.is_directory) for entry in store.entries("x")] == [("2", False), ("y", True)]
    assert [store.is_directory(name) for name in ("", "x", "x/y", "x/2", "a")] == [True, True, True, False, False]
    assert [store.exists(name) for name in ("x", "x/2", "gone", "other", "a/f1")] == [True, True, True, False, False]
    assert (store.read("x/y/1"), store.read("x/2"), store.read("other")) == (b"one", b"two", None)
    assert [store.original(name) for name in ("x/2", "other")] == ["f2", "other"]


def test_a_file_whose_directory_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(CannotOpenError, match="cannot be read: Not a directory"):
        AliasDirectory(tmp_path, {"x": "f/below"}).entries()


def test_mounted_directories_are_one_below_the_root_and_the_first_that_has_a_file_counts(tmp_path: Path) -> None:
    root, first, second = (tmp_path / name for name in ("root", "first", "second"))
    for directory in (root, root / "config", first, second, second / "deep"):
        directory.mkdir()
    for path, content in {
        first / "0": b"a",
        second / "0": b"b",
        second / "1": b"c",
        root / "config" / "x": b"d",
        root / "log": b"e",
    }.items():
        path.write_bytes(content)
    store = MountedDirectory(root, {"commitlog": (first, tmp_path / "gone", second)})
    assert [entry.name for entry in store.entries()] == ["commitlog", "config", "log"]
    assert [entry.name for entry in store.entries("commitlog")] == ["0", "1", "deep"]
    assert [entry.name for entry in store.entries("config")] == ["x"]
    assert [store.read(name) for name in ("commitlog/0", "commitlog/1", "config/x", "log")] == [b"a", b"c", b"d", b"e"]
    assert [store.path(name) for name in ("", "commitlog", "commitlog/2", "config")] == [root, first, first / "2", root / "config"]
    assert [name for name, _ in store.walk("commitlog")] == ["commitlog/0", "commitlog/1"]
    assert [name for name, _ in store.walk("config")] == ["config/x"]


def test_a_time_of_change_is_in_whole_milliseconds(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.utime(tmp_path / "file", ns=(0, 1_640_995_200_123_999_999))
    assert [entry.mtime_ms for entry in ReadOnlyDirectory(tmp_path).entries()] == [1_640_995_200_123]
