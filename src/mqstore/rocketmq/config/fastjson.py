r"""Configuration files in the brokers' dialect of JSON, with the brokers' fallback to a backup file.

The brokers write maps with number keys without quotes, so a plain JSON parser stops at them:

    {
        "offsetTable":{
            "orders@billing":{0:29,1:27
            }
        }
    }

Everything else is JSON; quoted number keys are accepted too. Each file has a backup `<name>.bak`. A broker reads the
file; if it is missing, empty or cannot be parsed, it reads the `.bak`; without one it starts with an empty table.

    >>> parse('{"offsetTable":{"orders@billing":{0:29,1:27}}}')
    {'offsetTable': {'orders@billing': {'0': 29, '1': 27}}}

Format: docs/formats/rocketmq.md, section 1.5.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from mqstore.errors import CannotOpenError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rocketmq.format.java_text import decode_utf8

LIMIT = 32 << 20  # largest file that is read, in bytes; real ones have some megabytes at most
BLANK = " \t\r\n\f\b"

# A string always matches, terminated or not, so that text is never scanned twice.
_TOKEN = re.compile(r'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))|(-?[0-9]++)(?=\s*:)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a broker would load from a configuration file. used: which of the two files the value is from; None: neither.

    value: the outermost object; empty if neither file can be read.
    """

    value: dict[str, Any]
    used: Literal["main", "bak"] | None
    findings: tuple[Damage, ...] = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def parse(text: str) -> dict[str, Any]:
    """Parse the object in text; keys are strings. Raises ValueError for anything else, however deep or long."""
    quoted = _TOKEN.sub(lambda match: match[1] or f'"{match[2]}"', text)
    try:
        value = json.loads(quoted, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("the text is not an object")
    return value


def load(directory: ReadOnlyDirectory, relative: str) -> ConfigFile:
    """Read a configuration file as a broker does. Problems become findings; nothing raises."""
    findings: list[Damage] = []
    main, present = _read_json(directory, relative, findings)
    if main is not None:
        return ConfigFile(main, "main", tuple(findings))
    bak, bak_present = _read_json(directory, f"{relative}.bak", findings)
    if bak is not None:
        if not present:
            findings.insert(0, Damage(relative, 0, 0, Kind.BAD_CONFIG, f"the file is missing; {relative}.bak is used instead"))
        return ConfigFile(bak, "bak", tuple(findings))
    if bak_present and not present:
        findings.insert(0, Damage(relative, 0, 0, Kind.BAD_CONFIG, "the file is missing, and its .bak cannot be used"))
    return ConfigFile({}, None, tuple(findings))


def _read_json(directory: ReadOnlyDirectory, relative: str, findings: list[Damage]) -> tuple[dict[str, Any] | None, bool]:
    """Return (value or None, whether the file exists)."""
    try:
        raw = directory.read(relative, LIMIT + 1)
    except CannotOpenError as error:
        findings.append(Damage(relative, 0, 0, Kind.UNREADABLE, str(error)))
        return None, True
    if raw is None:
        return None, False

    def bad(sentence: str) -> None:
        findings.append(Damage(relative, 0, len(raw), Kind.BAD_CONFIG, sentence))

    if not raw:
        bad("the file is empty")
        return None, True
    if len(raw) > LIMIT:
        bad(f"the file has more than {LIMIT} bytes; no broker writes one that large")
        return None, True
    text = decode_utf8(raw)
    if not text.strip(BLANK):
        bad("the file holds only blanks, which a broker reads as an empty table")
        return {}, True
    if not any(raw):
        bad("the file is full of zeros")
        return None, True
    try:
        value = parse(text)
    except ValueError as error:
        bad(f"the file cannot be parsed: {error}")
        return None, True
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        findings.append(Damage(relative, error.start, error.end - error.start, Kind.BAD_CONFIG, "bytes that are not UTF-8"))
    return value, True
