"""Torn tables in `config/`, with and without a .bak: what a whole real broker makes of them, against what `diagnose` says.

The tables are those that a real broker of the version wrote; the store has messages for each queue that they name.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from interop.clientoracle import why_not
from interop.wholebroker import FILES, Start, start_and_stop
from support.golden import case_named, opened

from mqstore.diagnosis import Diagnosis
from mqstore.places import open_rocketmq
from mqstore.rocketmq.config import fastjson
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

BASES = {"4.9.3": "4.9.3/f-broker-offsets", "5.3.3": "5.3.3/j-broker-offsets"}
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
BAK = ("good", "torn", "empty", "absent")
MESSAGES = 20  # in each queue that has an offset


def sound(version: str, place: Path) -> Path:
    """Make a store with messages for each queue that the tables of the golden store name, and these tables."""
    golden = opened(case_named(BASES[version]))
    offsets = fastjson.parse((golden / "config" / "consumerOffset.json").read_text(encoding="utf-8"))["offsetTable"]
    config = StoreConfig(version=version, services=False, disk_ratio=lambda _: 0.5, **FILES)
    with MessageStore.open(place, config) as store:
        for key, queues in sorted(offsets.items()):
            topic = key.partition("@")[0]
            for queue_id in sorted(map(int, queues)) if not topic.startswith("%") else ():
                for number in range(MESSAGES):
                    assert store.put(Message(topic, b"%d" % number, queue_id=queue_id)).stored
        store.dispatch_now()
    shutil.rmtree(place / "config", ignore_errors=True)
    shutil.copytree(golden / "config", place / "config", copy_function=shutil.copyfile)
    (place / "config").chmod(0o755)
    return place


def tear(store: Path, table: str, bak: str) -> None:
    """Cut a table at two thirds of its length, and do this to its .bak."""
    path = store / "config" / table
    backup = path.with_name(f"{table}.bak")
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3])
    match bak:
        case "torn":
            backup.write_bytes(raw[: len(raw) // 2])
        case "empty":
            backup.write_bytes(b"")
        case "absent":
            backup.unlink()


def tables(store: Path) -> dict[str, object]:
    """Return what a broker that starts on a store has of each table: topics and groups by name, offsets by group and queue."""
    directory = open_rocketmq(store).directory
    found = {name: fastjson.load(directory, f"config/{name}").value for name in TABLES}
    return {
        "topics": {name for name in found["topics.json"].get("topicConfigTable", {}) if name.startswith("s6")},
        "groups": {name for name in found["subscriptionGroup.json"].get("subscriptionGroupTable", {}) if name.startswith("s6")},
        "offsets": {key: value for key, value in found["consumerOffset.json"].get("offsetTable", {}).items() if "s6" in key},
        "levels": set(found["delayOffset.json"].get("offsetTable", {})),  # 5.x corrects their offsets by the queues that are there
    }


def compare(version: str, base: Path, torn: Mapping[str, str], work: Path) -> tuple[Diagnosis, Start, dict[str, object], dict[str, object]]:
    """Tear tables of a copy, predict, and start a broker on it: prediction, outcome, tables before and after."""
    work.mkdir()
    store = work / "store"
    shutil.copytree(base, store)
    for table, bak in torn.items():
        tear(store, table, bak)
    predicted, before = diagnose(open_rocketmq(store), version), tables(store)
    return predicted, start_and_stop(version, store, work / "broker"), before, tables(store)


@pytest.mark.parametrize("version", list(BASES))
def test_a_table_whose_bak_is_torn_too_keeps_a_broker_from_starting(version: str, tmp_path: Path) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    base = sound(version, tmp_path / "base")
    predicted, real, _, _ = compare(version, base, {"subscriptionGroup.json": "torn"}, tmp_path / "work")
    assert (predicted.starts, real.started) == (False, False), real.error
    assert (predicted.evidence[0].finding, predicted.evidence[0].file) == ("bad-config", "config/subscriptionGroup.json")


@pytest.mark.parametrize("version", list(BASES))
def test_a_broker_starts_with_what_diagnose_says_that_it_loads(version: str, tmp_path: Path) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    base = sound(version, tmp_path / "base")
    torn = {"topics.json": "good", "consumerOffset.json": "absent", "subscriptionGroup.json": "empty", "delayOffset.json": "good"}
    predicted, real, before, after = compare(version, base, torn, tmp_path / "work")
    assert (predicted.starts, real.started) == (True, True), real.error
    assert before == after
    assert before["topics"]
    assert not before["groups"]
    assert not before["offsets"]
    assert {item.file for item in predicted.evidence if item.finding == "bad-config"} == {f"config/{name}" for name in torn}
    assert predicted.redelivers == sum(item.messages for item in predicted.evidence if item.finding == "progress-lost") > 0


def main(version: str) -> None:
    """Try each table with each .bak, one broker each, and print prediction and outcome."""
    with tempfile.TemporaryDirectory() as place:
        base = sound(version, Path(place) / "base")
        for table in TABLES:
            for bak in BAK:
                predicted, real, before, after = compare(version, base, {table: bak}, Path(place) / f"{table}-{bak}")
                same = predicted.starts == real.started and (not real.started or before == after)
                differences = [name for name in before if before[name] != after[name]] if real.started else []
                told = {"table": table, "bak": bak, "predicted": predicted.starts, "real": real.started, "differ": differences}
                print("same" if same else "DIFFERS", json.dumps(told), predicted.redelivers, real.error[-300:], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
