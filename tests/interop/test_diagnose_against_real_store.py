"""What `diagnose` predicts, against real stores that load and start on copies of the same states.

Each state is made from stores that a real broker wrote, and every golden store is asked about as it is. See `interop.diagnosing`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.diagnosing import Outcome, Place, outcomes_of
from interop.realbroker import why_not
from support.golden import CASES, case_named, opened, unpack
from support.rocketmq_states import CONFIGURATION, STATES, made

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

BASES = {"4.9.3": ("4.9.3/f-broker-offsets", "4.9.3/m-damaged/0-clean"), "5.3.3": ("5.3.3/j-broker-offsets", "5.3.3/k-rolled")}
AS_THEY_ARE = {
    version: [case for case in CASES if case.version == version and "queueType" not in str(case.properties)] for version in BASES
}
NEEDS_CONFIG = frozenset(CONFIGURATION)


def directory_in_index(store: Path) -> None:
    (store / "index" / "old").mkdir()


def directory_in_place_of_an_index_file(store: Path) -> None:
    (store / "index" / "20261121").mkdir()


@pytest.fixture(scope="module", params=["4.9.3", "5.3.3"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    version = request.param
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp(f"states-{version}")
    places: list[Place] = []
    for base in map(case_named, BASES[version]):
        for state in sorted(STATES.keys() - NEEDS_CONFIG):
            name = f"{base.name.replace('/', '-')}-{state}"
            places.append(Place(name, made(state, base, root / name), opened(base), base.properties))
        for change in (directory_in_index, directory_in_place_of_an_index_file):
            name = f"{base.name.replace('/', '-')}-{change.__name__}"
            places.append(Place(name, unpack(base, root / name), opened(base), base.properties))
            change(places[-1].store)
    for case in AS_THEY_ARE[version]:
        base = case_named(f"{version}/m-damaged/0-clean") if case.kind == "damaged" else case
        places.append(Place(case.name, unpack(case, root / case.name.replace("/", "-")), opened(base), case.properties))
    return outcomes_of(version, places, root / "work")


def test_a_real_store_starts_exactly_where_diagnose_says_so(outcomes: list[Outcome]) -> None:
    wrong = {item.name: (item.predicted.starts, item.starts, item.error[:300]) for item in outcomes if item.predicted.starts != item.starts}
    assert not wrong
    assert {item.starts for item in outcomes} == {True, False}


def test_a_real_store_loses_exactly_as_many_messages_as_diagnose_says(outcomes: list[Outcome]) -> None:
    started = [item for item in outcomes if item.starts]
    told = [item for item in started if not any("had expired" in sentence for sentence in item.predicted.unknown)]
    wrong = {item.name: (item.predicted.loses, item.lost) for item in told if item.lost not in (None, item.predicted.loses)}
    assert not wrong
    assert all(item.predicted.loses >= (item.lost or 0) for item in started)
    assert sum(bool(item.lost) for item in started) >= 5


def test_where_diagnose_promises_everything_a_real_store_keeps_everything(outcomes: list[Outcome]) -> None:
    promised = [item for item in outcomes if item.predicted.status == 0]
    assert promised
    assert [item.name for item in promised if not item.starts or item.lost] == []
