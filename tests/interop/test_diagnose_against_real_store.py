"""What `diagnose` predicts, against real stores that load and start on copies of the same states.

Each state is made from stores that a real broker wrote, and every golden store is asked about as it is. See `interop.diagnosing`.
"""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest
from interop.diagnosing import Outcome, Place, outcomes_of
from interop.realbroker import why_not
from support.golden import CASES, case_named, opened, unpack, unpack_site
from support.rocketmq_states import CONFIGURATION, STATES, made

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

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


def _flushed_to(store: Path, source: Path, dice: random.Random) -> None:
    """Make an unclean store with any checkpoint, whose queues are older than its log."""
    shutil.copytree(source, store)
    (store / "abort").write_bytes(b"")
    raw = bytearray((store / "checkpoint").read_bytes())
    logs = sorted((store / "commitlog").iterdir())
    head = dice.choice(logs).read_bytes()[:64]
    (stored,) = struct.unpack_from(">q", head, 56)
    struct.pack_into(">qq", raw, 0, stored + 9000, stored + dice.choice((-1, 0, 1, 2999, 3000)))
    struct.pack_into(">q", raw, 40, dice.choice((0, -5, 1, struct.unpack_from(">q", head, 28)[0], dice.randrange(1, 655360))))
    (store / "checkpoint").write_bytes(raw)
    for queue in sorted(store.glob("consumequeue/*/*")):
        if dice.random() < 0.3:
            shutil.rmtree(queue)
            continue
        path = sorted(queue.iterdir())[-1]
        entries = bytearray(path.read_bytes())
        entries[20 * dice.randrange(len(entries) // 20) :] = b""
        path.write_bytes(entries.ljust(path.stat().st_size, b"\0"))


@pytest.mark.parametrize("version", ["5.1.4", "5.3.3", "5.5.0"])
def test_an_unclean_recovery_begins_where_the_release_does_by_the_fields_of_the_checkpoint(version: str, tmp_path: Path) -> None:
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    base = case_named("5.5.0/a-clean")
    places = []
    for seed in range(24):
        _flushed_to(tmp_path / f"state{seed}", opened(base), random.Random(seed))
        places.append(Place(f"state{seed}", tmp_path / f"state{seed}", opened(base), base.properties))
    outcomes = outcomes_of(version, places, tmp_path / "work")
    assert {item.name: (item.predicted.loses, item.lost) for item in outcomes if item.predicted.loses != item.lost} == {}
    assert all(item.starts and item.predicted.starts for item in outcomes)
    assert any(item.lost for item in outcomes)


@pytest.mark.parametrize(("version", "starts"), [("5.3.3", False), ("5.5.0", True)])
def test_a_real_store_before_5_5_does_not_start_on_a_queue_that_ends_in_an_empty_file(version: str, starts: bool, tmp_path: Path) -> None:
    """apache/rocketmq #9728, #10108: the last record of the log, of another queue, is not listed, so that nothing cuts the empty file."""
    if (reason := why_not(version)) is not None:
        pytest.skip(reason)
    base, store = (unpack_site("separate-commitlog", tmp_path / name) for name in ("base", "state"))
    for each in (base, store):
        shutil.move(each.parent / "logdisk" / "commitlog", each / "commitlog")
        (each.parent / "broker.conf").unlink()
    (store / "consumequeue/orders/0" / f"{6000:020d}").write_bytes(bytes(6000))
    last = store / "consumequeue/orders/3" / f"{6000:020d}"
    last.write_bytes(last.read_bytes()[: 74 * 20].ljust(6000, b"\0"))
    options = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "6000", "maxHashSlotNum": "1000", "maxIndexNum": "4000"}
    (outcome,) = outcomes_of(version, [Place("empty-last-file", store, base, options)], tmp_path / "work")
    assert (outcome.predicted.starts, outcome.starts) == (starts, starts)
