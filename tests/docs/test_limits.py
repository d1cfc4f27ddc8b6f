"""What docs/guide/limits.md says of a flipped bit is what happens: the fields it names are noticed by verify, the others are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import golden as goldenkit

import mqstore
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.verify.verification import verify

UNPROTECTED = {
    "FLAG": (16, 4),
    "BORNTIMESTAMP": (40, 8),
    "BORNHOST": (48, 8),
    "STOREHOST": (64, 8),
    "RECONSUMETIMES": (72, 4),
    "PREPAREDTRANSACTIONOFFSET": (76, 8),
}
PROTECTED = {
    "size": (0, 4),
    "magic": (4, 4),
    "body CRC": (8, 4),
    "queue id": (12, 4),
    "queue offset": (20, 8),
    "physical offset": (28, 8),
    "body length": (84, 4),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A writable copy of a store that a 4.9.3 broker closed cleanly."""
    case = next(case for case in goldenkit.CASES if case.id == "4.9.3/a-clean-small")
    shutil.copytree(goldenkit.opened(case), tmp_path / "store", copy_function=shutil.copyfile)
    for place in (tmp_path / "store").rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return tmp_path / "store"


def _record(store: Path) -> tuple[Path, int, dict[str, tuple[int, int]]]:
    """A record with IPv4 hosts, a body, tags and a key: its file, its position, and where its topic, tags and body are."""
    opened = mqstore.open(store)
    for event in opened.log.scan():
        if not isinstance(event, Records):
            continue
        columns = RecordColumns(event)
        tags, keys = columns.tags.to_pylist(), columns.uniq_key.to_pylist()
        for k, position in enumerate(event.positions.tolist()):
            plain = columns.row(frames.SYS_FLAG)[k] == 0 and columns.row(frames.BODY_LENGTH)[k] > 8
            if plain and tags[k] and tags[k].isascii() and keys[k]:
                raw = event.data[position : position + int(columns.row(frames.SIZE)[k])].tobytes()
                spans = {
                    "body": (int(columns.row(frames.BODY_START)[k]) - position, int(columns.row(frames.BODY_LENGTH)[k])),
                    "topic": (int(columns.row(frames.TOPIC_START)[k]) - position, int(columns.row(frames.TOPIC_LENGTH)[k])),
                    "TAGS": (raw.index(b"TAGS\x01") + 5, len(tags[k])),
                    "UNIQ_KEY": (raw.index(b"UNIQ_KEY\x01") + 9, len(keys[k])),
                }
                return store / event.file.relative, position, spans
    raise AssertionError("the store has no such record")


def _flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x01
    file.write_bytes(data)


@pytest.mark.parametrize("field", UNPROTECTED)
def test_a_flipped_bit_in_an_unprotected_field_is_not_noticed(store: Path, field: str) -> None:
    file, position, _ = _record(store)
    at, width = UNPROTECTED[field]
    _flip(file, position + at + width - 1)
    assert verify(mqstore.open(store)).ok


@pytest.mark.parametrize("field", [*PROTECTED, "body", "topic", "TAGS", "UNIQ_KEY"])
def test_a_flipped_bit_in_a_checked_field_is_noticed(store: Path, field: str) -> None:
    file, position, spans = _record(store)
    at, width = (PROTECTED | spans)[field]
    _flip(file, position + at + width - 1)
    assert not verify(mqstore.open(store)).ok


def test_in_a_bare_commit_log_a_changed_tag_is_not_noticed(store: Path) -> None:
    file, position, spans = _record(store)
    for place in store.iterdir():
        if place.is_dir() and place.name != "commitlog":
            shutil.rmtree(place)
        elif place.is_file():
            place.unlink()
    before = verify(mqstore.open(store)).damage
    _flip(file, position + sum(spans["TAGS"]) - 1)
    assert verify(mqstore.open(store)).damage == before
