"""States that a real node loses silently or refuses, through the commands: each has its finding, and everything intact comes out.

The table of docs/guide/salvage.md has a row for each; issue numbers are those of rabbitmq-server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.golden import run_cli
from support.rabbitmq_index import message_id
from support.rabbitmq_wrecks import PLACE, STORE, N, Q, body, in_journal, in_segment, in_store, noted, queue_store, vhost

from mqstore.findings import Kind
from mqstore.rabbitmq.format import index_v2, journal

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "salvage.md"


class State(NamedTuple):
    """One state. files: of the vhost; kinds: the findings of `verify`; whole: numbers of the messages that come out as intact."""

    files: Callable[[], dict[str, bytes]]
    kinds: set[Kind]
    whole: list[int]
    v2: bool = False


def _missing_delivery() -> dict[str, bytes]:  # issues 3253 and 7904
    return {f"{Q}/0.idx": in_segment(1) + in_segment(0, marked=False), f"{Q}/journal.jif": journal.acknowledge(0)}


def _journal_without_segments() -> dict[str, bytes]:  # issue 3836
    left = journal.deliver(1) + journal.acknowledge(2) + journal.deliver(3) + journal.acknowledge(3)
    return {f"{Q}/journal.jif": left + in_journal(N + 5)}


def _damaged_terms() -> dict[str, bytes]:  # issue 2192
    terms = bytearray(noted(9, 2, count=3))
    terms[:2000] = bytes(len(terms[:2000]))
    return {f"{Q}/journal.jif": b"".join(map(in_journal, range(3))), f"{PLACE}/recovery.dets": bytes(terms)}


def _no_queue_store() -> dict[str, bytes]:  # issue 13390
    index, _ = queue_store([0, 1, 2])
    return {f"{Q}/0.qi": index + index_v2.shared_entry(message_id(7), size=len(body(7))), f"{STORE}/0.rdq": in_store(7)}


def _deleted_message_file() -> dict[str, bytes]:  # issue 13228
    return {f"{Q}/0.idx": b"".join(in_segment(n, embedded=n % 2 == 0) for n in range(6)), f"{STORE}/4.rdq": in_store(3)}


def _journal_as_version_2() -> dict[str, bytes]:
    return {f"{Q}/journal.jif": b"".join(map(in_journal, range(30))) + journal.acknowledge(0)}


def _cut_index_entry() -> dict[str, bytes]:
    index, store = queue_store([0, 1, 2])
    return {f"{Q}/0.qi": index[:-5], f"{Q}/0.qs": store}


def _headless_index() -> dict[str, bytes]:
    index, store = queue_store([0, 1])
    return {f"{Q}/0.qi": b"\0\0\0\0" + index[4:], f"{Q}/0.qs": store}


def _torn_journal() -> dict[str, bytes]:
    return {f"{Q}/journal.jif": in_journal(0) + bytes(7) + in_journal(1)[:20] + in_journal(2)}


def _torn_segment() -> dict[str, bytes]:
    return {f"{Q}/0.idx": in_segment(0) + in_segment(1)[:21] + in_segment(2)}


def _leftover_behind_zeros() -> dict[str, bytes]:
    index = b"".join(in_segment(n, embedded=False) for n in range(3))
    return {f"{Q}/0.idx": index, f"{STORE}/0.rdq": in_store(0) + bytes(200), f"{STORE}/0.rdt": in_store(1) + in_store(2)}


def _leftover_without_file() -> dict[str, bytes]:
    return {f"{Q}/0.idx": b"".join(in_segment(n, embedded=False) for n in range(2)), f"{STORE}/0.rdt": in_store(0) + in_store(1)}


STATES = {
    "missing-delivery": State(_missing_delivery, {Kind.BROKER_CRASH}, [1]),
    "journal-without-segments": State(_journal_without_segments, {Kind.BROKER_CRASH}, [N + 5]),
    "damaged-terms": State(_damaged_terms, {Kind.BAD_SIDE_FILE}, [0, 1, 2]),
    "no-queue-store": State(_no_queue_store, {Kind.BAD_QUEUE_FILE, Kind.BROKER_CRASH}, [7], v2=True),
    "deleted-message-file": State(_deleted_message_file, {Kind.MISSING_BODY}, [0, 2, 3, 4]),
    "journal-as-version-2": State(_journal_as_version_2, {Kind.BROKER_LOSES}, list(range(1, 30)), v2=True),
    "cut-index-entry": State(_cut_index_entry, {Kind.TORN_RECORD, Kind.BROKER_CRASH}, [0, 1], v2=True),
    "headless-index": State(_headless_index, {Kind.BAD_QUEUE_FILE, Kind.BROKER_LOSES}, [0, 1], v2=True),
    "torn-journal": State(_torn_journal, {Kind.BAD_JOURNAL, Kind.BROKER_LOSES}, [0, 2]),
    "torn-segment": State(_torn_segment, {Kind.BAD_SEGMENT, Kind.BROKER_CRASH}, [0, 2]),
    "leftover-behind-zeros": State(_leftover_behind_zeros, {Kind.BROKER_LOSES}, [0, 1, 2]),
    "leftover-without-file": State(_leftover_without_file, {Kind.BROKER_CRASH, Kind.BROKER_LOSES}, [0, 1]),
}


def _numbers(rows: Path, verdict: str) -> list[int]:
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    return sorted(int(base64.b64decode(row["payload_b64"]).split()[1]) for row in found if row["verdict"] == verdict)


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_identified_by_its_finding_and_intact_messages_come_out(name: str, tmp_path: Path) -> None:
    state = STATES[name]
    store = vhost(tmp_path / "msg_stores", state.files(), v2=state.v2)
    found = run_cli("verify", store, "-o", "json")
    assert found.status == 1
    assert {item["kind"] for item in found.document["damage"]} == state.kinds
    nothing_missing = state.kinds == {Kind.BROKER_LOSES} and not state.v2  # the leftover of a merge is read in place of its file
    assert run_cli("salvage", store, "--to", tmp_path / "out.jsonl", "-q").status == (0 if nothing_missing else 1)
    assert _numbers(tmp_path / "out.jsonl", "intact") == state.whole
    for version in (1, 2):
        new = tmp_path / f"version{version}"
        run_cli("convert", store, "--to", new, "--queue-version", version, "-q")
        assert run_cli("salvage", new, "--to", tmp_path / f"{version}.jsonl", "-q").status == 0
        assert _numbers(tmp_path / f"{version}.jsonl", "intact") == state.whole


def test_a_data_directory_copied_from_another_node_is_read_by_its_own_names(tmp_path: Path) -> None:
    # issue 984: a node under another name does not know these queues, and deletes their directories when it starts
    vhost(tmp_path / "rabbit@old" / "msg_stores", {f"{Q}/journal.jif": in_journal(4)})
    rows = run_cli("messages", tmp_path / "rabbit@old", "-o", "jsonl").stdout.splitlines()
    assert [(row["vhost"], row["queue"], row["seq_id"], row["recovered"]) for row in map(json.loads, rows)] == [("/", "q", 4, True)]
    assert run_cli("salvage", tmp_path / "rabbit@old", "--to", tmp_path / "out.jsonl", "-q").status == 0
    assert _numbers(tmp_path / "out.jsonl", "intact") == [4]


def test_the_guide_has_a_row_for_each_state_with_its_findings() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|.*\| ([`a-z, -]+) \|$", text, re.MULTILINE)
    listed = {name: set(re.findall("[a-z-]+", kinds)) for name, kinds in rows if name in STATES}
    assert listed == {name: {str(kind) for kind in each.kinds} for name, each in STATES.items()}


def test_the_commands_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {f"{Q}/journal.jif": b"".join(map(in_journal, range(4))) + journal.acknowledge(1)}
    store = vhost(tmp_path / "msg_stores", files)
    commands = re.findall(r"^\$ mqstore (salvage wreck .*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 3
    for line in commands:
        words = [str(store) if word == "wreck" else "q" if word == "fan.1" else word for word in line.split()]
        assert run_cli(*words).status == 0
    assert _numbers(tmp_path / "messages.jsonl", "intact") == [0, 2, 3]
    assert run_cli("messages", tmp_path / "fresh", "-o", "jsonl").stdout.count("\n") == 3
