"""Listening beyond loopback: refused by name unless clients are checked, or it is asked for."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from support.certificates import server_files
from support.wire import running

from mqstore.broker import Settings
from mqstore.broker.runtime.address import is_loopback
from mqstore.errors import UsageError

ACCOUNTS = "accounts:\n- accessKey: shopkeeper\n  secretKey: the shop's key\n"


def start(path: Path, listen: str = "0.0.0.0:0", **settings: Any) -> None:
    async def run() -> None:
        async with running(path, listen=listen, settings=Settings(**settings)):
            await asyncio.sleep(0)  # background tasks begin

    asyncio.run(run())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", pytest.param("[::]:0", marks=pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6"))])
def test_an_open_port_for_other_machines_is_refused(listen: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        start(tmp_path, listen)
    assert "can be reached from other machines, and any client there could do everything; give accounts with --acl" in str(raised.value)
    assert "or allow it with --insecure-listen" in str(raised.value)
    assert not (tmp_path / "store").exists()


def test_accounts_enforced_tls_or_the_option_open_it(tmp_path: Path) -> None:
    files = server_files(tmp_path)
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    tls = {"tls_cert": str(files.certificate), "tls_key": str(files.key)}
    start(tmp_path, acl=str(tmp_path / "plain_acl.yml"))
    start(tmp_path, **tls)
    start(tmp_path, insecure_listen=True)
    with pytest.raises(UsageError, match="TLS is permissive, so clients without it are admitted"):
        start(tmp_path, tls="permissive", **tls)
    start(tmp_path, tls="permissive", acl=str(tmp_path / "plain_acl.yml"), **tls)


def test_metrics_for_other_machines_are_refused_too(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client (the extra metrics) is not installed")
    with pytest.raises(UsageError, match=r"the metrics on 0\.0\.0\.0:0 could be read from other machines"):
        start(tmp_path, "127.0.0.1:0", metrics="0.0.0.0:0")
    start(tmp_path, "127.0.0.1:0", metrics="0.0.0.0:0", insecure_listen=True)


def test_loopback_is_told_by_the_address() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo", "localhost")] == [True] * 6
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example", "")] == [False] * 6
