"""What `diagnose` predicts, against real stores that load and start on copies of the same states.

Each state is made from stores that a real broker wrote. The real store of the version loads and starts on a copy, and says whether the
load succeeded, where its log ends, and which entries its queues have. A message counts as lost by it if no entry of its queue leads to it
any more, or the log ends before it, or its record can no longer be parsed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from interop.realbroker import Job, run, why_not
from support.golden import CASES, GoldenCase, case_named, opened, unpack
from support.rocketmq_states import CONFIGURATION, STATES, made

from mqstore.diagnosis import Diagnosis
from mqstore.opening import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

BASES = {"4.9.3": ("4.9.3/f-broker-offsets", "4.9.3/m-damaged/0-clean"), "5.3.3": ("5.3.3/j-broker-offsets", "5.3.3/k-rolled")}
AS_THEY_ARE = {
    version: [case for case in CASES if case.version == version and "queueType" not in str(case.properties)] for version in BASES
}
NEEDS_CONFIG = frozenset(CONFIGURATION)


@dataclass(frozen=True)
class Outcome:
    """What the real store made of a state: whether it started, and how many of the base's messages it no longer delivers."""

    name: str
    predicted: Diagnosis
    starts: bool
    lost: int | None
    error: str


def _messages(store: Path, config: Path) -> dict[int, tuple[str, int, int]]:
    """Return the messages that queues of a store should list: physical offset -> topic, queue id, size."""
    opened_store = open_rocketmq(store, config=config)
    found = {}
    for queue in opened_store.view("recovered").queues():
        for row in queue.entries(queue.min_offset, queue.max_offset):
            message = opened_store.log.record(int(row["physical_offset"]))
            if message is not None and (message.topic, message.queue_id) == (queue.topic, queue.queue_id):
                found[int(row["physical_offset"])] = (queue.topic, queue.queue_id, int(row["size"]))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _lost(messages: dict[int, tuple[str, int, int]], store: Path, config: Path, report: Path, end: int) -> int:
    log = open_rocketmq(store, config=config).log
    listed = {(queue["topic"], queue["queue_id"], int(entry[0])) for queue in _lines(report / "queues.jsonl") for entry in queue["entries"]}
    return sum(
        (topic, queue_id, offset) not in listed or offset + size > end or log.record(offset) is None
        for offset, (topic, queue_id, size) in messages.items()
    )


@pytest.fixture(scope="module", params=["4.9.3", "5.3.3"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    version = request.param
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp(f"states-{version}")
    places: dict[str, tuple[GoldenCase, GoldenCase, Path]] = {}
    for base in map(case_named, BASES[version]):
        for state in sorted(STATES.keys() - NEEDS_CONFIG):
            name = f"{base.name.replace('/', '-')}-{state}"
            places[name] = (base, base, made(state, base, root / name))
    for case in AS_THEY_ARE[version]:
        base = case_named(f"{version}/m-damaged/0-clean") if case.kind == "damaged" else case
        places[case.name] = (case, base, unpack(case, root / case.name.replace("/", "-")))
    jobs, reports = [], {}
    for name, (case, _, store) in places.items():
        out = root / "out" / name.replace("/", "-")
        out.mkdir(parents=True)
        reports[name] = out / "report"
        jobs.append(Job(name, ("report", str(store), "--tmp", str(out), "--out", str(reports[name])), case.properties))
    done = run(version, jobs, root / "work", threads=32)
    found = []
    for name, (case, base, store) in places.items():
        predicted = diagnose(open_rocketmq(store, config=case.config), version)
        boot = _lines(reports[name] / "boot.json")[0] if (reports[name] / "boot.json").exists() else {"load_ok": False}
        starts = bool(boot["load_ok"]) and done[name].error is None
        lost = _lost(_messages(opened(base), base.config), store, case.config, reports[name], boot["max_phy_offset"]) if starts else None
        found.append(Outcome(name, predicted, starts, lost, str(boot.get("load_error") or done[name].error or "")))
    return found


def test_a_real_store_starts_exactly_where_diagnose_says_so(outcomes: list[Outcome]) -> None:
    wrong = {item.name: (item.predicted.starts, item.starts, item.error[:300]) for item in outcomes if item.predicted.starts != item.starts}
    assert not wrong
    assert {item.starts for item in outcomes} == {True, False}


def test_a_real_store_loses_exactly_as_many_messages_as_diagnose_says(outcomes: list[Outcome]) -> None:
    started = [item for item in outcomes if item.starts]
    told = [item for item in started if not any("had expired" in sentence for sentence in item.predicted.unknown)]
    wrong = {item.name: (item.predicted.loses, item.lost) for item in told if item.predicted.loses != item.lost}
    assert not wrong
    assert all(item.predicted.loses >= (item.lost or 0) for item in started)
    assert sum(bool(item.lost) for item in started) >= 5


def test_where_diagnose_promises_everything_a_real_store_keeps_everything(outcomes: list[Outcome]) -> None:
    promised = [item for item in outcomes if item.predicted.status == 0]
    assert promised
    assert [item.name for item in promised if not item.starts or item.lost] == []
