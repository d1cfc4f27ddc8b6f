"""The files and modes of TLS: every mistake is a sentence that names the option."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from support.certificates import Authority, Files, server_files
from support.wire import running

from mqstore.broker import Settings
from mqstore.errors import UsageError
from mqstore.tls import server_context, tls_mode


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return server_files(tmp_path_factory.mktemp("certificates"))


def test_a_certificate_alone_enforces_tls_and_a_mode_alone_is_an_error() -> None:
    assert tls_mode(None, "c.pem") == "enforcing"
    assert tls_mode("disabled", "c.pem") == "disabled"
    with pytest.raises(UsageError, match="--tls permissive needs a certificate and its key; give them with --tls-cert and --tls-key"):
        tls_mode("permissive", None)
    with pytest.raises(UsageError, match="a key or client CA without a certificate gives no TLS"):
        tls_mode(None, None, "key.pem")
    with pytest.raises(UsageError, match="there is no TLS mode 'on'; the modes are disabled, permissive, enforcing"):
        tls_mode("on", "c.pem")


def test_the_key_may_be_in_the_file_of_the_certificate(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    context = server_context(str(both), None, None)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE
    assert server_context(str(both), None, str(files.authority.certificate)).verify_mode == ssl.CERT_REQUIRED


def test_each_mistake_names_its_option(files: Files, tmp_path: Path) -> None:
    cert, key = str(files.certificate), str(files.key)
    other = str(Authority(tmp_path, "other").sign("other")[1])
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for given, why in [
        ((str(tmp_path / "no.pem"), key, None), "no.pem is not a file; --tls-cert expects a file in PEM form"),
        ((str(tmp_path), key, None), "is not a file; --tls-cert expects"),
        ((cert, str(tmp_path / "no.key"), None), "no.key is not a file; --tls-key expects"),
        ((cert, None, None), "give the key with --tls-key"),
        ((str(text), key, None), "not a certificate and its key in PEM form"),
        ((cert, str(text), None), "not a certificate and its key in PEM form"),
        ((cert, other, None), "does not belong to the certificate"),
        ((cert, str(files.key.with_suffix(".encrypted")), None), "is encrypted, and its password cannot be asked for"),
        ((cert, key, str(tmp_path / "no.ca")), "no.ca is not a file; --tls-client-ca expects"),
        ((cert, key, str(text)), "does not contain certificates in PEM form"),
    ]:
        with pytest.raises(UsageError) as raised:
            server_context(*given)
        assert why in str(raised.value)
        assert "PRIVATE KEY" not in str(raised.value)


def test_a_broker_with_bad_files_does_not_start_and_makes_no_store(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, settings=Settings(tls_cert=str(tmp_path / "no.pem"))):
            pass

    with pytest.raises(UsageError, match="--tls-cert expects"):
        asyncio.run(run())
    assert not (tmp_path / "store").exists()
