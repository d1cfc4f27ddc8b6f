"""The fast path of a key query: the same answers as the slow path, on good stores, damaged ones, and while others write."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqstore.rocketmq.config.store_config import StoreConfig
from mqstore.rocketmq.engine.message_store import MessageStore
from mqstore.rocketmq.format.index_geometry import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE
from mqstore.rocketmq.format.message import Message
from mqstore.rocketmq.query.index_search import END_OF_TIME, MAX_RESULTS
from mqstore.rocketmq.query.point_lookup import QueryResult
from mqstore.rocketmq.store.read_side import ReadSide

VERSIONS = ("4.9.3", "5.3.3")
SLOTS, POSITIONS = 7, 60
START = 1_640_995_200_000
KEYS = ("a", "b", "Kürzel", "鍵", "\U0001f511", "Aa", "BB", "long " * 3)
TOPICS = ("T", "Thema-ü", "none")

both_versions = pytest.mark.parametrize("version", VERSIONS)


class Clock:
    """Some seconds later with every look, so that the messages are spread over hours."""

    def __init__(self, dice: random.Random) -> None:
        self.now = START
        self.dice = dice

    def __call__(self) -> int:
        self.now += self.dice.choice([0, 1, 900, 5000])
        return self.now


def config(version: str, dice: random.Random, **changes: Any) -> StoreConfig:
    small = StoreConfig(version=version, commit_log_file_size=1 << 15, services=False, max_hash_slot_num=SLOTS, max_index_num=POSITIONS)
    return replace(small, clock=Clock(dice), **changes)


def filled(store: MessageStore, count: int, dice: random.Random) -> None:
    for _ in range(count):
        keys = " ".join(dice.choices([key.replace(" ", "") for key in KEYS], k=dice.randrange(4)))
        assert store.put(Message(dice.choice(TOPICS[:2]), bytes(dice.randrange(400)), keys=keys or None)).stored
    store.dispatch_now()


def plainly(store: MessageStore, *asked: Any) -> QueryResult:
    return ReadSide.query(store, *asked)


def drawn(dice: random.Random) -> tuple[Any, ...]:
    """Return what to ask."""
    now = START + dice.randrange(-10_000, 4_000_000)
    begin = dice.choice([0, 0, now, -1, -(1 << 63), now])
    end = dice.choice([END_OF_TIME, END_OF_TIME, now, begin, now + dice.randrange(100_000)])
    most = dice.choice([32, 64, 1, 2, 5, 65, 1000, 1 << 40, 0, -1])
    return dice.choice(TOPICS), dice.choice(KEYS).replace(" ", ""), most, begin, end


def compare(store: MessageStore, dice: random.Random, rounds: int, seed: object) -> int:
    """Ask both paths. Returns how often the fast one answered."""
    short = 0
    for _ in range(rounds):
        asked = drawn(dice)
        found = store._queries.find(*asked)
        truth = plainly(store, *asked)
        if found is not None:
            short += 1
            assert type(found) is QueryResult
            assert found == truth, (seed, asked)
            assert found.records == truth.records
        assert store.query(*asked) == truth, (seed, asked)
    return short


@both_versions
def test_both_paths_find_the_same_in_many_index_files(version: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with MessageStore.open(tmp_path / "store", config(version, dice)) as store:
        assert compare(store, dice, 50, seed) == 0  # no index file yet
        filled(store, 1, dice)
        compare(store, dice, 50, seed)
        filled(store, 400, dice)
        assert len(store.index_files()) > 5
        assert len(store.log.files) > 2
        assert compare(store, dice, 1500, seed) > 900
        store.log.remove_first()  # its records are gone, the index still has them
        assert compare(store, dice, 800, seed) > 300
        store.run_retention(now=START + 10**9)
        filled(store, 30, dice)
        assert compare(store, dice, 500, seed) > 200
    with MessageStore.open(tmp_path / "store", config(version, dice)) as store:
        assert compare(store, dice, 800, seed) > 200


@both_versions
def test_both_paths_agree_about_damaged_index_files(version: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    short = 0
    with MessageStore.open(tmp_path / "store", config(version, dice)) as store:
        filled(store, 250, dice)
        names = [file.name for file in store.index_files()]
        for _ in range(120):
            path = tmp_path / "store" / "index" / dice.choice(names)
            at = HEADER_SIZE + dice.choice([SLOT_SIZE * dice.randrange(SLOTS), SLOT_SIZE * SLOTS + ENTRY_SIZE * dice.randrange(POSITIONS)])
            at += dice.choice([0, 0, 4, 12, 16])
            value = dice.choice([0, -1, dice.randrange(POSITIONS + 3), dice.randrange(1 << 15), -(1 << 31), (1 << 31) - 1])
            with path.open("r+b") as file:
                file.seek(at)
                file.write(value.to_bytes(8 if dice.random() < 0.3 else 4, "big", signed=True))
            short += compare(store, dice, 12, seed)
        index = dice.choice(list(store.index_files()))
        for changed in ({"index_count": 1 << 70}, {"index_count": None}, {"begin_timestamp": 1 << 62}, {"slot_count": 1 << 40}):
            before = {name: getattr(index, name) for name in changed}
            vars(index).update(changed)
            found = [store._queries.find("T", "a", 64, 0, END_OF_TIME) for _ in range(2)]
            assert found[0] == found[1]
            vars(index).update(before)
    assert short > 300


@both_versions
def test_both_paths_agree_about_damaged_records(version: str, tmp_path: Path) -> None:
    dice = random.Random(3)
    with MessageStore.open(tmp_path / "store", config(version, dice)) as store:
        filled(store, 250, dice)
        found = store.query("T", "a")
        assert len(found.slices) > 20
        for number, (physical, size) in enumerate(zip(found.physical_offsets, [0, 63, 64, 1 << 30, -1, 75, 0x7FFFFFFF] * 3, strict=False)):
            file = store.log.file_at(physical)
            assert file is not None
            with (tmp_path / "store" / file.relative).open("r+b") as raw:
                raw.seek(physical - file.start)
                raw.write(size.to_bytes(4, "big", signed=True))
            assert compare(store, dice, 40, number) > 10


def test_the_first_message_of_a_log_that_now_starts_later_is_left_to_the_slow_path(tmp_path: Path) -> None:
    dice = random.Random(4)
    with MessageStore.open(tmp_path / "store", config("4.9.3", dice)) as store:
        store.put(Message("T", b"first", keys="first"))
        filled(store, 200, dice)
        assert store._queries.find("T", "first", 32, 0, END_OF_TIME) == plainly(store, "T", "first")
        assert store.query("T", "first").physical_offsets == (0,)
        store.log.remove_first()
        assert store._queries.find("T", "first", 32, 0, END_OF_TIME) is None
        assert store.query("T", "first") == plainly(store, "T", "first") == ((), (), *store.query("T", "first")[2:])


def test_what_is_not_ordinary_is_left_to_the_slow_path(tmp_path: Path) -> None:
    dice = random.Random(5)

    class Text(str):
        __slots__ = ()

    with MessageStore.open(tmp_path / "store", config("4.9.3", dice)) as store:
        filled(store, 100, dice)
        find = store._queries.find
        assert find("T", "a", 32, 0, END_OF_TIME) is not None
        for asked in [
            ("T", "\ud83d", 32, 0, END_OF_TIME), (Text("T"), "a", 32, 0, END_OF_TIME), ("T", "a", 0, 0, END_OF_TIME),
            ("T", "a", 32, 0, 1 << 63), ("T", "a", 32, None, END_OF_TIME), (None, "a", 32, 0, END_OF_TIME),
        ]:  # fmt: skip
            assert find(*asked) is None  # type: ignore[arg-type]
        assert store.query("T", "\ud83d").slices == ()
        held = store.query("T", "a")
        bodies = [record.body for record in held.records]
    assert find("T", "a", 32, 0, END_OF_TIME) is None
    assert [record.body for record in held.records] == bodies != []


def test_keys_are_found_while_other_messages_are_put_and_dispatched(tmp_path: Path) -> None:
    dice = random.Random(6)
    ended = threading.Event()
    wrong: list[object] = []
    with MessageStore.open(tmp_path / "store", replace(config("4.9.3", dice), services=True)) as store:
        put = [store.put(Message("T", b"known", keys=f"known{number}")) for number in range(200)]
        assert store.wait_dispatched()

        def ask() -> None:
            asking = random.Random(7)
            while not ended.is_set():
                number = asking.randrange(200)
                found = store.query("T", f"known{number}", MAX_RESULTS)
                if put[number].physical_offset not in found.physical_offsets or not all(found.records):
                    wrong.append((number, found))
                if number < 20:
                    time.sleep(0.001)  # a query keeps the interpreter's lock: without a pause the puts and dispatch take a minute

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(6000):
            store.put(Message("T", bytes(100), keys=f"other{number}"))
        assert store.wait_dispatched()
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_the_hash_is_that_of_the_slow_path_for_any_text(tmp_path: Path) -> None:
    dice = random.Random(8)
    letters = ["a", "ü", "鍵", "\U0001f511", "\x00", "\x7f", "\x80", "￿", "\U0010ffff", "#"]
    texts = ["".join(dice.choices(letters, k=dice.randrange(1, 12))) for _ in range(150)]
    with MessageStore.open(tmp_path / "store", config("4.9.3", dice)) as store:
        offsets = [store.put(Message("T", b"", keys=text)).physical_offset for text in texts]
        store.put(Message("T", b"", keys="polygenelubricants"))
        store.dispatch_now()
        for text, offset in zip(texts, offsets, strict=True):
            found = store._queries.find("T", text, 64, 0, END_OF_TIME)
            assert found is not None
            assert found == plainly(store, "T", text)
            assert offset in found.physical_offsets
