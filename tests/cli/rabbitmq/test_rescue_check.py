"""`rescue --check`: what a node lacks is named; a wrong answer, address or password is a sentence without the password."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.golden import case_named, opened_node, run_cli

from mqstore.rabbitmq.convert import node_check

OLD = case_named("3.8.9/a-v1-clean")
EXPORTED = json.loads((OLD.path / "definitions.json").read_text())
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a rescue."""
    out = tmp_path_factory.mktemp("rescue") / "\u00fcber"
    assert run_cli("rescue", opened_node(OLD), "--to", out, "--for", "4.3").status == 0
    return out


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Yield the address of a server that answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def reply(handler: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def node_with(
    definitions: dict[str, Any], seen: list[str] | None = None, version: str = "4.3.6", tags: object = ("administrator",)
) -> Answer:
    """Answer as the management interface of a node with these definitions, as a real node exported them."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if seen is not None:
            seen.append(handler.headers.get("Authorization", ""))
        kind = handler.path.partition("?")[0].removeprefix("/rabbit/api/")
        single: dict[str, object] = {"overview": {"rabbitmq_version": version}, "whoami": {"name": "user", "tags": tags}}
        reply(handler, json.dumps(single.get(kind, definitions.get(kind, []))).encode())

    return answer


def without_old(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return definitions as a 4.3 node has them after the import: without the arguments that rescue leaves out."""
    queues = [
        queue | {"arguments": {k: v for k, v in queue["arguments"].items() if k != "x-queue-mode"}} for queue in definitions["queues"]
    ]
    return definitions | {"queues": queues}


def changed(kind: str, which: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return the definitions with one of them changed."""
    there = without_old(EXPORTED)
    rows = [row | values if which.items() <= row.items() else row for row in there[kind]]
    assert rows != there[kind]
    return there | {kind: rows}


def test_a_node_with_all_definitions_is_said_to_have_them(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with serving(node_with(without_old(EXPORTED), seen)) as address:
        done = run_cli("rescue", out, "--check", f"http://us%65r:p%C3%A4ss@{address}/rabbit/", "--for", "4.3")
        assert done.status == 0, done.stderr
        said = f"RabbitMQ 4.3.6 at http://{address}/rabbit has all definitions: 2 vhosts, 15 queues, 2 exchanges, 4 bindings, 0 policies."
        assert said in " ".join(done.stdout.split())
        # the same with OUT after --to, and credentials from the environment
        monkeypatch.setenv(node_check.USER, "user")
        monkeypatch.setenv(node_check.PASSWORD, "p\u00e4ss")
        assert run_cli("rescue", "no such node", "--to", out, "--check", f"http://{address}/rabbit").status == 0
    assert len(set(seen)) == 1
    assert seen[0] == "Basic dXNlcjpww6Rzcw=="


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (without_old(EXPORTED) | {"queues": []}, "No queue 'prio' of vhost '/'."),
        (without_old(EXPORTED) | {"vhosts": [{"name": "/"}]}, "No vhost '\u0442\u0435\u0441\u0442 \u03b2', nor its 3 queues."),
        (without_old(EXPORTED) | {"bindings": []}, "No binding from exchange 'mix.x' to queue 'fan.a' with key 'fan.a' in vhost '/'."),
        (
            changed("queues", {"name": "small", "vhost": "/"}, type="quorum"),
            "queue 'small' of vhost '/' has type \"quorum\", not \"classic\".",
        ),
        (changed("queues", {"name": "small", "vhost": "/"}, durable=False), "The queue 'small' of vhost '/' has durable false, not true."),
        (
            changed("queues", {"name": "prio", "vhost": "/"}, arguments={"x-max-priority": 2}),
            "The queue 'prio' of vhost '/' has x-max-priority 2, not 4.",
        ),
        (
            changed("queues", {"name": "small", "vhost": "/"}, arguments={"x-max-priority": 2}),
            "The queue 'small' of vhost '/' has an argument x-max-priority (2), which it should not have.",
        ),
        (changed("exchanges", {"name": "mix.x"}, type="direct"), "The exchange 'mix.x' of vhost '/' has type \"direct\", not \"fanout\"."),
    ],
)
def test_what_a_node_lacks_or_has_otherwise_is_named(out: Path, there: dict[str, Any], said: str) -> None:
    with serving(node_with(there)) as address:
        done = run_cli("rescue", out, "--check", f"http://{address}/rabbit", "-o", "json")
        assert done.status == 1, done.stderr
        assert any(said in sentence for sentence in done.document["missing"])
        printed = run_cli("rescue", out, "--check", f"http://{address}/rabbit").stdout
        assert "put no stores in place before" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("tags", "status", "said"),
    [
        (["management", "policymaker"], 2, "the user is shown only a part of the definitions"),
        ([], 2, "the user is shown only a part of the definitions"),
        ("monitoring,management", 0, ""),
        (None, 2, "it does not describe the user"),
    ],
)
def test_a_user_that_is_shown_a_part_is_refused_and_what_it_is_not_shown_is_not_called_missing(
    tags: object, status: int, said: str, out: Path
) -> None:
    with serving(node_with(without_old(EXPORTED), tags=tags)) as address:
        done = run_cli("rescue", out, "--check", f"http://{address}/rabbit")
    assert (done.status, said in done.stderr) == (status, True), done.stderr


def test_rows_of_other_shapes_are_definitions_that_are_not_there(out: Path) -> None:
    odd = [{"name": ["small"], "vhost": {"name": "/"}}, {}, {"vhost": 1, "name": None, "arguments": [1], "messages": "many"}]
    there = dict.fromkeys(node_check.COMPARED, odd) | {"vhosts": [*odd, {"name": "/"}]}
    with serving(node_with(there)) as address:
        done = run_cli("rescue", out, "--check", f"http://{address}/rabbit", "-o", "json")
    assert (done.status, len(done.document["missing"])) == (1, 1 + 12 + 2 + 4), done.stdout + done.stderr


def test_a_node_of_another_version_and_one_that_has_messages_are_noticed(out: Path) -> None:
    there = changed("queues", {"name": "small", "vhost": "/"}, messages=12)
    with serving(node_with(there, version="4.0.5")) as address:
        done = run_cli("rescue", out, "--check", f"http://{address}/rabbit", "--for", "4.3")
    assert done.status == 1
    assert "The node is RabbitMQ 4.0.5, not 4.3." in " ".join(done.stdout.split())
    assert "the node already has 12 messages: replacing its msg_stores deletes them" in done.stderr


def garbage(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\x00\xffAMQP\x00\x00\x09\x01\r\n\r\n")


def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
    """Begin an answer, and never end it."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"[")
    handler.wfile.flush()
    handler.rfile.read(1)  # until the client goes away


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler: reply(handler, b"Unauthorized", 401), "refuses the user or the password (status 401)"),
        (lambda handler: reply(handler, b"", 403), "refuses the user or the password (status 403)"),
        (lambda handler: reply(handler, b"no", 404), "it answers /api/overview with status 404"),
        (lambda handler: reply(handler, b"", 302, Location="http://127.0.0.1:1/"), "with status 302"),
        (lambda handler: reply(handler, b"<html>"), "its answer is not JSON"),
        (lambda handler: reply(handler, b"\xff\xfe[]"), "its answer is not JSON"),
        (lambda handler: reply(handler, b"[" * 100_000), "its answer is not JSON"),
        (lambda handler: reply(handler, b"[1, 2]"), "it does not name its version"),
        (lambda handler: reply(handler, b'{"rabbitmq_version": "4.3.6", "tags": ["administrator"]}'), "its list of vhosts is not one"),
        (lambda handler: reply(handler, b'{"rabbitmq_version": ["4.3.6"]}'), "it does not name its version"),
        (lambda handler: reply(handler, b'"' + b"x" * 3_000_000 + b'"'), "its answer has more than 1 MiB"),
        (garbage, "the answer is not HTTP"),
        (drip, "did not answer in time"),
    ],
)
def test_an_answer_that_is_not_a_nodes_is_a_sentence(out: Path, answer: Answer, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(node_check, "DEADLINE", 0.3)
    with serving(answer) as address:
        done = run_cli("rescue", out, "--check", f"http://user:geheim@{address}")
    assert (done.status, said in done.stderr, "geheim" in done.stderr) == (2, True, False), done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://user:geheim@host", "is not that of a management interface"),
        ("http://user:geheim@", "is not that of a management interface"),
        ("http://user:geheim@host:port", "is not a URL"),
        ("http://user:geheim@[::1", "is not a URL"),
        ("http://user:geheim@h\u00f6st", "has characters that a URL cannot have"),
        ("http://user:geheim@host/a\r\nHost: b", ""),
        ("localhost:15672", "is not that of a management interface"),
    ],
)
def test_an_address_that_cannot_be_one_is_a_sentence_without_the_password(out: Path, url: str, said: str) -> None:
    done = run_cli("rescue", out, "--check", url)
    assert (done.status, said in done.stderr, "geheim" in done.stderr) == (2, True, False), done.stderr


def test_nobody_listening_and_no_tls_are_sentences(out: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = run_cli("rescue", out, "--check", f"http://user:geheim@127.0.0.1:{port}")
    assert (done.status, "Connection refused" in done.stderr, "geheim" in done.stderr) == (2, True, False)
    with serving(garbage) as address:
        done = run_cli("rescue", out, "--check", f"https://user:geheim@{address}")
    assert (done.status, "has no valid TLS" in done.stderr, "geheim" in done.stderr) == (2, True, False), done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has no definitions.json"), (b"{", "is not JSON"), (b"[]", "does not have definitions"), (b'{"queues": [1]}', "does not have")],
)
def test_a_directory_without_definitions_is_a_sentence(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "definitions.json").write_bytes(content)
    done = run_cli("rescue", tmp_path, "--check", "http://127.0.0.1:1")
    assert (done.status, said in done.stderr) == (2, True), done.stderr


def test_a_fifo_in_the_place_of_the_definitions_is_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "definitions.json")
    done = run_cli("rescue", tmp_path, "--check", "http://127.0.0.1:1")
    assert (done.status, "is a FIFO, not a regular file" in done.stderr) == (2, True), done.stderr
