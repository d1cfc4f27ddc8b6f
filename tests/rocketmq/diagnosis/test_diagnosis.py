"""Diagnoses of golden stores and of states made from them. What real stores make of the same states: tests/interop."""

from __future__ import annotations

import re
import shlex
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from support.golden import PLAIN, GoldenCase, boot, case_id, case_named, opened, run_cli, unchanged, unpack
from support.rocketmq_states import made, record_starts, twice

import mqstore
from mqstore.diagnosis import Diagnosis
from mqstore.errors import UnsupportedError, UsageError
from mqstore.files.durable import DurableDirectory
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import START, WITHOUT_KEYS, diagnose
from mqstore.rocketmq.format.profile import profile
from mqstore.rocketmq.live.store_lock import StoreLock
from mqstore.rocketmq.loaded_config import readable_offsets

FOUR, FIVE = case_named("4.9.3/f-broker-offsets"), case_named("5.3.3/j-broker-offsets")


def of(case: GoldenCase, place: Path | None = None, version: str | None = None) -> Diagnosis:
    config = case.config if case.config.exists() else None
    return diagnose(open_rocketmq(place or opened(case), config=config), version or case.version)


def findings(found: Diagnosis) -> set[str]:
    return {item.finding for item in found.evidence}


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_a_broker_starts_on_what_a_broker_left_and_loses_nothing_of_it(case: GoldenCase) -> None:
    with unchanged(opened(case)):
        found = of(case)
    assert (found.starts, found.loses) == (True, 0)
    assert boot(case)["load_ok"] is True


@pytest.mark.parametrize("name", ["a-clean-small", "b2-kill9-live", "c-index-collisions", "d-rolled", "n-ext-multidispatch"])
def test_a_sound_store_gets_the_advice_to_start_the_broker(name: str) -> None:
    found = of(case_named(f"4.9.3/{name}"))
    assert (found.status, found.redelivers, found.unknown) == (0, 0, ())
    assert found.next.startswith("sh bin/mqbroker")


@pytest.mark.parametrize(
    ("state", "version", "finding", "file"),
    [
        ("stray_file", "4.9.3", "stray-file", "commitlog/core.4711"),
        ("stray_directory", "4.9.3", "stray-file", "commitlog/old"),
        ("stray_file_of_full_size", "5.3.3", "stray-file", "commitlog/backup"),
        ("short_queue_file", "5.3.3", "wrong-size", None),
        ("empty_last_queue_file", "4.9.3", "wrong-size", None),
        ("short_log_file", "5.3.3", "wrong-size", "commitlog/00000000000000131072"),
        ("torn_delay_offsets_and_bak", "4.9.3", "bad-config", "config/delayOffset.json"),
        ("torn_consumer_offsets_and_bak", "5.3.3", "bad-config", "config/consumerOffset.json"),
    ],
)
def test_what_keeps_a_broker_from_starting_is_named_with_its_file(
    state: str, version: str, finding: str, file: str | None, tmp_path: Path
) -> None:
    case = FOUR if version == "4.9.3" else FIVE
    found = of(case, made(state, case, tmp_path / "store"))
    assert (found.starts, found.status) == (False, 2)
    assert found.evidence[0].finding == finding
    assert file is None or found.evidence[0].file == file
    assert "does not start" in found.evidence[0].detail


@pytest.mark.parametrize(
    ("state", "version"), [("stray_directory", "5.3.3"), ("empty_last_queue_file", "5.3.3"), ("stray_index_file", "4.9.3")]
)
def test_what_a_broker_passes_over_does_not_keep_it_from_starting(state: str, version: str, tmp_path: Path) -> None:
    case = FOUR if version == "4.9.3" else FIVE
    found = of(case, made(state, case, tmp_path / "store"))
    assert (found.starts, found.loses) == (True, 0)


def test_a_bit_in_a_body_costs_everything_after_it_and_sends_groups_back_to_the_start(tmp_path: Path) -> None:
    found = of(FOUR, made("body_flip", FOUR, tmp_path / "store"))
    assert (found.starts, found.loses, found.status) == (True, 97, 1)
    assert {"bad-checksum", "cut-off", "offset-past-end"} <= findings(found)
    assert found.redelivers == sum(item.messages for item in found.evidence if item.finding == "offset-past-end") > 300


def test_5_3_3_sends_no_group_back_to_the_start(tmp_path: Path) -> None:
    found = of(FIVE, made("body_flip", FIVE, tmp_path / "store"))
    assert (found.loses, found.redelivers) == (98, 0)
    assert "offset-past-end" in findings(found)
    places = [item.detail.partition(", which ")[0] for item in found.evidence if item.detail.startswith("group ")]
    assert len(places) == len({*places})  # no note says it a second time


def test_offsets_that_are_pulled_are_not_those_that_are_consumed() -> None:
    text = '{"offsetTable":{"orders@billing":{0:3}},"pullOffsetTable":{"orders@billing":{0:12}}}'
    assert readable_offsets(text) == {"orders@billing": {0: 3}}


def test_torn_consumer_offsets_say_how_much_is_read_again_and_what_is_not_known(tmp_path: Path) -> None:
    found = of(FIVE, made("torn_consumer_offsets", FIVE, tmp_path / "store"))
    assert found.starts
    assert found.redelivers == sum(item.messages for item in found.evidence if item.finding == "progress-lost") > 0
    assert any("no offsets at all" in sentence for sentence in found.unknown)


@pytest.mark.parametrize("and_bak", ["", "_with_bak", "_and_bak"])
def test_a_torn_file_of_configuration_is_named_as_a_whole_whatever_its_bak_is(and_bak: str, tmp_path: Path) -> None:
    found = of(FIVE, made(f"torn_consumer_offsets{and_bak}", FIVE, tmp_path))
    (torn,) = (item for item in found.evidence if item.finding == "bad-config")
    assert (torn.offset, torn.length) == (0, (tmp_path / torn.file).stat().st_size)


def test_groups_that_are_behind_the_offsets_of_the_bak_get_again_what_is_between(tmp_path: Path) -> None:
    sound, store = of(FOUR), unpack(FOUR, tmp_path / "store")
    offsets = store / "config" / "consumerOffset.json"
    text = offsets.read_text()
    offsets.with_name("consumerOffset.json.bak").write_text(text)
    assert "{0:29,1:27,2:35,3:48" in text
    offsets.write_text(text.replace("{0:29,1:27,2:35,3:48", "{0:20,1:27,2:30,3:48"))
    found = of(FOUR, store)
    assert (found.loses, found.redelivers, found.unknown) == (0, sound.redelivers + 14, sound.unknown)
    assert found.status == 1


@pytest.mark.parametrize(
    ("one", "other", "lost"),
    [
        ("orders/0/00000000000000004000", "rare/0/00000000000000014000", 177),  # what has expired is not lost
        ("orders/2/00000000000000004000", "only-old/0/00000000000000000000", 95),  # a part of a message is not the message
    ],
)
def test_queue_files_that_were_swapped_lose_what_a_real_store_loses(one: str, other: str, lost: int, tmp_path: Path) -> None:
    case = case_named("4.9.3/d-rolled")
    queues = unpack(case, tmp_path / "store") / "consumequeue"
    (queues / one).rename(tmp_path / "first")
    (queues / other).rename(queues / one)
    (tmp_path / "first").rename(queues / other)
    found = of(case, tmp_path / "store")
    assert (found.starts, found.loses, found.unknown) == (True, lost, ())


@pytest.mark.parametrize(("place", "size"), [(447, 1 << 30), (449, 300)])  # at its end, and after entries that were never written
def test_an_entry_after_the_end_of_a_queue_that_no_record_can_have_had_is_of_no_message(place: int, size: int, tmp_path: Path) -> None:
    case = case_named("5.3.3/k-rolled")
    store = unpack(case, tmp_path / "store")
    with (store / "consumequeue" / "TopicTest" / "0" / "00000000000000008000").open("r+b") as file:
        file.seek(20 * place - 8000)
        file.write(struct.pack(">qiq", 1156797, size, 0))
    assert of(case, store).loses == 0


@pytest.mark.parametrize("physical", [1 << 40, 0], ids=["nowhere", "another queue's first record"])
def test_equal_entries_after_the_end_of_a_queue_are_of_no_message(physical: int, tmp_path: Path) -> None:
    """Seeds 32301 and 33106 of `scripts/prove --kind diagnosis-rocketmq`: the first of them, or each, counted as lost."""
    case = case_named("4.9.3/m-damaged/0-clean")
    path = unpack(case, tmp_path) / "consumequeue/s71_audit-log/10/00000000000000000000"
    raw = path.read_bytes()
    path.write_bytes(raw[:220] + struct.pack(">qiq", physical, 300, 0) * 9)
    assert not any(raw[220:])
    assert of(case, tmp_path, "4.9.3").loses == 0


def test_what_is_in_swapped_log_files_counts_where_no_queue_lists_it_too(tmp_path: Path) -> None:
    """Seed 32367 of `scripts/prove --kind diagnosis-rocketmq`: the real store lists none of 424 messages."""
    case = case_named("5.3.3/j-broker-offsets")
    log = sorted((unpack(case, tmp_path) / "commitlog").iterdir())
    first, second = (file.read_bytes() for file in log)
    log[0].write_bytes(second)
    log[1].write_bytes(first)
    (tmp_path / "abort").touch()
    found = of(case, tmp_path, "5.5.0")
    assert found.loses == 424
    assert [(way.next, way.keeps) for way in found.ways] == [(found.next, None), (START, 0)]
    shutil.rmtree(tmp_path / "consumequeue/s63_orders/1")
    found = of(case, tmp_path, "5.5.0")
    assert found.loses == 424
    assert sum(item.messages for item in found.evidence if item.finding == "log-renamed") > 0


def test_what_swapped_log_files_have_of_queues_that_are_gone_is_known_from_their_own_names(tmp_path: Path) -> None:
    """Seed 70120 of `scripts/prove --kind diagnosis-rocketmq`: the number was right, and called not known."""
    case = case_named("5.3.3/j-broker-offsets")
    first, second = sorted((unpack(case, tmp_path) / "commitlog").iterdir())
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    shutil.rmtree(tmp_path / "consumequeue")
    found = of(case, tmp_path)
    assert (found.loses, [sentence for sentence in found.unknown if "how many" in sentence]) == (424, [])
    raw = bytearray(second.read_bytes())
    at = record_starts(raw)[40]
    raw[at : at + 2000] = bytes(2000)
    second.write_bytes(raw)
    (sentence,) = (sentence for sentence in of(case, tmp_path).unknown if "damaged bytes of the log" in sentence)
    assert sentence.startswith("how many messages of topic 's63_audit-log', queue 0 were in damaged bytes")
    at = record_starts(raw)[20]
    raw[at : at + 8000] = bytes(8000)
    second.write_bytes(raw)
    (sentence,) = (sentence for sentence in of(case, tmp_path).unknown if "damaged bytes of the log" in sentence)
    assert sentence.startswith("how many messages of 3 queues, topic 's63_orders', queue 2 among them, were in damaged bytes")


def test_places_of_new_queues_that_lead_into_log_files_with_each_others_names_deliver_nothing_again(tmp_path: Path) -> None:
    """Seed 66505 of `scripts/prove --kind diagnosis-rocketmq`: the real 4.9.3 store delivers 285 again, and 422 were said."""
    case = case_named("4.9.3/m-damaged/0-clean")
    log = sorted((unpack(case, tmp_path) / "commitlog").iterdir())
    for file, content in zip(log[3:6], [file.read_bytes() for file in (*log[4:6], log[3])], strict=True):
        file.write_bytes(content)
    shutil.rmtree(tmp_path / "consumequeue")
    found = of(case, tmp_path)
    assert (found.redelivers, found.unknown) == (285, ())


def test_what_follows_a_gap_in_a_batch_queue_is_not_delivered(tmp_path: Path) -> None:
    """Of 48 batches of a queue without its middle file, a real 5.3.3 lists 28 after a kill, and delivers 20."""
    case = case_named("5.3.3/o-batch-queue")
    store = unpack(case, tmp_path)
    (store / "abort").touch()
    (store / "batchconsumequeue" / "batched" / "0" / f"{920:020d}").unlink()
    found = of(case, store)
    assert {item.finding: item.messages for item in found.evidence if item.finding in ("unlisted", "skipped")} == {
        "unlisted": 20,
        "skipped": 8,
    }
    assert (found.loses, found.unknown) == (28, ())


def test_a_queue_in_the_directory_of_another_type_than_that_of_its_topic_keeps_5_x_from_starting(tmp_path: Path) -> None:
    case = case_named("5.3.3/o-batch-queue")
    store = unpack(case, tmp_path / "store")
    for name in ("consumequeue/batched/2", "batchconsumequeue/TopicTest/2"):
        (store / name).mkdir(parents=True)
    found = of(case, store)
    wrong = ["consumequeue/batched", "batchconsumequeue/TopicTest"]
    assert (found.starts, [item.file for item in found.evidence if item.finding == "queue-type"]) == (False, wrong)
    assert "queue.type is BatchCQ" in found.evidence[0].detail
    assert "queue.type is SimpleCQ" in found.evidence[1].detail
    assert of(case, store, "4.9.3").starts
    untyped = tmp_path / "store.properties"
    untyped.write_text(case.config.read_text().replace("queueType.batched=BatchCQ", ""))
    found = diagnose(open_rocketmq(store, config=untyped), case.version)
    assert (found.starts, [sentence.partition(",")[0] for sentence in found.unknown]) == (
        True,
        ["the queue.type of topic 'TopicTest'", "the queue.type of topic 'batched'"],
    )


@pytest.mark.parametrize(("killed", "lost"), [(False, 36), (True, 0)])
def test_batch_queues_that_end_before_the_log_are_told(killed: bool, lost: int, tmp_path: Path) -> None:
    """What the log has of them a real 5.3.3 lists again after a kill, and not after a clean exit."""
    case = case_named("5.3.3/o-batch-queue")
    store = unpack(case, tmp_path)
    for file in sorted((store / "commitlog").iterdir())[:2]:
        file.unlink()
    for number, units in ((0, 18), (1, 10)):
        first, *further = sorted((store / f"batchconsumequeue/batched/{number}").iterdir())
        first.write_bytes(first.read_bytes()[: 46 * units].ljust(920, b"\0"))
        for file in further:
            file.unlink()
    if killed:
        (store / "abort").touch()
    found = of(case, store)
    (told,) = (item for item in found.evidence if item.finding == "gone")
    assert told.detail.startswith("not counted: 55 places after the end of the queues' files and before the log")
    assert (found.loses, found.unknown) == (lost, ())


@pytest.mark.parametrize("place", ["consumequeue", "consumequeue/{topic}", "consumequeue/{topic}/0"])
def test_a_file_in_the_place_of_a_directory_of_queues_cannot_be_written(place: str, tmp_path: Path) -> None:
    case = case_named("4.9.3/a-clean-small")
    store = unpack(case, tmp_path)
    place = place.format(topic=next(path.parent.name for path in sorted(store.glob("consumequeue/*/0"))))
    shutil.rmtree(store / place)
    (store / place).write_bytes(b"")
    wrong = f"it cannot write {place}, because a file has the place of that directory"
    assert [sentence for sentence in of(case, store).unknown if sentence.endswith(wrong)]


def test_what_only_the_unit_of_a_batch_queue_is_left_of_counts_as_lost(tmp_path: Path) -> None:
    case = case_named("5.3.3/o-batch-queue")
    store = unpack(case, tmp_path)
    log, *later = sorted((store / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    starts = record_starts(raw)
    raw[starts[60] : starts[75]] = bytes(starts[75] - starts[60])
    log.write_bytes(raw)
    found = of(case, store)
    assert [(item.finding, item.messages) for item in found.evidence if item.messages] == [("zeroed", 15), ("gone", 15)]
    assert (found.loses, found.unknown) == (15, ())
    unit = sorted((store / "batchconsumequeue" / "batched" / "0").iterdir())[0]
    unit.write_bytes(unit.read_bytes()[: 46 * 2] + bytes([1]) * 46 + unit.read_bytes()[46 * 3 :])  # of a record that is there
    found = of(case, store)
    assert [item.messages for item in found.evidence if item.finding == "gone"] == [15]
    assert (found.loses, found.unknown) == (60, ())  # a real 5.3.3 finds none of those after it
    for file in later:
        file.unlink()
    after = [item for item in of(case, store).evidence if item.finding == "gone" and "after the end of the log" in item.detail]
    whole = mqstore.open(opened(case)).messages(["physical_offset"]).to_arrow()["physical_offset"].to_pylist()
    assert [item.messages for item in after] == [sum(physical >= int(later[0].name) for physical in whole)]


def test_units_in_a_file_that_has_the_place_of_another_count_as_lost_without_their_records(tmp_path: Path) -> None:
    """Seed 90437 of `scripts/prove --kind diagnosis-rocketmq`: a real 5.3.3 has lost 131 messages, and 123 were said."""
    case = case_named("5.3.3/o-batch-queue")
    store = unpack(case, tmp_path)
    first, second = sorted((store / "batchconsumequeue" / "batched" / "1").iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    (store / "commitlog" / f"{3 * 65536:020d}").unlink()
    found = of(case, store)
    assert (found.loses, found.unknown) == (131, ())


def test_messages_that_a_group_had_and_that_are_listed_after_its_place_are_delivered_again(tmp_path: Path) -> None:
    store = unpack(FOUR, tmp_path / "store")
    (file,) = (store / "consumequeue" / "s62_audit-log" / "11").iterdir()
    raw = file.read_bytes()
    file.write_bytes(raw[20 * 17 : 20 * 22] + raw[20 * 5 : 20 * 17] + raw[: 20 * 5] + raw[20 * 22 :])  # the group is at 17
    moved = [item for item in of(FOUR, store).evidence if item.finding == "moved" and "group 's62_slow'" in item.detail]
    assert [item.messages for item in moved] == [5]
    assert "gets 5 messages again and does not get 5 messages" in moved[0].detail


def test_a_lost_delay_table_delivers_delayed_messages_again(tmp_path: Path) -> None:
    sound = of(FOUR)
    found = of(FOUR, made("torn_delay_offsets", FOUR, tmp_path / "store"))
    assert found.redelivers == sound.redelivers + 2


def test_messages_whose_queue_was_deleted_count_as_lost_where_the_broker_does_not_list_them_again(tmp_path: Path) -> None:
    found = of(FOUR, made("missing_queue", FOUR, tmp_path / "store"))
    assert found.loses == 100
    assert "unlisted" in findings(found)


def test_a_store_without_its_log_loses_every_message(tmp_path: Path) -> None:
    found = of(FOUR, made("no_log", FOUR, tmp_path / "store"))
    assert (found.starts, found.loses) == (True, 424)
    assert any("had expired" in sentence for sentence in found.unknown)


def test_a_copy_of_a_queue_lists_no_further_messages(tmp_path: Path) -> None:
    """Of a log that ends too early, each message that only queues list counts once, also in a queue of which none is left."""
    store = unpack(case_named("4.9.3/m-damaged/0-clean"), tmp_path)
    for path in sorted((store / "commitlog").iterdir())[2:]:
        path.unlink()
    assert diagnose(open_rocketmq(store)).loses == 311  # what a real 4.9.3 store has lost
    shutil.copytree(store / "consumequeue/SCHEDULE_TOPIC_XXXX/1", store / "consumequeue/SCHEDULE_TOPIC_XXXX/9")
    assert diagnose(open_rocketmq(store)).loses == 311


def test_a_held_lock_is_seen_and_not_released(tmp_path: Path) -> None:
    store = made("stray_index_file", FOUR, tmp_path / "store")
    with DurableDirectory(store) as directory, StoreLock(directory):
        for _ in range(2):
            found = of(FOUR, store)
            assert (found.starts, found.evidence[0].finding) == (False, "lock-held")
    assert of(FOUR, store).starts


def test_the_rules_of_the_nearer_version_answer_for_every_version_from_4_3_0_to_5_5_0() -> None:
    assert [profile(version).rules for version in ("4.3.0", "4.9.8", "5.0.0", "5.5.0")] == ["4.9.3", "4.9.3", "5.3.3", "5.3.3"]
    for version in ("4.2.0", "5.5.1", "6.0.0", "latest", ""):
        with pytest.raises(UsageError, match=r"4\.3\.0 to 5\.5\.0"):
            profile(version)
    found = of(FOUR, version="4.7.1")
    assert (found.version, found.rules) == ("4.7.1", "4.9.3")


@pytest.mark.parametrize("name", ["5.5.0/g-dledger"])
def test_a_store_that_is_not_read_gets_no_diagnosis(name: str) -> None:
    with pytest.raises(UnsupportedError):
        of(case_named(name))


def test_a_number_that_a_tear_may_have_cut_is_not_taken_for_an_offset() -> None:
    assert readable_offsets('{"offsetTable":{"t@g":{0:29,1:2') == {"t@g": {0: 29}}
    assert readable_offsets('{"offsetTable":{"t@g":{0:2') == {}
    assert readable_offsets('"' * 200_000) == {}
    assert readable_offsets('\\"' * 200_000) == {}
    assert readable_offsets('{"a@\\"b":{0:1},"c@d":{0:29},"x@y":{0:9') == {'a@\\"b': {0: 1}, "c@d": {0: 29}}
    assert readable_offsets('"t@g":{1:2,' * 50_000) == {"t@g": {1: 2}}


@pytest.mark.parametrize(("case", "starts"), [(case_named("4.9.3/d-rolled"), True), (case_named("5.3.3/k-rolled"), False)], ids=case_id)
def test_a_directory_in_place_of_an_index_file_costs_4_x_its_keys_and_keeps_5_x_from_starting(
    case: GoldenCase, starts: bool, tmp_path: Path
) -> None:
    place = unpack(case, tmp_path / "store")
    (place / "index" / "20261121").mkdir()
    found = of(case, place)
    assert (found.starts, found.status) == (starts, 1 if starts else 2)
    assert found.next == f"mqstore repair {place} --config {case.config}"
    assert "index/20261121" in {item.file for item in found.evidence}


def test_a_file_beside_queues_with_a_number_that_is_no_name_of_a_queue_is_not_in_the_way(tmp_path: Path) -> None:
    case = case_named("4.9.3/f-broker-offsets")
    place = unpack(case, tmp_path / "store")
    before = of(case, place)
    (place / "consumequeue" / "s62_bills" / f"{0:020d}").write_bytes(b"")  # the broker takes it for queue 0, which is in the directory 0
    assert of(case, place).unknown == before.unknown


def test_offsets_that_are_gone_with_their_bak_are_not_called_fine(tmp_path: Path) -> None:
    place = unpack(FIVE, tmp_path / "store")
    for path in place.glob("config/consumerOffset.json*"):
        path.unlink()
    found = of(FIVE, place)
    assert (found.status, found.starts) == (1, True)
    assert any("4 groups" in item and "may get every message again" in item for item in found.unknown)
    assert found.headline.endswith(", as far as is known.")


@pytest.mark.parametrize(
    ("name", "state", "loses"),  # as real stores of these versions hand out
    [
        ("4.9.3/d-rolled", "entry_past_the_end", 50),
        ("5.3.3/k-rolled", "entry_past_the_end", 50),
        ("5.3.3/j-broker-offsets", "negative_entry", 6),
        ("5.5.0/a-clean", "entry_past_the_end", 31),
        ("5.5.0/a-clean", "negative_entry", 31),
    ],
)
def test_a_pull_that_meets_an_entry_without_bytes_passes_over_what_leads_to_the_same_log_file(
    name: str, state: str, loses: int, tmp_path: Path
) -> None:
    found = of(case_named(name), made(state, case_named(name), tmp_path / "store"))
    assert (found.loses, found.status) == (loses, 1)
    skipped = sum(item.messages for item in found.evidence if item.finding == "skipped")
    assert skipped == (loses - 1 if state == "entry_past_the_end" and loses > 31 else 0)  # else the load cuts the queue there


@pytest.mark.parametrize("name", ["4.9.3/f-broker-offsets", "4.9.3/m-damaged/0-clean", "5.3.3/j-broker-offsets", "5.5.0/f-timer-wheel"])
def test_without_any_configuration_nothing_is_promised_about_what_a_broker_took(name: str, tmp_path: Path) -> None:
    place = unpack(case_named(name), tmp_path / "store")
    shutil.rmtree(place / "config")
    found = of(case_named(name), place)
    assert (found.status, found.starts) == (1, True)
    assert any("cannot be told without config/consumerOffset.json" in item for item in found.unknown)


def test_what_is_not_known_without_the_offsets_is_not_known_after_a_repair_of_the_log(tmp_path: Path) -> None:
    """Seed 34085 of `scripts/prove --kind diagnosis-rocketmq`: a message of the repair was taken for one that no broker had taken."""
    case = case_named("4.9.3/m-damaged/0-clean")
    store = unpack(case, tmp_path / "store")
    shutil.rmtree(store / "config")
    with min((store / "commitlog").iterdir()).open("r+b") as file:
        file.write(bytes(224))  # the first record
    assert run_cli("repair", store, "--config", case.config, "--apply").status == 0
    found = diagnose(open_rocketmq(store, config=case.config))
    assert any("cannot be told without config/consumerOffset.json" in item for item in found.unknown)


def test_offsets_that_are_gone_from_a_configuration_without_retry_topics_are_missed(tmp_path: Path) -> None:
    place = unpack(FOUR, tmp_path / "store")
    for path in (*place.glob("config/consumerOffset.json*"), *place.glob("config/topics.json*")):
        path.unlink()
    found = of(FOUR, place)
    assert found.status == 1
    assert any("a broker wrote config/consumerFilter.json" in item for item in found.unknown)


@pytest.mark.parametrize("case", [FOUR, FIVE], ids=case_id)
def test_without_an_index_no_key_query_finds_anything_unless_the_whole_log_is_dispatched_again(case: GoldenCase, tmp_path: Path) -> None:
    place = unpack(case, tmp_path / "store")
    shutil.rmtree(place / "index")
    found = of(case, place)
    assert (found.starts, found.status, found.loses) == (True, 1, 0)
    assert [(item.finding, item.file) for item in found.evidence if item.finding == "keys-lost"] == [("keys-lost", "index")]
    (place / "abort").touch()
    (place / "checkpoint").unlink()
    assert "makes a new index from all of the log" in of(case, place).changes


@pytest.mark.parametrize("name", ["4.9.3/d-rolled", "5.3.3/k-rolled"])
def test_without_one_of_several_index_files_a_rebuild_gives_back_the_keys(name: str, tmp_path: Path) -> None:
    case, place = case_named(name), unpack(case_named(name), tmp_path / "store")
    sorted((place / "index").iterdir())[0].unlink()
    found = of(case, place)
    assert (found.status, found.loses, found.redelivers, found.why) == (1, 0, 0, WITHOUT_KEYS)
    rebuilt = found.ways[1]
    assert rebuilt.keeps == found.ways[0].keeps
    assert run_cli(*shlex.split(rebuilt.next)[1:], "--threads", "1").status == 0
    assert run_cli("verify", f"{place}.new").status == 0


@pytest.mark.parametrize("name", ["5.3.3/j-broker-offsets", "5.3.3/k-rolled", "5.5.0/a-clean"])
def test_an_empty_last_queue_file_that_5_x_removes_is_no_damage(name: str, tmp_path: Path) -> None:
    found = of(case_named(name), made("empty_last_queue_file", case_named(name), tmp_path / "store"))
    assert (found.status, found.next, "wrong-size" in findings(found)) == (0, START, False)
    assert any(change.endswith("which is empty") for change in found.changes)


def test_queues_that_a_clean_4_9_3_lists_again_as_a_whole_are_no_damage(tmp_path: Path) -> None:
    case = case_named("4.9.3/c-index-collisions")
    place = unpack(case, tmp_path / "store")
    shutil.rmtree(place / "consumequeue")
    found = of(case, place)
    assert (found.status, found.loses, found.next) == (0, 0, START)
    assert any(change.startswith("adds entries to") for change in found.changes)


def test_the_first_record_of_a_log_is_not_listed_by_the_blanks_of_a_new_queue_file(tmp_path: Path) -> None:
    """Seed 51005 of `scripts/prove --kind diagnosis-rocketmq`: the blanks, which lead to 0, were taken for its entry at another place."""
    case = case_named("4.9.3/m-damaged/0-clean")
    place = unpack(case, tmp_path / "store")
    shutil.rmtree(place / "consumequeue")
    (place / "abort").touch()
    found = of(case, place)
    assert (found.status, found.loses, findings(found) & {"unlisted", "moved"}) == (1, 347, {"unlisted"})


@pytest.mark.parametrize("offsets", ["past-end", "older", "torn"])
def test_what_is_lost_is_not_delivered_again(offsets: str, tmp_path: Path) -> None:
    """Seed 61235 of `scripts/prove --kind diagnosis-rocketmq`: of 424 messages, all lost, groups were said to get 272 again."""
    place = unpack(FOUR, tmp_path / "store")
    table = place / "config" / "consumerOffset.json"
    text = table.read_text()
    if offsets == "older":
        table.with_name(f"{table.name}.bak").write_text(text)
        table.write_text(re.sub(r"(?<=[{,])(\s*\d+:)\d+", r"\g<1>0", text))
    elif offsets == "torn":
        table.write_text(text.rstrip()[:-1])
    assert of(FOUR, place).redelivers > 80
    first, second = sorted((place / "commitlog").iterdir())[:2]
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    found = of(FOUR, place)
    assert (found.starts, found.loses, found.redelivers) == (True, 424, 0)


def test_the_blanks_of_a_new_queue_file_are_not_delivered_again(tmp_path: Path) -> None:
    """Seed 35169 of `scripts/prove --kind diagnosis-rocketmq`: of 55 places, 27 have a message that the real 4.9.3 lists."""
    place = unpack(FOUR, tmp_path / "store")
    shutil.rmtree(place / "consumequeue" / "s62_bills")
    (place / "abort").touch()
    again = {item.detail.split()[1]: item.messages for item in of(FOUR, place).evidence if item.finding == "offset-past-end"}
    assert again["'s62_ahead'"] == 27


@pytest.mark.parametrize(("other", "again"), [("s62_orders/1", 5), ("s62_audit-log/3", 0)])
def test_a_message_of_another_queue_is_delivered_again_to_a_group_that_had_it(other: str, again: int, tmp_path: Path) -> None:
    """Seeds 35168 and 70086 of `scripts/prove --kind diagnosis-rocketmq`: what a group had never read was said to come again."""
    place = unpack(FOUR, tmp_path / "store")
    (queue,) = (place / "consumequeue/s62_orders/0").iterdir()
    (source,) = (place / "consumequeue" / other).iterdir()
    queue.write_bytes(source.read_bytes()[: 5 * 20].ljust(queue.stat().st_size, b"\0"))
    sentences = [item for item in of(FOUR, place).evidence if "'s62_everything' is at 30 of topic 's62_orders', queue 0" in item.detail]
    assert [item.messages for item in sentences if item.finding == "offset-past-end"] == [again]


@pytest.mark.parametrize(("other", "before", "finding"), [("1", 25, "moved"), ("1", 30, "progress-lost"), ("0", 30, "progress-lost")])
def test_what_a_group_had_from_another_place_comes_again_once(other: str, before: int, finding: str, tmp_path: Path) -> None:
    """The entries from its place on lead to what it had from another one. In 70236, what is before the one in the .bak counted twice."""
    place = unpack(FOUR, tmp_path / "store")
    (queue,) = (place / "consumequeue/s62_orders/0").iterdir()
    (source,) = (place / "consumequeue/s62_orders" / other).iterdir()
    table = place / "config" / "consumerOffset.json"
    text = table.read_text()
    for path, offset in ((table, 25), (place / "config" / "consumerOffset.json.bak", before)):
        path.write_text(re.sub(r'("s62_orders@s62_everything":\{0:)30', rf"\g<1>{offset}", text))
    raw = queue.read_bytes()
    queue.write_bytes(raw[: 25 * 20] + source.read_bytes()[: 5 * 20] + raw[30 * 20 :])
    found = [item for item in of(FOUR, place).evidence if item.messages and "group 's62_everything' continues" in item.detail]
    assert [(item.finding, item.messages) for item in found] == [(finding, 5)]


def test_a_message_that_has_no_time_to_wait_for_is_no_delayed_one(tmp_path: Path) -> None:
    """Seeds 70059 and 71046: whether each record in the place of the delayed ones had been delivered was said not to be known."""
    place = unpack(FOUR, tmp_path / "store")
    (other,) = (place / "consumequeue/s62_bills/0").iterdir()
    level, *_ = (path for path in sorted(place.glob("consumequeue/SCHEDULE_TOPIC_XXXX/*/*")) if any(path.read_bytes()))
    level.write_bytes(other.read_bytes())
    (place / "config" / "delayOffset.json").write_text("{}")
    found = of(FOUR, place)
    assert not [sentence for sentence in found.unknown if "delayed" in sentence]
    assert [item.messages for item in found.evidence if item.finding == "unlisted"]


def test_what_expired_with_the_beginning_of_the_log_is_not_lost_with_the_file_of_its_queue(tmp_path: Path) -> None:
    """Seed 30212 of `scripts/prove --kind diagnosis-rocketmq`: 213 messages of before the log's begin were said to be lost as well."""
    case = case_named("5.3.3/k-rolled")
    unpack(case, tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "orders" / "0")
    (tmp_path / "consumequeue" / "orders" / "0").mkdir()
    assert of(case, tmp_path, "5.5.0").loses == 68


@pytest.mark.parametrize(
    ("left", "offset", "places"),
    [(601, None, [29]), (629, None, [1]), (630, None, []), (601, 630 + 900, [929]), (601, 630 + 917504 // 91, [])],
)
def test_places_before_the_log_that_no_file_of_the_queue_lists_are_shown_without_a_number(
    left: int, offset: int | None, places: list[int], tmp_path: Path
) -> None:
    """left: places that the queue has. offset: the first one of its messages in the log, where nothing protects it; 630 in fact."""
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path)
    for path in sorted((store / "consumequeue" / "rare" / "0").iterdir()):
        begin, raw = int(path.name), path.read_bytes()
        path.write_bytes(raw[: max(0, left * 20 - begin)].ljust(len(raw), b"\0"))
    for path in sorted((store / "commitlog").iterdir()):
        raw = bytearray(path.read_bytes())
        for start in record_starts(raw):
            (size,), (queue_offset,) = struct.unpack_from(">i", raw, start), struct.unpack_from(">q", raw, start + 20)
            if offset is not None and b"\x04rare" in raw[start : start + size]:
                struct.pack_into(">q", raw, start + 20, queue_offset - 630 + offset)
        path.write_bytes(raw)
    gone = [item for item in of(case, store).evidence if item.finding == "gone"]
    assert [item.messages for item in gone] == [0] * len(places)
    assert all(item.detail.startswith(f"not counted: {number} place") for item, number in zip(gone, places, strict=True))


def test_the_places_of_a_deleted_topic_that_was_made_again_have_not_expired(tmp_path: Path) -> None:
    """The first messages of the log are of before it was deleted, at 630 and after; the queue begins at 0, and leads into the log."""
    case = case_named("4.9.3/d-rolled")
    store = unpack(case, tmp_path)
    (last, *_) = sorted((store / "consumequeue" / "rare" / "0").iterdir())[::-1]
    entries = last.read_bytes()
    for path in last.parent.iterdir():
        path.unlink()
    (last.parent / f"{0:020d}").write_bytes(entries)
    assert "gone" not in findings(of(case, store))


def test_what_a_damaged_log_file_had_of_an_older_queue_is_not_known_where_the_files_before_it_have_nothing_of_the_queue(
    tmp_path: Path,
) -> None:
    """Neither is it said to have expired: the queue ends before the begin of the log, and its first message is after the damage."""
    case = case_named("4.9.3/d-rolled")
    place = unpack(case, tmp_path)
    first, second = sorted((place / "commitlog").iterdir())[:2]
    raw = bytearray(first.read_bytes())
    for start, end in pairwise([*record_starts(raw), len(raw)]):
        if struct.unpack_from(">i", raw, start + 12) == (0,):
            raw[start:end] = raw[start:end].replace(b"\x09TopicTest", b"\x09OtherTest")
    first.write_bytes(raw)
    second.write_bytes(bytes(second.stat().st_size))
    queue = place / "consumequeue" / "TopicTest" / "0" / f"{300 * 20:020d}"
    for later in sorted(queue.parent.iterdir())[1:]:
        later.unlink()
    queue.write_bytes(queue.read_bytes()[:40].ljust(100 * 20, b"\0"))
    of_queue = "topic 'TopicTest', queue 0 were in damaged bytes of the log before their first one"
    assert [sentence for sentence in of(case, place).unknown if of_queue in sentence]


def test_a_message_to_which_two_places_of_a_queue_lead_is_delivered_again_once(tmp_path: Path) -> None:
    """A real 4.9.3 hands out 54 messages of the queue to the group, which it sends back to 0; `tests/interop/test_structural_states.py`."""
    store = unpack(FOUR, tmp_path / "store")
    twice(store, "s62_bills/0", 9, 10)
    again = [item.messages for item in of(FOUR, store).evidence if item.finding == "offset-past-end" and "group 's62_ahead'" in item.detail]
    assert again == [54]
