"""Maliciously crafted RabbitMQ stores, through the commands: findings or a one-sentence error, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.golden import Outcome, case_named, run_cli, unpack
from support.rabbitmq_index import array, message_id, term, write

from mqstore.rabbitmq.erlang import disk_log
from mqstore.rabbitmq.format import index_v2, journal, message_file, segment
from mqstore.rabbitmq.format.names import queue_directory, queue_name_file, vhost_directory
from mqstore.rabbitmq.format.recovery_terms import QueueTerms, write_terms
from mqstore.rabbitmq.store.clean_tables import loadable

VHOST = vhost_directory("/")
QUEUE = f"queues/{queue_directory('/', 'q')}"
READING = ("inspect", "messages", "topics", "verify", "usage")
MOST_MEMORY = 600 << 20


def store(path: Path, files: dict[str, bytes]) -> Path:
    """Write a vhost `/` with the queue `q`. files: by path below the vhost's directory."""
    plain = {".vhost": b"/", ".config": b"{segment_entry_count, 2048}.\n", "msg_store_persistent/0.rdq": b""}
    plain[f"{QUEUE}/.queue_name"] = queue_name_file("/", "q")
    return write(path / "store", {f"msg_stores/vhosts/{VHOST}/{name}": raw for name, raw in (plain | files).items()})


def asked(root: Path) -> dict[str, Outcome]:
    """Return the results of all reading commands, none of which may be a traceback."""
    found = {verb: run_cli(verb, root, "-o", "jsonl") for verb in READING}
    found["queue"] = run_cli("queue", root, "/", "q", "-o", "jsonl")
    found["get"] = run_cli("get", root, "--id", message_id(1).hex(), "-o", "json")
    for number, verb in enumerate(("export", "salvage")):
        to = root.parent / f"out{number}"
        more = ("--threads", 1, "--format", "jsonl") if verb == "export" else ("--format", "jsonl")
        found[verb] = run_cli(verb, root, "--to", to, *more)
    for version in (1, 2):
        found[f"convert{version}"] = run_cli("convert", root, "--to", root.parent / f"v{version}", "--queue-version", version)
    for verb, outcome in found.items():
        assert outcome.status in (0, 1, 2), (verb, outcome)
        for word in ("Traceback", "a bug in mqstore", "internal error"):
            assert word not in outcome.stderr, (verb, outcome.stderr)
    return found


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def kinds(root: Path) -> set[str]:
    """Return the kinds of damage that verify finds."""
    return {row["kind"] for row in rows(run_cli("verify", root, "-o", "jsonl"))}


# terms


def _deep(tag: bytes) -> bytes:
    return b"\x83" + tag * 200_000 + b"j"


BOMB = b"\x83\x50" + struct.pack(">I", 0xFFFF_FFFF) + zlib.compress(b"m" + struct.pack(">I", 1 << 30) + bytes(1 << 26), 9)
HOSTILE = {
    "nested-tuples": _deep(b"h\x01"),
    "nested-lists": _deep(b"l\x00\x00\x00\x01"),
    "nested-maps": b"\x83" + b"t\x00\x00\x00\x01a\x01" * 200_000 + b"j",
    "huge-binary": b"\x83m\xff\xff\xff\xffabc",
    "huge-tuple": b"\x83i\xff\xff\xff\xff",
    "huge-list": b"\x83l\xff\xff\xff\xffa\x01j",
    "huge-map": b"\x83t\xff\xff\xff\xff",
    "huge-number": b"\x83o\xff\xff\xff\xff\x00\x01",
    "compressed-bomb": BOMB,
    "compressed-lie": b"\x83\x50" + struct.pack(">I", 10) + zlib.compress(bytes(1 << 24), 9),
    "bomb-in-bomb": b"\x83\x50" + struct.pack(">I", 1 << 20) + zlib.compress(BOMB, 9),
    "many-atoms": b"\x83l" + struct.pack(">I", 50_000) + b"".join(b"w\x06a%05d" % k for k in range(50_000)) + b"j",
    "unknown-tag": b"\x83\xee",
    "nothing": b"\x83",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_term_is_a_finding_wherever_it_is_stored(hostile: bytes, tmp_path: Path) -> None:
    sound = term(message_id(2), b"sound")
    files = {
        f"{QUEUE}/journal.jif": journal.publish(1, message_id(1), hostile, size=4)
        + journal.publish(2, message_id(2), sound, size=5)
        + journal.publish(3, message_id(3), b"", size=4),
        "msg_store_persistent/0.rdq": message_file.record(message_id(3), hostile),
    }
    root = store(tmp_path, files)
    answers = asked(root)
    found = {row["seq_id"]: row["verdict"] for row in rows(answers["messages"])}
    assert (found[1], found[2], found[3]) == ("damaged", "intact", "damaged")
    assert answers["messages"].status == 1
    assert "bad-term" in kinds(root)
    saved = [json.loads(line) for line in (tmp_path / "out1").read_text().splitlines()]
    assert [row["seq_id"] for row in saved if row["verdict"] == "intact"] == [2]


def test_a_hostile_term_in_a_version_2_store_is_a_finding(tmp_path: Path) -> None:
    content, entries = index_v2.header(0, 4096, store=True), b""
    for hostile in HOSTILE.values():
        entries += index_v2.stored_entry(len(content), len(hostile), size=4)
        content += index_v2.queue_store_entry(hostile)
    root = store(tmp_path, {f"{QUEUE}/0.qi": index_v2.header(0, 4096) + entries, f"{QUEUE}/0.qs": content})
    found = rows(asked(root)["messages"])
    assert [row["verdict"] for row in found] == ["damaged"] * len(HOSTILE)
    assert "bad-term" in kinds(root)


@pytest.mark.parametrize("verb", ["messages", "verify"])
def test_hostile_terms_take_bounded_memory(verb: str, tmp_path: Path) -> None:
    actions = b"".join(journal.publish(k, message_id(k), BOMB, size=4) for k in range(300))
    root = store(tmp_path, {f"{QUEUE}/journal.jif": actions})
    program = (
        "import sys; from mqstore.cli.main import run\n"
        "status = run(sys.argv[1:])\n"
        # not ru_maxrss: a process inherits that of its parent
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        "print(int(peak) << 10, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program, verb, str(root), "-o", "jsonl"], capture_output=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr[-500:]
    assert int(done.stderr.split()[-1]) < MOST_MEMORY


# sizes


@pytest.mark.parametrize("size", [1 << 20, 1 << 62, (1 << 64) - 1, 3])
def test_a_size_past_the_end_of_a_file_ends_the_file(size: int, tmp_path: Path) -> None:
    sound = message_file.record(message_id(1), term(message_id(1), b"first"))
    lie = struct.pack(">Q", size) + message_id(2) + b"\x83m"
    actions = journal.publish(1, message_id(1), b"", size=5) + journal.publish(2, message_id(2), b"", size=5)
    torn = journal.publish(3, message_id(3), b"x", size=1)[:36] + struct.pack(">I", min(size, 0xFFFF_FFFF))
    root = store(tmp_path, {"msg_store_persistent/0.rdq": sound + lie, f"{QUEUE}/journal.jif": actions + torn})
    answers = asked(root)
    assert {row["seq_id"]: row["verdict"] for row in rows(answers["messages"])} == {1: "intact", 2: "unreachable"}
    assert {"missing-body", "truncated"} & kinds(root)
    segments = segment.publish(1, message_id(1), b"abc", size=3)[:30] + struct.pack(">I", min(size, 0xFFFF_FFFF))
    assert asked(store(tmp_path / "more", {f"{QUEUE}/0.idx": segments}))["verify"].status == 1


def test_a_version_2_entry_that_points_past_the_end_of_its_store_has_no_message(tmp_path: Path) -> None:
    places = [(1 << 40, 10), (1 << 63, 10), (64, 0xFFFF_FFFF), ((1 << 64) - 4, 8), (0, 4)]
    entries = b"".join(index_v2.stored_entry(at, length, size=4) for at, length in places)
    root = store(
        tmp_path,
        {
            f"{QUEUE}/0.qi": index_v2.header(0, 4096) + entries,
            f"{QUEUE}/0.qs": index_v2.header(0, 4096, store=True) + index_v2.queue_store_entry(b"\x83j"),
        },
    )
    found = [row["verdict"] for row in rows(asked(root)["messages"])]
    assert found == ["unreachable"] * 3 + ["damaged"] * 2  # the last two start inside the file


# versions


@pytest.mark.parametrize(("file", "magic"), [("0.qi", b"RCQI"), ("0.qs", b"RCQS")])
def test_an_unknown_version_of_an_index_or_a_store_is_reported(file: str, magic: bytes, tmp_path: Path) -> None:
    stored = term(message_id(1), b"body")
    content = {
        f"{QUEUE}/0.qi": index_v2.header(0, 4096) + index_v2.stored_entry(64, len(stored), size=4),
        f"{QUEUE}/0.qs": index_v2.header(0, 4096, store=True) + index_v2.queue_store_entry(stored),
    }
    raw = content[f"{QUEUE}/{file}"]
    assert raw.startswith(magic)
    content[f"{QUEUE}/{file}"] = magic + b"\x63" + raw[5:]
    root = store(tmp_path, content)
    answers = asked(root)
    assert answers["verify"].status == 1
    assert any(file in row["file"] and "version" in row["detail"] for row in rows(answers["verify"]))


def test_an_impossible_segment_entry_count_is_reported_and_the_default_used(tmp_path: Path) -> None:
    for number, count in enumerate((b"0", b"-1", b"999999999999999999999", b"2048.5", b"[[[[[")):
        files = {
            ".config": b"{segment_entry_count, " + count + b"}.",
            f"{QUEUE}/journal.jif": journal.publish(1, message_id(1), b"", size=1),
        }
        root = store(tmp_path / str(number), files)
        asked(root)
        assert "bad-config" in kinds(root)


# contradictions


def test_two_queues_that_claim_one_directory(tmp_path: Path) -> None:
    """The name that matches the directory's digest counts; a second claim, in `.queue_name` or in a user's list, is ignored."""
    stored = journal.publish(1, message_id(1), term(message_id(1), b"body"), size=4)
    for number, claim in enumerate((queue_name_file("/", "other"), queue_name_file("/", "q") * 2, b"VHOST: x\nQUEUE: q\n")):
        root = store(tmp_path / str(number), {f"{QUEUE}/journal.jif": stored, f"{QUEUE}/.queue_name": claim})
        answers = asked(root)
        assert [row["verdict"] for row in rows(answers["messages"])] == ["intact"]
        assert "bad-queue-name" in kinds(root)
        assert "other" not in {row["queue"] for row in rows(answers["topics"])}
        (tmp_path / "names").write_text("/\tother\n/\tq\nx\tq\n")
        named = rows(run_cli("messages", root, "--names", tmp_path / "names", "-o", "jsonl"))
        assert [(row["vhost"], row["queue"]) for row in named] == [("/", "q")]


def test_one_queue_in_two_directories_is_shown_twice_and_reported(tmp_path: Path) -> None:
    """A directory copied under another name has a `.queue_name` that does not match it."""
    stored = journal.publish(1, message_id(1), term(message_id(1), b"body"), size=4)
    root = store(tmp_path, {f"{QUEUE}/journal.jif": stored})
    place = root / "msg_stores" / "vhosts" / VHOST / "queues"
    shutil.copytree(root / "msg_stores" / "vhosts" / VHOST / QUEUE, place / "8GAFI66390KAQ1U33NFI8WMTF")
    found = rows(asked(root)["messages"])
    assert sorted(row["queue"] for row in found) == ["8GAFI66390KAQ1U33NFI8WMTF", "q"]
    assert "bad-queue-name" in kinds(root)


@pytest.mark.parametrize("where", ["journal", "segment"])
def test_a_sequence_id_published_twice_is_reported(where: str, tmp_path: Path) -> None:
    """Both are shown. In a journal the first counts; in a segment the second, as in the broker."""
    first, second = term(message_id(1), b"first"), term(message_id(2), b"second")
    if where == "journal":
        raw = journal.publish(7, message_id(1), first, size=5) + journal.publish(7, message_id(2), second, size=6)
        root = store(tmp_path, {f"{QUEUE}/journal.jif": raw})
    else:
        raw = segment.publish(7, message_id(1), first, size=5) + segment.publish(7, message_id(2), second, size=6)
        root = store(tmp_path, {f"{QUEUE}/0.idx": raw})
    answers = asked(root)
    everything = rows(run_cli("messages", root, "--all", "-o", "jsonl"))
    verdicts = {row["payload_len"]: row["verdict"] for row in everything}
    assert verdicts == ({5: "intact", 6: "duplicate"} if where == "journal" else {5: "duplicate", 6: "intact"})
    assert {row["seq_id"] for row in everything} == {7}
    assert answers["verify"].status == 1


@pytest.mark.parametrize("where", ["journal", "segment"])
def test_an_acknowledgement_without_a_publish_is_reported_and_removes_nothing(where: str, tmp_path: Path) -> None:
    sound = term(message_id(1), b"sound")
    if where == "journal":
        raw = journal.publish(1, message_id(1), sound, size=5) + journal.acknowledge(9) + journal.deliver(10)
        root = store(tmp_path, {f"{QUEUE}/journal.jif": raw})
    else:
        raw = segment.publish(1, message_id(1), sound, size=5) + segment.mark(9)
        root = store(tmp_path, {f"{QUEUE}/0.idx": raw})
    answers = asked(root)
    assert [(row["seq_id"], row["verdict"]) for row in rows(answers["messages"])] == [(1, "intact")]
    assert (answers["verify"].status, answers["topics"].status) == (1, 1)
    assert rows(answers["topics"])[0]["refused"]


def test_negative_numbers_in_the_files_of_a_clean_stop_are_ignored(tmp_path: Path) -> None:
    """This covers counts in recovery.dets and reference counts of message files: the messages are those of the index."""
    stored = journal.publish(1, message_id(1), term(message_id(1), b"body"), size=4)
    said = QueueTerms({0: -5}, None, -1, -7, bytes(16), -3, -9)
    files = {f"{QUEUE}/journal.jif": stored, "recovery.dets": write_terms({queue_directory("/", "q"): said})}
    root = store(tmp_path, files)
    answers = asked(root)
    assert [(row["seq_id"], row["verdict"]) for row in rows(answers["messages"])] == [(1, "intact")]
    assert rows(answers["topics"])[0]["messages"] == 1


def test_negative_reference_counts_change_nothing(tmp_path: Path) -> None:
    """The tables of a clean stop with every count made negative: the index decides which messages are live."""
    case = case_named("3.10.8/d-large-fanout")
    sound = unpack(case, tmp_path / "sound")
    wanted = rows(run_cli("messages", sound, "-o", "jsonl"))
    root = unpack(case, tmp_path / "store")
    for table in root.rglob("msg_store_index.ets"):
        saved = disk_log.read_table(table.read_bytes())
        objects = tuple((*found[:2], -5, *found[3:]) for found in saved.objects)
        table.chmod(0o644)
        table.write_bytes(disk_log.write_table(replace(saved, objects=objects)))
        assert loadable(array(table.read_bytes()))
    answers = asked(root)
    found = rows(answers["messages"])
    same = ("vhost", "queue", "seq_id", "msg_id", "payload_sha256", "verdict")
    assert [[row[name] for name in same] for row in found] == [[row[name] for name in same] for row in wanted]
    assert answers["usage"].status == 0


# links


def test_links_that_lead_out_of_the_store_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    stored = journal.publish(1, message_id(1), term(message_id(1), b"SECRET"), size=6)
    outside = store(
        secret,
        {f"{QUEUE}/journal.jif": stored, "msg_store_persistent/0.rdq": message_file.record(message_id(9), term(message_id(9), b"SECRET"))},
    )
    place = outside / "msg_stores" / "vhosts" / VHOST
    root = store(tmp_path, {f"{QUEUE}/journal.jif": journal.publish(5, message_id(9), b"", size=6)})
    inside = root / "msg_stores" / "vhosts" / VHOST
    (inside / "msg_store_persistent" / "1.rdq").symlink_to(place / "msg_store_persistent" / "0.rdq")
    other = inside / "queues" / queue_directory("/", "linked")
    other.symlink_to(place / QUEUE)
    half = inside / "queues" / queue_directory("/", "half")
    half.mkdir()
    (half / ".queue_name").write_bytes(queue_name_file("/", "half"))
    (half / "journal.jif").symlink_to(place / QUEUE / "journal.jif")
    (half / "0.idx").symlink_to(place / QUEUE / "journal.jif")
    (half / "0.qi").symlink_to("/dev/zero")
    (root / "msg_stores" / "vhosts" / vhost_directory("linked")).symlink_to(place)
    answers = asked(root)
    for verb, outcome in answers.items():
        assert "SECRET" not in outcome.stdout + outcome.stderr, verb
        assert "U0VDUkVU" not in outcome.stdout, verb
    assert [row["verdict"] for row in rows(answers["messages"])] == ["unreachable"]
    assert len(json.loads(run_cli("inspect", root, "-o", "json").stdout)["vhosts"]) == 1
    for path in (tmp_path / "v1", tmp_path / "v2"):
        held = b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and not file.is_symlink())
        assert b"SECRET" not in held


@pytest.mark.parametrize("name", [f"msg_stores/vhosts/{VHOST}/queues", f"msg_stores/vhosts/{VHOST}/msg_store_persistent", "msg_stores"])
def test_what_is_in_a_directory_that_is_a_link_out_of_the_store_is_not_read(name: str, tmp_path: Path) -> None:
    """It was called skipped, and read through paths below it."""
    held = message_file.record(message_id(9), term(message_id(9), b"SECRET"))
    stored = {f"{QUEUE}/journal.jif": journal.publish(1, message_id(1), term(message_id(1), b"SECRET"), size=6)}
    root = store(tmp_path, {**stored, "msg_store_persistent/0.rdq": held})
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    answers = asked(root)
    secret = [verb for verb, outcome in answers.items() if {"SECRET", "U0VDUkVU"} & set(outcome.stdout.split('"'))]
    assert bool(secret) == name.endswith("msg_store_persistent")  # there, the journal has a message itself
    (finding,) = [item for item in json.loads(run_cli("verify", root, "-o", "json").stdout)["damage"] if item["kind"] == "unreadable"]
    assert (finding["file"], "it is skipped" in finding["detail"]) == (name, True)
    answer = run_cli("diagnose", root, "-o", "json").document
    assert any(name in sentence for sentence in answer["unknown"])
    assert answer["loses"] == 0


@pytest.mark.parametrize("name", [".vhost", ".config", "recovery.dets", f"{QUEUE}/.queue_name"])
def test_a_small_file_that_is_a_link_out_of_the_store_reveals_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"root:SECRET:0:0\n")
    root = store(tmp_path, {f"{QUEUE}/journal.jif": journal.publish(1, message_id(1), term(message_id(1), b"body"), size=4)})
    file = root / "msg_stores" / "vhosts" / VHOST / name
    file.unlink(missing_ok=True)
    file.symlink_to(tmp_path / "secret")
    for verb, outcome in asked(root).items():
        assert "SECRET" not in outcome.stdout + outcome.stderr, verb


def test_circular_links_and_pipes_do_no_harm(tmp_path: Path) -> None:
    root = store(tmp_path, {f"{QUEUE}/journal.jif": journal.publish(1, message_id(1), term(message_id(1), b"body"), size=4)})
    place = root / "msg_stores" / "vhosts" / VHOST
    (place / "queues" / "LOOP").symlink_to(place / "queues")
    (place / "msg_store_persistent" / "7.rdq").symlink_to(place / "msg_store_persistent" / "7.rdq")
    os.mkfifo(place / "msg_store_persistent" / "8.rdq")
    os.mkfifo(place / QUEUE / "0.idx")
    answers = asked(root)
    assert [row["verdict"] for row in rows(answers["messages"])] == ["intact"]
