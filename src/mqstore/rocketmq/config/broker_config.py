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
from dataclasses import dataclass
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
    """The settings in a file; None: not set. Sizes in bytes."""

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
    duplication_enable: bool | None = None
    recheck_reput_offset_from_cq: bool | None = None
    store_path_root_dir: str | None = None
    store_path_commit_log: str | None = None
    read_only_commit_log_store_paths: str | None = None
    store_type: str | None = None
    batch_topics: tuple[str, ...] = ()


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
    "duplicationEnable": "duplication_enable",
    "recheckReputOffsetFromCq": "recheck_reput_offset_from_cq",
}
_STRINGS = {
    "messageDelayLevel": "message_delay_level",
    "storePathRootDir": "store_path_root_dir",
    "storePathCommitLog": "store_path_commit_log",
    "readOnlyCommitLogStorePaths": "read_only_commit_log_store_paths",
    "storeType": "store_type",
}
_QUEUE_TYPE = "queueType."


def _logical_lines(text: str) -> list[str]:
    """Split into lines with continuations joined, without comments and blank lines."""
    lines: list[str] = []
    joined: list[str] = []
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined.append(line[:-1])
            continue
        lines.append("".join((*joined, line)))
        joined.clear()
    return [*lines, "".join(joined)] if joined else lines


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), text)


def properties(raw: bytes) -> dict[str, str]:
    """Parse a properties file into names and values; the last of equal names wins."""
    found = {}
    for line in _logical_lines(raw.decode("latin-1")):
        end = _NAME_END.match(line)
        split = end.end() if end else 0
        separator = _SEPARATOR.match(line, split)
        found[_unescape(line[:split])] = _unescape(line[separator.end() if separator else split :])
    return found


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
    return BrokerConfig(**given, batch_topics=tuple(sorted(batch)))  # type: ignore[arg-type]


def load(path: Path) -> BrokerConfig:
    """Read a configuration file. Raises CannotOpenError or UsageError."""
    return parse(_read_config_file(path), str(path))


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
