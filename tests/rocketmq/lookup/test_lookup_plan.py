"""Many keys at once: reading what is asked, the ways to candidates, and the comparison that decides."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import Store, message

import mqstore
from mqstore.errors import CannotOpenError, UsageError
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.format.index_file import IndexFile
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.lookup.key_set import Asked, hash_pairs, read_keys
from mqstore.rocketmq.lookup.lookup_plan import (
    Costs,
    Interval,
    Plan,
    choose,
    distrust,
    intervals,
    matches,
    newest,
    probe,
    sweep,
    uncovered,
)
from mqstore.rocketmq.scan.columns import RecordColumns

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


def pairs(asked: Asked) -> list[tuple[str, str]]:
    """What is asked, in the order of the file."""
    return list(zip(asked.topic.take(asked.in_order).to_pylist(), asked.key.take(asked.in_order).to_pylist(), strict=True))


# what is asked


def test_text_csv_and_parquet_ask_the_same(tmp_path: Path) -> None:
    wanted = [("orders", "o-1"), ("bücher", "ключ 1"), ("orders", "a,b"), ("bills", "o-1")]
    (tmp_path / "a.txt").write_text("".join(f"{topic}\t{key}\n" for topic, key in wanted), encoding="utf-8")
    (tmp_path / "crlf").write_bytes("\r\n".join(f"{topic}\t{key}" for topic, key in wanted).encode() + b"\r\n\r\n")
    (tmp_path / "bom.tsv").write_text("".join(f"{topic}\t{key}\n" for topic, key in wanted), encoding="utf-8-sig")
    (tmp_path / "a.CSV").write_text("n,key,topic\n" + "".join(f'1,"{key}",{topic}\n' for topic, key in wanted), encoding="utf-8")
    table = pa.table(
        {"key": [key for _, key in wanted], "n": [1, 2, 3, 4], "topic": pa.array([topic for topic, _ in wanted]).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "keys", row_group_size=2)  # known by its first bytes, whatever its name
    for path in tmp_path.iterdir():
        assert pairs(read_keys(path)) == wanted, path


def test_a_pair_is_asked_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("t\tk\nu\tk\n\nt\tk\nt\tk\n")
    asked = read_keys(tmp_path / "a")
    assert (pairs(asked), asked.repeated) == ([("t", "k"), ("u", "k")], 2)


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        (
            "a",
            b"t\tk\nno tab\nt\t\n\tk\na\tb\tc\n",
            "line 2 has no tab, line 3 has no key, line 4 has no topic, line 5 has more than one tab; each",
        ),
        ("a", b"x\n" * 9, "line 5 has no tab; and so 4 more; each row needs a topic and a key"),
        ("a", b"t\tk\nt\t\xff\n", "line 2 is not UTF-8"),
        ("a", gzip.compress(b"t\tk\n", mtime=0), "line 1 is not UTF-8"),
        ("a", b"", "no key is asked for"),
        ("a", b"\n\n", "no key is asked for"),
        ("a.csv", b"", "has no column 'topic', it has none"),
        ("a.csv", b"topic,kex\nt,k\n", "has no column 'key', it has topic, kex"),
        ("a.csv", b"topic,key\nt,k\nt\n,k\nt,\n", "line 3 has no key, line 4 has no topic, line 5 has no key"),
        ("a.csv", b'topic,key\nt,k\nt,"k"x\n', "line 3 is no CSV"),
        ("a", b"PAR1 and no more", "cannot be read as Parquet"),
    ],
)
def test_a_bad_line_is_named_by_its_number(name: str, raw: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UsageError, match=sentence):
        read_keys(tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": ["t", None, "t"], "key": ["k", "k", ""]}, "row 2 has no topic, row 3 has no key"),
        ({"topic": ["t"], "kex": ["k"]}, "has no column 'key'"),
        ({"topic": ["t"], "key": [[1]]}, "text in topic and key"),
        ({"topic": pa.array([], pa.string()), "key": pa.array([], pa.string())}, "no key is asked for"),
    ],
)
def test_a_bad_parquet_row_is_named_by_its_number(columns: dict[str, object], sentence: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=sentence):
        read_keys(tmp_path / "a.parquet")


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CannotOpenError, match=r"cannot be read: .*; give a file of topics and keys"):
            read_keys(path)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=40))
def test_hashes_are_those_of_the_index(asked: list[tuple[str, str]]) -> None:
    found = Asked.of(asked)
    assert pairs(found) == list(dict.fromkeys(asked))
    assert found.hash.tolist() == sorted(index_hash(topic, key) for topic, key in set(asked))
    by_place = zip(found.topic.to_pylist(), found.key.to_pylist(), found.hash.tolist(), strict=True)
    assert all(index_hash(topic, key) == number for topic, key, number in by_place)


def test_the_hash_without_an_absolute_value_is_0() -> None:
    assert hash_pairs(pa.array(["TopicTest"]), pa.array(["ogaQmc"])).tolist() == [0]


@given(st.sets(st.integers(0, 400), min_size=1), st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 400), max_size=50))
def test_a_hash_is_asked_or_it_is_not(asked: set[int], others: list[int]) -> None:
    keys = Asked.of([("t", str(number)) for number in asked])
    hashes = np.array([*keys.hash.tolist(), *others], np.int32)
    assert keys.has(hashes).tolist() == [number in set(keys.hash.tolist()) for number in hashes.tolist()]
    rows, places = keys.places(hashes)
    assert sorted(zip(hashes[rows].tolist(), places.tolist(), strict=True)) == sorted(
        (number, place) for number in hashes.tolist() for place in np.flatnonzero(keys.hash == number).tolist()
    )


def test_tasks_map_what_is_asked(tmp_path: Path) -> None:
    asked = Asked.of([("t", f"k{number}") for number in range(1000)])
    (tmp_path / "asked").write_bytes(asked.to_bytes())
    again = Asked.mapped(tmp_path / "asked")
    assert pairs(again) == pairs(asked)
    assert (again.hash == asked.hash).all()
    assert again.topics == {"t"}


# comparing


def test_only_equal_text_is_a_hit_and_a_rolled_back_message_is_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(message("t", keys="Aa x"), message("t", keys="BB"), message("u", keys="Aa"), message("t", keys="Aa", sys_flag=0xC))
    store.put(message("t", keys="Aa", sys_flag=0x4), message("t", keys="  Aa   Aa "))
    log = mqstore.open(store.write()).log
    records = next(event for event in log.scan() if isinstance(event, Records))
    asked = Asked.of([("t", "x"), ("t", "Aa")])
    found = matches(RecordColumns(records), asked)
    assert [(row, asked.key[place].as_py()) for row, place in zip(found.rows.tolist(), found.places.tolist(), strict=True)] == [
        (0, "x"),
        (0, "Aa"),
        (4, "Aa"),
        (5, "Aa"),
    ]
    assert [asked.key[place].as_py() for place in found.near.tolist()] == ["Aa"]


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 4))
def test_the_newest_hits_of_each_key_are_the_last(places: list[int], limit: int) -> None:
    wanted = [places[k + 1 :].count(place) < limit for k, place in enumerate(places)]
    assert newest(np.array(places, np.int64), limit).tolist() == wanted


# the index


def indexed(root: Path, count: int, slots: int, positions: int, seed: int = 1) -> tuple[Store, tuple[IndexFile, ...]]:
    chosen = random.Random(seed)
    store = Store(root, file_size=1 << 16, slots=slots, positions=positions)
    for _ in range(count):
        store.put(message(f"t{chosen.randrange(3)}", keys=" ".join(f"k{chosen.randrange(count)}" for _ in range(chosen.randrange(4)))))
    return store, tuple(mqstore.open(store.write()).index_files())


@pytest.mark.parametrize(("slots", "positions"), [(1, 4000), (7, 300), (100, 400), (5000, 20_000)])
def test_probe_and_sweep_find_the_entries_of_the_asked_hashes(slots: int, positions: int, tmp_path: Path) -> None:
    store, files = indexed(tmp_path / "store", 600, slots, positions)
    asked = Asked.of([(f"t{number % 4}", f"k{number}") for number in range(0, 600, 3)])
    hashes = set(asked.hash.tolist())
    wanted = sorted((key_hash, put.offset) for key_hash, put in store.keys() if key_hash in hashes)  # noqa: SIM118
    for way in (probe, sweep):
        found = [way(file, number, asked) for number, file in enumerate(files)]
        assert [each.wrong for each in found] == [""] * len(files)
        assert sorted((row["hash"], row["physical_offset"]) for each in found for row in each.candidates) == wanted
        assert all((each.candidates["file"] == number).all() for number, each in enumerate(found))


def test_a_header_that_its_entries_contradict_is_not_believed(tmp_path: Path) -> None:
    store, files = indexed(tmp_path / "store", 50, 100, 400)
    assert [distrust(file) for file in files] == [""]
    for place, raw, wrong in (
        (16, (7).to_bytes(8, "big"), "different physical offsets"),
        (36, (401).to_bytes(4, "big"), "room for 399"),
        (36, (1).to_bytes(4, "big"), "no entries"),
    ):
        store.write()
        store.patch(files[0].relative, place, raw)
        (file,) = mqstore.open(store.root).index_files()
        assert wrong in distrust(file)


@pytest.mark.parametrize("seed", range(40))
def test_damage_of_an_index_file_never_hides_an_entry_that_a_sweep_calls_sound(seed: int, tmp_path: Path) -> None:
    # no change of one byte is a multiple of 257, so a changed hash has another slot; nor is it of a broker's 5,000,000 slots
    store, files = indexed(tmp_path / "store", 80, 257, 400, seed)
    asked = Asked.of([(f"t{number % 3}", f"k{number}") for number in range(80)])
    whole = sorted((row["hash"], row["physical_offset"]) for row in sweep(files[0], 0, asked).candidates)
    chosen = random.Random(seed)
    base = 40 + 4 * 257
    place = base + 20 * chosen.randrange(1, files[0].index_count) + chosen.choice([0, 1, 2, 3, 16, 17, 18, 19])
    store.patch(files[0].relative, place, bytes([chosen.randrange(256)]))
    (file,) = mqstore.open(store.root).index_files()
    found = sweep(file, 0, asked)
    assert found.wrong or sorted((row["hash"], row["physical_offset"]) for row in found.candidates) == whole


def test_what_files_cover_ends_before_their_first_and_last_record(tmp_path: Path) -> None:
    store, files = indexed(tmp_path / "store", 300, 100, 100)
    log = mqstore.open(store.root).log
    end = store.puts[-1].offset + len(store.puts[-1].raw)
    covered = intervals(files, log, end)
    rest = uncovered(covered, log.start, end)
    assert len(covered) == len(files) > 3
    marks = np.zeros(end, np.int8)
    for each in (*covered, *rest):
        marks[each.start : each.stop] += 1
    assert (marks == 1).all()
    inside = [put.offset for put in store.puts if any(each.start <= put.offset < each.stop for each in covered)]
    assert not {edge for file in files for edge in (file.begin_physical_offset, file.end_physical_offset)} & set(inside)
    assert uncovered((), 5, 9) == [Interval(5, 9)]
    assert uncovered((), 5, 5) == []


# the choice


def test_a_plan_that_is_asked_for_is_taken_if_there_is_an_index() -> None:
    costs = Costs(keys=10, files=1, entries=10**7, log_bytes=10**10, uncovered_bytes=0)
    assert [choose(str(plan), costs, ())[0] for plan in Plan] == list(Plan)
    none = Costs(keys=10, files=0, entries=0, log_bytes=10**10, uncovered_bytes=10**10)
    plan, why = choose("probe", none, ["index/1: its geometry is not proved", "index/2: x"])
    assert (plan, why) == (
        Plan.SCAN,
        "no index file can be used: index/1: its geometry is not proved (and so 1 more); 10,000,000,000 bytes of log are read",
    )


@pytest.mark.parametrize(
    ("keys", "uncovered_bytes", "plan"), [(1000, 0, "probe"), (10**6, 0, "sweep"), (10**6, 10**10, "scan"), (1, 10**6, "probe")]
)
def test_the_least_work_is_chosen(keys: int, uncovered_bytes: int, plan: str) -> None:
    assert choose("auto", Costs(keys, 2, 2 * 10**7, 10**10, uncovered_bytes), ())[0] == plan
