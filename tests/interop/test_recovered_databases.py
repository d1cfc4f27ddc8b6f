"""The recovered view of queues in RocksDB whose log has more files than a recovery looks at, against the real 5.5.0 on the same states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from interop.realbroker import Job, run, why_not
from support.stores import Store, message

from mqstore.jobs.rebuild import rebuild
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.format.commit_log import Records

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

VERSION = "5.5.0"
SIZE = 4096
FILES = 24
OPTIONS = {"mappedFileSizeCommitLog": str(SIZE), "storeType": "defaultRocksDB", "enableConsumeQueueExt": "false"}
Entries = dict[tuple[str, int], dict[int, int]]
LISTED = (None, 5, 18)  # log files that the database lists; None: there is no database
BEGIN = 8  # log files that are gone


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def made(root: Path) -> dict[str, Path]:
    """Write one log, and stores with it whose database lists a part of it, closed and killed."""
    whole = Store(root / "whole", file_size=SIZE)
    while len(whole.files) < FILES:
        number = len(whole.puts)
        whole.put(message("orders" if number % 3 else "bills", body=b"x" * 150, keys=f"k{number}"))
    whole.write()
    stores = {}
    for listed in LISTED:
        part = root / f"part-{listed}"
        (part / "commitlog").mkdir(parents=True)
        for file in log_files(root / "whole")[: listed or FILES]:
            shutil.copyfile(file, part / "commitlog" / file.name)
        for end in ("closed", "killed"):
            target = stores[f"{listed} files listed, {end}"] = root / f"{listed}-{end}"
            if listed is None:
                shutil.copytree(part, target)
            else:
                rebuild(part, target, threads=1, splits=1, queues="rocksdb", version=VERSION, copy=True)
            for file in log_files(root / "whole"):
                if not (target / "commitlog" / file.name).exists():
                    shutil.copyfile(file, target / "commitlog" / file.name)
            if end == "killed":
                (target / "abort").write_text("1")
    return stores


def test_the_view_has_the_queues_that_the_real_store_has_after_its_recovery(tmp_path: Path) -> None:
    if (reason := why_not(VERSION)) is not None:
        pytest.skip(reason)
    stores = made(tmp_path)
    configured = tmp_path / "store.properties"
    configured.write_text("".join(f"{name}={value}\n" for name, value in OPTIONS.items()))
    ours = {name: queues_of(store, configured) for name, store in stores.items()}
    jobs = [Job(name, ("dispatch", str(store)), OPTIONS) for name, store in stores.items()]
    for name, done in run(VERSION, jobs, tmp_path / "work").items():
        assert done.error is None, (name, done.error)
    for name, store in stores.items():
        opened = open_rocketmq(store, config=configured)
        assert ours[name] == entries_of(opened.consume_queues()), name
    lacking = sum(len(found) for found in ours["5 files listed, killed"].values())
    assert lacking < sum(len(found) for found in ours["18 files listed, killed"].values())


def test_consumers_of_a_log_that_goes_on_after_its_database_get_what_diagnose_says(tmp_path: Path) -> None:
    """Of a longer log a real 5.5.0 lists what the newest ten files have, after a clean stop all but the first message that its database
    lacks; it fails at every pull that meets a place without an entry, so that consumers get no further.
    """
    if (reason := why_not(VERSION)) is not None:
        pytest.skip(reason)
    stores = made(tmp_path)
    for listed, end in product(LISTED[1:], ("closed", "killed")):
        store = stores[f"{listed} files listed, {end}, begin gone"] = tmp_path / f"{listed}-{end}-begin"
        shutil.copytree(tmp_path / f"{listed}-{end}", store)
        for file in log_files(store)[:BEGIN]:
            file.unlink()
    configured, jobs = tmp_path / "store.properties", []
    configured.write_text("".join(f"{name}={value}\n" for name, value in OPTIONS.items()))
    for name, store in stores.items():
        asked = tmp_path / f"{len(jobs)}.jsonl"
        queues = open_rocketmq(store, config=configured).view("recovered", VERSION).queues()
        pulls = [
            {"topic": queue.topic, "queue_id": queue.queue_id, "offset": at, "max_msg_nums": 32, "tags": None}
            for queue in queues
            for at in range(queue.min_offset, queue.max_offset, 32)
        ]
        asked.write_text("".join(json.dumps(pull) + "\n" for pull in pulls))
        jobs.append(Job(name, ("read", str(store), "--in", str(asked), "--tmp", str(tmp_path)), OPTIONS))
    failed, told = set(), set()
    for name, done in run(VERSION, jobs, tmp_path / "work").items():
        handed, over = 0, set()
        for row in done.rows:
            over |= {row["topic"]} if "error" in row else set()
            handed += len(row.get("physical_offsets", ())) if row["topic"] not in over else 0
        found = diagnose(open_rocketmq(stores[name], config=configured), VERSION)
        log = open_rocketmq(stores[name], config=configured).log
        messages = sum(len(event) for event in log.scan() if isinstance(event, Records))
        assert (found.loses, found.unknown) == (messages - handed, ()), name
        failed |= {name} if over else set()
        told |= {name} if any(item.detail.startswith("not counted: ") for item in found.evidence) else set()
    of_five = {f"5 files listed, {end}" for end in ("closed", "killed")}
    assert failed == {"18 files listed, closed", "18 files listed, closed, begin gone"} | of_five
    assert told == {f"{name}, begin gone" for name in of_five}


def queues_of(store: Path, config: Path) -> Entries:
    """Return the entries of the recovered view."""
    return entries_of(open_rocketmq(store, config=config).view("recovered", VERSION).queues())


def entries_of(queues: Iterable[Any]) -> Entries:
    """Return the physical offset in each entry, by queue offset, without those that no dispatch wrote."""
    found: Entries = {}
    for queue in queues:
        rows = queue.entries(queue.min_offset, queue.max_offset)
        found[queue.topic, queue.queue_id] = {
            queue.min_offset + number: int(row["physical_offset"]) for number, row in enumerate(rows) if row["size"] > 0
        }
    return {key: entries for key, entries in found.items() if entries}
