"""Places: a directory, an archive, a URL, one file of a log; which store is there, and the store opened from it, once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from mqstore.errors import CannotOpenError, MqstoreError, NotAStoreError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, is_packed
from mqstore.files.location import Location, Url, as_location
from mqstore.files.remote import open_directory
from mqstore.rabbitmq.format.layout import looks_like_rabbitmq
from mqstore.rocketmq.format.log_file import is_tier, open_place
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.store_files import looks_like_rocketmq
from mqstore.store import Family, StorePlace

_LEVELS = 3
_MOST_DIRECTORIES = 300
_MOST_NAMED = 3
_RABBITMQ = ("msg_stores", "msg_store_persistent", "msg_store_transient", "queues", "recovery.dets")


def find_store(path: Location, family: Family | None = None) -> StorePlace:
    """Recognize the store at a path; an archive is unpacked. family: the only one that will do.

    Raises CannotOpenError, NotAStoreError or UnsupportedError, each with the next step.
    """
    place = _recognized(path)
    if family == "rocketmq" != place.family:
        raise UnsupportedError(f"{path} is a RabbitMQ message store; this command works on RocketMQ stores only")
    if family == "rabbitmq" != place.family:
        raise UsageError(f"{path} is not a RabbitMQ store; give the directory that contains msg_stores/")
    return place


def _recognized(path: Location) -> StorePlace:
    keep = None
    root = path
    if isinstance(path, Path) and is_packed(path):
        keep = UnpackedArchive(path)
        root = keep.store_root()
    try:
        directory = open_place(root)
    except MqstoreError as error:
        if keep is None:
            raise
        # the path of the unpacked file is about to vanish
        raise type(error)(f"{path} is unpacked, but {str(error).removeprefix(f'{keep.root}/')}") from None
    if looks_like_rocketmq(directory):
        return StorePlace("rocketmq", path, root, keep)
    if directory.is_directory("store") and looks_like_rocketmq(open_directory(root / "store")):
        return StorePlace("rocketmq", path if keep else root / "store", root / "store", keep)
    if not looks_like_rabbitmq(directory):
        raise _not_a_store(path, directory)
    if not isinstance(directory.root, Path):
        raise UnsupportedError(
            f"{path} is a RabbitMQ message store at a URL, and only RocketMQ stores can be read from URLs; copy it first"
        )
    return StorePlace("rabbitmq", path if keep else directory.root, directory.root, keep)


def open_rocketmq(
    path: str | os.PathLike[str] | Url | RocketMQStore,
    *,
    config: str | os.PathLike[str] | None = None,
    fs_options: Mapping[str, str] | None = None,
) -> RocketMQStore:
    """Open a RocketMQ store; one that is open is returned. Raises UnsupportedError for a RabbitMQ store."""
    if isinstance(path, RocketMQStore):
        return path
    place = find_store(as_location(path, fs_options or {}), "rocketmq")
    return RocketMQStore.at(place, config=None if config is None else Path(config))


def _not_a_store(path: Location, directory: ReadOnlyDirectory) -> NotAStoreError | UnsupportedError:
    names = {entry.name for entry in directory.entries()}
    if names & set(_RABBITMQ) or any(name.endswith((".rdq", ".idx", ".qi", ".qs", ".jif")) for name in names):
        return UnsupportedError(
            f"{path} has parts of a RabbitMQ message store, but no vhost; give the msg_stores directory or the directory of a vhost"
        )
    if is_tier(names):
        return UnsupportedError(
            f"{path} is tiered storage of a broker, which is not read as one store; give one segment in COMMIT_LOG/, which is a log, "
            f"or `mqstore salvage {path} --to OUT.jsonl` for the messages of all"
        )
    if any(name.isdigit() and len(name) == 20 for name in names):
        return NotAStoreError(f"{path} contains the files of a log or a queue; give the directory that contains commitlog/")
    if not names:
        return NotAStoreError(f"{path} is empty; give the directory that contains commitlog/ or msg_stores/")
    below = _stores_below(path) if isinstance(path, Path) and path.is_dir() else []
    if below:
        places = ", ".join(str(place) for place in below[:_MOST_NAMED])
        advice = f"{'a store is' if len(below) == 1 else 'stores are'} at {places}{' and elsewhere' if len(below) > _MOST_NAMED else ''}"
    else:
        advice = "give the directory that does"
    return NotAStoreError(f"{path} is not a message store: it contains neither commitlog/ nor msg_stores/; {advice}")


def _stores_below(root: Path) -> list[Path]:
    """Return the stores in the directories at most `_LEVELS` below root; of very many directories, only the first are looked at."""
    found: list[Path] = []
    level = [root]
    for _ in range(_LEVELS):
        inner: list[Path] = []
        for place in level:
            with contextlib.suppress(OSError), os.scandir(place) as scan:
                inner += sorted(Path(entry) for entry in islice(scan, _MOST_DIRECTORIES) if entry.is_dir(follow_symlinks=False))
        level = []
        for place in inner[:_MOST_DIRECTORIES]:
            with contextlib.suppress(CannotOpenError):
                directory = ReadOnlyDirectory(place)
                is_store = looks_like_rocketmq(directory) or looks_like_rabbitmq(directory)
                (found if is_store else level).append(place)
    return found
