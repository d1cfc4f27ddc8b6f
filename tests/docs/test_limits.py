"""Each limit in docs/guide/limits.md has a test. Those of flipped bits are here: the fields that the page names are noticed by verify."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import golden as goldenkit
from support.golden import run_cli

import mqstore
from mqstore.kernels.rocketmq import frames
from mqstore.rocketmq.format.commit_log import Records
from mqstore.rocketmq.scan.columns import RecordColumns
from mqstore.rocketmq.verify.verification import verify

ROOT = Path(__file__).parents[2]
PROVED = {  # what the page says, and the test that shows it
    "After a kill the newest index file is dropped": (
        "rocketmq/lookup/test_explain.py::test_recovery_drops_an_index_file_and_does_not_make_it_again"
    ),
    "`--view recovered` refuse": "rocketmq/format/test_dledger_log.py::test_what_needs_a_commit_log_says_so",
    "which entries the group had committed is not judged": (
        "rocketmq/diagnosis/test_group_log.py::test_of_a_sound_log_the_rest_of_the_group_is_what_is_not_known"
    ),
    "A DLedger log beside a commit log": (
        "rocketmq/format/test_dledger_log.py::test_a_ledger_beside_a_commit_log_is_named_and_not_called_checked"
    ),
    "refuse a URL as OUT": "docs/test_limits.py::test_a_url_is_refused_as_a_target",
    "An acknowledgement that was lost": "docs/test_limits.py::test_an_acknowledgement_that_was_lost_with_its_journal_leaves_no_trace",
    "Only one process writes": "rocketmq/live/test_store_lock.py::test_a_store_that_another_process_holds_is_refused_until_that_one_dies",
    "Not supported, and refused or skipped by name": (
        "rocketmq/engine/test_bad_input.py::test_a_store_with_parts_in_rocksdb_is_refused_and_left_alone"
    ),
    "With `SYNC_FLUSH` it loses": "rocketmq/catalogue/test_store.py::test_with_sync_flush_nothing_is_listed_that_is_not_on_disk",
    "Topics with `/`": "rocketmq/engine/test_bad_input.py::test_a_topic_that_no_directory_can_have_is_refused",
    "| topic |": "docs/test_limits.py::test_a_flipped_bit_in_a_checked_field_is_noticed",
    "Without consume queues and index": "docs/test_limits.py::test_in_a_bare_commit_log_a_changed_tag_is_not_noticed",
    "can protect the whole record": "rocketmq/format/test_record.py::test_the_property_crc_of_a_real_broker_fits_and_is_made_alike",
    "Reading locks nothing": "kernels/rocketmq/test_encode.py::test_a_concurrent_reader_sees_whole_records_or_nothing",
    "`inspect` names them": "cli/read/test_unread_parts.py::test_inspect_names_what_is_not_read",
    "without the extra `rocksdb`": "cli/read/test_unread_parts.py::test_verify_calls_such_a_store_sound_and_says_what_it_did_not_compare",
    "with it, they are read": "rocketmq/format/test_rocksdb_index.py::test_a_query_uses_the_database_where_there_is_no_index_file",
    "compaction topics: all": (
        "cli/read/test_unread_parts.py::test_a_topic_that_consumers_get_from_its_compaction_log_is_named_with_its_queues"
    ),
    "a controller's group": "rocketmq/store/test_progress.py::test_what_a_controller_wrote_is_read_as_far_as_it_goes",
    "tiered storage: a store": (
        "cli/read/test_tiered_storage.py::test_inspect_of_the_store_says_what_is_in_tiered_storage_and_how_to_read_it"
    ),
    "`messages` lists a batch": "docs/test_limits.py::test_a_batch_counts_as_one_message_where_it_is_lost",
    "Khepri's log is replayed": "rabbitmq/store/test_defined_queues.py::test_a_damaged_log_of_khepri_is_a_finding_of_inspect_and_topics",
    "`members` compares": "rabbitmq/quorum/test_node_quorum.py::test_members_names_the_furthest_and_what_the_others_lack",
    "Bodies of classic queues have": "rabbitmq/store/test_store.py::test_a_version_2_queue_is_read_with_and_without_checksums",
    "publish twice, differently": "cli/rabbitmq/test_hostile.py::test_a_sequence_id_published_twice_is_reported",
    "need local files, and say so": "files/test_remote.py::test_operations_that_need_local_files_say_so",
    "Proved with a local S3 endpoint": "files/test_remote.py::test_requests_that_are_throttled_reset_or_cut_off_are_sent_again",
    "an fsspec file system": "files/test_remote.py::test_a_file_system_of_fsspec_gives_the_same",
    "`webhdfs:` on a real HDFS": "interop/test_hadoop.py::test_a_store_in_hdfs_is_the_store_that_was_copied_there",
    "replaced before its first request": "files/test_remote.py::test_an_object_that_changes_while_it_is_read_is_an_error_not_other_bytes",
    "or standard input (`-`)": "cli/test_options_mean_one_thing.py::test_an_archive_is_read_from_standard_input",
    "is read where `--config` has": "rocketmq/repair/test_log_elsewhere.py::test_a_log_on_another_disk_is_read_there_and_not_repaired",
    "U+FFFD for invalid UTF-8": "kernels/rocketmq/test_hashing.py::test_decoding_as_java_never_fails_and_keeps_what_is_utf8",
    "At most 200,000 members": "files/test_archive.py::test_members_and_bytes_are_bounded",
    "levels deep is reported": "files/test_archive.py::test_directories_deeper_than_any_store_end_no_walk_in_a_traceback",
    "an encrypted member is refused": "files/test_archive.py::test_an_encrypted_zip_file_is_refused_by_name",
    "A decompressed body above": "rocketmq/format/test_compression.py::test_a_bomb_is_refused_before_it_takes_memory",
}
STATED = (  # of other programs, machines and services, or of what is not known: nothing of ours could fail
    "What `mqstore` cannot do comes first",
    "Consumer offsets and delay progress are written every few seconds",
    "A 5.3.3 directory cannot safely go back",
    "Network file systems are not supported",
    "A RocketMQ record has one checksum",
    "the operating system ends the process with SIGBUS",
    "snapshots of the timer wheel",
    "Proved are 3.8.9",
    "What a node makes of quorum queues of a newer node",
    "They are not read from a URL",
    "An object store has no holes",
    "A file is mapped as a sparse array",
    "An index file is replayed whole",
    "object stores have no positioned writes",
    "Only Linux is tested",
)
UNPROTECTED = {
    "FLAG": (16, 4),
    "BORNTIMESTAMP": (40, 8),
    "BORNHOST": (48, 8),
    "STOREHOST": (64, 8),
    "RECONSUMETIMES": (72, 4),
    "PREPAREDTRANSACTIONOFFSET": (76, 8),
}
PROTECTED = {
    "size": (0, 4),
    "magic": (4, 4),
    "body CRC": (8, 4),
    "queue id": (12, 4),
    "queue offset": (20, 8),
    "physical offset": (28, 8),
    "body length": (84, 4),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A writable copy of a store that a 4.9.3 broker closed cleanly."""
    case = next(case for case in goldenkit.CASES if case.id == "4.9.3/a-clean-small")
    shutil.copytree(goldenkit.opened(case), tmp_path / "store", copy_function=shutil.copyfile)
    for place in (tmp_path / "store").rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    return tmp_path / "store"


def _record(store: Path) -> tuple[Path, int, dict[str, tuple[int, int]]]:
    """A record with IPv4 hosts, a body, tags and a key: its file, its position, and where its topic, tags and body are."""
    opened = mqstore.open(store)
    for event in opened.log.scan():
        if not isinstance(event, Records):
            continue
        columns = RecordColumns(event)
        tags, keys = columns.tags.to_pylist(), columns.uniq_key.to_pylist()
        for k, position in enumerate(event.positions.tolist()):
            plain = columns.row(frames.SYS_FLAG)[k] == 0 and columns.row(frames.BODY_LENGTH)[k] > 8
            if plain and tags[k] and tags[k].isascii() and keys[k]:
                raw = event.data[position : position + int(columns.row(frames.SIZE)[k])].tobytes()
                spans = {
                    "body": (int(columns.row(frames.BODY_START)[k]) - position, int(columns.row(frames.BODY_LENGTH)[k])),
                    "topic": (int(columns.row(frames.TOPIC_START)[k]) - position, int(columns.row(frames.TOPIC_LENGTH)[k])),
                    "TAGS": (raw.index(b"TAGS\x01") + 5, len(tags[k])),
                    "UNIQ_KEY": (raw.index(b"UNIQ_KEY\x01") + 9, len(keys[k])),
                }
                return store / event.file.relative, position, spans
    raise AssertionError("the store has no such record")


def _flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0x01
    file.write_bytes(data)


@pytest.mark.parametrize("field", UNPROTECTED)
def test_a_flipped_bit_in_an_unprotected_field_is_not_noticed(store: Path, field: str) -> None:
    file, position, _ = _record(store)
    at, width = UNPROTECTED[field]
    _flip(file, position + at + width - 1)
    assert verify(mqstore.open(store)).ok


@pytest.mark.parametrize("field", [*PROTECTED, "body", "topic", "TAGS", "UNIQ_KEY"])
def test_a_flipped_bit_in_a_checked_field_is_noticed(store: Path, field: str) -> None:
    file, position, spans = _record(store)
    at, width = (PROTECTED | spans)[field]
    _flip(file, position + at + width - 1)
    assert not verify(mqstore.open(store)).ok


def test_in_a_bare_commit_log_a_changed_tag_is_not_noticed(store: Path) -> None:
    file, position, spans = _record(store)
    for place in store.iterdir():
        if place.is_dir() and place.name != "commitlog":
            shutil.rmtree(place)
        elif place.is_file():
            place.unlink()
    before = verify(mqstore.open(store)).damage
    _flip(file, position + sum(spans["TAGS"]) - 1)
    assert verify(mqstore.open(store)).damage == before


def test_a_url_is_refused_as_a_target(store: Path) -> None:
    for words in (("export", store, "--format", "parquet"), ("salvage", store), ("rebuild", store)):
        outcome = run_cli(*words, "--to", "s3://bucket/out")
        assert outcome.status == 2
        assert "s3://bucket/out: results are written to a directory of a local or shared file system" in outcome.stderr


def test_an_acknowledgement_that_was_lost_with_its_journal_leaves_no_trace(tmp_path: Path) -> None:
    shutil.copytree(goldenkit.opened(goldenkit.case_named("3.10.8/b-dirty-journal")), tmp_path / "store", copy_function=shutil.copyfile)
    before = [row["verdict"] for row in run_cli("messages", tmp_path / "store", "--all", "-o", "jsonl").rows]
    for journal in (tmp_path / "store").rglob("journal.jif"):
        journal.parent.chmod(0o755)
        journal.unlink()
    after = [row["verdict"] for row in run_cli("messages", tmp_path / "store", "--all", "-o", "jsonl").rows]
    assert after.count("intact") > before.count("intact")
    damage = run_cli("verify", tmp_path / "store", "-o", "json").document["damage"]
    assert {each["kind"] for each in damage} == {"absent-part"}  # the journal itself, and no message


def _page() -> str:
    return (ROOT / "docs" / "guide" / "limits.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", PROVED)
def test_a_limit_is_on_the_page_and_its_test_exists(words: str) -> None:
    file, _, name = PROVED[words].partition("::")
    assert words in " ".join(_page().split())
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_each_limit_is_proved_or_said_of_something_else() -> None:
    places = [" ".join(each.split()) for each in re.split(r"\n(?=\* )|\n\n", _page()) if each.strip() and not each.startswith("#")]
    assert [each for each in places if not any(words in each for words in (*PROVED, *STATED))] == []
    assert [words for words in STATED if not any(words in each for each in places)] == []


def test_a_batch_counts_as_one_message_where_it_is_lost(tmp_path: Path) -> None:
    store = goldenkit.unpack(goldenkit.case_named("5.3.3/o-batch-queue"), tmp_path)

    def rows(verb: str, *options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run_cli(verb, store, *options, "-o", "jsonl").stdout.splitlines()]

    listed = [row for row in rows("messages", "--topic", "batched") if row["queue_id"] == 0]
    (counted,) = [row["messages"] for row in rows("topics", "--topic", "batched") if row["queue_id"] == 0]
    assert (len(listed), counted) == (48, 135)
    (store / "abort").touch()
    (store / "batchconsumequeue" / "batched" / "0" / f"{920:020d}").unlink()
    (found,) = rows("diagnose")
    assert found["loses"] == 28  # batches: 20 of 48 are left
