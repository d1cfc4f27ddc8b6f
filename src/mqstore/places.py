"""Places: a directory, an archive, a URL, one file of a log; which store is there, and the store opened from it, once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mqstore.errors import A_STORE, CannotOpenError, MqstoreError, NotAStoreError, UnsupportedError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.archive import UnpackedArchive, added_by_mac, is_archive, is_packed, packed_file
from mqstore.files.location import Location, Url, as_location
from mqstore.files.remote import open_directory
from mqstore.rabbitmq.format.layout import looks_like_rabbitmq, node_beside
from mqstore.rocketmq.format.log_file import LOG, is_tier, open_place
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.store.store_files import looks_like_rocketmq
from mqstore.store import Family, StorePlace

_LEVELS = 3
_MOST_DIRECTORIES = 300  # of a level
_MOST_ENTRIES = 10_000  # of a directory
_MOST_NAMED = 10
_RABBITMQ = ("msg_stores", "msg_store_persistent", "msg_store_transient", "queues", "recovery.dets")


class SeveralStoresError(NotAStoreError):
    """There are several stores below a path. places: those stores; complete: whether all of its directories were looked at."""

    def __init__(self, sentence: str, places: Sequence[StorePlace], complete: bool) -> None:
        super().__init__(sentence)
        self.places = tuple(places)
        self.complete = complete


def find_store(path: Location, family: Family | None = None) -> StorePlace:
    """Recognize the store at a path, or the only one below it; an archive is unpacked. family: the only one that will do.

    A directory in an archive is named `ARCHIVE/DIRECTORY`. Raises CannotOpenError, NotAStoreError, SeveralStoresError or UnsupportedError,
    each with the next step.
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
    packed = packed_file(path) if isinstance(path, Path) else None
    if packed is not None:
        keep = UnpackedArchive(packed)
        root = keep.store_root() if packed == path else keep.store_root() / Path(path).relative_to(packed)
    try:
        directory = open_place(root)
    except MqstoreError as error:
        if keep is None:
            raise
        # the path of the unpacked file is about to vanish
        raise type(error)(f"{packed} is unpacked, but {str(error).removeprefix(f'{keep.root}/')}") from None
    place = _at(path, root, directory, keep)
    if place is None:
        place = _below(path, root, directory, keep)
    if place.family == "rabbitmq" and not isinstance(place.root, Path):
        raise UnsupportedError(
            f"{path} is a RabbitMQ message store at a URL, and only RocketMQ stores can be read from URLs; copy it first"
        )
    return place


def _at(path: Location, root: Location, directory: ReadOnlyDirectory, keep: UnpackedArchive | None) -> StorePlace | None:
    """Return the store at a root, or in its `store` if that is the only one. path: as given; that of a store in an archive stays."""
    if looks_like_rocketmq(directory):
        inner = _beside_its_log(root, directory)
        if inner is not None:
            return StorePlace("rocketmq", path if keep else inner, inner, keep)
        return StorePlace("rocketmq", path, root, keep)
    if directory.is_directory("store") and looks_like_rocketmq(open_directory(root / "store")) and not _has_further_stores(root, directory):
        return StorePlace("rocketmq", path if keep else root / "store", root / "store", keep)
    if looks_like_rabbitmq(directory):
        if (node := node_beside(directory)) is not None:
            raise UnsupportedError(
                f"{path} has the message stores of a node beside its other files, which are in {node}/: a node has them in its own "
                f"directory; move {path}/msg_stores to {path}/{node}/ and give that, or {path}/msg_stores for its messages alone"
            )
        return StorePlace("rabbitmq", path if keep else directory.root, directory.root, keep)
    return None


def _has_further_stores(root: Location, directory: ReadOnlyDirectory) -> bool:
    """Return whether a directory has another store of RocketMQ beside its `store`, as one of several brokers has: more than a log."""
    names = [entry.name for entry in directory.entries()[:_MOST_DIRECTORIES] if entry.is_directory and entry.name != "store"]
    for name in names if isinstance(root, Path) else ():
        with contextlib.suppress(CannotOpenError):
            if looks_like_rocketmq(ReadOnlyDirectory(Path(root, name)), log=False) and not added_by_mac(name):
                return True
    return False


def _beside_its_log(root: Location, directory: ReadOnlyDirectory) -> Path | None:
    """Return the only directory in root that has all of a store but its log, if root has a log alone."""
    if (
        not isinstance(root, Path)
        or type(directory) is not ReadOnlyDirectory
        or not directory.is_directory(LOG)
        or looks_like_rocketmq(directory, log=False)
    ):
        return None
    places = [ReadOnlyDirectory(root / entry.name) for entry in directory.entries()[:_MOST_DIRECTORIES] if entry.is_directory]
    roots = [place.root for place in places if looks_like_rocketmq(place, log=False) and not place.is_directory(LOG)]
    return roots[0] if len(roots) == 1 and isinstance(roots[0], Path) else None


def _below(path: Location, root: Location, directory: ReadOnlyDirectory, keep: UnpackedArchive | None) -> StorePlace:
    """Return the only store below a root. Raises SeveralStoresError, NotAStoreError, UnsupportedError."""
    stores: list[Path] = []
    complete = True
    if not _is_part(directory) and isinstance(root, Path) and root.is_dir():
        stores, complete = _stores_below(root)
    named = [(path / each.relative_to(root).as_posix(), each) for each in stores]
    places = [place for name, each in named if (place := _at(name, each, ReadOnlyDirectory(each), keep)) is not None]
    if not places:
        if (alone := _only_log_file(path, root, directory, keep)) is not None:
            return alone
        raise _not_a_store(path, directory, keep)
    if len(places) == 1 and complete:
        return places[0] if keep is None else replace(places[0], path=path)
    names = ", ".join(str(place.path) for place in places[:_MOST_NAMED])
    more = f" and {len(places) - _MOST_NAMED:,} more" if len(places) > _MOST_NAMED else ""
    seen = "" if complete else f", and has more directories than the {_MOST_DIRECTORIES} of a level that are looked at"
    many = "store" if len(places) == 1 else "stores"
    sentence = f"{path} is not one store: it contains {len(places):,} {many}{seen}: {names}{more}; give the path of one"
    raise SeveralStoresError(f"{sentence}, or `mqstore inspect {path}` for the messages in each", places, complete)


def _only_log_file(path: Location, root: Location, directory: ReadOnlyDirectory, keep: UnpackedArchive | None) -> StorePlace | None:
    """Return the file of a log that a directory holds and nothing else, whatever its name; its records show what it is."""
    entries = [entry for entry in directory.entries() if not added_by_mac(entry.name)]
    if len(entries) == 1 and entries[0].is_file and isinstance(root, Path) and isinstance(path, Path) and root.name != LOG:
        file = root / entries[0].name
        with contextlib.suppress(CannotOpenError, NotAStoreError, UnsupportedError):
            open_place(file)
            return StorePlace("rocketmq", path if keep else file, file, keep)
    return None


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


def _is_part(directory: ReadOnlyDirectory) -> bool:
    """Return whether a directory has parts of one store, so that no other is looked for below it."""
    names = {entry.name for entry in directory.entries()}
    return bool(names & set(_RABBITMQ)) or is_tier(names) or any(_is_store_file(name) for name in names)


def _is_store_file(name: str) -> bool:
    return name.endswith((".rdq", ".idx", ".qi", ".qs", ".jif")) or (name.isdigit() and len(name) == 20)


def _not_a_store(path: Location, directory: ReadOnlyDirectory, keep: UnpackedArchive | None) -> NotAStoreError | UnsupportedError:
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
    if names & {"consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"}:
        return NotAStoreError(
            f"{path} is the configuration that a broker keeps in its store; give the directory that contains it as config/"
        )
    if any(name.isdigit() and len(name) == 20 for name in names):
        return NotAStoreError(f"{path} contains the files of a log or a queue; give the directory that contains commitlog/")
    if not names:
        return NotAStoreError(f"{path} is empty; give the directory that contains {A_STORE}")
    if keep is not None and (inner := keep.packed_members()):
        held = f"{inner[0]}{f' and {len(inner) - 1:,} more' if len(inner) > 1 else ''}"
        sentence = f"{path} contains an archive, {held}, and archives in archives are not opened"
        return NotAStoreError(f"{sentence}: unpack it, and give the inner one")
    if packed := sorted((name for name in names if is_packed(path / name)), key=lambda name: (not is_archive(Path(name)), name)):
        what = "an archive" if is_archive(Path(packed[0])) else "a compressed file"
        return NotAStoreError(f"{path} is not a message store, but contains {what}: give its path, {path / packed[0]}")
    parts = "neither commitlog/ nor msg_stores/, quorum/ or stream/"
    return NotAStoreError(f"{path} is not a message store: it contains {parts}; give the directory that does")


def _stores_below(root: Path) -> tuple[list[Path], bool]:
    """Return the stores in the directories at most `_LEVELS` below root, and whether all of these directories were looked at."""
    stores: list[Path] = []
    complete = True
    level = [root]
    for _ in range(_LEVELS):
        inner: list[Path] = []
        for place in level:
            with contextlib.suppress(OSError), os.scandir(place) as scan:
                names = list(islice(scan, _MOST_ENTRIES + 1))
                complete = complete and len(names) <= _MOST_ENTRIES
                inner += sorted(Path(entry) for entry in names if entry.is_dir(follow_symlinks=False) and not added_by_mac(entry.name))
        complete = complete and len(inner) <= _MOST_DIRECTORIES
        level = []
        for place in inner[:_MOST_DIRECTORIES]:
            with contextlib.suppress(CannotOpenError):
                directory = ReadOnlyDirectory(place)
                is_store = looks_like_rocketmq(directory) or looks_like_rabbitmq(directory)
                (stores if is_store else level).append(place)
    return stores, complete
