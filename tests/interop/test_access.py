"""Real Java clients with right keys, wrong ones and none, with TLS and without, on our broker.

The same program on real brokers (rocketmq-clients/README.md) showed the codes and remarks: a 4.9.3 broker sends code 1 and the words
below, a 5.3.3 broker code 16 with words of its own. Where this broker is stricter, `STRICTER` says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.clientoracle import CLIENTS, VERSIONS, why_not
from interop.realbroker import java
from support.certificates import Files, server_files

from mqstore.broker.protocol.frames import RESPONSE, Frame, decode, encode
from mqstore.broker.protocol.headers import ANY, FIELDS, sign
from mqstore.testing import Client

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-clients")]

ACCOUNTS = CLIENTS / "plain_acl.yml"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "who-may-connect.md"
PATIENCE = 600.0  # seconds for all cases on a busy machine
CODES = {"4.9.3": 1, "5.3.3": 16}

ADMITTED = {
    "admin-creates-topics": "created",
    "send": "SEND_OK",
    "send-batch": "SEND_OK",
    "consume-and-retry": "consumed, sent back, consumed again",
    "lite-pull": "pulled",
    "transaction-and-order": "committed and consumed",
    "admin-sends": "SEND_OK",
    "mqadmin-admin": "create topic to",
    "mqadmin-topic-status": "#Broker Name",
    "pull": "code 0",
    "heartbeat": "code 0",
    "route": "queues 1",
    "oneway-offset": "code 0",
}
REFUSED = {
    "send-wrong-key": "Check signature failed for accessKey=shopkeeper",
    "send-unknown-key": "No acl config for stranger-1",
    "send-no-key": "No accessKey is configured",
    "pull-denied-topic": "No default permission for topic:AclDenied",
    "pull-denied-group": "No default permission for group:acl-denied",
    "pull-wrong-key": "Check signature failed for accessKey=shopkeeper",
    "heartbeat-denied-topic": "No default permission for topic:AclDenied",
    "heartbeat-denied-group": "No default permission for group:acl-denied",
    "heartbeat-no-key": "No accessKey is configured",
    "create-topic-not-admin": "Need admin permission for request code=17, but accessKey=shopkeeper is not",
    "update-config-not-admin": "Need admin permission for request code=25, but accessKey=shopkeeper is not",
    "delete-topic-not-admin": "Need admin permission for request code=215, but accessKey=shopkeeper is not",
    # the exception of a producer names the attempts; the reason is its cause
    "send-denied-topic": "Send [1] times, still failed",
    "send-read-only-topic": "Send [1] times, still failed",
}
STRICTER = {
    "send-batch-denied-topic": "Send [1] times, still failed",  # 4.9.3 stores the batch
    "route-wrong-key": "Check signature failed for accessKey=shopkeeper",  # real name servers check nothing
    "route-unknown-key": "No acl config for stranger-1",
    "route-no-key": "No accessKey is configured",
}


def shown(kind: str) -> str:
    """Return a block of the guide's page on access."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


@contextmanager
def serving(version: str, place: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """Run our broker; yield (its address, the file of its log)."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mqstore", "serve", str(place / "store"), "--listen", "127.0.0.1:0", "--as-version", version]
    log = place / "broker.err"
    with log.open("wb") as errors:
        broker = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    assert broker.stdout is not None
    try:
        found = re.search(r"127\.0\.0\.1:\d+", broker.stdout.readline())
        assert found is not None, log.read_text()
        yield found[0], log
    finally:
        broker.terminate()
        code = broker.wait(60)
        broker.stdout.close()
    assert code == 0


def outcomes(version: str, address: str, place: Path, *cases: str, properties: tuple[str, ...] = ()) -> dict[str, tuple[bool, int, str]]:
    """Run cases of the program; return case -> (whether it went well, code, text)."""
    home = place / "home"
    home.mkdir(parents=True, exist_ok=True)
    target = CLIENTS / "target" / version
    command = [str(java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", *properties]
    command += ["-cp", f"{target}/rocketmq-clients.jar:{target}/lib/*", "mqstore.oracle.Access", address, address, *cases]
    done = subprocess.run(
        command, cwd=home, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert told, done.stderr[-3000:]
    return {each["case"]: (each["ok"], each["code"], each["text"]) for each in told}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def told(version: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[bool, int, str]], str]:
    """The outcomes of all cases, and the broker's log."""
    place = tmp_path_factory.mktemp("access")
    with serving(version, place, "--acl", str(ACCOUNTS)) as (address, log):
        return outcomes(version, address, place), log.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", ADMITTED)
def test_a_client_with_the_right_key_is_served(told: tuple[dict[str, tuple[bool, int, str]], str], case: str) -> None:
    ok, _, text = told[0][case]
    assert ok, text
    assert text == ADMITTED[case]


@pytest.mark.parametrize("case", REFUSED | STRICTER)
def test_a_client_without_the_right_is_turned_away_by_name(
    told: tuple[dict[str, tuple[bool, int, str]], str], version: str, case: str
) -> None:
    ok, code, text = told[0][case]
    assert not ok, text
    assert (REFUSED | STRICTER)[case] in text
    assert code == CODES[version]


def test_refused_commands_have_no_effect(told: tuple[dict[str, tuple[bool, int, str]], str]) -> None:
    ok, _, text = told[0]["mqadmin-not-admin"]
    assert not ok
    assert "Need admin permission for request code=17" in text or "command failed" in text
    ok, code, _ = told[0]["oneway-offset-wrong-key"]
    assert (ok, code) in ((True, 0), (False, 22))  # 4.9.3 answers 0 for a group without an offset in an empty queue, 5.3.3 with 22
    ok, _, text = told[0]["producer-no-key"]
    assert not ok
    assert "No route info of this topic" in text


def test_the_log_names_who_was_refused_and_never_a_secret(told: tuple[dict[str, tuple[bool, int, str]], str]) -> None:
    log = told[1]
    refusals = [json.loads(line) for line in log.splitlines() if '"access-refused"' in line]
    assert {each["why"] for each in refusals} >= {"No accessKey is configured", "No acl config for stranger-1"}
    assert all(each["peer"].startswith("127.0.0.1:") for each in refusals)
    for secret in ("the shop's key", "the operator's key", "another key", "any key at all"):
        assert secret not in log


@pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the wheel rocketmq 0.4.4 is not installed")
@pytest.mark.parametrize(
    ("keys", "served"), [(("operator", "the operator's key"), True), (("operator", "another key"), False), ((), False)]
)
def test_a_client_in_cpp_is_served_with_its_key_only(keys: tuple[str, ...], served: bool, tmp_path: Path) -> None:
    with serving("4.9.3", tmp_path, "--acl", str(ACCOUNTS), "--auto-create-topics") as (address, log):
        command = [sys.executable, str(CLIENTS / "cpp_client.py"), address, *keys]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert [each["ok"] for each in found] == [served] * 2, (found, done.stderr[-2000:])
        assert ('"access-refused"' in log.read_text()) is not served


# what consumers get to see of an administrator's request

COMMANDS = {
    "consumerStatus": ("-g", "acl-billing", "-i", "spy@1"),
    "queryMsgById": ("-i", "{message}", "-g", "acl-billing", "-d", "spy@1"),  # and the topic in 5.3.3
    "resetOffsetByTime": ("-g", "acl-billing", "-t", "AclOrders", "-s", "now"),
}
ASKED = {"consumerStatus": 307, "queryMsgById": 309, "resetOffsetByTime": 220}

ANSWERS = {
    307: b'{"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":{},"mqTable":{},"subscriptionSet":[]}',
    309: b'{"consumeResult":"CR_SUCCESS","autoCommit":true,"order":false,"spentTimeMills":1}',
}


class Spy:
    """A consumer with an account, whose client id is its own choice, and which keeps the bytes of all that it is sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.frames: list[tuple[int, bytes]] = []
        self.socket = socket.create_connection((host, int(port)), 10)
        subscription = {"topic": "AclOrders", "subString": "*", "subVersion": 1}
        consumer = {"groupName": "acl-billing", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": [subscription]}
        body = json.dumps({"clientID": "spy@1", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()
        self.ask(34, {}, body)
        self.ask(15, {"consumerGroup": "acl-billing", "topic": "AclOrders", "queueId": "0", "commitOffset": "0"})
        self.socket.settimeout(None)  # an mqadmin may take longer than ten seconds until it asks
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        request = Frame(code, {**ext, "AccessKey": "shopkeeper"}, body, opaque=code, version=399)
        assert request.ext is not None
        request.ext["Signature"] = sign(request, "the shop's key")
        self.socket.sendall(encode(request))

    def listen(self) -> None:
        with contextlib.suppress(OSError, EOFError), self.socket.makefile("rb") as stream:
            while head := stream.read(4):
                raw = stream.read(int.from_bytes(head, "big"))
                told = decode(raw)
                if told.is_response:
                    continue
                self.frames.append((told.code, raw))
                if not told.is_oneway:
                    self.socket.sendall(encode(Frame(0, None, ANSWERS.get(told.code, b""), flag=RESPONSE, opaque=told.opaque)))


def mqadmin(version: str, place: Path, address: str, *words: str) -> str:
    """Run the administration tool of that version with the operator's key; return what it printed."""
    home = place / "mqadmin"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (home / "conf" / name).write_text('<configuration><root level="OFF"/></configuration>')
    (home / "conf" / "tools.yml").write_text("accessKey: operator\nsecretKey: the operator's key\n")
    command = [str(java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    command += ["-cp", f"{CLIENTS}/target/{version}/lib/*", "org.apache.rocketmq.tools.command.MQAdminStartup", *words, "-n", address]
    environment = {**os.environ, "HOME": str(home), "ROCKETMQ_HOME": str(home)}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout + done.stderr


def test_mqadmin_hands_no_credentials_on_to_a_consumer(version: str, tmp_path: Path) -> None:
    with serving("4.9.3", tmp_path, "--acl", str(ACCOUNTS)) as (address, _):
        made = outcomes(version, address, tmp_path, "admin-creates-topics", "send")
        assert all(ok for ok, *_ in made.values()), made
        with Client(address, credentials=("operator", "the operator's key")) as client:
            message = client.produce("AclOrders", "paid").offset_msg_id
        spy = Spy(address)
        for name, words in COMMANDS.items():
            before = len(spy.frames)
            topic = ("-t", "AclOrders") if name == "queryMsgById" and version == "5.3.3" else ()
            printed = mqadmin(version, tmp_path, address, name, *(word.format(message=message) for word in words), *topic)
            assert ASKED[name] in {code for code, _ in spy.frames[before:]}, printed
        spy.socket.close()
    for code, raw in spy.frames:
        for word in (b"AccessKey", b"Signature", b"operator"):
            assert word not in raw, code


# the fields that accounts may send

HEADERS = {
    "SendMessageRequestHeader": (10, 324),
    "SendMessageRequestHeaderV2": (310, 320, 325),
    "PullMessageRequestHeader": (11, 361),
    "QueryMessageRequestHeader": (12,),
    "QueryConsumerOffsetRequestHeader": (14,),
    "UpdateConsumerOffsetRequestHeader": (15,),
    "CreateTopicRequestHeader": (17,),
    "SearchOffsetRequestHeader": (29,),
    "GetMaxOffsetRequestHeader": (30,),
    "GetMinOffsetRequestHeader": (31,),
    "GetEarliestMsgStoretimeRequestHeader": (32,),
    "ViewMessageRequestHeader": (33,),
    "UnregisterClientRequestHeader": (35,),
    "ConsumerSendMsgBackRequestHeader": (36,),
    "EndTransactionRequestHeader": (37,),
    "GetConsumerListByGroupRequestHeader": (38,),
    "PutKVConfigRequestHeader": (100,),
    "GetKVConfigRequestHeader": (101,),
    "DeleteKVConfigRequestHeader": (102,),
    "RegisterBrokerRequestHeader": (103,),
    "UnRegisterBrokerRequestHeader": (104,),
    "GetRouteInfoRequestHeader": (105,),
    "GetTopicStatsInfoRequestHeader": (202,),
    "GetConsumerConnectionListRequestHeader": (203,),
    "GetProducerConnectionListRequestHeader": (204,),
    "WipeWritePermOfBrokerRequestHeader": (205,),
    "DeleteSubscriptionGroupRequestHeader": (207,),
    "GetConsumeStatsRequestHeader": (208,),
    "DeleteTopicRequestHeader": (215,),
    "DeleteTopicFromNamesrvRequestHeader": (216,),
    "GetKVListByNamespaceRequestHeader": (219,),
    "ResetOffsetRequestHeader": (222,),
    "GetConsumerStatusRequestHeader": (223,),
    "GetTopicsByClusterRequestHeader": (224,),
    "QueryTopicConsumeByWhoRequestHeader": (300,),
    "QueryConsumeTimeSpanRequestHeader": (303,),
    "GetConsumerRunningInfoRequestHeader": (307,),
    "QueryCorrectionOffsetHeader": (308,),
    "ConsumeMessageDirectlyResultRequestHeader": (309,),
    "CloneGroupOffsetRequestHeader": (314,),
    "ViewBrokerStatsDataRequestHeader": (315,),
    "GetConsumeStatsInBrokerHeader": (317,),
    "QueryConsumeQueueRequestHeader": (321,),
    "QueryDataVersionRequestHeader": (322,),
    "ResumeCheckHalfMessageRequestHeader": (323,),
    "AddWritePermOfBrokerRequestHeader": (327,),
    "QueryTopicsByConsumerRequestHeader": (343,),
    "QuerySubscriptionByConsumerRequestHeader": (345,),
    "GetTopicConfigRequestHeader": (351,),
    "GetSubscriptionGroupConfigRequestHeader": (352,),
}
ONLY_IN_5 = {343, 345, 351, 352}


@pytest.mark.skipif(shutil.which("javap") is None, reason="there is no javap; install a JDK")
def test_accounts_may_send_the_fields_of_every_header_of_the_clients(version: str) -> None:
    jars = sorted(CLIENTS.glob(f"target/{version}/lib/rocketmq-*.jar"))
    names = {name for jar in jars for name in zipfile.ZipFile(jar).namelist() if "/header/" in name and name.endswith(".class")}
    classes = [name.removesuffix(".class").replace("/", ".") for name in sorted(names) if "$" not in name and "Header" in name]
    command = ["javap", "-p", "-cp", ":".join(map(str, jars)), *classes, "org.apache.rocketmq.remoting.rpc.RpcRequestHeader"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
    bases: dict[str, str] = {}
    declared: dict[str, set[str]] = {}
    for name, base, body in re.findall(r"class (\S+)(?: extends (\S+))?[^{]*\{(.*?)^\}", told, re.MULTILINE | re.DOTALL):
        short = name.rpartition(".")[2]
        bases[short] = base.rpartition(".")[2]
        declared[short] = set(re.findall(r"^  (?!.*\bstatic\b)[\w.$<> ]+ (\w+);$", body, re.MULTILINE))
    seen = set()
    for name, codes in HEADERS.items():
        fields: set[str] = set()
        above = name
        while above in declared:
            fields |= declared[above]
            above = bases[above]
        for code in codes:
            assert fields - ANY <= FIELDS[code], (name, code)
            if name in declared:
                assert fields, name
                seen.add(code)
    assert {code for codes in HEADERS.values() for code in codes} - seen <= ONLY_IN_5


# TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return server_files(tmp_path_factory.mktemp("certificates"))


def properties(files: Files, place: Path, certificate: tuple[Path, Path] | None = None) -> tuple[str, ...]:
    """What a client with TLS is started with, which checks the broker's certificate."""
    lines = shown("properties").replace("/etc/mqstore/authority.pem", str(files.authority.certificate)).splitlines()
    if certificate is not None:
        lines += [f"tls.client.certPath={certificate[0]}", f"tls.client.keyPath={certificate[1]}"]
    place.mkdir(parents=True, exist_ok=True)
    (place / "tls.properties").write_text("\n".join(lines) + "\n")
    return "-Dtls.enable=true", f"-Dtls.config.file={place / 'tls.properties'}"


CASES = ("admin-creates-topics", "send", "consume-and-retry", "route-wrong-key")


def test_clients_with_tls_and_keys_are_served_and_those_without_tls_are_turned_away(version: str, files: Files, tmp_path: Path) -> None:
    tls = ("--tls", "enforcing", "--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--acl", str(ACCOUNTS))
    with serving(version, tmp_path, *tls) as (address, log):
        secured = outcomes(version, address, tmp_path, *CASES, properties=properties(files, tmp_path / "client"))
        plain = outcomes(version, address, tmp_path, "send", "route")
        closed = [line for line in log.read_text().splitlines() if "the client does not use TLS, which this port requires" in line]
    assert [name for name, (ok, *_) in secured.items() if not ok] == ["route-wrong-key"], secured
    assert "Check signature failed" in secured["route-wrong-key"][2]
    assert [ok for ok, *_ in plain.values()] == [False, False], plain
    assert closed


def test_a_permissive_port_serves_clients_of_both_kinds(version: str, files: Files, tmp_path: Path) -> None:
    tls = ("--tls", "permissive", "--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--acl", str(ACCOUNTS))
    with serving(version, tmp_path, *tls) as (address, _):
        plain = outcomes(version, address, tmp_path, "admin-creates-topics", "send")
        # the test mode that is on by default accepts every certificate
        secured = outcomes(version, address, tmp_path, "send", "lite-pull", properties=("-Dtls.enable=true",))
    assert [name for name, (ok, *_) in (plain | secured).items() if not ok] == [], (plain, secured)


def test_with_a_client_ca_only_clients_with_its_certificate_are_served(version: str, files: Files, tmp_path: Path) -> None:
    tls = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--tls-client-ca", str(files.authority.certificate))
    own = files.authority.sign("client")
    with serving(version, tmp_path, *tls, "--acl", str(ACCOUNTS)) as (address, log):
        with_one = outcomes(version, address, tmp_path, "admin-creates-topics", properties=properties(files, tmp_path / "own", own))
        without = outcomes(version, address, tmp_path, "route", properties=properties(files, tmp_path / "none"))
        failed = [line for line in log.read_text().splitlines() if "the TLS handshake failed" in line]
    assert with_one["admin-creates-topics"][0], with_one
    assert not without["route"][0], without
    assert failed
