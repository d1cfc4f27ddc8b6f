"""Which version's node wrote a RabbitMQ store last, as far as its files show it, and by which of them.

Nothing in `msg_stores` states the version. In order:

    feature_flags of a data directory    names `rabbitmq_4.N.0` for each 4.x version whose flags are on
    redeliver_seq_id in recovery.dets    4.3
    message containers                   3.13 and later; version 1 queues with them: up to 4.2
    other stored messages                before 3.13, or stored before an upgrade

Without metadata and without a stored message the version cannot be known.

Format: docs/formats/rabbitmq.md, sections 7, 8.3 and 11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from mqstore.errors import CannotOpenError
from mqstore.rabbitmq.format.layout import mapped_bytes
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.table.columns import QueueSelection

LOOKED_AT = 10_000  # messages

_CONTAINER = re.compile(rb"\x83h\x04(?:d\x00|[ws])\x02mc")  # {mc, …}: a tuple of four whose first element is that atom
_FLAG_OF_4 = re.compile(rb"rabbitmq_4\.(\d{1,2})\.0")


class Evidence(NamedTuple):
    """version: as text, None if nothing shows it. why: what in the files does, or what is missing."""

    version: str | None
    why: str


def _feature_flags(store: RabbitMQStore) -> bytes | None:
    try:
        return store.directory.read("feature_flags")
    except CannotOpenError:
        return None


def flags_of_4(store: RabbitMQStore) -> list[int]:
    """Return the minor versions of 4.x that the file `feature_flags` names."""
    return [int(found[1]) for found in _FLAG_OF_4.finditer(_feature_flags(store) or b"")]


def are_containers(store: RabbitMQStore) -> Iterator[bool]:
    """Yield, for each stored message, whether it is a message container, as nodes from 3.13 on write them."""
    for rows in store.rows(QueueSelection()):
        table = rows.table
        for row in np.flatnonzero(table.source >= 0).tolist():
            data = mapped_bytes(store.directory, table.sources[int(table.source[row])][0])
            at = int(table.at[row])
            yield data is not None and _CONTAINER.match(data[at : at + 16].tobytes()) is not None


def evidence(store: RabbitMQStore) -> Evidence:
    """Return what the files suggest; at most `LOOKED_AT` messages are looked at."""
    if flags := flags_of_4(store):
        return Evidence(f"4.{max(flags)}", f"the file feature_flags names rabbitmq_4.{max(flags)}.0")
    if any(terms.redeliver is not None for vhost in store.vhosts for terms in vhost.terms.values()):
        return Evidence("4.3", "recovery.dets has redeliver_seq_id, which 4.3 writes")
    count = 0
    for container in islice(are_containers(store), LOOKED_AT):
        if container:
            if any(queue.version == 1 for queue in store.queues):
                return Evidence("3.13 to 4.2", "a stored message is a message container, and there are version 1 queues")
            return Evidence("3.13 or later", "a stored message is a message container, which 3.13 and later write")
        count += 1
    if not count:
        return Evidence(None, "no message is stored and no feature flag of 4.x is named: nothing shows the version")
    oldest = "3.10" if any(queue.version == 2 for queue in store.queues) else "3.8"
    return Evidence(f"{oldest} to 3.12", "no stored message that was looked at is a message container, which 3.13 and later write")
