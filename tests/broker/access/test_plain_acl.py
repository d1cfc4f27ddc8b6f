"""plain_acl.yml: the accounts that a file holds, and the mistakes that are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqstore.broker.access.accounts import Permission
from mqstore.broker.access.addresses import contains
from mqstore.broker.access.plain_acl import parse, read
from mqstore.errors import CannotOpenError, UsageError

# the form of the file that comes with a 4.9.3 broker
FILE = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: publisher
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC = SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: "operator"
    secretKey: '0012345678'
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
dataVersion:
- counter: 1
  timestamp: 1639470420000
"""
ACCOUNT = "accounts:\n- accessKey: publisher\n  secretKey: 12345678\n"


def test_the_accounts_of_a_file_in_the_form_of_a_broker() -> None:
    rules = parse(FILE, "plain_acl.yml")
    assert list(rules.accounts) == ["publisher", "operator"]
    publisher, operator = rules.accounts.values()
    assert publisher.secret_key == "12345678"
    assert not publisher.admin
    both = Permission.PUB | Permission.SUB
    assert publisher.permissions == {
        "%RETRY%groupA": Permission.DENY,
        "%RETRY%groupB": both,
        "%RETRY%groupC": Permission.SUB,
        "topicA": Permission.DENY,
        "topicB": both,
        "topicC": Permission.SUB,
    }
    assert (publisher.default_topic, publisher.default_group) == (Permission.DENY, Permission.SUB)
    assert operator.secret_key == "0012345678"
    assert operator.admin
    assert contains([operator.white], "192.168.1.77")
    assert not contains([publisher.white], "192.168.1.77")
    assert contains(rules.white, "10.10.103.1")
    assert rules.notes == ()


def test_an_administrator_without_a_table_may_do_everything_and_one_with_a_table_what_it_says() -> None:
    rules = parse(f"{ACCOUNT}  admin: true\n".encode(), "f")
    assert rules.accounts["publisher"].allows("anything", Permission.PUB)
    rules = parse(f"{ACCOUNT}  admin: true\n  topicPerms: [orders=PUB]\n".encode(), "f")
    assert rules.accounts["publisher"].allows("orders", Permission.PUB)
    assert not rules.accounts["publisher"].allows("anything", Permission.PUB)


def test_defaults_do_not_open_the_topics_that_hold_messages_of_all_others() -> None:
    account = parse(f"{ACCOUNT}  defaultTopicPerm: SUB\n".encode(), "f").accounts["publisher"]
    assert account.allows("orders", Permission.SUB)
    assert not account.allows("SCHEDULE_TOPIC_XXXX", Permission.SUB)
    assert not account.allows("RMQ_SYS_TRANS_HALF_TOPIC", Permission.SUB)


def test_without_defaults_everything_is_denied() -> None:
    account = parse(ACCOUNT.encode(), "f").accounts["publisher"]
    assert not account.allows("orders", Permission.PUB)
    assert not account.allows("orders", Permission.EITHER)
    assert not account.allows("%RETRY%billing", Permission.SUB)


def test_an_unknown_name_is_noted() -> None:
    rules = parse(f"{ACCOUNT}  defaultTopicPrem: PUB\nglobalWhiteAddress: []\n".encode(), "f")
    assert rules.notes == (
        "line 5: globalWhiteAddress is not a known name and is ignored",
        "line 4: defaultTopicPrem is not a known name and is ignored",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: []\n", "neither accounts nor white-listed addresses"),
        ("accounts: publisher\n", "line 1: accounts must be a list"),
        ("accounts:\n- publisher\n", "line 2: an account must have accessKey and secretKey"),
        ("accounts:\n- secretKey: 12345678\n", "line 2: an account has no accessKey"),
        ("accounts:\n- accessKey: publisher\n", "line 2: an account has no secretKey"),
        ("accounts:\n- accessKey: short\n  secretKey: 12345678\n", "line 2: the accessKey must have at least 7 characters"),
        ("accounts:\n- accessKey: publisher\n  secretKey: 123456\n", "line 3: the secretKey must have at least 7 characters"),
        ("accounts:\n- accessKey: publisher\n  secretKey: [a]\n", "line 3: secretKey must be a text"),
        (f"{ACCOUNT}  admin: maybe\n", "line 4: admin must be true or false"),
        (f"{ACCOUNT}  defaultTopicPerm: pub\n", "line 4: 'pub' is not a permission; it must be one of DENY, PUB, SUB, PUB|SUB, SUB|PUB"),
        (f"{ACCOUNT}  topicPerms: [orders]\n", "line 4: an entry of topicPerms must be NAME=PERMISSION"),
        (f"{ACCOUNT}  topicPerms: [orders=PUB=SUB]\n", "line 4: 'PUB=SUB' is not a permission"),
        (f"{ACCOUNT}  groupPerms: [=SUB]\n", "line 4: an entry of groupPerms must be NAME=PERMISSION"),
        (f"{ACCOUNT}  groupPerms: orders=SUB\n", "line 4: groupPerms must be a list"),
        (f"{ACCOUNT}  whiteRemoteAddress: 10.1.2\n", "line 4: '10.1.2' is not an address"),
        ("globalWhiteRemoteAddresses: [host]\n", "line 1: 'host' is not an address"),
        (f"{ACCOUNT}- accessKey: publisher\n  secretKey: 87654321\n", "line 4: a second account has the accessKey publisher"),
    ],
)
def test_a_mistake_is_a_sentence_with_its_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text.encode(), "f")
    assert why in str(raised.value)
    assert "12345678" not in str(raised.value)


def test_what_is_not_a_file_is_an_error_and_does_not_block(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name in ("missing.yml", "no/such/place.yml", ".", "pipe"):
        with pytest.raises(CannotOpenError, match="not a file that can be read"):
            read(tmp_path / name)
