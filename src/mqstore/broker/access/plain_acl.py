r"""plain_acl.yml: the accounts of a RocketMQ 4.9.3 broker.

    globalWhiteRemoteAddresses: [10.10.103.*]     addresses that need no account
    accounts:
    - accessKey: publisher                        more than six characters, and so is the secret key
      secretKey: 12345678
      whiteRemoteAddress: 192.168.0.7             an address from which this account is not checked further
      admin: false
      defaultTopicPerm: DENY                      DENY, PUB, SUB, PUB|SUB or SUB|PUB; DENY if absent
      defaultGroupPerm: SUB
      topicPerms: [orders=PUB, returns=PUB|SUB]
      groupPerms: [billing=SUB]

    >>> rules = parse(b"accounts:\n- accessKey: publisher\n  secretKey: 12345678\n  topicPerms: [orders=PUB]\n", "plain_acl.yml")
    >>> rules.accounts["publisher"].permissions
    {'orders': <Permission.PUB: 4>}

A permission that is not one of these counts as DENY in a broker; here it is an error, as are unknown forms of the other values. Names
that a broker does not know are ignored, with a note.

Format: docs/formats/rocketmq-remoting.md, section 10. Source: Apache RocketMQ 4.9.3, PlainPermissionManager, Permission.

Its YAML is read as texts, lists and mappings that know their lines, within bounds:

    >>> root = parse_yaml(b"accounts:\n- accessKey: publisher\n  admin: false\n", "plain_acl.yml")
    >>> root.entries["accounts"].items[0].entries["accessKey"]
    Text(text='publisher', line=2)

Values stay text, so nothing is guessed about numbers and dates, and no tag can make an object. An empty value, `null` and `~` are
absent. Aliases are refused, as they can make a small file large, and so are repeated names, of which readers keep different ones.
Errors name the line and never quote it: it may hold a secret key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqstore.broker.access import addresses
from mqstore.broker.access.accounts import AccessRules, Account, Permission, shown
from mqstore.broker.access.addresses import NO_ADDRESS, WhiteList
from mqstore.errors import CannotOpenError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.format.system_topics import RETRY_PREFIX

SHORTEST = 7  # characters of a key
PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
FILE_NAMES = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})
ACCOUNT_NAMES = frozenset(
    {"accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"}
)
YES, NO = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})


def read(path: Path) -> bytes:
    """Return the bytes of a file of accounts. Raises CannotOpenError."""
    parent = path.parent
    raw = ReadOnlyDirectory(parent).read(path.name, LIMIT + 1) if parent.is_dir() and (path.is_file() or not path.exists()) else None
    if raw is None:
        raise CannotOpenError(f"{path} is not a file that can be read; --acl expects a plain_acl.yml with accounts")
    return raw


def parse(raw: bytes, name: str) -> AccessRules:
    """Parse a file of accounts. name: of the file, for errors. Raises UsageError."""
    return _Reader(name).rules(parse_yaml(raw, name))


class _Reader:
    """Turns the values of a file into rules. name: of the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []

    def rules(self, root: Mapping) -> AccessRules:
        self._note_unknown(root, FILE_NAMES)
        white = tuple(self._address(value) for value in self._items(root, "globalWhiteRemoteAddresses"))
        accounts: dict[str, Account] = {}
        for value in self._items(root, "accounts"):
            if not isinstance(value, Mapping):
                raise invalid(self.name, value.line, "an account must have accessKey and secretKey")
            account = self._account(value)
            if account.access_key in accounts:
                raise invalid(self.name, value.line, f"a second account has the accessKey {shown(account.access_key)}")
            accounts[account.access_key] = account
        if not accounts and not white:
            raise UsageError(f"{self.name} has neither accounts nor white-listed addresses, so no client could connect; correct the file")
        return AccessRules(accounts, white, tuple(self.notes))

    def _account(self, held: Mapping) -> Account:
        self._note_unknown(held, ACCOUNT_NAMES)
        permissions: dict[str, Permission] = {}
        for kind, prefix in (("groupPerms", RETRY_PREFIX), ("topicPerms", "")):
            for value in self._items(held, kind):
                name, permission = self._named_permission(value, kind)
                permissions[prefix + name] = permission
        return Account(
            self._key(held, "accessKey"),
            self._key(held, "secretKey"),
            self._boolean(held, "admin"),
            self._permission(held, "defaultTopicPerm"),
            self._permission(held, "defaultGroupPerm"),
            permissions,
            self._address(held.entries["whiteRemoteAddress"]) if "whiteRemoteAddress" in held.entries else NO_ADDRESS,
        )

    def _note_unknown(self, held: Mapping, known: frozenset[str]) -> None:
        for name in held.entries:
            if name not in known:
                self.notes.append(f"line {held.entries[name].line}: {shown(name)} is not a known name and is ignored")

    def _items(self, held: Mapping, name: str) -> list[Value]:
        value = held.entries.get(name)
        if value is None:
            return []
        if not isinstance(value, Items):
            raise invalid(self.name, value.line, f"{name} must be a list")
        return value.items

    def _text(self, value: Value, what: str) -> str:
        if not isinstance(value, Text):
            raise invalid(self.name, value.line, f"{what} must be a text")
        return value.text

    def _key(self, held: Mapping, name: str) -> str:
        value = held.entries.get(name)
        if value is None:
            raise invalid(self.name, held.line, f"an account has no {name}")
        text = self._text(value, name)
        if len(text) < SHORTEST:
            raise invalid(self.name, value.line, f"the {name} must have at least {SHORTEST} characters")
        return text

    def _boolean(self, held: Mapping, name: str) -> bool:
        value = held.entries.get(name)
        if value is None:
            return False
        text = self._text(value, name).lower()
        if text not in YES | NO:
            raise invalid(self.name, value.line, f"{name} must be true or false")
        return text in YES

    def _permission(self, held: Mapping, name: str) -> Permission:
        value = held.entries.get(name)
        if value is None:
            return Permission.DENY
        return self._parse_permission(self._text(value, name), value.line)

    def _named_permission(self, value: Value, kind: str) -> tuple[str, Permission]:
        text = self._text(value, f"an entry of {kind}")
        name, equals, permission = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise invalid(self.name, value.line, f"an entry of {kind} must be NAME=PERMISSION, such as orders=PUB")
        return name, self._parse_permission(permission, value.line)

    def _parse_permission(self, text: str, line: int) -> Permission:
        permission = PERMISSIONS.get(text.strip())
        if permission is None:
            raise invalid(self.name, line, f"{shown(text)!r} is not a permission; it must be one of {', '.join(PERMISSIONS)}")
        return permission

    def _address(self, value: Value) -> WhiteList:
        try:
            return addresses.parse(self._text(value, "an address"))
        except UsageError as error:
            if self.name in str(error):
                raise
            raise invalid(self.name, value.line, str(error)) from None


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


def parse_yaml(raw: bytes, name: str) -> Mapping:
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
