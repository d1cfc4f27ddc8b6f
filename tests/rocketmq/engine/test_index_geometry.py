"""Index files of any geometry, written by our own engine: valid, complete, and read alike with and without the configuration.

`MQSTORE_GEOMETRIES=1000 scripts/test tests/rocketmq/engine/test_index_geometry.py` tries as many stores as it says.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mqstore
from mqstore.errors import RefusedError
from mqstore.findings import Damage
from mqstore.pipeline import rebuild
from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.lookup.explain import has_key
from mqstore.rocketmq.query.index_search import query_offsets
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.verification import verify

EXAMPLES = int(os.environ.get("MQSTORE_GEOMETRIES", "15"))
START = 1_795_230_000_000
TOPICS = ("orders", "bills")
LOG_FILE = 4096


class Put(NamedTuple):
    """One message: its topic, KEYS, UNIQ_KEY and the milliseconds since the one before."""

    topic: str
    keys: str
    unique: str | None
    later: int


# few keys, so that many are in several files and some more than once in one message
KEYS = st.lists(st.sampled_from(["a", "b", "c", "AaAa", "BBBB", "AaBB", "k1", "k2", "k3", "ogaQmc"]), max_size=6).map(" ".join)
PUTS = st.lists(
    st.builds(Put, st.sampled_from(TOPICS), KEYS, st.none() | st.sampled_from(["u1", "u2", "u3"]), st.sampled_from([0, 1, 999, 5000])),
    min_size=1,
    max_size=40,
)
SHAPES = st.tuples(st.integers(1, 60), st.integers(2, 60))


def written(place: Path, shape: tuple[int, int], puts: list[Put], version: str = "5.3.3") -> MessageStore:
    """Write a store with this geometry of its index files, and leave it open."""
    now = [START]
    config = StoreConfig(
        version=version,
        commit_log_file_size=LOG_FILE,
        consume_queue_file_size=2000,
        max_hash_slot_num=shape[0],
        max_index_num=shape[1],
        services=False,
        clock=lambda: now[0],
    )
    store = MessageStore.open(place, config)
    for number, put in enumerate(puts):
        now[0] += put.later
        properties = {} if put.unique is None else {"UNIQ_KEY": put.unique}
        assert store.put(Message(put.topic, b"%d" % number, keys=put.keys or None, properties=properties)).stored
        store.dispatch_now()
    return store


def configured(place: Path, shape: tuple[int, int]) -> Path:
    """Write the broker's configuration file."""
    path = place.with_name("broker.conf")
    path.write_text(f"mappedFileSizeCommitLog={LOG_FILE}\nmaxHashSlotNum={shape[0]}\nmaxIndexNum={shape[1]}\n")
    return path


def found_by_key(store: RocketMQStore) -> dict[tuple[str, str], list[int]]:
    """Return what the index answers for every key there is, without the hits that only share its hash."""
    view = store.view()
    found = {}
    for topic in TOPICS:
        for key in [*"abc", "AaAa", "BBBB", "AaBB", "k1", "k2", "k3", "ogaQmc", "u1", "u2", "u3"]:
            answer = query_offsets(view.index_files(), topic, key, 1 << 20, cap=1 << 20)
            records = {offset: view.record(offset) for offset in answer.offsets}
            hits = sorted(offset for offset, message in records.items() if message is not None and has_key(message, topic, key))
            if hits:
                found[topic, key] = hits
    return found


def found_by_scan(store: RocketMQStore) -> dict[tuple[str, str], list[int]]:
    """Return the physical offsets of the messages with each key, from the messages themselves."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in store.to_arrow().to_pylist():
        for key in {*(row["keys"] or []), *([row["uniq_key"]] if row["uniq_key"] else [])}:
            found[row["topic"], key].append(row["physical_offset"])
    return dict(found)


def index_bytes(place: Path) -> list[bytes]:
    """Return the index files; the count of one without keys is 0 or, once it was flushed, 1."""
    files = [path.read_bytes() for path in sorted((place / "index").iterdir())]
    return [raw[:36] + max(1, int.from_bytes(raw[36:40], "big")).to_bytes(4, "big") + raw[40:] for raw in files]


def damage_of(place: Path, config: Path | None = None) -> tuple[Damage, ...]:
    return verify(mqstore.open(place, config=config)).damage


@given(SHAPES, PUTS, st.sampled_from(["4.9.3", "5.3.3"]))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_index_files_of_any_geometry_are_valid_and_answer_like_a_scan(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, int], puts: list[Put], version: str
) -> None:
    place = tmp_path_factory.mktemp("geometry") / "store"
    written(place, shape, puts, version).close()
    config = configured(place, shape)
    for given_config in (config, None):
        store = mqstore.open(place, config=given_config)
        assert verify(store).damage == ()
        for file in store.index_files():
            # what is not proved has no entries, and nothing depends on its geometry
            assert (file.slot_count, file.positions) == shape or (not file.proved and file.index_count == 1)
        assert found_by_key(store) == found_by_scan(store)

    rebuild(place, place.with_name("new"), config=config, threads=1)
    assert index_bytes(place.with_name("new")) == index_bytes(place)
    assert damage_of(place.with_name("new"), config) == ()
    assert damage_of(place.with_name("new")) == ()

    # without a configuration: what is written next has the same geometry, or is refused
    if all(file.proved for file in mqstore.open(place).index_files()[-1:]):
        with MessageStore.open(place, StoreConfig(services=False)) as again:
            assert again.put(Message("orders", b"", keys="a last")).stored
            again.dispatch_now()
    else:
        with pytest.raises(RefusedError, match="maxHashSlotNum"):
            MessageStore.open(place, StoreConfig(services=False))
    assert damage_of(place, config) == ()
    assert damage_of(place) == ()
