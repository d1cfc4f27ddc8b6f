"""Records stored by real brokers, for tests of the code that derives one record from another.

`golden(identity)` gives all records of a golden store. `brokerrun(version)` gives a choice of the records of another run of
`tests/interop/rocketmq`, as hex in `rocketmq/brokerrun-<version>.jsonl.xz`: BrokerScenario `mixed` with seed 7 and
transactionCheckInterval=1500, transactionTimeOut=1000, transactionCheckMax=3, so that its transactions were checked and
given up. In the 5.3.3 run, where op messages wait for 3 s, every transaction was.
"""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from support.golden import case_named, expected, opened

from mqstore.rocketmq.format import record
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.format.record import Record

RUNS = Path(__file__).parent.parent / "rocketmq"


@cache
def golden(identity: str) -> tuple[Record, ...]:
    """Return the records of a golden store, in log order."""
    case = case_named(identity)
    files = sorted((opened(case) / "commitlog").iterdir())
    size = files[0].stat().st_size
    found = []
    for row in expected(case):
        number, at = divmod(row["physical_offset"] - int(files[0].name), size)
        with files[number].open("rb") as file:
            file.seek(at)
            found.append(record.decode(file.read(row["size"])))
    return tuple(found)


@cache
def brokerrun(version: str) -> tuple[Record, ...]:
    """Return the chosen records of a run, in log order."""
    text = lzma.decompress((RUNS / f"brokerrun-{version}.jsonl.xz").read_bytes()).decode()
    return tuple(record.decode(bytes.fromhex(json.loads(line)["record"])) for line in text.splitlines())


def all_of(version: str) -> tuple[Record, ...]:
    """Return all records of one version."""
    stores = ("4.9.3/e-delay-transaction-batch", "4.9.3/f-broker-offsets") if version == "4.9.3" else ("5.3.3/j-broker-offsets",)
    return (*(found for store in stores for found in golden(store)), *brokerrun(version))


def differing(message: Message, found: Record) -> dict[str, tuple[object, object]]:
    """Return the differences of a message and the record a broker stored for it: field -> (of the message, of the record)."""
    names = ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times", "prepared_transaction_offset")
    differences = {
        name: (getattr(message, name), getattr(found, name))
        for name in (*names, "properties", "body")
        if getattr(message, name) != getattr(found, name)
    }
    if message.store_host not in (None, found.store_host):
        differences["store_host"] = (message.store_host, found.store_host)
    return differences
