"""Multi-dispatch at put: one record that also gets entries in other queues, among them light message queues (LMQ).

The property INNER_MULTI_DISPATCH names the queues, separated by commas. Under the append lock the broker looks up the next
offset of each, writes them as INNER_MULTI_QUEUE_OFFSET and encodes the properties again, 4.9.3 without WAIT. After the append
each offset is advanced by one, in 4.9.3 only for records that get queue entries (not prepared or rolled back ones). Dispatch then
finds both lists in the record (`dispatch.dispatcher.request`).

    queue            its offset is kept under           5.3.3
    name             `name-<queue id of the message>`   has no offset: an empty item
    %LMQ%name        `%LMQ%name-0` where LMQ is on      `%LMQ%name-0`

    >>> text = b"INNER_MULTI_DISPATCH\\x01%LMQ%a,mirror\\x02WAIT\\x01true"
    >>> with_queue_offsets(text, 2, {"%LMQ%a-0": 7}.get, "4.9.3", lmq=True)
    (b'INNER_MULTI_DISPATCH\\x01%LMQ%a,mirror\\x02INNER_MULTI_QUEUE_OFFSET\\x017,0', ('%LMQ%a-0', 'mirror-2'))
    >>> with_queue_offsets(text, 2, {"%LMQ%a-0": 7}.get, "5.3.3", lmq=True)[1]
    ('%LMQ%a-0',)

Format: docs/formats/rocketmq.md, section 3.6.
"""

from __future__ import annotations

from collections.abc import Callable

from mqstore.rocketmq.format import java_map
from mqstore.rocketmq.format.profile import version_rules
from mqstore.rocketmq.format.system_topics import is_left_out_of_light_queues

NAMES = "INNER_MULTI_DISPATCH"
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
LMQ_PREFIX = "%LMQ%"

_MARK = f"{NAMES}\x01".encode()


def applies(topic: str, properties: bytes, version: str, *, multi_dispatch: bool, lmq: bool) -> bool:
    """Return whether a put of this message needs offsets of other queues. multi_dispatch, lmq: enableMultiDispatch, enableLmq."""
    if _MARK not in properties:
        return False
    if not version_rules(version).only_light_queues:
        return multi_dispatch
    return lmq and not is_left_out_of_light_queues(topic)


def queue_key(name: str, queue_id: int, *, lmq: bool) -> str:
    """Return the key of another queue in the offset table."""
    return f"{name}-{0 if lmq and name.startswith(LMQ_PREFIX) else queue_id}"


def with_queue_offsets(
    properties: bytes, queue_id: int, offset_of: Callable[[str], int | None], version: str, lmq: bool
) -> tuple[bytes, tuple[str, ...]]:
    """Return (property text to store, keys to advance by one after the append).

    queue_id: of the message. offset_of: next queue offset under a key, None or 0 for a new queue. A message that
    names no queue is unchanged. A queue that is named twice gets one offset twice and is advanced twice, as in the broker.
    """
    rules = version_rules(version)
    found = java_map.parsed(properties, version)
    named = found.get(NAMES)
    if named is None or not named.strip():
        return properties, ()
    names = named.split(",")
    while names and not names[-1]:
        names.pop()
    keys = []
    offsets = []
    for name in names:
        if rules.only_light_queues and not (lmq and name.startswith(LMQ_PREFIX)):
            offsets.append("")
            continue
        keys.append(queue_key(name, queue_id, lmq=lmq))
        offsets.append(str(offset_of(keys[-1]) or 0))
    found.put(OFFSETS, ",".join(offsets))
    wait = found.remove("WAIT")
    if wait is not None and rules.keeps_wait:
        found.put("WAIT", wait)  # after the others of its bucket
    return found.encoded(version), tuple(keys)
