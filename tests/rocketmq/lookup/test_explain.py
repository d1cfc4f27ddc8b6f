"""Why a key query answers as it does: one store for each reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import case_named, keys_of, opened
from support.golden import expected as messages_of
from support.stores import BEGIN, Store, message

import mqstore
from mqstore.rocketmq.format.index_geometry import HEADER_SIZE
from mqstore.rocketmq.format.java_text import index_hash
from mqstore.rocketmq.lookup.explain import KeyAnswer, Reason, has_key, query


def ask(root: Path, topic: str = "orders", key: str = "k", view: str = "disk", **options: object) -> KeyAnswer:
    store = mqstore.open(root)
    return query(store, store.view(view), topic, key, **options)  # type: ignore[arg-type]


def keyed(store: Store, count: int, key: str = "k{}") -> None:
    for number in range(count):
        store.put(message("orders", b"body", keys=key.format(number)))


def test_a_complete_answer_needs_no_explanation(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 5)
    first, second = store.put(message("orders", keys="a k b")), store.put(message("orders", keys="k"))
    store.write()
    for explain in (False, True):
        answer = ask(tmp_path, explain=explain)
        assert (answer.complete, answer.reason, answer.detail, answer.advice) == (True, None, "", "")
        assert answer.index_hits == (second.offset, first.offset)
        assert answer.messages == (first.offset, second.offset)
        assert answer.missing == ()
        assert answer.scanned == explain
        assert bool(answer.steps) == explain


def test_steps_name_the_entries_of_the_chain(tmp_path: Path) -> None:
    store = Store(tmp_path, slots=1)
    keyed(store, 3)
    put = store.put(message("orders", keys="k"))
    store.put(message("orders", keys="later"))
    store.write()
    answer = ask(tmp_path, explain=True)
    assert [(step.number, step.outcome) for step in answer.steps] == [
        (5, "another hash"),
        (4, "taken"),
        *((n, "another hash") for n in (3, 2, 1)),
    ]
    assert [step.physical_offset for step in answer.steps] == [each.offset for each in reversed(store.puts)]
    taken = answer.steps[1].as_dict()
    assert (taken["entry"], taken["physical_offset"], taken["slot"]) == (4, put.offset, 0)


def test_a_message_after_the_end_of_the_index(tmp_path: Path) -> None:
    store = Store(tmp_path, indexed=4, abort=True)
    keyed(store, 4)
    put = store.put(message("orders", keys="k"))
    store.write()
    answer = ask(tmp_path)
    assert (answer.reason, answer.complete) == (Reason.AFTER_INDEX_END, False)
    assert (answer.index_hits, answer.messages, answer.missing) == ((), (), (put.offset,))
    assert str(put.offset) in answer.detail
    assert str(store.puts[3].offset) in answer.detail


def test_an_answer_that_misses_messages_after_the_index_is_incomplete(tmp_path: Path) -> None:
    store = Store(tmp_path, indexed=3)
    keyed(store, 5, "k")
    store.write()
    offsets = tuple(put.offset for put in store.puts)
    quick = ask(tmp_path)
    assert (quick.reason, quick.complete, quick.scanned) == (None, True, False)
    answer = ask(tmp_path, explain=True)
    assert (answer.reason, answer.complete) == (Reason.AFTER_INDEX_END, False)
    assert (answer.messages, answer.missing) == (offsets[:3], offsets[3:])


def test_no_index_file_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path, with_index=False)
    put = store.put(message("orders", keys="k"))
    store.write()
    answer = ask(tmp_path)
    assert (answer.reason, answer.complete, answer.missing) == (Reason.INDEX_FILE_MISSING, False, (put.offset,))
    assert "no index file at all" in answer.detail


def test_the_index_file_that_covers_a_message_is_missing(tmp_path: Path) -> None:
    store = Store(tmp_path, positions=11)
    keyed(store, 30)
    store.write()
    oldest, _, newest = sorted((tmp_path / "index").iterdir())
    oldest.unlink()
    answer = ask(tmp_path, key="k3", explain=True)
    assert (answer.reason, answer.missing) == (Reason.INDEX_FILE_MISSING, (store.puts[3].offset,))
    assert {step.file for step in answer.steps} <= {name.name for name in (tmp_path / "index").iterdir()}
    newest.unlink()
    answer = ask(tmp_path, key="k25")
    assert (answer.reason, answer.missing) == (Reason.AFTER_INDEX_END, (store.puts[25].offset,))


def test_a_slot_that_was_lost_hides_its_chain(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 90)
    put = store.put(message("orders", keys="k"))
    store.write()
    (name,) = (path.name for path in (tmp_path / "index").iterdir())
    slot = index_hash("orders", "k") % store.slots
    store.patch(f"index/{name}", HEADER_SIZE + 4 * slot, bytes(4))
    answer = ask(tmp_path, explain=True)
    assert (answer.reason, answer.complete) == (Reason.INDEX_FILE_UNSOUND, False)
    assert (answer.index_hits, answer.messages, answer.missing) == ((), (), (put.offset,))
    assert [(step.slot, step.outcome) for step in answer.steps] == [(slot, "the slot is empty")]


def test_a_chain_that_loops_is_invalid_and_ends(tmp_path: Path) -> None:
    store = Store(tmp_path, slots=1)
    keyed(store, 40)
    store.write()
    (name,) = (path.name for path in (tmp_path / "index").iterdir())
    entries = HEADER_SIZE + 4
    store.patch(f"index/{name}", entries + 20 * 20 + 16, (35).to_bytes(4, "big"))
    answer = ask(tmp_path, key="k5", explain=True)
    assert (answer.reason, answer.missing) == (Reason.INDEX_FILE_UNSOUND, (store.puts[5].offset,))
    assert answer.steps[-1].outcome == "the chain loops: cut here"
    looping = ask(tmp_path, key="k25", max_num=8)
    assert looping.index_hits == (store.puts[25].offset,) * 8
    assert looping.messages == (store.puts[25].offset,)


def test_a_message_outside_the_asked_times(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 3)
    put = store.put(message("orders", keys="k"), at=10_000)
    store.put(message("orders", keys="other"), at=90_000)
    store.write()
    for begin, end in ((BEGIN + 20_000, BEGIN + 80_000), (0, BEGIN + 5_000), (0, BEGIN - 1), (BEGIN + 100_000, BEGIN + 200_000)):
        answer = ask(tmp_path, begin=begin, end=end)
        assert (answer.reason, answer.complete) == (Reason.OUTSIDE_TIME_WINDOW, False)
        assert (answer.index_hits, answer.messages, answer.missing) == ((), (), (put.offset,))
    assert ask(tmp_path, begin=BEGIN + 10_000, end=BEGIN + 10_000).messages == (put.offset,)


def test_messages_outside_the_times_are_not_missing_from_an_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    inside, _ = store.put(message("orders", keys="k"), at=10_000), store.put(message("orders", keys="k"), at=90_000)
    store.write()
    answer = ask(tmp_path, begin=BEGIN, end=BEGIN + 50_000, explain=True)
    assert (answer.messages, answer.missing, answer.reason, answer.complete) == ((inside.offset,), (), None, True)


def test_the_index_keeps_whole_seconds_and_may_miss_a_message_inside_the_times(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(message("orders", keys="first"), at=0)
    put = store.put(message("orders", keys="k"), at=1_900)
    store.put(message("orders", keys="last"), at=9_000)
    store.write()
    answer = ask(tmp_path, begin=BEGIN + 1_500, end=BEGIN + 5_000)
    assert (answer.reason, answer.complete, answer.missing) == (Reason.OUTSIDE_TIME_WINDOW, False, (put.offset,))


def test_more_messages_than_were_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 100, "k")
    store.write()
    offsets = [put.offset for put in store.puts]
    answer = ask(tmp_path, max_num=10, explain=True)
    assert (answer.reason, answer.complete) == (Reason.CUT_BY_MAX, False)
    assert answer.index_hits == tuple(reversed(offsets[-10:]))
    assert answer.messages == tuple(offsets[-10:])
    assert answer.missing == tuple(offsets[:-10])
    assert answer.steps[-1].outcome == "not visited: 10 offsets are found"
    without_scan = ask(tmp_path, max_num=10)
    assert (without_scan.reason, without_scan.complete, without_scan.missing) == (Reason.CUT_BY_MAX, False, ())
    assert len(ask(tmp_path, max_num=1000).messages) == 64


def test_the_index_leads_to_a_damaged_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 5)
    put = store.put(message("orders", keys="k"))
    keyed(store, 5)
    store.write()
    store.patch_log(put.offset + 4, b"\0")
    answer = ask(tmp_path)
    assert (answer.reason, answer.complete) == (Reason.RECORD_DAMAGED, False)
    assert (answer.index_hits, answer.messages) == ((put.offset,), ())
    assert str(put.offset) in answer.detail


def test_the_key_is_in_damaged_bytes_that_no_index_points_at(tmp_path: Path) -> None:
    store = Store(tmp_path, with_index=False)
    keyed(store, 5)
    put = store.put(message("orders", keys="a-key-of-its-own"))
    keyed(store, 5)
    store.write()
    store.patch_log(put.offset + 4, b"\0")
    answer = ask(tmp_path, key="a-key-of-its-own")
    assert (answer.reason, answer.index_hits, answer.messages) == (Reason.RECORD_DAMAGED, (), ())
    assert not answer.complete
    assert str(put.offset) in answer.detail


@pytest.mark.parametrize("asked", [{}, {"begin": BEGIN + 10**7}])
def test_a_record_removed_by_retention(tmp_path: Path, asked: dict[str, int]) -> None:
    store = Store(tmp_path, file_size=4096)
    put = store.put(message("orders", keys="k"))
    keyed(store, 60)
    store.write()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    answer = ask(tmp_path, **asked)
    assert (answer.reason, answer.complete, answer.messages) == (Reason.REMOVED_BY_RETENTION, False, ())
    assert answer.index_hits == (() if asked else (put.offset,))
    assert "4096" in answer.detail


def test_an_answer_is_short_where_some_of_its_hits_were_removed(tmp_path: Path) -> None:
    store = Store(tmp_path, file_size=4096)
    put = store.put(message("orders", keys="k"))
    keyed(store, 60)
    last = store.put(message("orders", keys="k"))
    store.write()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    answer = ask(tmp_path)
    assert (answer.index_hits, answer.messages) == ((last.offset, put.offset), (last.offset,))
    assert (answer.reason, answer.complete) == (Reason.REMOVED_BY_RETENTION, False)


def test_only_records_with_other_keys_of_the_same_hash(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 3)
    put = store.put(message("orders", keys="Aa"))
    store.write()
    assert index_hash("orders", "Aa") == index_hash("orders", "BB")
    answer = ask(tmp_path, key="BB", explain=True)
    assert (answer.reason, answer.complete) == (Reason.HASH_COLLISIONS_ONLY, True)
    assert (answer.index_hits, answer.messages) == ((put.offset,), ())
    assert "taken" in [step.outcome for step in answer.steps]
    both = ask(tmp_path, key="Aa")
    assert (both.messages, both.reason) == ((put.offset,), None)


def test_a_collision_is_a_hit_but_no_match(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = store.put(message("orders", keys="Aa")), store.put(message("orders", keys="BB"))
    store.write()
    answer = ask(tmp_path, key="Aa", explain=True)
    assert (answer.index_hits, answer.messages) == ((second.offset, first.offset), (first.offset,))
    assert (answer.reason, answer.complete) == (None, True)


def test_a_key_that_the_log_never_held(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 7)
    store.write()
    answer = ask(tmp_path)
    assert (answer.reason, answer.complete) == (Reason.KEY_NEVER_SEEN, True)
    assert (answer.index_hits, answer.messages, answer.missing) == ((), (), ())
    assert "7 records" in answer.detail


def test_a_topic_that_nothing_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 7)
    store.write()
    answer = ask(tmp_path, topic="nobody")
    assert (answer.reason, answer.complete) == (Reason.TOPIC_NEVER_SEEN, True)
    store.write_file(
        "config/topics.json",
        json.dumps({"topicConfigTable": {"nobody": {"topicName": "nobody", "readQueueNums": 1, "writeQueueNums": 1}}}).encode(),
    )
    assert ask(tmp_path, topic="nobody").reason == Reason.KEY_NEVER_SEEN


def test_an_empty_answer_without_a_scan_claims_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keyed(store, 7)
    store.write()
    answer = ask(tmp_path, scan=False)
    assert (answer.scanned, answer.messages, answer.reason) == (False, (), None)


def test_recovery_drops_an_index_file_and_does_not_make_it_again() -> None:
    case = case_named("4.9.3/b-kill9")
    store = mqstore.open(opened(case), config=case.config)
    disk, recovered = store.view("disk"), store.view("recovered", "4.9.3")
    dropped = {}
    for row in messages_of(case):
        for key in sorted(keys_of(row))[:1]:
            if row["physical_offset"] not in query(store, recovered, row["topic"], key, scan=False).messages:
                dropped[row["physical_offset"]] = (row["topic"], key)
    found = set()
    for offset, (topic, key) in list(dropped.items())[::10]:
        answer = query(store, recovered, topic, key, explain=True)
        found.add(answer.reason)
        if answer.reason == Reason.INDEX_FILE_DROPPED:
            assert offset in answer.missing
            assert not answer.complete
            assert offset in query(store, disk, topic, key).messages
    assert Reason.INDEX_FILE_DROPPED in found


def test_a_key_is_asked_for_in_keys_and_as_uniq_key_of_its_own_topic() -> None:
    record = message("orders", keys="a b", properties=b"KEYS\x01a b\x02UNIQ_KEY\x01u v")
    assert [has_key(record, "orders", key) for key in ("a", "b", "a b", "u v", "u")] == [True, True, False, True, False]
    assert not has_key(record, "other", "a")


def test_damage_elsewhere_in_the_log_leaves_an_explained_answer_incomplete() -> None:
    """The lost record may have had the key: an answer from a log with holes is not complete."""
    store = mqstore.open(opened(case_named("4.9.3/m-damaged/05-zero-4k")))
    row = next(store.view().batches(["topic", "uniq_key"])).to_pylist()[0]
    answer = query(store, store.view(), row["topic"], row["uniq_key"], explain=True)
    assert answer.messages
    assert (answer.reason, answer.complete) == (None, False)
