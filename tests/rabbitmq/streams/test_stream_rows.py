"""Rows of the message table from streams, as nodes of three versions delivered their messages."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import streams
from support.streams import CASES

from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage, Kind
from mqstore.rabbitmq.streams import rows as stream_rows
from mqstore.rabbitmq.streams.delivered_entry import RULES
from mqstore.rabbitmq.streams.rows import MessagesBefore, walk_rows
from mqstore.rabbitmq.streams.segment import HEADER, chunk, entry
from mqstore.rabbitmq.streams.stream import NamedStream, Stream
from mqstore.table.columns import RABBITMQ_COLUMNS, QueueSelection

STREAMS = [(case, queue) for case in CASES for queue in streams.directories(case)]
WANTED = (*RABBITMQ_COLUMNS, "payload_len", "payload_sha256", "properties_json", "entry_b64")


def rows_of(
    directory: Path, queue: str, version: str = "4.3", selection: QueueSelection = QueueSelection(), columns: tuple[str, ...] = WANTED
) -> tuple[list[dict[str, Any]], list[Damage]]:
    found: list[dict[str, Any]] = []
    findings: list[Damage] = []
    named = NamedStream("/", queue, Stream(ReadOnlyDirectory(directory), ""))
    for rows, damage in walk_rows(named, selection, rules=RULES[version]):
        batch = rows.batch(columns, selection)
        found += [] if batch is None else batch.to_pylist()
        findings += damage
    return found, findings


@pytest.mark.parametrize("queue", ["s.plain", "s.retained", "s.small"])
def test_without_the_head_of_its_last_chunk_a_stream_has_the_messages_before_it(queue: str, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(streams.directories("3.10.8-clean")[queue], tmp_path / "stream"))
    whole = Stream(ReadOnlyDirectory(directory), "")
    at = int(whole.index(len(whole) - 1)[0].records["position"][-1])
    count = MessagesBefore(whole).segment(len(whole))
    segment = max(directory.glob("*.segment"))
    raw = bytearray(segment.read_bytes())
    raw[at] ^= 0xFF
    segment.chmod(0o644)
    segment.write_bytes(raw)
    stream = Stream(ReadOnlyDirectory(directory), "")
    found, findings = rows_of(directory, queue, "3.10")
    assert findings
    assert MessagesBefore(stream).segment(len(stream)) == len(found) < count


@pytest.mark.parametrize(("case", "queue"), STREAMS)
def test_the_rows_are_what_the_node_delivered(case: str, queue: str) -> None:
    found, findings = rows_of(streams.directories(case)[queue], queue, CASES[case])
    assert findings == []
    raw = streams.delivered(case, "stream").get(queue, [])
    assert [(row["pos"], row["stream_offset"], row["chunk_timestamp"]) for row in found] == [
        (pos, row["offset"], row["chunk_timestamp"]) for pos, row in enumerate(raw)
    ]
    assert {row["verdict"] for row in found} | {row["queue_type"] for row in found} <= {"intact", "stream"}
    assert all(row["recovered"] and row["redelivered"] is False and row["location"] == "segment" for row in found)
    for row, stored in zip(found, raw, strict=True):
        assert len(base64.b64decode(row["entry_b64"])) == stored["len"]
        assert "b64" not in stored or row["entry_b64"] == stored["b64"]
    by_offset = {row["stream_offset"]: row for row in found}
    for delivered in streams.delivered(case, "amqp091").get(queue, []):
        row = by_offset[streams.offset_of(delivered)]
        assert (row["exchange"], row["routing_keys"][0]) == (delivered["exchange"], delivered["routing_key"])
        assert json.loads(row["properties_json"]) == delivered["properties"]
        assert (row["size"], row["payload_len"], row["payload_sha256"]) == (
            delivered["payload_len"],
            delivered["payload_len"],
            delivered["payload_sha256"],
        )


def test_offsets_select_rows_and_keep_their_positions() -> None:
    directory = streams.directories("4.3.6-killed")["s.small"]
    whole, _ = rows_of(directory, "s.small")
    some, _ = rows_of(directory, "s.small", selection=QueueSelection(from_offset=65, to_offset=75))
    assert some == [row for row in whole if 65 <= row["stream_offset"] < 75]
    for start, stop in ((None, 70), (139, None), (200, 201), (1000, None)):
        some, _ = rows_of(directory, "s.small", selection=QueueSelection(from_offset=start, to_offset=stop))
        assert some == [row for row in whole if (start or 0) <= row["stream_offset"] < (1000 if stop is None else stop)]


def test_a_filter_value_reads_only_chunks_that_may_hold_it() -> None:
    found, _ = rows_of(
        streams.directories("4.3.6-killed")["s.filter"], "s.filter", selection=QueueSelection(filter_values=frozenset(["red"]))
    )
    values = [header["value"] for row in found for header in row["properties"]["headers"] if header["name"] == "x-stream-filter-value"]
    assert len(found) == len(values) == 11
    assert set(values) == {'"red"'}


def test_rows_of_a_damaged_chunk_say_so_and_those_that_a_node_drops_are_not_recovered(tmp_path: Path) -> None:
    target = tmp_path / "s"
    shutil.copytree(streams.directories("4.3.6-killed")["s.small"], target)
    first = sorted(target.glob("*.segment"))[0]
    raw = bytearray(first.read_bytes())
    raw[60] ^= 1
    first.write_bytes(bytes(raw))
    last = sorted(target.glob("*.index"))[-1]
    last.write_bytes(last.read_bytes()[: -2 * 29])
    found, [damage] = rows_of(target, "s.small")
    assert damage.kind == Kind.BAD_CHUNK
    assert [row["verdict"] for row in found].count("damaged") == 3
    assert [row["pos"] for row in found] == [None] * 3 + list(range(3, 268)) + [None] * 32
    assert [row["recovered"] for row in found] == [False] * 3 + [True] * 265 + [False] * 32


@pytest.mark.parametrize("content", [b"", b"plain bytes", b"\x00\x53\x75", b"\x00\x53\x75\x50\x01", b"\x00\x53\x77"])
def test_a_record_that_is_not_amqp_is_intact_and_its_payload_is_all_of_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.segment").write_bytes(HEADER + chunk(0, [entry(content)]))
    [row], _ = rows_of(tmp_path, "q")
    assert (row["verdict"], row["payload"], row["properties_json"], row["routing_keys"]) == ("intact", content, "{}", ["q"])


def test_no_body_is_read_for_columns_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rows, "read_entry", None)
    found, _ = rows_of(
        streams.directories("4.3.6-killed")["s.small"], "s.small", columns=("pos", "stream_offset", "store_file", "position")
    )
    assert len(found) == 300
