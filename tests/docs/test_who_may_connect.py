"""The page on access: its examples are true, its file of accounts is valid, and its certificates work."""

from __future__ import annotations

import doctest
import re
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from mqstore.broker import Settings
from mqstore.replay.rocketmq_target import ClientError
from mqstore.testing import Client, RunningBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "who-may-connect.md"


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_examples_of_the_page_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain_acl.yml").write_text(block("yaml accounts"), encoding="utf-8")
    outcome = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted > 12
    assert outcome.failed == 0


def test_the_file_of_the_page_that_says_that_it_is_complete_revokes_an_administrator(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(block("yaml accounts"), encoding="utf-8")
    settings = Settings(acl=str(file), acl_scan_interval=20)
    with RunningBroker(tmp_path / "store", settings=settings) as rocketmq:
        operator = Client(rocketmq.address, credentials=("operator", "the operator's key"))
        operator.create_topic("orders")
        file.with_name("new").write_text(block("yaml revoked"), encoding="utf-8")
        file.with_name("new").replace(file)
        end = time.monotonic() + 10
        with pytest.raises(ClientError, match="No acl config for operator"):
            while time.monotonic() < end:
                operator.create_topic("orders")
        Client(rocketmq.address, credentials=("successor", "the successor's key")).create_topic("returns")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
def test_a_broker_and_a_client_accept_the_certificates_of_the_page(tmp_path: Path) -> None:
    subprocess.run(["bash", "-ec", block("sh certificates")], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    settings = Settings(auto_create_topics=True, tls_cert=str(tmp_path / "server.pem"), tls_key=str(tmp_path / "server.key"))
    with RunningBroker(tmp_path / "store", settings=settings) as rocketmq:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        with Client(rocketmq.address, tls=trusting) as client:
            client.produce("orders", "paid")
            assert client.consume("orders")[0].text == "paid"
        with Client(rocketmq.address) as plain, pytest.raises(ClientError, match="did not respond to request"):
            plain.produce("orders", "paid")
