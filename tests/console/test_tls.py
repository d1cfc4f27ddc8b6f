"""The console over TLS: https only, with the token as before, and with client certificates if asked for."""

from __future__ import annotations

import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.certificates import Files, server_files

pytestmark = pytest.mark.versions

pytest.importorskip("starlette", reason="the extra console is not installed")

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return server_files(tmp_path_factory.mktemp("certificates"))


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "mqstore", "console", "store", "--listen", "127.0.0.1:0", *options]


@contextmanager
def serving(place: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Run the command; yield (the line that it prints, its port)."""
    running = subprocess.Popen(command(*options), cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, running.communicate(timeout=300)
        yield line, int(found[1])
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=300)


def get(port: int, path: str, context: ssl.SSLContext, token: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=300)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    return connection.getresponse()


def test_the_console_serves_https_with_its_token(files: Files, tmp_path: Path) -> None:
    given = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--token", "a token")
    context = files.authority.client_context()
    with serving(tmp_path, *given) as (line, port):
        assert f"The console answers at https://127.0.0.1:{port}/enter?token=" in line
        assert get(port, "/", context).status == 303
        answer = get(port, "/", context, "a token")
        assert answer.status == 200
        assert "; Secure" in str(answer.headers["set-cookie"])
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        plain.request("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()


def test_with_a_client_ca_a_browser_needs_a_certificate(files: Files, tmp_path: Path) -> None:
    given = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--tls-client-ca", str(files.authority.certificate))
    with serving(tmp_path, *given, "--tls", "enforcing") as (_, port):
        assert get(port, "/", files.authority.client_context(*files.authority.sign("visitor"))).status == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            get(port, "/", files.authority.client_context())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--tls", "permissive", "--tls-cert", "c.pem"), "'permissive' is not one of 'disabled', 'enforcing'"),
        (("--tls", "enforcing"), "needs a certificate and its key"),
        (("--tls-key", "k.pem"), "a key or client CA without a certificate gives no TLS"),
        (("--tls-cert", "c.pem"), "c.pem is not a file; --tls-cert expects a file in PEM form"),
    ],
)
def test_a_mistake_is_a_sentence(options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = subprocess.run(command(*options), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
