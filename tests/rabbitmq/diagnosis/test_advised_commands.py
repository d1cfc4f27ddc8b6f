"""Every command that a diagnosis of a RabbitMQ store advises is run as a shell would split it: it works, and then things are better."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.golden import OTHER_RABBITMQ, RABBITMQ, GoldenCase, case_id, case_named, run_cli, tree_checksum, unpack, unpack_node
from support.rabbitmq_states import STATES, made, unpacked

from mqstore.diagnosis import Diagnosis
from mqstore.rabbitmq.diagnosis import START, diagnose
from mqstore.rabbitmq.store.store import RabbitMQStore

VERSIONS = ("3.10.8", "4.3.6")


def follow(case: GoldenCase, version: str, place: Path, *, node: bool) -> tuple[Diagnosis, Diagnosis | None]:
    """Diagnose a copy whose path needs quotes, run what is advised, and diagnose what that made. None: it only lists or saves."""
    store = place / "a broker's store"
    (unpack_node if node else unpack)(case, store)
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    found = diagnose(RabbitMQStore(store), version)
    if found.next == START:
        return found, found
    words = shlex.split(found.next)
    assert words[0] == "mqstore"
    done = run_cli(*words[1:])
    # 1: there is something to repair, or something is damaged
    allowed = {"repair": {1}, "salvage": {0, 1}, "convert": {0, 1}}.get(words[1], {0})
    assert done.status in allowed, (found.next, done.stdout, done.stderr)
    match words[1]:
        case "convert" | "rescue":
            return found, diagnose(RabbitMQStore(Path(words[words.index("--to") + 1])), version)
        case "repair":
            run_cli("repair", store, "--apply")
            return found, diagnose(RabbitMQStore(store), version)
    assert words[1] == "salvage"
    return found, None


def _value(found: Diagnosis) -> tuple[bool, int]:
    return found.starts, -found.loses


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", [*RABBITMQ, *OTHER_RABBITMQ], ids=case_id)
def test_what_is_advised_for_message_stores_works(case: GoldenCase, version: str, tmp_path: Path) -> None:
    before, after = follow(case, version, tmp_path, node=False)
    if after is not None and after is not before:
        assert _value(after) >= _value(before)
        assert after.starts
        assert after.next != before.next


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", OTHER_RABBITMQ, ids=case_id)
def test_what_is_advised_for_a_data_directory_works(case: GoldenCase, version: str, tmp_path: Path) -> None:
    before, after = follow(case, version, tmp_path, node=True)
    if after is not None and after is not before:
        assert after.starts
        assert after.loses == 0


def test_a_data_directory_whose_format_a_version_does_not_read_is_rescued(tmp_path: Path) -> None:
    before, after = follow(case_named("3.8.9/a-v1-clean"), "4.3.6", tmp_path, node=True)
    assert before.next.startswith("mqstore rescue ")
    assert (after.starts, after.loses) == (True, 0) if after is not None else False


def test_message_stores_alone_are_converted(tmp_path: Path) -> None:
    before, after = follow(case_named("3.8.9/a-v1-clean"), "4.3.6", tmp_path, node=False)
    assert before.next.startswith("mqstore convert ")
    assert before.loses
    assert after is not None
    assert (after.starts, after.loses) == (True, 0)


def test_a_data_directory_under_another_name_is_rescued(tmp_path: Path) -> None:
    case = case_named("4.3.6/b-small-files-kill9")
    place = tmp_path / "rabbit@second"
    unpack_node(case, place)
    (place / "cluster_nodes.config").write_text("{['rabbit@first'],['rabbit@first']}.\n")
    shutil.rmtree(place / "coordination", ignore_errors=True)
    found = diagnose(RabbitMQStore(place), "4.3.6")
    assert "other-node" in {item.finding for item in found.evidence}
    assert found.next.startswith("mqstore rescue ")


@pytest.mark.parametrize("name", sorted(STATES))
def test_the_advice_for_a_damaged_store_ends_with_the_start_of_a_node_and_no_step_is_worse(name: str, tmp_path: Path) -> None:
    store = made(name, tmp_path / "store")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    commands = 0
    while found.next != START:
        assert commands < 3, found.next
        assert (found.next, found.why) == (found.ways[0].next, found.ways[0].why)
        words = shlex.split(found.next)
        assert ("mqstore repair" in found.next) == any("mqstore repair" in way.next for way in found.ways)
        run_cli(*words[1:], *(["--apply"] if words[1] == "repair" else []))
        after = diagnose(RabbitMQStore(store), "3.10.8")
        assert _value(after) >= _value(found)
        keeps = found.ways[0].keeps
        kept = next((way.keeps for way in after.ways if way.next == START), 0)
        assert words[1] != "repair" or (keeps is not None and kept is not None and kept >= keeps)
        found, commands = after, commands + 1
    assert found.starts


def test_message_files_that_have_each_others_names_get_their_own(tmp_path: Path) -> None:
    store = unpacked("d-large-fanout", tmp_path / "a store")
    whole = tree_checksum(store, times=False)
    (place,) = store.glob("msg_stores/vhosts/*/msg_store_persistent")
    (place / "0.rdq").rename(place / "aside")
    (place / "1.rdq").rename(place / "0.rdq")
    (place / "aside").rename(place / "1.rdq")
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert found.loses == 225
    assert "give each of these its own name before anything else" in found.why
    assert [item.file[-5:] for item in found.evidence if "each other's names" in item.detail] == ["0.rdq"]
    subprocess.run(found.next, shell=True, check=True)
    assert tree_checksum(store, times=False) == whole
    assert diagnose(RabbitMQStore(store), "3.10.8").next == START


def test_message_stores_that_have_each_others_names_get_their_own(tmp_path: Path) -> None:
    store = unpacked("g1-v2-small-clean", tmp_path / "a store")
    whole = tree_checksum(store, times=False)
    (place,) = store.glob("msg_stores/vhosts/*/msg_store_persistent")
    place.rename(place.with_name("aside"))
    place.with_name("msg_store_transient").rename(place)
    place.with_name("aside").rename(place.with_name("msg_store_transient"))
    found = diagnose(RabbitMQStore(store), "3.10.8")
    assert found.loses == 2
    subprocess.run(found.next, shell=True, check=True)
    assert tree_checksum(store, times=False) == whole
    assert diagnose(RabbitMQStore(store), "3.10.8").next == START


def test_a_shorter_file_whose_messages_are_not_in_another_is_not_renamed(tmp_path: Path) -> None:
    store = unpacked("d-large-fanout", tmp_path / "store")
    (place,) = store.glob("msg_stores/vhosts/*/msg_store_persistent")
    first, second = ((place / name).read_bytes() for name in ("0.rdq", "1.rdq"))
    (place / "0.rdq").write_bytes(first[: len(second)])
    (place / "1.rdq").write_bytes(second + first[len(second) :])
    assert "mv " not in diagnose(RabbitMQStore(store), "3.10.8").next
