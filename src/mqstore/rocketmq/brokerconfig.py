"""Broker settings: the broker's own `name=value` file, as given by --config.

Only the settings that change how files are laid out or queries are answered are taken; the rest of the file is
ignored. A setting that is not given is None: its value is then inferred from the files.

    >>> parse("# sizes\\nmappedFileSizeCommitLog = 65536\\nmaxIndexNum=400\\n").commit_log_file_size
    65536

Format: docs/formats/rocketmq.md, section 1.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from mqstore.errors import CannotOpenError, UsageError

__all__ = ["BrokerConfig", "load", "parse"]

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LINE = re.compile(r"^\s*((?:\\.|[^=:\s\\])+)\s*[=:\s]?\s*(.*?)\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings under mqstore's names; None where not given. Sizes in bytes."""

    commit_log_file_size: int | None = None
    consume_queue_file_size: int | None = None
    consume_queue_ext_file_size: int | None = None
    batch_queue_file_size: int | None = None
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None
    max_msgs_num_batch: int | None = None
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
    store_path_commit_log: str | None = None
    batch_topics: tuple[str, ...] = ()


_NAMES = {
    "mappedFileSizeCommitLog": "commit_log_file_size",
    "mappedFileSizeConsumeQueue": "consume_queue_file_size",
    "mappedFileSizeConsumeQueueExt": "consume_queue_ext_file_size",
    "mapperFileSizeBatchConsumeQueue": "batch_queue_file_size",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "maxMsgsNumBatch": "max_msgs_num_batch",
    "messageDelayLevel": "message_delay_level",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "enableMultiDispatch": "enable_multi_dispatch",
    "enableLmq": "enable_lmq",
    "messageIndexEnable": "message_index_enable",
    "messageIndexSafe": "message_index_safe",
    "checkCRCOnRecover": "check_crc_on_recover",
    "forceVerifyPropCRC": "force_verify_prop_crc",
    "duplicationEnable": "duplication_enable",
    "recheckReputOffsetFromCq": "recheck_reput_offset_from_cq",
    "storePathCommitLog": "store_path_commit_log",
}
_KINDS = {field.name: str(field.type) for field in fields(BrokerConfig)}


def _unescape(text: str) -> str:
    known = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    return _ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)) if match[1][0] == "u" and len(match[1]) == 5 else known.get(match[1], match[1]), text)


def properties(text: str) -> dict[str, str]:
    """Java properties: name -> value; comments, continued lines and escapes as Java reads them."""
    found: dict[str, str] = {}
    joined = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*", r"\1", text)
    for line in joined.splitlines():
        if line.strip() and line.lstrip()[0] not in "#!" and (match := _LINE.match(line)):
            found[_unescape(match[1])] = _unescape(match[2])
    return found


def _value(name: str, setting: str, text: str) -> int | bool | str:
    kind = _KINDS[setting]
    if kind.startswith("int"):
        if not text.isdecimal() or not 0 < int(text) < 2**63:
            raise UsageError(f"{name}={text} in the configuration is no positive number")
        return int(text)
    return text.lower() == "true" if kind.startswith("bool") else text


def parse(text: str) -> BrokerConfig:
    """The settings in a configuration's text. Raises UsageError for a size that is no number."""
    found: dict[str, int | bool | str | tuple[str, ...]] = {}
    batch_topics = []
    for name, value in properties(text).items():
        if name in _NAMES and value:
            found[_NAMES[name]] = _value(name, _NAMES[name], value)
        elif name.startswith("queueType.") and value == "BatchCQ":
            batch_topics.append(name[len("queueType.") :])
    size = found.get("consume_queue_file_size")
    if isinstance(size, int):
        found["consume_queue_file_size"] = -(-size // 20) * 20
    return BrokerConfig(**found, batch_topics=tuple(batch_topics))  # type: ignore[arg-type]


def load(path: Path) -> BrokerConfig:
    """The settings in a file. Raises CannotOpenError, UsageError."""
    try:
        return parse(path.read_text("utf-8", errors="replace"))
    except OSError as error:
        raise CannotOpenError(f"the configuration {path} cannot be read: {error.strerror}") from None
