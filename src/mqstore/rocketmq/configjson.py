"""Configuration files in the brokers' own JSON: as fastjson writes it, with unquoted integer keys.

    {
        "offsetTable":{
            "%RETRY%g2@g2":{0:5000000000
            },
            "TestTopic@TestTopicGroup":{0:0,1:1,2:1,3:0
            }
        }
    }

The previous version of a file is kept beside it as `.bak`. A broker reads that one when the file is missing or empty,
or cannot be parsed; `load` does the same, and tells of the file that could not be read.

    >>> parse('{"offsetTable":{"t@g":{0:5,1:7}}}')
    {'offsetTable': {'t@g': {'0': 5, '1': 7}}}

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind

__all__ = ["BadConfigError", "ConfigFile", "load", "parse"]

MAX_SIZE = 256 << 20
MAX_DEPTH = 64

# strings are matched whole so that nothing inside them is taken for a bare key
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(\s*):', re.DOTALL)
_BRACES = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


class BadConfigError(ValueError):
    """Text that is no configuration; says where."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a configuration file holds. value: {} where nothing could be read. used: the path that was read, None if none was."""

    value: dict[str, Any]
    used: str | None
    findings: tuple[Damage, ...] = ()


def _quote(match: re.Match[str]) -> str:
    return match[0] if match[2] is None else f'{match[1]}"{match[2]}"{match[3]}:'


def parse(text: str) -> dict[str, Any]:
    """The object in the text; integer keys become their decimal text. Raises BadConfigError, never anything else."""
    depth = 0
    for match in _BRACES.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise BadConfigError(f"more than {MAX_DEPTH} levels deep at character {match.start()}")
    try:
        value = json.loads(_BARE_KEY.sub(_quote, text), strict=False)
    except (ValueError, RecursionError) as error:
        raise BadConfigError(str(error)) from None
    if not isinstance(value, dict):
        raise BadConfigError(f"an object is expected, not {type(value).__name__}")
    return value


def _read(directory: ReadOnlyDirectory, relative: str) -> tuple[dict[str, Any] | None, Damage | None]:
    """(value, finding) of one file; (None, None) if it is missing or empty."""
    try:
        raw = directory.read(relative, MAX_SIZE + 1)
    except CannotOpenError as error:
        return None, Damage(relative, 0, 0, Kind.UNREADABLE, str(error))
    if not raw:
        return None, None
    if len(raw) > MAX_SIZE:
        return None, Damage(relative, 0, len(raw), Kind.BAD_CONFIG, f"longer than {MAX_SIZE} bytes")
    if raw.count(0) == len(raw):
        return None, Damage(relative, 0, len(raw), Kind.BAD_CONFIG, "nothing but zeros: the file was lost in a crash")
    try:
        return parse(raw.decode("utf-8")), None
    except UnicodeDecodeError as error:
        return None, Damage(relative, error.start, len(raw) - error.start, Kind.BAD_CONFIG, f"not UTF-8 at byte {error.start}")
    except BadConfigError as error:
        return None, Damage(relative, 0, len(raw), Kind.BAD_CONFIG, f"cannot be parsed: {error}")


def load(directory: ReadOnlyDirectory, relative: str) -> ConfigFile:
    """A configuration file, or its `.bak`, by the broker's own rules."""
    findings = []
    for path in (relative, f"{relative}.bak"):
        value, finding = _read(directory, path)
        if finding is not None:
            findings.append(finding)
        if value is not None:
            return ConfigFile(value, path, tuple(findings))
    return ConfigFile({}, None, tuple(findings))
