"""What `diagnose` predicts of stores with queues in RocksDB, against the real store of 5.5.0 on copies of the same states."""

from __future__ import annotations

import pytest
from interop.diagnosing import Outcome, Place, describe, outcomes_of
from interop.realbroker import why_not
from support.golden import case_named, opened
from support.rocksdb_states import DATABASE_STATES, NEEDS_TABLES, OF_LOG, made

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

VERSION = "5.5.0"
BASES = ("5.5.0/c-rocksdb-queues-clean", "5.5.0/i-rocksdb-kill9")
FURTHER = ("5.5.0/j-rocksdb-rolled", "5.5.0/d-rocksdb-light-queues", "5.5.0/e-rocksdb-config-v1", "5.5.0/h-rocksdb-config-v2")
BOTH = (
    "no_database+body_flip",
    "no_database+abort+body_flip",
    "no_checkpoint+zeroed_page",
    "no_database+missing_log_file",
    "cut_manifest+abort",
)
UNREAD = "damaged_entries"  # refused: whether the real store then delivers everything is luck


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    if (reason := why_not(VERSION)) is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("rocksdb")
    places = []
    for base in map(case_named, (*BASES, *FURTHER)):
        tables = bool(list((opened(base) / "consumequeue").glob("*.sst")))
        states = (
            ("as_it_is", "no_database", "no_current", "body_flip") if base.id in FURTHER else ("as_it_is", *DATABASE_STATES, *OF_LOG, *BOTH)
        )
        for state in states:
            if state == UNREAD or (state in NEEDS_TABLES and not tables):
                continue
            name = f"{base.name}-{state}"
            places.append(Place(name, made(state, base, root / name), opened(base), base.properties))
        other = f"{base.name}-rocksdbstore"
        places.append(Place(other, made("damaged_manifest", base, root / other, "rocksdbstore"), opened(base), base.properties))
    return outcomes_of(VERSION, places, root / "work")


def test_the_real_store_starts_exactly_where_diagnose_says_so(outcomes: list[Outcome]) -> None:
    assert describe(item for item in outcomes if item.predicted.starts != item.starts) == {}
    assert sum(item.starts for item in outcomes) > 30
    assert sum(not item.starts for item in outcomes) > 20


def test_the_real_store_loses_as_many_messages_as_diagnose_says(outcomes: list[Outcome]) -> None:
    told = [item for item in outcomes if item.lost is not None and not item.predicted.unknown and "torn_tail" not in item.name]
    assert describe(item for item in told if item.lost != item.predicted.loses) == {}
    assert sum(bool(item.lost) for item in told) >= 5


def test_what_the_real_store_loses_beyond_that_is_said_to_be_unknown(outcomes: list[Outcome]) -> None:
    """A torn end was never promised: without a queue entry nothing shows that there was a message."""
    beyond = [item for item in outcomes if (item.lost or 0) > item.predicted.loses and "torn_tail" not in item.name]
    assert describe(item for item in beyond if not item.predicted.unknown) == {}
    assert len(beyond) < len(outcomes) / 5


def test_where_diagnose_promises_everything_the_real_store_keeps_everything(outcomes: list[Outcome]) -> None:
    promised = [item for item in outcomes if item.predicted.status == 0 and "torn_tail" not in item.name]
    assert len(promised) > 15
    assert describe(item for item in promised if not item.starts or item.lost) == {}
