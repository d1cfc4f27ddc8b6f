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
"""

from __future__ import annotations

from pathlib import Path

from mqstore.broker.access import addresses
from mqstore.broker.access.accounts import AccessRules, Account, Permission, shown
from mqstore.broker.access.addresses import NO_ADDRESS, WhiteList
from mqstore.broker.access.yaml_values import LIMIT, Items, Mapping, Text, Value, invalid
from mqstore.broker.access.yaml_values import parse as parse_yaml
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
        found = PERMISSIONS.get(text.strip())
        if found is None:
            raise invalid(self.name, line, f"{shown(text)!r} is not a permission; it must be one of {', '.join(PERMISSIONS)}")
        return found

    def _address(self, value: Value) -> WhiteList:
        try:
            return addresses.parse(self._text(value, "an address"))
        except UsageError as error:
            if self.name in str(error):
                raise
            raise invalid(self.name, value.line, str(error)) from None
