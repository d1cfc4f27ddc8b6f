r"""YAML as texts, lists and mappings that know their lines, with bounds: for small files of settings.

    >>> root = parse(b"accounts:\n- accessKey: publisher\n  admin: false\n", "plain_acl.yml")
    >>> root.entries["accounts"].items[0].entries["accessKey"]
    Text(text='publisher', line=2)

Values stay text, so nothing is guessed about numbers and dates, and no tag can make an object. An empty value, `null` and `~` are
absent. Aliases are refused, as they can make a small file large, and so are repeated names, of which readers keep different ones.
Errors name the line and never quote it: it may hold a secret key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mqstore.errors import UsageError

LIMIT = 1 << 20  # bytes of a file
MAX_VALUES = 100_000
MAX_DEPTH = 8
NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping. Entries without a value are left out."""

    line: int
    entries: dict[str, Value] = field(default_factory=dict)


Value = Text | Items | Mapping


def invalid(name: str, line: int, why: str) -> UsageError:
    """Return the error of a file with a mistake in a line."""
    return UsageError(f"{name}, line {line}: {why}; correct the file")


def parse(raw: bytes, name: str) -> Mapping:
    """Parse a file whose outermost value is a mapping. name: of the file, for errors. Raises UsageError."""
    import yaml

    if len(raw) > LIMIT:
        raise UsageError(f"{name} has more than {LIMIT} bytes; split or shorten it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(name, raw.count(b"\n", 0, error.start) + 1, "it is not UTF-8") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(name, yaml).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise invalid(name, mark.line + 1 if mark else 1, f"it is not YAML ({error.problem or 'malformed'})") from None
    except (yaml.YAMLError, RecursionError):
        raise UsageError(f"{name} is not YAML; it has characters or nesting that YAML does not allow; correct the file") from None


class _Builder:
    """Builds values from the events of a parser, without recursion."""

    def __init__(self, name: str, yaml: Any) -> None:
        self._name = name
        self._yaml = yaml
        self._count = 0
        self._open: list[tuple[Items | Mapping, list[Text]]] = []  # unfinished collections, each with the name that waits for a value
        self._root: Value | None = None

    def build(self, events: Iterator[Any]) -> Mapping:
        documents = 0
        for event in events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._invalid(event, "a second document begins")
            elif isinstance(event, self._yaml.NodeEvent):
                self._count += 1
                if self._count > MAX_VALUES:
                    raise self._invalid(event, f"there are more than {MAX_VALUES} values")
                self._node(event)
            elif isinstance(event, self._yaml.CollectionEndEvent):
                self._open.pop()
        if not isinstance(self._root, Mapping):
            raise UsageError(f"{self._name} holds no names with values; correct the file")
        return self._root

    def _node(self, event: Any) -> None:
        if isinstance(event, self._yaml.AliasEvent):
            raise self._invalid(event, "aliases (*name) are not supported; write the value out")
        line = event.start_mark.line + 1
        if isinstance(event, self._yaml.ScalarEvent):
            absent = not event.style and event.value in NULLS  # a quoted text is never absent
            self._place(event, Text(event.value, line), absent=absent)
            return
        value = Mapping(line) if isinstance(event, self._yaml.MappingStartEvent) else Items(line)
        self._place(event, value)
        if len(self._open) == MAX_DEPTH:
            raise self._invalid(event, f"values are nested more than {MAX_DEPTH} deep")
        self._open.append((value, []))

    def _place(self, event: Any, value: Value, *, absent: bool = False) -> None:
        """Put a value where it belongs."""
        if not self._open:
            self._root = value
            return
        parent, waiting = self._open[-1]
        if isinstance(parent, Items):
            if not absent:
                parent.items.append(value)
        elif not waiting:
            if not isinstance(value, Text):
                raise self._invalid(event, "a name must be a text")
            if value.text in parent.entries:
                raise self._invalid(event, "a name is given twice")
            waiting.append(value)
        else:
            key = waiting.pop()
            if not absent:
                parent.entries[key.text] = value

    def _invalid(self, event: Any, why: str) -> UsageError:
        return invalid(self._name, event.start_mark.line + 1, why)
