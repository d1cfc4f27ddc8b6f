"""Stores of 4.x converted for 3.10, and a real 3.10.8 node: it boots from them and delivers every message as 4.x did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from interop.rabbitmq.adopting import adopt_in, declare, differences
from interop.rabbitmq.node import new_node
from interop.rabbitmq.test_convert_against_node import declared, has_expired, merged
from support import golden as goldenkit
from support.golden import case_named

from mqstore.rabbitmq.convert.convert_vhost import convert

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("rabbitmq")]

BATCHES = (("4.3.6/a-v2-clean", "4.3.6/b-small-files-kill9"), ("4.0.5/a-v2-kill9",))


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of 4.x as 3.10 has it: in a segment, and with the size of the body also for a message from AMQP 1.0."""
    location = "index" if row["location"] == "queue_store" else row["location"]
    return row | {"location": location, "size": row["payload_len"]}


def test_3_10_boots_from_stores_of_4_x_and_delivers_every_message(tmp_path: Path) -> None:
    every = [case_named(name) for names in BATCHES for name in names]
    with new_node() as node:
        node.start()
        declare(node, list({(queue.vhost, queue.queue): queue for case in every for queue in declared(case)}.values()))
        node.stop()
        for names in BATCHES:
            cases = [case_named(name) for name in names]
            stores = [tmp_path / case.id for case in cases]
            for case, store in zip(cases, stores, strict=True):
                store.parent.mkdir(exist_ok=True)
                report = convert(goldenkit.opened_node(case), store, target="3.10")
                assert report.version == 1
                assert report.rewritten == report.messages == len(goldenkit.expected(case))
            adopted = adopt_in(node, merged(stores, tmp_path / "all" / names[0]), [queue for case in cases for queue in declared(case)])
            assert adopted.sound, adopted
            want = [wanted(row) for case in cases for row in goldenkit.expected(case) if not has_expired(row)]
            # 4.3 marks single messages as redelivered, 3.10 all up to one; where a message has expired, those after it move up
            moved = ["pos"] if len(want) < sum(len(goldenkit.expected(case)) for case in cases) else []
            assert differences(adopted.rows, want, ["redelivered", *moved]) == []
            marked = {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]) for row in adopted.rows if row["redelivered"]}
            assert marked >= {(row["vhost"], row["queue"], row["priority_level"], row["seq_id"]) for row in want if row["redelivered"]}
            assert not [line for line in adopted.log if "[error]" in line or "crash" in line]
