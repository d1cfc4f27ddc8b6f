"""Make `golden/rabbitmq-sites/delayed-messages.tar.xz`: a node with the plug-in for delayed messages, stopped while messages wait.

    git clone -b v3.10.x https://github.com/rabbitmq/rabbitmq-delayed-message-exchange PLUGIN
    PYTHONPATH=src:tests python -m interop.rabbitmq.make_delayed_site PLUGIN OUT

compiles the plug-in for the 3.10.8 node, publishes to two exchanges of type x-delayed-message, lets some messages be delivered, and packs
the data directory with the feature flags beside it. `delayed-messages.jsonl` has what was published and not delivered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from interop.rabbitmq.node import SBIN, Node, new_node

NAME = "rabbitmq_delayed_message_exchange"
HOUR = 3_600_000


def compiled(source: Path, into: Path) -> Path:
    """Compile the plug-in; return the directory of plug-ins that has it."""
    libraries = SBIN.parent / "plugins"
    ebin = into / f"{NAME}-3.10.2" / "ebin"
    ebin.mkdir(parents=True)
    sources = sorted(map(str, (source / "src").glob("*.erl")))
    command = ["erlc", "-I", str(next(libraries.glob("rabbit_common-*")) / "include"), "-I", str(libraries), "-o", str(ebin), *sources]
    subprocess.run(command, env={**os.environ, "ERL_LIBS": str(libraries)}, check=True, capture_output=True)
    modules = ",".join(Path(each).stem for each in sources)
    (ebin / f"{NAME}.app").write_text(
        f'{{application,{NAME},[{{description,"RabbitMQ Delayed Message Exchange"}},{{vsn,"3.10.2"}},{{modules,[{modules}]}},'
        "{registered,[]},{mod,{rabbit_delayed_message_app,[]}},{applications,[kernel,stdlib,rabbit_common,rabbit]},"
        '{broker_version_requirements,["3.10.0"]}]}.\n'
    )
    return into


def publish(node: Node) -> list[dict[str, Any]]:
    """Publish to both exchanges; return what still waits when the node stops."""
    import pika

    waiting = []
    with node.connect() as connection:
        channel = connection.channel()
        for exchange, kind in (("later", "direct"), ("später", "topic")):
            channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind})
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "later", "orders")
        channel.queue_bind("orders", "später", "orders.#")
        channel.queue_declare("plain", durable=True)
        channel.confirm_delivery()
        for number in range(40):
            exchange, key = (("later", "orders"), ("später", f"orders.{number}"))[number % 2]
            due = number % 4 != 1
            payload = f"delayed {number} ".encode() * (1 if number % 7 else 400)
            headers = {"x-delay": 1 if not due else HOUR * 24 * (1 + number % 5), "number": number}
            properties = pika.BasicProperties(delivery_mode=2, headers=headers, message_id=f"id-{number}")
            channel.basic_publish(exchange, key, payload, properties)
            if due:
                row = {"exchange": exchange, "routing_key": key, "payload": payload.decode(), "message_id": f"id-{number}"}
                waiting.append(row | {"delay": headers["x-delay"]})
        for number in range(3):
            channel.basic_publish("", "plain", f"plain {number}".encode(), pika.BasicProperties(delivery_mode=2))
        end = time.monotonic() + 60
        while channel.queue_declare("orders", passive=True).method.message_count < 10 and time.monotonic() < end:
            time.sleep(0.1)
    return waiting


def main(source: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with new_node() as node:
        plugins = compiled(source, node.base / "plugins-of-users")
        node._environment["RABBITMQ_PLUGINS_DIR"] = f"{SBIN.parent / 'plugins'}:{plugins}"
        (node.base / "plugins").write_text(f"[{NAME}].")
        node.start()
        waiting = publish(node)
        node.eval("ok = mnesia:sync_log().")  # the end of the log would otherwise be lost with the process
        assert _held(node) == len(waiting)
        node.kill()
        archive(node, out / "delayed-messages-killed.tar.xz")
        node.start()
        assert _held(node) == len(waiting)
        node.stop()
        archive(node, out / "delayed-messages.tar.xz")
    with open(out / "delayed-messages.jsonl", "w", encoding="utf-8") as rows:
        rows.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in waiting)


def _held(node: Node) -> int:
    return int(node.eval('mnesia:table_info(list_to_atom("rabbit_delayed_message" ++ atom_to_list(node())), size).'))


def archive(node: Node, file: Path) -> None:
    """Pack the data directory under the name of its node, with flags and plug-ins beside it."""
    names = {node.data: node.name, node.base / "feature_flags": f"{node.name}-feature_flags", node.base / "plugins": "enabled_plugins"}
    with tarfile.open(file, "w:xz") as packed:
        for path, name in names.items():
            packed.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
