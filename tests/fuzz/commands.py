"""Commands run on damaged images in this process: each ends with a status of its own, and says what is wrong in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from fuzz import quorum_oracle, rabbitmq_oracle, rocketmq_oracle
from fuzz.damage import NAMES
from interop.replaying import settings

from mqstore.cli.main import run
from mqstore.errors import MqstoreError
from mqstore.rabbitmq.engine.engine_config import EngineConfig
from mqstore.rabbitmq.engine.queue_store import QueueStore
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

CLEAN, FOUND, FAILED, NOT_READABLE = 0, 1, 2, 3
MOST_OUTPUT = 64 << 20


def run_command(arguments: Sequence[str]) -> str:
    """Run a command and return its standard output. Raises AssertionError for anything but a result or a sentence."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    name = " ".join(arguments)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([*arguments, "-v"])
    raw, told = (stream.buffer.getvalue() for stream in (out, err))  # type: ignore[attr-defined]
    text = told.decode("utf-8")
    diagnosed = arguments[0] == "diagnose"  # its status says whether the broker starts, or that this is no store
    assert status in (CLEAN, FOUND, FAILED) or (diagnosed and status == NOT_READABLE), f"{name}: exit status {status}"
    assert "Traceback" not in text, f"{name}: {text}"
    assert "a bug in mqstore" not in text, f"{name}: {text}"
    assert "out of memory" not in text, f"{name}: {text}"
    assert len(raw) < MOST_OUTPUT, f"{name} prints {len(raw)} bytes"
    if (status == FAILED and not diagnosed) or (status == NOT_READABLE and text):
        last = text.rstrip("\n").rpartition("\n")[2]
        assert last.startswith("mqstore: "), f"{name} fails without a sentence: {text!r}"
    return str(raw.decode("utf-8"))


def check_sentence(error: MqstoreError) -> None:
    """Check that an error is one sentence. Raises AssertionError."""
    assert str(error).strip(), repr(error)
    text = str(error)
    for name in NAMES:  # of files, which an error names as they are
        text = text.replace(name, "name")
    assert "\n" not in text, error


# RocketMQ


def rocketmq_command(golden: rocketmq_oracle.Golden, chance: random.Random, root: Path, out: Path) -> list[str]:
    """Return the arguments of a command on a RocketMQ store. out: a directory for what it writes."""
    store = str(root)
    topic, queue = chance.choice(golden.topics)
    key_topic, key = chance.choice(golden.keys)
    view = chance.choice(("disk", "disk", "recovered"))
    form = chance.choice(("text", "json", "jsonl"))
    offset = str(chance.choice(golden.messages).offset)
    commands = (
        ["inspect", store, "-o", form],
        ["verify", store, "-o", form, "--threads", "1"],
        ["usage", store, "--by", chance.choice(("topic", "queue", "day", "retained")), "--threads", "1"],
        ["messages", store, "-o", form, "--view", view],
        ["messages", store, "-t", topic, "--view", view, "-n", "5"],
        ["topics", store, "--view", view, "-o", form],
        ["groups", store, "--view", view],
        ["queue", store, topic, str(queue), "--view", view],
        ["query", store, "-t", key_topic, "-k", key, "--explain", "--view", view],
        ["get", store, "--offset", offset, "--view", view],
        ["salvage", store, "--to", str(out / "salvaged.jsonl")],
        ["rebuild", store, "--to", str(out / "rebuilt"), "--threads", "1"],
    )
    return chance.choice(commands)


def open_rocketmq_engine(root: Path, version: str, options: dict[str, str]) -> None:
    """Open a store for writing, put a message, close it. Changes the directory."""
    try:
        with MessageStore.open(root, settings(version, options)) as store:
            result = store.put(Message("after", b"wards"))
            if result.stored:
                store.dispatch_now()
    except MqstoreError as error:
        check_sentence(error)


# RabbitMQ


def rabbitmq_command(golden: rabbitmq_oracle.Golden, chance: random.Random, root: Path, out: Path) -> list[str]:
    """Return the arguments of a command on a RabbitMQ store. out: a directory for what it writes."""
    store = str(root)
    vhost, queue = chance.choice(golden.names)
    form = chance.choice(("text", "json", "jsonl"))
    version = str(chance.choice((1, 2)))
    commands = (
        ["inspect", store, "-o", form],
        ["verify", store, "-o", form],
        ["usage", store, "--by", chance.choice(("file", "queue"))],
        ["messages", store, "-o", form, "--all"],
        ["messages", store, "--queue", queue, "-n", "5"],
        ["topics", store, "-o", form],
        ["queue", store, vhost, queue, "-o", form],
        ["get", store, "--vhost", vhost, "--queue", queue, "--at", str(chance.randrange(5))],
        ["get", store, "--id", chance.choice(golden.stored).content[0]],
        ["salvage", store, "--to", str(out / "salvaged.jsonl")],
        ["salvage", store, "--to", str(out / "stores"), "--as", "rabbitmq", "--queue-version", version],
        ["convert", store, "--to", str(out / "converted"), "--queue-version", version, "--threads", "1"],
    )
    return chance.choice(commands)


def quorum_command(golden: quorum_oracle.Golden, chance: random.Random, root: Path, out: Path) -> list[str]:
    """Return the arguments of a command on quorum queues or streams. out: a directory for what it writes."""
    store = str(root)
    vhost, queue = chance.choice(golden.names)
    form = chance.choice(("text", "json", "jsonl"))
    commands = (
        ["inspect", store, "-o", form],
        ["verify", store, "-o", form],
        ["diagnose", store, "-o", chance.choice(("text", "json"))],
        ["diagnose", store, "--for", "4.3"],
        ["usage", store, "--by", chance.choice(("file", "queue"))],
        ["messages", store, "-o", form, "--all"],
        ["messages", store, "--queue", queue, "-n", "5"],
        ["topics", store, "-o", form],
        ["groups", store, "-o", form],
        ["queue", store, vhost, queue, "-o", form],
        ["find", store, chance.choice("abc"), "-n", "5"],
        ["get", store, "--vhost", vhost, "--queue", queue, "--at", str(chance.randrange(5))],
        ["salvage", store, "--to", str(out / "salvaged.jsonl")],
        ["repair", store, "-o", chance.choice(("text", "json"))],
        ["rescue", store, "--to", str(out / "rescued"), "--for", "4.3"],
    )
    return chance.choice(commands)


def open_rabbitmq_engine(root: Path, names: Sequence[tuple[str, str]]) -> None:
    """Open a virtual host for writing, publish a message, close it. Changes the directory."""
    vhost = names[0][0]
    try:
        store = QueueStore.open(root, vhost, EngineConfig())
        try:
            for name, queue in names:
                if name == vhost:
                    store.declare(queue, {})
                    store.deliver(queue, 1 << 20)
        finally:
            store.close()
    except MqstoreError as error:
        check_sentence(error)


def emptied(directory: Path) -> Path:
    """Return a directory with everything in it removed."""
    with os.scandir(directory) as found:
        for entry in list(found):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    return directory
