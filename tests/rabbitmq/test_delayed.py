"""Messages of the plug-in for delayed messages, as a real 3.10.8 node with the plug-in left them."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from support.archives import extract_all
from support.golden import GOLDEN, run_cli, unpack_node_site

from mqstore.rabbitmq.definitions.metadata import replay
from mqstore.rabbitmq.delayed import DELAYED_NAMES
from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.erlang.terms import Atom

SITES = GOLDEN / "rabbitmq-sites"
PUBLISHED = [json.loads(line) for line in (SITES / "delayed-messages.jsonl").read_text(encoding="utf-8").splitlines()]


def node_of(case: str, place: Path) -> Path:
    with tarfile.open(SITES / f"{case}.tar.xz") as archive:
        extract_all(archive, place)
    (node,) = (path for path in place.iterdir() if path.is_dir())
    return node


@pytest.mark.parametrize("case", ["delayed-messages", "delayed-messages-killed"])
def test_every_message_that_waits_is_a_row_and_none_that_was_delivered(case: str, tmp_path: Path) -> None:
    listed = run_cli("timers", node_of(case, tmp_path), "-o", "jsonl")
    rows = listed.rows
    assert (listed.status, {tuple(row) for row in rows}) == (0, {DELAYED_NAMES})
    got = {
        row["properties"]["message_id"]: (row["exchange"], row["routing_keys"], base64.b64decode(row["payload_b64"]).decode())
        for row in rows
    }
    assert got == {row["message_id"]: (row["exchange"], [row["routing_key"]], row["payload"]) for row in PUBLISHED}
    assert [row["due_time"] for row in rows] == sorted(row["due_time"] for row in rows)
    delays = {row["properties"]["message_id"]: row["properties"]["headers"][0][2] for row in rows}
    published = {row["due_time"] - delays[row["properties"]["message_id"]] for row in rows}
    assert max(published) - min(published) < 60_000  # all were published within a minute
    assert {(row["state"], row["verdict"], row["vhost"]) for row in rows} == {("waiting", "intact", "/")}


def test_inspect_diagnose_and_find_know_them(tmp_path: Path) -> None:
    node = node_of("delayed-messages-killed", tmp_path)
    (part,) = (part for part in run_cli("inspect", node, "-o", "json").document["site"] if part["part"] == "delayed messages")
    assert (part["state"], part["known_from"]) == ("here", "found: 30 messages that wait")
    evidence = [item["detail"] for item in run_cli("diagnose", node, "-o", "json").document["evidence"]]
    assert any("30 delayed messages outside the message stores" in detail for detail in evidence)
    (row,) = run_cli("find", node, "id-38", "-o", "jsonl").rows
    assert (row["state"], row["exchange"], row["queue"], row["matched_in"]) == ("delayed", "later", None, ["message_id"])
    found = run_cli("find", node, "delayed 3", "-o", "jsonl").rows  # two of them were delivered, and are in a queue
    assert sum(row["state"] == "delayed" for row in found) == sum("delayed 3" in row["payload"] for row in PUBLISHED)


def test_a_table_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    node = node_of("delayed-messages", tmp_path)
    (table,) = (path for path in node.glob("rabbit_delayed_message*.DCD") if "_index" not in path.name)
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])
    listed = run_cli("timers", node, "-o", "jsonl")
    assert (listed.status, 0 < len(listed.rows) < len(PUBLISHED)) == (1, True)
    (part,) = (part for part in run_cli("inspect", node, "-o", "json").document["site"] if part["part"] == "delayed messages")
    assert part["state"] == "partly"


def test_the_table_of_another_node_is_not_read_by_a_node_of_this_name(tmp_path: Path) -> None:
    node = node_of("delayed-messages", tmp_path)
    renamed = node.rename(node.with_name("rabbit@newhost"))
    evidence = [item["detail"] for item in run_cli("diagnose", renamed, "-o", "json").document["evidence"]]
    assert any("the directory is that of node rabbit@newhost, which does not read this table" in detail for detail in evidence)


def test_what_is_not_a_message_is_shown_as_it_is(tmp_path: Path) -> None:
    listed = run_cli("timers", unpack_node_site("plain", tmp_path), "-o", "jsonl")
    assert listed.status == 1
    assert [(row["exchange"], base64.b64decode(row["payload_b64"]), row["verdict"]) for row in listed.rows] == [
        ("later", b"pay", "damaged")
    ] * 3


def test_message_stores_alone_cannot_tell(tmp_path: Path) -> None:
    stores = tmp_path / "alone"
    shutil.copytree(unpack_node_site("plain", tmp_path) / "msg_stores" / "vhosts", stores)
    said = run_cli("timers", stores)
    assert (said.status, "cannot be told without the data directory of the node" in said.stderr) == (1, True)


def test_a_key_of_a_bag_has_several_records_until_it_is_deleted() -> None:
    table, write = Atom("t"), Atom("write")
    first, second = (Atom("entry"), b"key", 1), (Atom("entry"), b"key", 2)
    changes = [((table, b"key"), first, write), ((table, b"key"), second, write), ((table, b"other"), (Atom("entry"), b"other", 3), write)]

    def held(*more: tuple[object, ...]) -> set[object]:
        header = (Atom("log_header"), Atom("dcl_log"))
        log = disk_log.write_log([header, *changes, *more])  # type: ignore[list-item]
        return {record[2] for record in replay({"t.DCL": log}, ["t"], bags=True).records["t"]}

    assert held() == {1, 2, 3}
    assert held(((table, b"key"), (table, b"key"), Atom("delete"))) == {3}
    assert held(((table, b"key"), first, Atom("delete_object"))) == {2, 3}
