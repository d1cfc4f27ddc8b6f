"""A directory in the place of `.queue_name`: real nodes do not start the queue, and do after `repair`.

After a kill, a node does not start with such a queue of version 1: it tries for three minutes, which is not waited for.
"""

from __future__ import annotations

import shutil
import time

import pika
import pytest
from interop.rabbitmq.other_node import OtherNode, missing, other_node
from support.golden import run_cli

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

MESSAGES = 20
PATIENCE = 60.0


@pytest.mark.parametrize(("suite", "version"), [("bookworm", 1), ("bookworm", 2), ("trixie", 2)])
@pytest.mark.parametrize("killed", [False, True])
def test_a_node_starts_without_the_queue_and_delivers_it_after_a_repair(suite: str, version: int, killed: bool) -> None:
    if reason := missing(suite):
        pytest.skip(reason)
    with other_node(suite) as node:
        published(node, version)
        node.ctl("eval", "mnesia:sync_log().")  # a kill within two seconds of a declaration takes the queue from the metadata
        (node.kill if killed else node.stop)()
        take_place_of_name(node)
        found = run_cli("diagnose", node.data, "-o", "json").document
        waits = killed and version == 1
        assert (found["starts"], found["loses"]) == ((False, 0) if waits else (True, MESSAGES))
        assert found["next"].startswith("mqstore repair ")
        if not waits:
            node.start()
            end = time.monotonic() + PATIENCE
            while "eisdir" not in node.log():
                assert time.monotonic() < end
                time.sleep(0.2)
            node.stop()
        assert run_cli("repair", node.data, "--apply").status == 0
        node.start()
        assert [body for body, _ in node.consume_all("q", MESSAGES)] == [b"%d" % number for number in range(MESSAGES)]


def test_a_node_starts_if_its_metadata_has_not_got_such_a_queue_or_its_vhost() -> None:
    """It deletes the queue, and leaves the vhost alone; after a kill it waits for the vhost of a queue of version 1 that it knows."""
    if reason := missing("bookworm"):
        pytest.skip(reason)
    with other_node("bookworm") as node:
        published(node, 1)
        node.ctl("eval", 'mnesia:dirty_delete(rabbit_durable_queue, rabbit_misc:r(<<"/">>, queue, <<"q">>)), mnesia:sync_log().')
        node.kill()
        take_place_of_name(node)
        assert run_cli("diagnose", node.data, "-o", "json").document["next"].startswith("mqstore salvage ")  # a repair would be in vain
        (vhost,) = node.data.glob("msg_stores/vhosts/*")
        shutil.copytree(vhost, vhost.with_name("UNKNOWN"))
        found = run_cli("diagnose", node.data, "-o", "json").document
        assert (found["starts"], found["loses"]) == (True, 2 * MESSAGES)
        node.start()
        assert {path.parts[-3] for path in node.data.glob("msg_stores/vhosts/*/queues/*")} == {"UNKNOWN"}


def published(node: OtherNode, version: int) -> None:
    node.start()
    with node.connect("/") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-queue-version": version})
        for number in range(MESSAGES):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))


def take_place_of_name(node: OtherNode) -> None:
    (name,) = node.data.glob("msg_stores/vhosts/*/queues/*/.queue_name")
    name.unlink()
    name.mkdir()
