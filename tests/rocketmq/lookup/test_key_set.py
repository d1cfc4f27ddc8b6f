"""Keys of a lookup: reading them, their hashes, and the comparison with records."""

from __future__ import annotations

import gzip
import subprocess
import sys
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
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.lookup import key_file
from mqstore.rocketmq.lookup.key_file import read_keys
from mqstore.rocketmq.lookup.key_set import FEW, KeySet, hash_pairs, last_per_key_mask
from mqstore.rocketmq.scan.columns import RecordColumns

BLANKS = str.maketrans("\t\r\n", "   ")
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


def pairs(asked: KeySet) -> list[tuple[str, str]]:
    """Return the pairs in the order of the file."""
    return list(zip(asked.topic.take(asked.in_order).to_pylist(), asked.key.take(asked.in_order).to_pylist(), strict=True))


# reading


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
        ("a", b"x\n" * 9, "line 5 has no tab; 4 more; each row needs a topic and a key"),
        ("a", b"t\tk\nt\t\xff\n", "line 2 is not UTF-8"),
        ("a", gzip.compress(b"t\tk\n", mtime=0), "line 1 is not UTF-8"),
        ("a", b"", "there are no keys to look up"),
        ("a", b"\n\n", "there are no keys to look up"),
        ("a.csv", b"", "has no column 'topic', it has none"),
        ("a.csv", b"topic,kex\nt,k\n", "has no column 'key', it has topic, kex"),
        ("a.csv", b"topic,key\nt,k\nt\n,k\nt,\n", "line 3 has no key, line 4 has no topic, line 5 has no key"),
        ("a.csv", b'topic,key\nt,k\nt,"k"x\n', "line 3 is not valid CSV"),
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
        ({"topic": pa.array([], pa.string()), "key": pa.array([], pa.string())}, "there are no keys to look up"),
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
    found = KeySet.of(asked)
    assert pairs(found) == list(dict.fromkeys(asked))
    assert found.hash.tolist() == sorted(index_hash(topic, key) for topic, key in set(asked))
    by_place = zip(found.topic.to_pylist(), found.key.to_pylist(), found.hash.tolist(), strict=True)
    assert all(index_hash(topic, key) == number for topic, key, number in by_place)


def test_the_hash_without_an_absolute_value_is_0() -> None:
    assert hash_pairs(pa.array(["TopicTest"]), pa.array(["ogaQmc"])).tolist() == [0]


@given(st.sets(st.integers(0, 400), min_size=1), st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 400), max_size=50))
def test_a_hash_is_asked_or_it_is_not(asked: set[int], others: list[int]) -> None:
    keys = KeySet.of([("t", str(number)) for number in asked])
    hashes = np.array([*keys.hash.tolist(), *others], np.int32)
    assert keys.has(hashes).tolist() == [number in set(keys.hash.tolist()) for number in hashes.tolist()]
    rows, places = keys.places(hashes)
    assert sorted(zip(hashes[rows].tolist(), places.tolist(), strict=True)) == sorted(
        (number, place) for number in hashes.tolist() for place in np.flatnonzero(keys.hash == number).tolist()
    )


@pytest.mark.parametrize("spread", [1 << 31, 1 << 24, 40, 1], ids=["all hashes", "in few groups", "in one group", "one hash"])
def test_a_large_set_is_searched_like_a_small_one(spread: int) -> None:
    dice = np.random.default_rng(7)
    low = dice.integers(0, (1 << 31) - spread + 1)
    hashes = np.sort(dice.integers(low, low + spread, FEW + 5000)).astype(np.int32)
    asked = np.concatenate(
        [hashes[::50], hashes[::70] + 1, dice.integers(0, 1 << 31, 2000), [0, 1, hashes[0], hashes[-1], (1 << 31) - 1, -1, -(1 << 31)]]
    ).astype(np.int32)
    dice.shuffle(asked)
    numbers = np.arange(len(hashes), dtype=np.int32)
    keys = KeySet(hashes, numbers, pa.array([], pa.string()), pa.array([], pa.string()))
    for some in (asked, asked[:1], asked[:0]):
        assert keys._first_places(some).tolist() == np.searchsorted(hashes, some).tolist()
        assert keys.has(some).tolist() == np.isin(some, hashes).tolist()
    rows, places = keys.places(asked)
    counts = np.searchsorted(hashes, asked, "right") - np.searchsorted(hashes, asked)
    assert np.bincount(rows, minlength=len(asked)).tolist() == counts.tolist()
    assert (hashes[places] == asked[rows]).all()


def test_tasks_map_what_is_asked(tmp_path: Path) -> None:
    asked = KeySet.of([("t", f"k{number}") for number in range(1000)])
    with (tmp_path / "asked").open("wb") as sink:
        asked.write_to(sink)
    again = KeySet.mapped(tmp_path / "asked")
    assert pairs(again) == pairs(asked)
    assert (again.hash == asked.hash).all()
    assert again.topics == {"t"}


# comparing


def test_only_equal_text_is_a_hit_and_a_rolled_back_message_never(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put(message("t", keys="Aa x"), message("t", keys="BB"), message("u", keys="Aa"), message("t", keys="Aa", sys_flag=0xC))
    store.put(message("t", keys="Aa", sys_flag=0x4), message("t", keys="  Aa   Aa "))
    log = mqstore.open(store.write()).log
    parts = [event for event in log.scan() if isinstance(event, Records)]
    records = Records(parts[0].file, parts[0].data, np.concatenate([part.positions for part in parts]))
    asked = KeySet.of([("t", "x"), ("t", "Aa")])
    found = asked.match(RecordColumns(records))
    assert [(row, asked.key[place].as_py()) for row, place in zip(found.rows.tolist(), found.places.tolist(), strict=True)] == [
        (0, "x"),
        (0, "Aa"),
        (4, "Aa"),
        (5, "Aa"),
    ]
    assert [asked.key[place].as_py() for place in found.collisions.tolist()] == ["Aa"]


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 4))
def test_the_newest_hits_of_each_key_are_the_last(places: list[int], limit: int) -> None:
    wanted = [places[k + 1 :].count(place) < limit for k, place in enumerate(places)]
    assert last_per_key_mask(np.array(places, np.int64), limit).tolist() == wanted


# size


@given(st.lists(st.tuples(TEXTS.map(lambda text: text.translate(BLANKS)), TEXTS.map(lambda text: text.translate(BLANKS))), min_size=1))
def test_pieces_of_a_file_are_read_like_the_whole(tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("keys") / "a"
    path.write_text("".join(f"{topic}\t{key}\r\n\n" for topic, key in wanted), encoding="utf-8-sig", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_file, "PIECE", 64)
        asked = read_keys(path)
    assert pairs(asked) == list(dict.fromkeys(wanted))
    assert asked.repeated == len(wanted) - len(set(wanted))


def test_a_bad_line_is_counted_in_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "PIECE", 64)
    (tmp_path / "a").write_text("t\tk\n" * 40 + "no tab\n" + "t\tk\n" * 40 + "t\t\n")
    with pytest.raises(UsageError, match="line 41 has no tab, line 82 has no key; each"):
        read_keys(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"t\tk\n" * 40 + b"t\t\xff\n")
    with pytest.raises(UsageError, match="line 41 is not UTF-8"):
        read_keys(tmp_path / "a")
    (tmp_path / "a.csv").write_bytes(b"topic,key\n" + b"t,k\n" * 40 + b"t,\xff\n")
    with pytest.raises(UsageError, match="line 42 is not UTF-8"):
        read_keys(tmp_path / "a.csv")
    (tmp_path / "a").write_text("t\tk\n" + "x" * 200)
    with pytest.raises(UsageError, match="line 2 has more than 64 bytes"):
        read_keys(tmp_path / "a")


def test_a_million_keys_take_less_than_100_bytes_each(tmp_path: Path) -> None:
    """A key of 15 bytes takes 31 in the set; as Python strings a pair took some 300."""
    count = 1_000_000
    with (tmp_path / "a").open("w") as file:
        file.writelines(f"bench-{number % 4}\torder-{number:09d}\n" for number in range(count))
    script = (
        "import resource, sys; import pyarrow.compute, mqstore.rocketmq.lookup.tasks\n"
        "from mqstore.rocketmq.lookup.key_file import read_keys\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert len(read_keys(sys.argv[1])) == int(sys.argv[2])\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a"), str(count)], stdout=subprocess.PIPE, check=True)
    working = 40 << 20  # one piece of the file with its spans and hashes, whatever the number of keys
    assert int(done.stdout) < 100 * count + working
