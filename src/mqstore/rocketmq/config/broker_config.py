r"""The broker's own configuration file, as far as it affects how a store is read.

`name=value` lines as Java's Properties parse them: `#` and `!` begin a comment; the name ends at `=`, `:` or a blank; a
backslash escapes, and at the end of a line continues it; bytes are Latin-1. Options that are not named below are ignored.

    >>> settings = parse(b"mappedFileSizeCommitLog = 65536\nmappedFileSizeConsumeQueue=2010\n# no comment\nqueueType.bills=BatchCQ\n")
    >>> settings.commit_log_file_size, settings.consume_queue_file_size, settings.batch_topics
    (65536, 2020, ('bills',))

Format: docs/formats/rocketmq.md, section 1.4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqstore.errors import CannotOpenError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.consume_queue import ENTRY_SIZE

LIMIT = 1 << 20

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAME_END = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings in a file; None: not set. Sizes in bytes. source: the file; lines: from the settings to the lines that they are in."""

    commit_log_file_size: int | None = None
    consume_queue_file_size: int | None = None
    consume_queue_ext_file_size: int | None = None
    batch_queue_file_size: int | None = None
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None
    max_msgs_num_batch: int | None = None
    max_message_size: int | None = None
    message_delay_level: str | None = None
    enable_consume_queue_ext: bool | None = None
    enable_multi_dispatch: bool | None = None
    enable_lmq: bool | None = None
    message_index_enable: bool | None = None
    message_index_safe: bool | None = None
    check_crc_on_recover: bool | None = None
    force_verify_prop_crc: bool | None = None
    recheck_reput_offset_from_cq: bool | None = None
    store_path_root_dir: str | None = None
    store_path_commit_log: str | None = None
    read_only_commit_log_store_paths: str | None = None
    store_path_dledger_commit_log: str | None = None
    store_path_epoch_file: str | None = None
    store_path_broker_identity: str | None = None
    tiered_store_file_path: str | None = None
    store_type: str | None = None
    batch_topics: tuple[str, ...] = ()
    source: Path | None = None
    lines: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def directory(self) -> Path | None:
        """The directory of the file."""
        return None if self.source is None else self.source.parent

    def where(self, setting: str) -> str:
        """Return a setting with the file and line that it is in, as a noun; without them if it is in no file."""
        line = dict(self.lines).get(setting)
        return setting if self.source is None or line is None else f"{setting} in {self.source}, line {line}"


_SIZES = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "mappedFileSizeConsumeQueue": "consume_queue_file_size",
    "mapedFileSizeCommitLog": "commit_log_file_size",  # as 4.3.0 spells it
    "mapedFileSizeConsumeQueue": "consume_queue_file_size",
    "mappedFileSizeConsumeQueueExt": "consume_queue_ext_file_size",
    "mapperFileSizeBatchConsumeQueue": "batch_queue_file_size",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "maxMsgsNumBatch": "max_msgs_num_batch",
    "maxMessageSize": "max_message_size",
}
_SWITCHES = {
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "enableMultiDispatch": "enable_multi_dispatch",
    "enableLmq": "enable_lmq",
    "messageIndexEnable": "message_index_enable",
    "messageIndexSafe": "message_index_safe",
    "checkCRCOnRecover": "check_crc_on_recover",
    "forceVerifyPropCRC": "force_verify_prop_crc",
    "recheckReputOffsetFromCq": "recheck_reput_offset_from_cq",
}
_STRINGS = {
    "messageDelayLevel": "message_delay_level",
    "storePathRootDir": "store_path_root_dir",
    "storePathCommitLog": "store_path_commit_log",
    "readOnlyCommitLogStorePaths": "read_only_commit_log_store_paths",
    "storePathDLedgerCommitLog": "store_path_dledger_commit_log",
    "storePathEpochFile": "store_path_epoch_file",
    "storePathBrokerIdentity": "store_path_broker_identity",
    "tieredStoreFilePath": "tiered_store_file_path",
    "storeType": "store_type",
}
_QUEUE_TYPE = "queueType."
SIZES = tuple(_SIZES)
PATHS = tuple(name for name in _STRINGS if "Path" in name)


def is_known(setting: str) -> bool:
    """Return whether a setting is parsed; a broker has many more that do not affect how its store is read."""
    return setting in _SIZES or setting in _SWITCHES or setting in _STRINGS or setting.startswith(_QUEUE_TYPE)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with continuations joined, without comments and blank lines, each with the number of its first line, from 1."""
    joined: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(" \t\f")
        if not joined:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined.append(line[:-1])
            continue
        yield first, "".join((*joined, line))
        joined.clear()
    if joined:
        yield first, "".join(joined)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPES.get(match[2], match[2]), text)


def properties(raw: bytes) -> dict[str, str]:
    """Parse a properties file into names and values; the last of equal names wins."""
    return {name: value for name, value, _ in _settings(raw)}


def _settings(raw: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield the name, the value and the line of each setting."""
    for number, line in _logical_lines(raw.decode("latin-1")):
        end = _NAME_END.match(line)
        split = end.end() if end else 0
        separator = _SEPARATOR.match(line, split)
        yield _unescape(line[:split]), _unescape(line[separator.end() if separator else split :]), number


def parse(raw: bytes, where: str = "the configuration") -> BrokerConfig:
    """Parse the settings in raw. Raises UsageError for a value that must be a number and is not."""
    given: dict[str, int | bool | str] = {}
    batch: list[str] = []
    for name, value in properties(raw).items():
        if name in _SIZES:
            text = value.strip()
            if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 1 << 31):
                raise UsageError(f"{where}: {name}={value} is not a number from 1 to 2147483647; correct it or remove the line")
            given[_SIZES[name]] = int(text)
        elif name in _SWITCHES:
            given[_SWITCHES[name]] = value.strip().lower() == "true"
        elif name in _STRINGS:
            given[_STRINGS[name]] = value
        elif name.startswith(_QUEUE_TYPE) and value.strip() == "BatchCQ":
            batch.append(name.removeprefix(_QUEUE_TYPE))
    queue_size = given.get("consume_queue_file_size")
    if isinstance(queue_size, int):
        given["consume_queue_file_size"] = -(-queue_size // ENTRY_SIZE) * ENTRY_SIZE
    lines = {name: number for name, _, number in _settings(raw)}
    return BrokerConfig(**given, batch_topics=tuple(sorted(batch)), lines=tuple(lines.items()))  # type: ignore[arg-type]


def load(path: Path) -> BrokerConfig:
    """Read a configuration file. Raises CannotOpenError or UsageError."""
    return replace(parse(_read_config_file(path), str(path)), source=path)


def load_properties(path: Path) -> dict[str, str]:
    """Read the names and values of a configuration file that `load` accepts. Raises CannotOpenError or UsageError."""
    raw = _read_config_file(path)
    parse(raw, str(path))
    return properties(raw)


def _read_config_file(path: Path) -> bytes:
    parent = path.parent
    raw = ReadOnlyDirectory(parent).read(path.name, LIMIT + 1) if os.path.isdir(parent) else None
    if raw is None:
        raise CannotOpenError(f"{path} does not exist; --config expects the broker's own file of name=value lines")
    if len(raw) > LIMIT:
        raise UsageError(f"{path} has more than {LIMIT} bytes; --config expects the broker's own file of name=value lines")
    return raw
