"""What key queries find in a real store that was killed and whose index files were lost, as it is and after a repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from interop.diagnosing import Place, outcomes_of
from interop.realbroker import why_not
from support.golden import case_named, opened, run_cli, unpack

from mqstore.places import open_rocketmq
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.record import decode_properties

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

SAMPLED = 25  # of so many messages one is asked for


@pytest.mark.parametrize("gone", [slice(0, 3), slice(1, 3)], ids=["all", "last-two"])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_real_store_finds_after_a_repair_what_it_found_before_its_index_was_lost(version: str, gone: slice, tmp_path: Path) -> None:
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named("4.9.3/b2-kill9-live")
    log = open_rocketmq(opened(case), config=case.config).log
    places = [event.file.start + at for event in log.scan() if isinstance(event, Records) for at in event.positions.tolist()]
    questions = []
    for record in map(log.record, places[::SAMPLED]):
        keys = {} if record is None else decode_properties(record.properties)
        if record is not None and "KEYS" in keys:
            asked = {"topic": record.topic, "key": keys["KEYS"].split()[0], "max_num": 64}
            questions.append(asked | {"begin": record.store_timestamp - 2000, "end": record.store_timestamp + 2000})
    stores = [unpack(case, tmp_path / name) for name in ("whole", "lost", "repaired")]
    for store in stores[1:]:
        for path in sorted((store / "index").iterdir())[gone]:
            path.unlink()
    assert run_cli("repair", stores[2], "--config", case.config, "--apply").status in (0, 1)
    made = [Place(store.name, store, opened(case), case.properties, questions) for store in stores]
    assert all(outcome.starts for outcome in outcomes_of(version, made, tmp_path / "work"))
    whole, lost, repaired = (
        [json.loads(line)["expected"] for line in (tmp_path / f"work/{number}/report/queries.jsonl").read_text().splitlines()]
        for number in range(3)
    )
    assert len(whole) == len(questions)
    assert whole == repaired
    assert sum(map(len, lost)) < sum(map(len, whole))
