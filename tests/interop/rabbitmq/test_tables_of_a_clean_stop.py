"""Tables of a clean stop that are cut, lead elsewhere, or name a file that is gone: what nodes make of them, as the reader says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.rabbitmq.bench import bench, missing, predicted
from support.rabbitmq_states import half_index, lying_records, without_message_file

from mqstore.rabbitmq.diagnosis import diagnose
from mqstore.rabbitmq.repair.plan import LOCKING, plan
from mqstore.rabbitmq.repair.queue_step import completed
from mqstore.rabbitmq.store.store import RabbitMQStore
from mqstore.repair.journal import apply

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

CHANGES: tuple[Callable[[Path], None], ...] = (half_index, without_message_file, lying_records)
CASES = {
    "3.10.8": ("3.10.8/d-large-fanout",) * 3 + ("3.10.8/e-gc-combined",) * 3,
    "4.0.5": ("4.0.5/a-v2-kill9",) * 3 + ("3.10.8/g2-v2-large-dirty",) * 3,
    "4.3.6": ("4.3.6/a-v2-clean",) * 3 + ("4.3.6/b-small-files-kill9",) * 3,
}


@pytest.mark.parametrize("version", CASES)
def test_a_node_delivers_what_its_tables_lead_to_and_after_a_repair_all_that_is_in_the_files(version: str, tmp_path: Path) -> None:
    if reason := missing(version):
        pytest.skip(reason)
    with bench(tmp_path / "bench", version, CASES[version]) as node:
        states = {
            slot: node.state(slot, tmp_path / f"{slot}", clean=True, change=CHANGES[slot % len(CHANGES)]) for slot in range(len(node.cases))
        }
        whole = {slot: predicted(node.state(slot, tmp_path / f"whole{slot}", clean=True, change=lambda _: None))[0] for slot in states}
        delivered = node.boot(states)
        for slot, store in states.items():
            found = diagnose(RabbitMQStore(store), version)
            assert delivered[slot].messages == predicted(store)[0], (node.cases[slot], slot)
            lost = (whole[slot] - delivered[slot].messages).total()
            assert found.loses >= lost
            if lost:
                assert found.next == f"mqstore repair {store}"
            assert lost or CHANGES[slot % len(CHANGES)] is lying_records  # that may be one that no queue has
            opened = RabbitMQStore(store, careful=True)
            steps = [step for step in plan(opened) if step.possible]
            apply(store, tmp_path / f"{slot}.undo", completed(opened.directory, steps), LOCKING)
        after = node.boot(states)
        for slot, store in states.items():
            assert after[slot].messages == predicted(store)[0]
            assert not after[slot].failed
            if CHANGES[slot % len(CHANGES)] is not without_message_file:
                assert after[slot].messages == whole[slot]


def _renamed(place: Path) -> None:
    place.rename(place.with_name(f"{place.name[:-1]}{'A' if place.name[-1] != 'A' else 'B'}"))


@pytest.mark.parametrize("version", ["3.10.8", "4.3.6"])
def test_a_node_delivers_nothing_of_a_vhost_directory_under_another_name(version: str, tmp_path: Path) -> None:
    if reason := missing(version):
        pytest.skip(reason)
    with bench(tmp_path / "bench", version, CASES[version][:1]) as node:
        store = node.state(0, tmp_path / "state", clean=True, change=_renamed)
        whole = predicted(node.state(0, tmp_path / "whole", clean=True, change=lambda _: None))[0].total()
        assert diagnose(RabbitMQStore(store), version).loses == whole
        assert not node.boot({0: store})[0].messages


def _swapped(place: Path) -> None:
    persistent, transient, aside = place / "msg_store_persistent", place / "msg_store_transient", place / "aside"
    persistent.rename(aside)
    transient.rename(persistent)
    aside.rename(transient)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", ["3.10.8", "4.3.6"])
def test_message_stores_with_each_other_s_names_are_to_be_renamed_before_a_node_starts(version: str, clean: bool, tmp_path: Path) -> None:
    if reason := missing(version):
        pytest.skip(reason)
    with bench(tmp_path / "bench", version, CASES[version][-1:]) as node:
        whole = predicted(node.state(0, tmp_path / "whole", clean=clean, change=lambda _: None))[0]
        store = node.state(0, tmp_path / "state", clean=clean, change=_swapped)
        found = diagnose(RabbitMQStore(store), version)
        delivered = node.boot({0: store})[0].messages
        assert found.loses >= (whole - delivered).total() > 0
        assert delivered.keys() == predicted(store)[0].keys()  # a queue that ends delivers some again
        assert found.next.startswith("mv ")
        subprocess.run(found.next, shell=True, check=True)
        assert diagnose(RabbitMQStore(store), version).loses == 0
        assert node.boot({0: store})[0].messages == whole
