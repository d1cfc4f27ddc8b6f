r"""Where a broker's configuration says that the parts of its store are, and where these places are for the store that was given.

    storePathRootDir               the root; the parts below are in it unless another setting names their place
    storePathCommitLog             the log, or several directories that are one log: file n is in directory n modulo their number
    readOnlyCommitLogStorePaths    further directories of old files of the log
    storePathDLedgerCommitLog      the log of a DLedger group (5.x)
    storePathEpochFile             epochs of a controller's group (5.x); storePathBrokerIdentity: who the broker is in it
    tieredStoreFilePath            tiered storage in files (5.x)

Several directories are separated by `,`, or by `:` or `;` as some brokers are set up (`rocketmq.broker.multiPathSplitter`).

Up to 4.9, a configuration without
`storePathCommitLog` has its log in `store/commitlog` of the broker user's home, whatever its root is.

A store that was copied is not at the configured root. A part keeps its place relative to the root then, if there is something:

    >>> relative_to_root("/data/disk2/commitlog", "/data/store"), relative_to_root(r"D:\mq\log", r"D:\mq\store")
    ('../disk2/commitlog', '../log')
    >>> relative_to_root("E:/log", r"D:\mq\store") is None, relative_to_root("log", "/data/store") is None
    (True, True)
    >>> split_paths("/d1/log,/d2/log:/d3/log"), split_paths(r"D:\log;E:/log,F:log")
    (['/d1/log', '/d2/log', '/d3/log'], ['D:\\log', 'E:/log', 'F:log'])

Format: docs/formats/rocketmq.md, sections 1.1 to 1.4.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from mqstore.errors import CannotOpenError, TargetError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.files.directory_views import MountedDirectory
from mqstore.rocketmq.config.broker_config import BrokerConfig, load
from mqstore.rocketmq.format.log_file import LOG

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|.*\\")
_SEPARATOR = re.compile(r"[,;]|(?<!^[A-Za-z])(?<![,;:][A-Za-z]):")

_BESIDE = ("broker.conf", "conf/broker.conf", "../broker.conf", "../conf/broker.conf")  # relative to the store


@dataclass(frozen=True, slots=True)
class ConfiguredPath:
    """A place that a configuration names. setting: by which, with its file and line; configured: as it stands there.

    path: the place here, None if there is none; is_file: whether a file has that place.
    """

    setting: str
    configured: str
    path: Path | None
    is_file: bool = False


def split_paths(text: str | None) -> list[str]:
    """Return the directories in a setting that may hold several."""
    return list(dict.fromkeys(part.strip() for part in _SEPARATOR.split(text or "") if part.strip()))


def relative_to_root(path: str, root: str) -> str | None:
    """Return a configured path relative to the configured root, with `/`; None if one is relative to something else."""
    windows = bool(_WINDOWS.match(path) or _WINDOWS.match(root))
    rules = ntpath if windows else posixpath
    if rules.isabs(path) != rules.isabs(root):
        return None
    try:
        return str(rules.relpath(rules.normpath(path), rules.normpath(root))).replace("\\", "/")
    except ValueError:  # another drive
        return None


def is_another_store(config: BrokerConfig, root: Path) -> bool:
    """Return whether the configured root is a directory of this machine, and not the store."""
    of_root = config.store_path_root_dir
    return of_root is not None and os.path.isdir(of_root) and os.path.realpath(of_root) != os.path.realpath(root)


def locate(config: BrokerConfig, root: Path, setting: str, configured: str) -> ConfiguredPath:
    """Return where a configured path is for the store at a root.

    At the configured root, or where none is configured, it is that path. A copy of the store has the part at the same place relative to it,
    or nowhere: the path of the original may lead to a log that has gone on since.
    """
    of_root = config.store_path_root_dir
    where = config.where(setting)
    if of_root is None or os.path.realpath(of_root) == os.path.realpath(root):
        bases = (Path(os.sep), *(base for base in (config.directory, root, root.parent) if base is not None))
        places = [] if _WINDOWS.match(configured) else [Path(os.path.normpath(base / configured)) for base in bases]
    else:
        below = relative_to_root(configured, of_root)
        places = [] if below is None else [Path(os.path.normpath(root / below))]
    existing = next((path for path in places if os.path.isdir(path)), None)
    file = existing is None and any(os.path.exists(path) for path in places if "\0" not in str(path))
    return ConfiguredPath(where, configured, existing, file)


def log_paths(config: BrokerConfig, root: Path) -> tuple[ConfiguredPath, ...]:
    """Return the directories of the log that a configuration names, those that the broker writes to first; empty if it names none.

    A directory that is named twice, be it by a link, is returned once.
    """
    named = [
        *(("storePathCommitLog", path) for path in split_paths(config.store_path_commit_log)),
        *(("readOnlyCommitLogStorePaths", path) for path in split_paths(config.read_only_commit_log_store_paths)),
    ]
    every = [locate(config, root, setting, path) for setting, path in named]
    by_place = {each.configured if each.path is None else os.path.realpath(each.path): each for each in reversed(every)}
    return tuple(each for each in every if each in by_place.values())


def refuse_second_log(config: BrokerConfig, root: Path) -> None:
    """Raise TargetError if a configuration says that the log of the store at a root is elsewhere: it would be written twice."""
    if is_another_store(config, root) and not (root / "consumequeue").exists():
        return  # a new store beside the one of the configuration
    own = os.path.realpath(root / LOG)
    for each in log_paths(config, root):
        if each.path is None or os.path.realpath(each.path) != own:
            raise TargetError(
                f"{each.setting} says that the log of {root} is at {each.configured}, and a second one is not begun in {root / LOG}; "
                "put the log there and correct that line, or remove the line if it is of another store"
            )


def found_beside(root: Path) -> BrokerConfig | None:
    """Return the configuration in a store or beside it; None if there is none, or what is there cannot be one."""
    for name in _BESIDE:
        path = Path(os.path.normpath(root / name))
        if path.is_file():
            with contextlib.suppress(CannotOpenError, UsageError):  # of another program, or damaged
                return load(path)
    return None


def unread_beside(root: Path) -> str | None:
    """Return why a configuration in a store or beside it cannot be read, as a sentence with its path; None if each can, or is absent."""
    for name in _BESIDE:
        path = Path(os.path.normpath(root / name))
        if path.is_dir():
            return f"{path} is a directory"
        if os.path.lexists(path):
            try:
                load(path)
            except (CannotOpenError, UsageError) as error:
                return str(error)
    return None


def with_configured_log(directory: ReadOnlyDirectory, config: BrokerConfig) -> ReadOnlyDirectory:
    """Return a store's directory with the log where a configuration has it, as far as these places are here."""
    if type(directory) is not ReadOnlyDirectory or is_another_store(config, directory.root):
        return directory
    places = [each.path for each in log_paths(config, directory.root) if each.path is not None]
    own = directory.path(LOG)
    if not places or [os.path.realpath(path) for path in places] == [os.path.realpath(own)]:
        return directory
    return MountedDirectory(directory.root, {LOG: list(dict.fromkeys(places))})
