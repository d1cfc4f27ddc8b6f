"""Write tests/golden/rabbitmq-definitions: the Mnesia tables of a real node, in three states in which a node leaves them.

    PYTHONPATH=tests python -m interop.rabbitmq.make_definitions OUT

`logged`: killed, the newest definitions are only in LATEST.LOG · `dumped`: killed, tables have change files, later changes are in the log ·
`stopped`: a clean stop. Beside each are the records that the node itself holds, as base64 of their terms. Only tables of definitions are
included, and the log starts after the users were dumped into their table: otherwise it would contain password hashes.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import time
from pathlib import Path

from interop.rabbitmq.node import Node, new_node

TABLES = ("rabbit_durable_queue", "rabbit_durable_exchange", "rabbit_durable_route", "rabbit_vhost")


def declare(node: Node) -> None:
    node.add_vhost("Ünïcode vhost")
    with node.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("prio", durable=True, arguments={"x-max-priority": 5, "x-message-ttl": 60000, "x-queue-mode": "lazy"})
        channel.queue_declare("two", durable=True, arguments={"x-queue-version": 2})
        channel.queue_declare("dropped", durable=True)
        channel.queue_declare("transient", durable=False)
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
        channel.exchange_declare("fan", "fanout", durable=True)
        channel.queue_bind("plain", "fan", "")
        channel.queue_bind("prio", "fan", "key", arguments={"n": 1})
    with node.connect("Ünïcode vhost") as connection:
        connection.channel().queue_declare("Schlange ✓", durable=True, auto_delete=True)


def change(node: Node) -> None:
    with node.connect() as connection:
        channel = connection.channel()
        channel.queue_delete("dropped")
        channel.queue_declare("later", durable=True)
        channel.queue_unbind("plain", "fan", "")
    node.eval('rabbit_policy:set(<<"/">>, <<"newer">>, <<"^plain$">>, [{<<"queue-version">>, 2}], 1, <<"queues">>, <<"mqstore">>).')


def held(node: Node) -> list[str]:
    """Return every record of the tables, as base64."""
    answer = node.base / "records"
    tables = ",".join(TABLES)
    node.eval(
        f"Records = fun(T) -> mnesia:dirty_match_object(T, mnesia:table_info(T, wild_pattern)) end,"
        f' ok = file:write_file("{answer}", [[base64:encode(term_to_binary(R)), 10] || T <- [{tables}], R <- Records(T)]).'
    )
    return sorted(answer.read_text().split())


def save(node: Node, out: Path, name: str, records: list[str]) -> None:
    names = [*(f"{table}.{kind}" for table in TABLES for kind in ("DCD", "DCL")), "LATEST.LOG", "PREVIOUS.LOG", "DECISION_TAB.LOG"]
    with tarfile.open(out / f"{name}.tar.xz", "w:xz") as archive:
        for each in names:
            if (node.data / each).exists():
                content = (node.data / each).read_bytes()
                info = tarfile.TarInfo(each)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    (out / f"{name}.json").write_text(json.dumps(records, indent=0) + "\n")


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with new_node() as node:
        node.start()
        node.eval("mnesia:dump_log().")
        declare(node)
        records = held(node)
        time.sleep(1)
        node.kill()
        save(node, out, "logged", records)
        node.start()
        change(node)
        node.eval("mnesia:dump_log().")
        with node.connect() as connection:
            connection.channel().queue_declare("last", durable=True)
            connection.channel().queue_delete("two")
        records = held(node)
        time.sleep(1)
        node.kill()
        save(node, out, "dumped", records)
        node.start()
        records = held(node)
        node.stop()
        save(node, out, "stopped", records)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
