"""A FIFO, socket, device, directory or bad link in the place of a file: no command hangs, and each one says what it could not read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.golden import Outcome, case_named, run_cli, unpack
from support.special_files import KINDS, files_of, in_place_of, make, time_limit

SECONDS = 20.0
# what no command opens: its existence is all that counts, or it is a broker's lock
NEVER_READ = frozenset({"lock", "abort", "abort.bak"})

Command = tuple[str, tuple[object, ...]]

# these must name the file; -v: findings in full
OVERVIEWS: tuple[Command, ...] = (("inspect", ("-v",)), ("topics", ("-v",)), ("verify", ("-v",)), ("messages", ("-v",)))
ROCKETMQ: tuple[Command, ...] = (
    *OVERVIEWS,
    ("messages", ("--view", "recovered", "--limit", 3)),
    ("topics", ("--view", "recovered")),
    ("groups", ()),
    ("usage", ()),
    ("queue", ("TopicTest", 0)),
    ("query", ("-t", "TopicTest", "-k", "key-0")),
    ("get", ("--offset", 0)),
)
RABBITMQ: tuple[Command, ...] = (
    *OVERVIEWS,
    ("usage", ()),
    ("queue", ("/", "small.embedded")),
    ("get", ("--id", "00" * 16)),
)


def run(root: Path, command: Command) -> Outcome:
    """Run a command on a store within the time limit. It must not end in a traceback."""
    verb, arguments = command
    with time_limit(SECONDS):
        outcome = run_cli(verb, root, *arguments)
    assert outcome.status in (0, 1, 2), (command, outcome)
    for word in ("Traceback", "a bug in mqstore"):
        assert word not in outcome.stderr, (command, outcome.stderr)
    if outcome.status == 2:
        assert outcome.stderr.startswith("mqstore: "), (command, outcome)
        assert outcome.stderr.count("\n") == 1, (command, outcome)
    return outcome


def named(relative: str, outcome: Outcome) -> bool:
    """Return whether the output names the file; a person's output may break a long path."""
    return relative in (outcome.stdout + outcome.stderr).replace("\n", "").replace("  ", " ")


def reads(verb: str, relative: str) -> bool:
    """Return whether a command that gives an overview depends on a file."""
    if relative.rpartition("/")[2] in NEVER_READ:
        return False
    if relative.startswith("msg_stores/"):
        return True
    if verb in ("topics", "messages"):
        return relative.startswith(("commitlog/", "consumequeue/", "batchconsumequeue/") if verb == "topics" else "commitlog/")
    return True


def sweep(root: Path, kept: Path, commands: Iterable[Command], kinds_of: Callable[[int], Iterable[str]]) -> int:
    """Put entries in the place of every file in turn. Returns the number of commands run."""
    done = 0
    before = {command: run(root, command) for command in commands}
    for number, path in enumerate(files_of(root)):
        relative = path.relative_to(root).as_posix()
        for kind in kinds_of(number):
            with in_place_of(path, kind, kept):
                for command in before:
                    outcome = run(root, command)
                    done += 1
                    if reads(command[0], relative) and command in OVERVIEWS:
                        assert outcome.status in (1, 2), (command, kind, relative)
                        assert named(relative, outcome), (command, kind, relative, outcome)
    assert {command: run(root, command).status for command in commands} == {key: outcome.status for key, outcome in before.items()}
    return done


def in_turn(number: int) -> Iterable[str]:
    return (KINDS[number % len(KINDS)],)


STORES = {"5.3.3/o-batch-queue": ROCKETMQ, "3.10.8/a-small-clean": RABBITMQ, "3.10.8/g1-v2-small-clean": RABBITMQ}
MORE = {
    "4.9.3/a-clean-small": ROCKETMQ,
    "4.9.3/n-ext-multidispatch": ROCKETMQ,
    "5.3.3/k-rolled": ROCKETMQ,
    "3.10.8/e2-gc-interrupted": RABBITMQ,
    "3.10.8/g1-v2-small-clean": RABBITMQ,
}


@pytest.mark.parametrize("identity", STORES)
def test_an_entry_that_is_not_a_file_is_named_and_never_blocks(identity: str, tmp_path: Path) -> None:
    root = unpack(case_named(identity), tmp_path / "store")
    assert sweep(root, tmp_path / "kept", OVERVIEWS, in_turn) >= 4 * 13


@pytest.mark.long
@pytest.mark.parametrize("identity", MORE)
def test_no_reading_command_hangs_on_any_kind_of_entry_in_the_place_of_any_file(identity: str, tmp_path: Path, whole: bool) -> None:
    """CI puts one kind of entry in the place of each file, the kinds in turn; `--whole` puts all of them."""
    root = unpack(case_named(identity), tmp_path / "store")
    done = sweep(root, tmp_path / "kept", MORE[identity], (lambda _: KINDS) if whole else in_turn)
    assert done >= 13 * (len(KINDS) if whole else 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["tar", "tar.zst", "zip"])
def test_an_archive_that_is_not_a_file_is_a_sentence(kind: str, suffix: str, tmp_path: Path) -> None:
    archive = tmp_path / f"store.{suffix}"
    make(archive, kind)
    for command in OVERVIEWS:
        outcome = run(archive, command)
        assert outcome.status == 2, outcome
        assert str(archive) in outcome.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_that_is_not_a_file_is_a_sentence(kind: str, tmp_path: Path) -> None:
    root = unpack(case_named("4.9.3/a-clean-small"), tmp_path / "store")
    make(tmp_path / "broker.conf", kind)
    outcome = run(root, ("inspect", ("--config", tmp_path / "broker.conf")))
    assert outcome.status == 2, outcome
    assert "broker.conf" in outcome.stderr


def test_a_config_of_a_vhost_that_cannot_be_read_is_not_called_absent(tmp_path: Path) -> None:
    root = unpack(case_named("3.10.8/a-small-clean"), tmp_path / "store")
    config = next(root.rglob(".config"))
    with in_place_of(config, "fifo", tmp_path / "kept"):
        found: dict[str, Any] = json.loads(run(root, ("inspect", ("-o", "json"))).stdout)
    assert found["settings_known_from"] == {"segment_entry_count": "the broker's default, as .config cannot be read"}


def test_a_copy_into_a_new_store_refuses_what_is_not_a_file(tmp_path: Path) -> None:
    root = unpack(case_named("3.10.8/a-small-clean"), tmp_path / "store")
    targets = (tmp_path / f"to{number}" for number in itertools.count())
    for path in files_of(root):
        with in_place_of(path, "fifo", tmp_path / "kept"):
            run(root, ("convert", ("--to", next(targets), "--queue-version", 2)))
