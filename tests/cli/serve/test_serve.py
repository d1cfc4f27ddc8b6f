"""`mqstore serve`: the line that announces readiness, events on standard error, and a clean shutdown."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.golden import case_named, opened, run_cli, tree_checksum

from mqstore.replay.rocketmq_target import ClientError
from mqstore.testing.client import Client


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Yield a serving process and the line that it prints when it is ready."""
    command = [sys.executable, "-m", "mqstore", "serve", "--listen", "127.0.0.1:0", "-o", "jsonl", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_store_is_served_until_a_signal_and_closed_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "store", "--auto-create-topics") as (process, ready):
        with Client(str(ready["address"])) as client:
            sent = client.produce("orders", "paid", keys="o-17")
            assert client.consume("orders")[0].keys == "o-17"
        assert (ready["version"], ready["writable"], ready["process"]) == ("4.9.3", True, process.pid)
        process.send_signal(number)
        out, errors = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "")
    assert [json.loads(line)["event"] for line in errors.splitlines()] == ["started", "stopped"]
    assert not (tmp_path / "store" / "abort").exists()
    found = run_cli("get", tmp_path / "store", "--offset", int(sent.offset_msg_id[16:], 16), "-o", "json").document
    assert (found["topic"], found["keys"]) == ("orders", "o-17")


def test_a_killed_broker_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serving(store, "--auto-create-topics", "-q") as (process, ready), Client(str(ready["address"])) as client:
        for number in range(50):
            client.produce("orders", str(number), queue_id=0)
        process.kill()
        process.wait()
    assert (store / "abort").exists()
    with serving(store, "-q") as (_, ready), Client(str(ready["address"])) as client:
        assert [message.text for message in client.consume("orders", 50)] == [str(number) for number in range(50)]


def test_a_store_served_read_only_is_not_changed(tmp_path: Path) -> None:
    path = opened(case_named("4.9.3/b-kill9"))
    before = tree_checksum(path)
    with serving(path, "--read-only", "-q") as (process, ready):
        assert ready["writable"] is False
        with Client(str(ready["address"])) as client, pytest.raises(ClientError, match=r"CODE: 14 .*read-only"):
            client.produce("orders", "paid")
        process.terminate()
        assert process.wait() == 0
    assert tree_checksum(path) == before


@contextmanager
def serving_with_a_ready_line(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "mqstore", "serve", "--listen", "127.0.0.1:0", "--print-ready", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # after its end this does nothing


@pytest.mark.parametrize("options", [(), ("-q",), ("-o", "json"), ("-o", "csv", "--verbose"), ("--no-color",)], ids=" ".join)
def test_the_ready_line_is_all_that_is_printed_whatever_the_format(tmp_path: Path, options: tuple[str, ...]) -> None:
    store = tmp_path / "store"
    with serving_with_a_ready_line(store, "--auto-create-topics", *options) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Client(ready["address"]) as client:  # at once: the line is printed when clients can connect
            client.produce("orders", "paid")
            assert client.consume("orders")[0].text == "paid"
        process.terminate()
        assert process.communicate(timeout=300)[0] == ""
    assert process.returncode == 0
    assert not (store / "abort").exists()
    assert ready == {
        "ready": True,
        "address": f"127.0.0.1:{ready['port']}",
        "port": ready["port"],
        "store": str(store),
        "version": "4.9.3",
        "read_only": False,
        "pid": process.pid,
    }


def test_the_ready_line_has_the_advertised_address_and_the_port_that_is_listened_on() -> None:
    path = opened(case_named("5.3.3/h-kill9"))
    with serving_with_a_ready_line(path, "--read-only", "--address", "192.0.2.7:19876", "-q") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", ready["port"]), timeout=300):
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 0
    assert (ready["address"], ready["version"], ready["read_only"]) == ("192.0.2.7:19876", "5.3.3", True)
    assert ready["port"] != 19876


def test_a_broker_that_cannot_start_prints_no_ready_line(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "-q") as (running, ready):
        taken = [sys.executable, "-m", "mqstore", "serve", str(tmp_path / "third"), "--listen", str(ready["address"]), "--print-ready"]
        ended = subprocess.run(taken, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert f"cannot listen on {ready['address']}" in ended.stderr
        running.terminate()
        running.communicate(timeout=300)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--listen", "nowhere"), "cannot listen on 'nowhere': it must be HOST:PORT"),
        (("--as-version", "6"), "--as-version"),
        (("--config", "missing.conf"), "missing.conf does not exist"),
        (("--nonsense",), "--nonsense"),
        (("--metrics", "nowhere"), "cannot listen on 'nowhere'"),
        (("--listen", "0.0.0.0:0"), "0.0.0.0 can be reached from other machines"),
        (("--acl", "missing.yml"), "missing.yml is not a file that can be read"),
        (("--tls", "enforcing"), "--tls enforcing needs a certificate and its key"),
        (("--tls", "sometimes"), "--tls"),
        (("--tls-cert", "missing.pem"), "missing.pem is not a file"),
        (("--tls-client-ca", "missing.pem"), "a key or client CA without a certificate gives no TLS"),
    ],
)
def test_an_impossible_request_gives_a_one_sentence_error_and_creates_no_store(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    command = [sys.executable, "-m", "mqstore", "serve", "store", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_a_configuration_that_asks_for_access_control_is_not_served_without_it(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("aclEnable = true\n")
    command = [sys.executable, "-m", "mqstore", "serve", "store", "--listen", "127.0.0.1:0", "--config", "broker.conf"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert ended.returncode == 2
    assert "broker.conf has aclEnable=true; give the file of accounts with --acl, or set aclEnable=false" in ended.stderr
    assert os.listdir(tmp_path) == ["broker.conf"]
