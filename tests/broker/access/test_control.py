"""Access control of a running broker: who is refused, in which words, and that the file is read again."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.wire import Pair, asked, connected, received, running

from mqstore.broker import Broker, Settings
from mqstore.broker.access.accounts import Permission
from mqstore.broker.access.control import AccessControl
from mqstore.broker.access.requirements import ACCOUNT, ADMIN, RESOURCES, needed
from mqstore.broker.protocol.codes import RequestCode
from mqstore.broker.protocol.frames import Frame, ResponseError, Serialization, encode
from mqstore.broker.runtime.logs import LOGGER
from mqstore.broker.server import handler_table
from mqstore.errors import CannotOpenError, UsageError
from mqstore.rocketmq.config.topic_table import TopicConfig
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import Record

ACCOUNTS = """
globalWhiteRemoteAddresses: [192.0.2.7]
accounts:
- accessKey: shopkeeper
  secretKey: the shop's key
  topicPerms: [orders=PUB|SUB, prices=SUB, secrets=DENY]
  groupPerms: [billing=PUB|SUB]
- accessKey: operator
  secretKey: the operator's key
  admin: true
"""
SHOP, OPERATOR = ("shopkeeper", "the shop's key"), ("operator", "the operator's key")
SEND = {"a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795229727088", "h": "0"}
PULL = {"queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
PULL |= {"subscription": "*", "subVersion": "0"}


def signed(account: tuple[str, str] | None, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: Any) -> Frame:
    """A request with the signature that a client makes."""
    if account is None:
        return Frame(code, ext, body, **more)
    fields = {**(ext or {}), "AccessKey": account[0]}
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    fields["Signature"] = base64.b64encode(hmac.digest(account[1].encode(), content, "sha1")).decode()
    return Frame(code, fields, body, **more)


def heartbeat(group: str, *topics: str) -> bytes:
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    return json.dumps({"clientID": "c@1", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}).encode()


@asynccontextmanager
async def guarded(path: Path, accounts: str = ACCOUNTS, **options: Any) -> AsyncIterator[tuple[Broker, Pair]]:
    file = path / "plain_acl.yml"
    file.write_text(accounts)
    async with running(path, settings=Settings(acl=str(file), acl_scan_interval=20), **options) as broker:
        for topic in ("orders", "prices", "secrets"):
            broker.store.topics.put(TopicConfig(topic, read_queues=1, write_queues=1))
        pair = await connected(broker)
        yield broker, pair
        pair[1].close()


def put(broker: Broker, topic: str, **options: Any) -> int:
    """Put a message; return its physical offset."""
    store = broker.store.writable
    assert store is not None
    return store.put(Message(topic, b"body", queue_id=0, **options)).physical_offset


class Events(logging.Handler):
    """Collects the log lines of brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append({"event": record.getMessage(), **getattr(record, "facts", {})})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


@pytest.fixture
def events() -> Iterator[Events]:
    handler, level = Events(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


REFUSED = [
    # (who, code, fields, body, remark)
    (None, 105, {"topic": "orders"}, b"", "No accessKey is configured"),
    (None, 105, None, b"", "No accessKey is configured"),
    (None, 34, None, heartbeat("billing", "orders"), "No accessKey is configured"),
    (None, 9999, None, b"", "No accessKey is configured"),
    (("stranger", "the shop's key"), 105, {"topic": "orders"}, b"", "No acl config for stranger"),
    (("SHOPKEEPER", "the shop's key"), 105, {"topic": "orders"}, b"", "No acl config for SHOPKEEPER"),
    (("", ""), 105, {"topic": "orders"}, b"", "No acl config for "),
    (("shopkeeper", "another key"), 105, {"topic": "orders"}, b"", "Check signature failed for accessKey=shopkeeper"),
    (SHOP, 310, {**SEND, "b": "secrets"}, b"x", "No default permission for topic:secrets"),
    (SHOP, 310, {**SEND, "b": "prices"}, b"x", "No default permission for topic:prices"),
    (SHOP, 310, {**SEND, "b": "unheard"}, b"x", "No default permission for topic:unheard"),
    (SHOP, 320, {**SEND, "b": "secrets"}, b"x", "No default permission for topic:secrets"),
    (SHOP, 10, {"topic": "secrets"}, b"x", "No default permission for topic:secrets"),
    (SHOP, 324, {"topic": "secrets"}, b"x", "No default permission for topic:secrets"),
    (SHOP, 325, {**SEND, "b": "secrets"}, b"x", "No default permission for topic:secrets"),
    (SHOP, 310, {**SEND, "b": "%RETRY%others"}, b"x", "No default permission for group:others"),
    (SHOP, 11, {**PULL, "topic": "secrets", "consumerGroup": "billing"}, b"", "No default permission for topic:secrets"),
    (SHOP, 11, {**PULL, "topic": "orders", "consumerGroup": "others"}, b"", "No default permission for group:others"),
    (SHOP, 361, {**PULL, "topic": "secrets", "consumerGroup": "billing"}, b"", "No default permission for topic:secrets"),
    (
        SHOP,
        11,
        {**PULL, "topic": "SCHEDULE_TOPIC_XXXX", "consumerGroup": "billing"},
        b"",
        "No default permission for topic:SCHEDULE_TOPIC_XXXX",
    ),
    (SHOP, 12, {"topic": "secrets", "key": "k", "_UNIQUE_KEY_QUERY": "true"}, b"", "Check signature failed for accessKey=shopkeeper"),
    (SHOP, 12, {"topic": "secrets", "key": "k"}, b"", "No default permission for topic:secrets"),
    (SHOP, 34, None, heartbeat("billing", "orders", "secrets"), "No default permission for topic:secrets"),
    (SHOP, 34, None, heartbeat("others", "orders"), "No default permission for group:others"),
    (SHOP, 34, None, b"no heartbeat", "the body is not a JSON object; send a heartbeat as clients do"),
    (SHOP, 35, {"clientID": "c@1", "consumerGroup": "others"}, b"", "No default permission for group:others"),
    (
        SHOP,
        36,
        {"offset": "0", "group": "billing", "delayLevel": "0", "originTopic": "prices"},
        b"",
        "No default permission for topic:prices",
    ),
    (SHOP, 36, {"offset": "0", "group": "others", "delayLevel": "0"}, b"", "No default permission for group:others"),
    (SHOP, 38, {"consumerGroup": "others"}, b"", "No default permission for group:others"),
    (SHOP, 14, {"consumerGroup": "others", "topic": "orders", "queueId": "0"}, b"", "No default permission for group:others"),
    (SHOP, 15, {"consumerGroup": "billing", "topic": "secrets"}, b"", "No default permission for topic:secrets"),
    (SHOP, 30, {"topic": "secrets", "queueId": "0"}, b"", "No default permission for topic:secrets"),
    (SHOP, 208, {"consumerGroup": "billing", "topic": " secrets "}, b"", "No default permission for topic: secrets "),
    (SHOP, 208, {"consumerGroup": "billing", "topicList": "orders;secrets"}, b"", "No default permission for topic:secrets"),
    (SHOP, 222, {"topic": "secrets", "group": "billing"}, b"", "No default permission for topic:secrets"),
    (SHOP, 314, {"srcGroup": "others", "destGroup": "billing"}, b"", "No default permission for group:others"),
    (
        SHOP,
        41,
        None,
        json.dumps({"consumerGroup": "billing", "mqSet": [{"topic": "secrets"}]}).encode(),
        "No default permission for topic:secrets",
    ),
    (SHOP, 42, None, b"[]", "the body of the request is not a JSON object"),
    *(
        (SHOP, code, {"topic": "orders"}, b"", f"Need admin permission for request code={code}, but accessKey=shopkeeper is not")
        for code in sorted(ADMIN)
    ),
]
CODES = {"4.9.3": 1, "5.3.3": 16}


@pytest.mark.parametrize("version", CODES)
def test_a_request_without_the_right_is_refused_in_a_brokers_words(version: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path, version=version) as (_, pair):
            for number, (who, code, ext, body, remark) in enumerate(REFUSED):
                request = signed(who, code, ext, body, opaque=number)
                if ext is not None and "_UNIQUE_KEY_QUERY" in ext and request.ext is not None:
                    request.ext["Signature"] = request.ext["Signature"].swapcase()
                answer = await asked(pair, request)
                assert (answer.code, answer.remark) == (CODES[version], remark), (code, ext)

    asyncio.run(run())


ACCEPTED = [
    (SHOP, 105, {"topic": "orders"}, b""),
    (SHOP, 105, {"topic": "secrets"}, b""),  # so that a producer of a denied topic gets as far as the refusal
    (SHOP, 106, None, b""),
    (SHOP, 310, {**SEND, "b": "orders"}, b"x"),
    (SHOP, 11, {**PULL, "topic": "orders", "consumerGroup": "billing"}, b""),
    (SHOP, 34, None, heartbeat("billing", "orders", "prices", "%RETRY%billing")),
    (SHOP, 15, {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "1"}, b""),
    (SHOP, 30, {"topic": "prices", "queueId": "0"}, b""),
    (SHOP, 35, {"clientID": "c@1", "producerGroup": "p", "consumerGroup": ""}, b""),
    (OPERATOR, 310, {**SEND, "b": "secrets"}, b"x"),
    (OPERATOR, 100, {"namespace": "n", "key": "k", "value": "v"}, b""),
    (OPERATOR, 215, {"topic": "prices"}, b""),
]


@pytest.mark.parametrize("serialization", Serialization)
def test_a_request_with_the_right_is_handled(serialization: Serialization, tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            for number, (who, code, ext, body) in enumerate(ACCEPTED):
                answer = await asked(pair, signed(who, code, ext, body, opaque=number, serialization=serialization))
                assert answer.code in (0, 19), (code, ext, answer.remark)  # 19: the message may not be in its queue yet

    asyncio.run(run())


def test_an_account_learns_that_a_request_is_not_supported(tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            answer = await asked(pair, signed(SHOP, 400, {"topic": "orders"}, opaque=1))  # clients of 5.x then do without it
            assert (answer.code, answer.remark) == (3, " request type 400 not supported")

    asyncio.run(run())


def test_every_request_that_is_handled_has_a_place_and_one_only() -> None:
    places = [*RESOURCES, *ADMIN, *ACCOUNT]
    assert sorted(places) == sorted(set(places))
    assert set(places) == set(handler_table())


NAMES = ("topic", "b", "consumerGroup", "group", "offset", "commitLogOffset", "originTopic", "topicList", "srcGroup", "AccessKey")
BEANS = (
    "consumerGroup",
    "mqSet",
    "topic",
    "clientID",
    "consumerDataSet",
    "groupName",
    "subscriptionDataSet",
    "subString",
    "expressionType",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(("orders", "secrets", "billing", "||", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(BEANS), inner, max_size=5),
    max_leaves=12,
)
BODY = st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode())
VALUES = st.sampled_from(("orders", "secrets", "-1", "0", "9223372036854775807", "%RETRY%billing", "")) | st.text(max_size=5)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([code.value for code in RequestCode]), st.dictionaries(st.sampled_from(NAMES), VALUES), BODY)
def test_any_request_is_checked_without_a_failure(code: int, ext: dict[str, str], body: bytes) -> None:
    try:
        found = needed(Frame(code, ext, body), "DefaultCluster", lambda offset: Record("secrets", b"") if offset else None)
    except (UsageError, ResponseError):
        return
    assert found.admin is (code in ADMIN or code not in {*RESOURCES, *ACCOUNT})
    assert all(isinstance(name, str) and permission for name, permission in found.resources.items())


def test_a_request_that_cannot_be_checked_is_not_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            monkeypatch.setattr("mqstore.broker.access.control.needed", fails)
            answer = await asked(pair, signed(SHOP, 310, {**SEND, "b": "orders"}, b"x", opaque=1))
            assert (answer.code, answer.remark) == (1, "RuntimeError: a bug")
            monkeypatch.undo()
            assert (await asked(pair, signed(SHOP, 30, {"topic": "orders", "queueId": "0"}, opaque=2))).ext == {"offset": "0"}

    asyncio.run(run())


def test_a_message_is_not_read_sent_back_or_committed_by_its_offset_without_the_right_to_its_topic(tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            secret, order = put(broker, "secrets"), put(broker, "orders")
            delayed = put(broker, "secrets", properties={"DELAY": "3"})
            assert (await asked(pair, signed(SHOP, 33, {"offset": str(order)}, opaque=1))).code == 0
            for offset in (secret, delayed):
                answer = await asked(pair, signed(SHOP, 33, {"offset": str(offset)}, opaque=2))
                assert (answer.code, answer.remark, bytes(answer.body)) == (1, "No default permission for topic:secrets", b"")
            back = {"offset": str(secret), "group": "billing", "delayLevel": "0", "originTopic": "orders"}
            assert (await asked(pair, signed(SHOP, 36, back, opaque=3))).remark == "No default permission for topic:secrets"
            end = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": str(secret), "commitOrRollback": "8"}
            assert (await asked(pair, signed(SHOP, 37, end, opaque=4))).remark == "No default permission for topic:secrets"
            nothing = await asked(pair, signed(SHOP, 33, {"offset": "7"}, opaque=5))
            assert nothing.remark == "can not find message by the offset, 7"

    asyncio.run(run())


def test_a_refused_oneway_request_has_neither_an_effect_nor_an_answer(tmp_path: Path, events: Events) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            commit = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "7"}
            pair[1].write(encode(signed(("shopkeeper", "another key"), 15, commit, opaque=1, flag=2)))
            pair[1].write(encode(Frame(15, commit, opaque=2, flag=2)))
            asking = {name: commit[name] for name in ("consumerGroup", "topic", "queueId")}
            answer = await asked(pair, signed(SHOP, 14, asking, opaque=3))  # fails on an answer to the others
            assert answer.ext == {"offset": "0"}

    asyncio.run(run())
    assert [line["why"] for line in events.of("access-refused")] == [
        "Check signature failed for accessKey=shopkeeper",
        "No accessKey is configured",
    ]


def test_white_lists_open_the_door(tmp_path: Path) -> None:
    async def run(accounts: str, *expected: int) -> None:
        async with guarded(tmp_path, accounts, version="4.9.3") as (_, pair):
            for number, (who, code) in enumerate(
                ((None, 26), (("shopkeeper", "wrong"), 100), (("stranger", "wrong"), 26), (("operator", "wrong"), 26))
            ):
                answer = await asked(pair, signed(who, code, {"namespace": "n", "key": "k", "value": "v"}, opaque=number))
                assert answer.code == expected[number], answer.remark

    asyncio.run(run(ACCOUNTS, 1, 1, 1, 1))
    asyncio.run(run(ACCOUNTS.replace("192.0.2.7", "192.0.2.7, '127.0.0.{1,2}'"), 0, 0, 0, 0))
    asyncio.run(
        run(ACCOUNTS.replace("secretKey: the shop's key", "secretKey: the shop's key\n  whiteRemoteAddress: 127.0.0.1"), 1, 0, 1, 1)
    )


def test_the_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path, events: Events) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            file = tmp_path / "plain_acl.yml"
            access = broker.context.component(AccessControl)

            async def route(secret: str) -> int:
                return (await asked(pair, signed(("shopkeeper", secret), 105, {"topic": "orders"}, opaque=1))).code

            def write(text: str) -> None:
                (tmp_path / "new.yml").write_text(text)
                (tmp_path / "new.yml").replace(file)

            async def noticed(event: str, count: int) -> None:
                async with asyncio.timeout(20):
                    while len(events.of(event)) < count:
                        await asyncio.sleep(0.005)  # the broker looks by itself

            assert await route("the shop's key") == 0
            write(ACCOUNTS.replace("the shop's key", "a new shop key"))
            await noticed("acl-loaded", 2)
            assert (await route("the shop's key"), await route("a new shop key")) == (1, 0)
            for number, broken in enumerate((ACCOUNTS.replace("PUB|SUB", "pub"), "accounts: [", "", "\x00")):
                write(broken)
                await noticed("acl-file-broken", number + 1)
                assert (await route("the shop's key"), await route("a new shop key")) == (1, 0)
            file.unlink()
            await noticed("acl-file-broken", 5)
            assert await route("a new shop key") == 0
            assert not await access.reload()  # told once
            write(ACCOUNTS)
            await noticed("acl-loaded", 3)
            assert (await route("the shop's key"), await route("a new shop key")) == (0, 1)

    asyncio.run(run())
    first, *_, last = events.of("acl-file-broken")
    assert "line 7: 'pub' is not a permission" in first["why"]
    assert first["why"].endswith("the accounts of the last good file remain in force")
    assert "not a file that can be read" in last["why"]
    assert "shop's key" not in str(events.lines)
    assert "new shop key" not in str(events.lines)


LIMITED = """accounts:
- accessKey: operator
  secretKey: the operator's key
  admin: true
  topicPerms:
  - orders=SUB
- accessKey: shopkeeper
  secretKey: the shop's key
  defaultTopicPerm: PUB|SUB
  topicPerms:
  - orders=PUB
  - secrets=DENY
- accessKey: billing-account
  secretKey: the billing key
"""


class Reloads:
    """A broker's access control, and the file that it reads."""

    def __init__(self, broker: Broker, path: Path) -> None:
        self.access = broker.context.component(AccessControl)
        self.path = path

    async def takes(self, text: str) -> bool:
        """Write the file, and return whether its accounts are in force then."""
        self.path.write_text(text)
        return await self.access.reload()


@asynccontextmanager
async def reloads(path: Path) -> AsyncIterator[Reloads]:
    file = path / "plain_acl.yml"
    file.write_text(LIMITED)
    async with running(path, settings=Settings(acl=str(file), acl_scan_interval=3_600_000)) as broker:
        yield Reloads(broker, file)


def test_no_part_of_a_file_takes_an_administrator_away_or_gives_a_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.broker.access.control.SETTLE", 0)

    async def run() -> None:
        async with reloads(tmp_path) as tried:
            whole = tried.access.rules
            for length in range(len(LIMITED)):
                taken = await tried.takes(LIMITED[:length])
                rules, tried.access.rules = tried.access.rules, whole
                assert rules.accounts["operator"] == whole.accounts["operator"], LIMITED[:length]
                shop = rules.accounts.get("shopkeeper")
                assert shop is None or not shop.allows("secrets", Permission.SUB)
                assert not taken or LIMITED[:length].endswith("\n")

    asyncio.run(run())


def test_an_administrator_is_revoked_by_a_file_that_says_that_it_is_complete(tmp_path: Path, events: Events) -> None:
    without = LIMITED.replace("- accessKey: operator", "- accessKey: successor")
    no_table = LIMITED.replace("  topicPerms:\n  - orders=SUB\n", "")

    async def run() -> None:
        async with reloads(tmp_path) as tried:
            for refused in (without, no_table, LIMITED.replace("admin: true", "admin: false"), without + "..", without + "# ...\n"):
                assert not await tried.takes(refused)
                assert tried.access.rules.accounts["operator"].permissions == {"orders": Permission.SUB}
            assert await tried.takes(no_table + "...\n")
            assert await tried.takes(without + "...")
            assert "operator" not in tried.access.rules.accounts

    asyncio.run(run())
    first, second, third, *_ = [event["why"] for event in events.of("acl-file-broken")]
    assert "the administrator operator would be missing; if that is intended, add a last line of three dots (...)" in first
    assert "operator would get rights on orders, of which its entry is missing" in second
    assert "the administrator operator would be missing" in third
    assert [event["lost"] for event in events.of("acl-rights-lost")] == [
        ["1 of the 1 topicPerms and groupPerms of operator"],
        ["the account operator"],
    ]


def test_an_account_is_revoked_by_removing_it_and_the_log_names_it(tmp_path: Path, events: Events) -> None:
    async def run() -> None:
        async with reloads(tmp_path) as tried:
            assert await tried.takes(LIMITED.partition("- accessKey: billing-account")[0])
            assert set(tried.access.rules.accounts) == {"operator", "shopkeeper"}
            assert await tried.takes(LIMITED.replace("  - orders=PUB\n", "").replace("defaultTopicPerm: PUB|SUB", "defaultTopicPerm: DENY"))

    asyncio.run(run())
    assert [event["lost"] for event in events.of("acl-rights-lost")] == [
        ["the account billing-account"],
        ["1 of the 2 topicPerms and groupPerms of shopkeeper"],
    ]


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        (None, CannotOpenError, "plain_acl.yml is not a file that can be read; --acl expects a plain_acl.yml with accounts"),
        ("accounts:\n- accessKey: publisher\n", UsageError, "line 2: an account has no secretKey; correct the file"),
    ],
)
def test_a_broker_does_not_start_without_a_good_file_and_makes_no_store(
    text: str | None, error: type[Exception], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    if text is not None:
        file.write_text(text)

    async def run() -> None:
        async with running(tmp_path, settings=Settings(acl=str(file))):
            pass

    with pytest.raises(error, match=why):
        asyncio.run(run())
    assert not (tmp_path / "store").exists()


def test_without_the_library_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqstore.broker.access.control.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'mqstore\[acl\]'"):
        asyncio.run(guarded(tmp_path).__aenter__())


HOSTILE: list[dict[str, Any]] = [
    {"AccessKey": "x" * 500_000, "Signature": "y" * 100_000},
    {"AccessKey": 12345678, "Signature": 1.5, "topic": True},
    {"AccessKey": {"a": [1]}, "Signature": ["x"]},
    {"AccessKey": None, "Signature": None},
    {"AccessKey": "\u202eshop\x00\n\x1b[31m", "Signature": "\ud800"},
    {"AccessKey": "shopkeeper", "Signature": "é" * 28},
    {"AccessKey": "shopkeeper"},
    {"\ud800": "\ud800", "AccessKey": "shopkeeper", "Signature": ""},
]


@pytest.mark.parametrize("ext", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_fields_are_refused_with_a_short_remark(ext: dict[str, Any], tmp_path: Path, events: Events) -> None:
    header = json.dumps({"code": 105, "opaque": 1, "extFields": ext}).encode()
    raw = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header

    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            pair[1].write(raw)
            answer = await received(pair[0])
            assert answer.code == 1
            assert answer.remark is not None
            assert len(answer.remark) < 120
            assert answer.remark.isprintable()
            assert (await asked(pair, signed(SHOP, 106, opaque=2))).code == 0

    asyncio.run(run())
    assert len(str(events.of("access-refused"))) < 400


def test_the_last_of_two_fields_of_a_name_is_both_signed_and_used(tmp_path: Path) -> None:
    async def run(first: str, last: str) -> tuple[int, str | None]:
        async with guarded(tmp_path) as (_, pair):
            ext = signed(SHOP, 310, {**SEND, "b": last}, b"x").ext
            assert ext is not None
            header = json.dumps({"code": 310, "opaque": 1, "extFields": {"B": first, **ext}}).replace('"B"', '"b"').encode()
            pair[1].write((4 + len(header) + 1).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"x")
            answer = await received(pair[0])
            return answer.code, answer.remark

    assert asyncio.run(run("secrets", "orders")) == (0, None)
    assert asyncio.run(run("orders", "secrets")) == (1, "No default permission for topic:secrets")


def test_a_flood_of_refusals_fills_no_log(tmp_path: Path, events: Events) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (_, pair):
            for number in range(500):
                pair[1].write(encode(Frame(105, {"topic": "orders"}, opaque=number)))
            for _ in range(500):
                assert (await received(pair[0])).code == 1
            logged.append(len(events.of("access-refused")))
            await asyncio.sleep(1.1)  # into another second
            await asked(pair, Frame(105, {"topic": "orders"}))

    logged: list[int] = []
    asyncio.run(run())
    assert 0 < logged[0] < 250
    assert sum(1 + line["unlogged"] for line in events.of("access-refused")) == 501


def test_the_secret_key_is_in_no_representation(tmp_path: Path) -> None:
    async def run() -> None:
        async with guarded(tmp_path) as (broker, pair):
            access = broker.context.component(AccessControl)
            assert "shopkeeper" in repr(access.rules)
            assert "the shop" not in repr(access.rules)
            for code in (26, 28, 52, 54):
                answer = await asked(pair, signed(OPERATOR, code, opaque=code))
                assert b"the shop" not in bytes(answer.body)
                assert "the shop" not in f"{answer.remark}{answer.ext}"

    asyncio.run(run())
