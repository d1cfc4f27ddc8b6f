"""`STEPS.md` of the way in place: the old data directory is moved aside and kept, a copy of it gets the converted stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mqstore.rabbitmq.convert.convert_queue import QueueReport
from mqstore.rabbitmq.convert.rescue_steps import list_commands, message_counts, message_table, quoted

__all__ = ["steps"]


def steps(
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
