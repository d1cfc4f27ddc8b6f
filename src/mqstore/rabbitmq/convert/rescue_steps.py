"""`STEPS.md`: the commands that bring rescued queues into a new node, in an order in which nothing is deleted.

`STEPS.md` of the way in place: the old data directory is moved aside and kept, a copy of it gets the converted stores.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqstore.rabbitmq.convert.convert_queue import QueueReport

Counts = Mapping[tuple[str, str], int]


def quoted(text: str) -> str:
    r"""Return a text as one word of bash, on one line.

    >>> print(quoted("orders"), quoted("of two"), quoted("two\nlines"))
    orders 'of two' $'two\x0alines'
    """
    if all(character.isprintable() or "\udc80" <= character <= "\udcff" for character in text):
        return shlex.quote(text)
    octets = text.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(octet) if chr(octet).isalnum() and octet < 128 else f"\\x{octet:02x}" for octet in octets) + "'"


def message_counts(queues: Iterable[QueueReport], unknown: Iterable[QueueReport]) -> dict[tuple[str, str], int]:
    """Return the number of messages of each queue, by vhost and name, without those of unknown directories."""
    lost = {(queue.vhost, queue.directory) for queue in unknown}
    counts: dict[tuple[str, str], int] = {}
    for queue in queues:
        if (queue.vhost, queue.directory) not in lost:
            key = (queue.vhost or "", queue.queue)
            counts[key] = counts.get(key, 0) + queue.messages
    return counts


def list_commands(vhosts: Iterable[str]) -> list[str]:
    """Return the lines that list the queues of vhosts with their numbers of messages."""
    return [f"       rabbitmqctl -q list_queues -p {quoted(vhost)} name messages" for vhost in vhosts]


def message_table(counts: Counts) -> list[str]:
    """Return the lines of a table of the queues that have messages."""
    lines = ["| vhost | queue | messages |", "|---|---|---|"]
    return lines + [f"| {_cell(vhost)} | {_cell(name)} | {count} |" for (vhost, name), count in sorted(counts.items()) if count]


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
    out = quoted(os.path.abspath(to))
    counts = message_counts(queues, unknown)
    total = sum(counts.values())
    lines = [
        f"# Into a RabbitMQ {version} node",
        "",
        f"{total:,} messages in {sum(1 for count in counts.values() if count):,} queues. Run the commands as root, in one bash, on",
        "the machine of the new node, in this order: a node deletes the messages of every queue that it does not know when it starts.",
        "",
        f"1. Install RabbitMQ {version}. The node must be new, without queues, vhosts and messages.",
        "",
        "       systemctl start rabbitmq-server",
        "",
        "2. Import the definitions, and check that the node has all queues:",
        "",
        f"       chown rabbitmq {out}/definitions.json || true    # rabbitmqctl reads it as this user; it is for its owner only",
        f"       rabbitmqctl import_definitions {out}/definitions.json",
    ]
    for vhost in document["vhosts"]:
        own = sum(1 for queue in document["queues"] if queue["vhost"] == vhost["name"])
        lines.append(f"       rabbitmqctl -q list_queues -p {quoted(vhost['name'])} --no-table-headers name | wc -l    # {own}")
    lines += [
        "",
        "   Do not go on if a queue is missing. If the plug-in rabbitmq_management is enabled, this names every definition that is:",
        "",
        f"       mqstore rescue {out} --check http://USER:PASSWORD@localhost:15672",
        "",
        "3. Find the data directory, then stop the node:",
        "",
        "       DATA=$(rabbitmq-diagnostics -q status | sed -n 's/^Node data directory: //p'); echo \"$DATA\"",
        "       systemctl stop rabbitmq-server",
        "",
        "4. Put the stores in place:",
        "",
        '       mv "$DATA/msg_stores" "$DATA.msg_stores.empty"',
        f'       cp -a {out}/msg_stores "$DATA/msg_stores"',
        '       chown -R --reference="$DATA" "$DATA/msg_stores"',
        "",
        "5. Start the node, and compare the numbers with the table below before anything consumes:",
        "",
        "       systemctl start rabbitmq-server",
    ]
    lines += list_commands(vhost["name"] for vhost in document["vhosts"])
    lines += ["", *message_table(counts)]
    lines += ["", "## Not in the new node", ""]
    lines += [f"* {name}: such queues are not carried over." for name in others]
    lines += [
        f"* {queue.messages:,} messages of the directory {queue.directory}: no definition leads to it, so the node deletes them."
        for queue in unknown
    ]
    lines += [f"* {what}: RabbitMQ {version} does not need or know it." for what in dropped]
    if not users:
        lines.append(
            "* Users and permissions: `mqstore rescue --users` includes them. Without them, create users with access to each vhost."
        )
    lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text).replace("|", "\\|")


def steps_in_place(
    node: str,
    data: Path,
    to: Path,
    queues: Sequence[QueueReport],
    unknown: Sequence[QueueReport],
    others: Sequence[str],
) -> str:
    """Return the text. node: its name; data, to: the old data directory, and that with the new stores; the rest as in `InPlaceReport`."""
    own = Path(os.path.abspath(data))
    counts = message_counts(queues, unknown)
    vhosts = sorted({vhost for vhost, _ in counts})
    lines = [
        "# RabbitMQ 4.3 on the data directory of an older node",
        "",
        f"{sum(counts.values()):,} messages in {sum(1 for count in counts.values() if count):,} queues. Run the commands as root, in one",
        f"bash, on the machine of the node, in this order. The new node must have the name of the old one, `{node}`. The old data",
        "directory is moved aside and stays as it is, and a copy of it without its messages gets the converted ones.",
        "",
        "1. Stop the old node, and move its data directory to where no other node finds it: installing RabbitMQ may start one, and",
        "   4.3 deletes the messages of older queues without a word. If this is not the data directory, but a copy, change the line.",
        "",
        f"       DATA={quoted(str(own))}",
        "       systemctl stop rabbitmq-server",
        '       mv "$DATA" "$DATA.before"',
        '       if [ -e "$DATA-feature_flags" ]; then mv "$DATA-feature_flags" "$DATA.before-feature_flags"; fi',
        "",
        "2. Install RabbitMQ 4.3, and stop the node that this may have started. What it made is moved aside too.",
        "",
        "       systemctl stop rabbitmq-server",
        '       if [ -e "$DATA" ]; then mv "$DATA" "$DATA.empty"; fi',
        '       rm -f "$DATA-feature_flags"',
        "",
        "3. Copy the old directory without its messages and feature flags, and put the converted messages in place:",
        "",
        '       mkdir "$DATA"',
        '       tar -C "$DATA.before" --exclude=./msg_stores --exclude=./feature_flags -cf - . | tar -C "$DATA" -xpf -',
        f'       cp -a {quoted(os.path.abspath(to))}/msg_stores "$DATA/msg_stores"',
        '       chown -R --reference="$DATA.before" "$DATA"',
        "",
        "4. Start the node, and compare the numbers with the table below before anything consumes:",
        "",
        "       systemctl start rabbitmq-server",
        *list_commands(vhosts),
        "",
        *message_table(counts),
        "",
        "## To go back",
        "",
        "The old directory has everything that it had; what clients did on the new node is not in it.",
        "",
        "       systemctl stop rabbitmq-server",
        '       mv "$DATA" "$DATA.new"',
        '       if [ -e "$DATA-feature_flags" ]; then mv "$DATA-feature_flags" "$DATA.new-feature_flags"; fi',
        "",
        "Install the older version again, and stop the node that this may have started.",
        "",
        "       systemctl stop rabbitmq-server",
        '       if [ -e "$DATA" ]; then mv "$DATA" "$DATA.empty.old"; fi',
        '       rm -f "$DATA-feature_flags"',
        '       mv "$DATA.before" "$DATA"',
        '       if [ -e "$DATA.before-feature_flags" ]; then mv "$DATA.before-feature_flags" "$DATA-feature_flags"; fi',
        "       systemctl start rabbitmq-server",
        "",
        "## What is not converted",
        "",
    ]
    lines += [f"* {name}: its files stay as they are, and mqstore has not looked at them." for name in others]
    lines += [
        f"* {queue.messages:,} messages of the directory {queue.directory}: the metadata has no queue for it, so the new node deletes "
        "them; `mqstore rescue` without `--in-place` defines such queues."
        for queue in unknown
    ]
    if not others and not unknown:
        lines.append("Nothing.")
    lines.append("")
    return "\n".join(lines)
