"""The step for the `.config` of a vhost that does not state how many entries a segment has, or is missing where the segments show it.

    garbage                         the node takes 16384: messages that were acknowledged come back, in another order
    text without a number, empty    the node does not start after an unclean stop
    missing                         the node takes 16384, which is right for vhosts from before 3.8.17

All were tried with a 3.10.8 node.

Format: docs/formats/rabbitmq.md, section 2.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.rabbitmq.format.vhost_config import ENTRIES_WITHOUT_CONFIG, config_file
from mqstore.rabbitmq.repair.queue_step import QueueStep
from mqstore.rabbitmq.store.vhost import Vhost
from mqstore.repair.change import Change

__all__ = ["config_steps"]


def config_steps(vhost: Vhost) -> Iterator[QueueStep]:
    """Yield the step for the file, if there is anything wrong with it. vhost: read carefully."""
    name, found = vhost.config_file, vhost.inferred_count
    damaged = vhost.config_there and any(item.file == name for item in vhost.config_findings)
    if found is None and not damaged:
        return
    if vhost.config_crash is not None:
        otherwise = "after an unclean stop it does not start"
    else:
        otherwise = f"it takes {ENTRIES_WITHOUT_CONFIG}: numbers of messages are wrong, and acknowledged messages come back"
    why = "it does not state the number of entries of a segment" if damaged else "it is missing"
    if found is None:
        why += ", and the segments do not show it: `mqstore salvage` saves the messages"
        yield QueueStep("config", name, 0, 0, why, otherwise, "", (), vhost.place.place)
        return
    if found.entries == ENTRIES_WITHOUT_CONFIG and vhost.config_crash is None:
        otherwise = "it takes the same number"
    shown = "the segments show that it is" if found.proved else "every sequence id is low, so that it may be"
    change = Change("put", name, content=config_file(found.entries))
    yield QueueStep("config", name, 0, 0, f"{why}: {shown} {found.entries}", otherwise, "", (change,), vhost.place.place)
