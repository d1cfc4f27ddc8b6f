"""`STEPS.md`: the commands that bring rescued queues into a new node, in an order in which nothing is deleted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqstore.rabbitmq.convert.convert_queue import QueueReport

__all__ = ["steps"]


def steps(
    version: str,
    to: Path,
    document: dict[str, Any],
    queues: Sequence[QueueReport],
    unknown: Sequence[QueueReport],
    others: Sequence[str],
    dropped: Sequence[str],
    *,
    users: bool,
) -> str:
    """Return the text. document: the definitions; queues: those converted; unknown, others, dropped: as in `RescueReport`."""
    out = shlex.quote(str(to.absolute()))
    lost = {queue.directory for queue in unknown}
    counts: dict[tuple[str, str], int] = {}
    for queue in queues:
        if queue.directory not in lost:
            key = (queue.vhost or "", queue.queue)
            counts[key] = counts.get(key, 0) + queue.messages
    total = sum(counts.values())
    lines = [
        f"# Into a RabbitMQ {version} node",
        "",
        f"{total:,} messages in {sum(1 for count in counts.values() if count):,} queues. Run the commands as root on the machine of the",
        "new node, in this order: a node deletes the messages of every queue that it does not know when it starts.",
        "",
        f"1. Install RabbitMQ {version}. The node must be new, without queues, vhosts and messages.",
        "",
        "       systemctl start rabbitmq-server",
        "",
        "2. Import the definitions, and check that the node has all queues:",
        "",
        f"       rabbitmqctl import_definitions {out}/definitions.json",
    ]
    for vhost in document["vhosts"]:
        own = sum(1 for queue in document["queues"] if queue["vhost"] == vhost["name"])
        lines.append(f"       rabbitmqctl -q list_queues -p {shlex.quote(vhost['name'])} --no-table-headers name | wc -l    # {own}")
    lines += [
        "",
        "3. Find the data directory (`Node data directory`), then stop the node. Do not go on if a queue is missing.",
        "",
        "       rabbitmq-diagnostics -q status | grep -A1 'data directory'",
        "       systemctl stop rabbitmq-server",
        "",
        "4. Put the stores in place; DATA is the directory of step 3:",
        "",
        '       mv "$DATA/msg_stores" "$DATA.msg_stores.empty"',
        f'       cp -a {out}/msg_stores "$DATA/msg_stores"',
        '       chown -R rabbitmq:rabbitmq "$DATA/msg_stores"',
        "",
        "5. Start the node, and compare the numbers with the table below before anything consumes:",
        "",
        "       systemctl start rabbitmq-server",
    ]
    lines += [f"       rabbitmqctl -q list_queues -p {shlex.quote(vhost['name'])} name messages" for vhost in document["vhosts"]]
    lines += ["", "| vhost | queue | messages |", "|---|---|---|"]
    lines += [f"| {_cell(vhost)} | {_cell(name)} | {count} |" for (vhost, name), count in sorted(counts.items()) if count]
    lines += ["", "## Not in the new node", ""]
    lines += [f"* {name}: such queues are not carried over." for name in others]
    lines += [f"* {queue.messages:,} messages of the directory {queue.directory}: the name of its queue is not known." for queue in unknown]
    lines += [f"* {what}: RabbitMQ {version} does not need or know it." for what in dropped]
    if not users:
        lines.append(
            "* Users and permissions: `mqstore rescue --users` includes them. Without them, create users with access to each vhost."
        )
    lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text).replace("|", "\\|")
