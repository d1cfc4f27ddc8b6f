"""Which family a directory belongs to, and how it is opened."""

from __future__ import annotations

import os
from pathlib import Path

from mqstore.errors import NotAStoreError, UnsupportedError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, is_archive
from mqstore.files.place import Place
from mqstore.files.remote import open_directory
from mqstore.rocketmq import brokerconfig
from mqstore.rocketmq.reader import RocketMQStore, looks_like_rocketmq

__all__ = ["open_store"]

_RABBITMQ = ("msg_stores", "msg_store_persistent", "msg_store_transient", "queues", "recovery.dets")


def open_store(path: Place, config: Path | None = None) -> RocketMQStore:
    """Open the store at path. Raises CannotOpenError, NotAStoreError or UnsupportedError, each with what to do next."""
    settings = None if config is None else brokerconfig.load(config)
    keep = None
    root = path
    if isinstance(path, Path) and is_archive(path) and os.path.isfile(path):
        keep = UnpackedArchive(path)
        root = keep.store_root()
    directory = open_directory(root)
    if not looks_like_rocketmq(directory):
        inner = open_directory(root / "store") if directory.is_directory("store") else None
        if inner is None or not looks_like_rocketmq(inner):
            raise _not_a_store(path, directory)
        root = root / "store"
    store = RocketMQStore(root, config=settings, keep=keep)
    if keep is not None:
        store.path = path
    return store


def _not_a_store(path: Place, directory: ReadOnlyDirectory) -> NotAStoreError | UnsupportedError:
    names = {entry.name for entry in directory.entries()}
    if names & set(_RABBITMQ) or any(name.endswith((".rdq", ".idx", ".qi", ".qs", ".jif")) for name in names):
        return UnsupportedError(f"{path} is a RabbitMQ message store; this version of mqstore reads RocketMQ stores only")
    if any(name.isdigit() and len(name) == 20 for name in names):
        return NotAStoreError(f"{path} holds the files of a log or a queue; give the directory above it, the one that holds commitlog/")
    if not names:
        return NotAStoreError(f"{path} is empty; give the directory that holds commitlog/")
    return NotAStoreError(f"{path} is no message store: there is no commitlog/ in it; give the broker's storePathRootDir")
