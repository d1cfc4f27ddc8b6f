"""A few seeds of `scripts/prove --kind diagnosis-rocketmq`: what `diagnose` says of damaged stores, and what real stores deliver."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from interop.diagnosing import Place
from interop.realbroker import why_not
from proofs.rocketmq_diagnosis import State, check_seeds, check_states, version_of
from support.golden import case_named, opened, unpack
from support.rocketmq_states import twice

from mqstore.rocketmq.config.consumer_offsets import CONSUMER_OFFSETS
from mqstore.rocketmq.format.batch_consume_queue import UNIT
from mqstore.rocketmq.format.consume_queue import ENTRY

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]


@pytest.mark.parametrize("seeds", [range(20, 27), range(40, 48), range(80, 86), range(203, 204), range(66505, 66506)], ids=str)
def test_a_real_store_delivers_what_diagnose_says_of_a_structural_damage(seeds: range) -> None:
    if reason := why_not(version_of(seeds.start)):
        pytest.skip(reason)
    states = list(check_seeds(seeds, time.time() + 1e9))
    assert len(states) == len(seeds)
    assert not [(state.seed, state.name, state.error) for state in states if state.error]


def _named(path: Path, digits: int) -> Path:
    return path.with_name(f"{int(path.name):0{digits}d}")


@pytest.mark.parametrize(("version", "name"), [("4.9.3", "4.9.3/d-rolled"), ("5.3.3", "5.3.3/k-rolled")])
def test_files_whose_names_have_not_twenty_digits(version: str, name: str, tmp_path: Path) -> None:
    """A broker sorts such files by name, and finds nothing after the end of the last one: that is said, and repaired."""
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named(name)
    states = []
    for seed, pattern in enumerate(("commitlog/*", "consumequeue/*/*/*")):
        for number, digits in enumerate((8, 21, None)):
            store = unpack(case, tmp_path / f"{seed}-{number}")
            files = sorted(store.glob(pattern))
            file = files[len(files) // 2 if seed == 0 else 0]
            if digits is None:
                shutil.copyfile(file, _named(file, 8))
            else:
                file.rename(_named(file, digits))
            place = Place(f"{seed}{number}", store, opened(case), case.properties)
            states.append(State(10 * seed + number, version, case, (f"{digits} digits",), (store / "abort").exists(), place))
    judged = list(check_states(version, states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]


def test_a_message_to_which_two_places_lead_counts_once(tmp_path: Path) -> None:
    """The places are passed again after the offset is past the end, after older offsets, or one of them after the group's place."""
    if reason := why_not("4.9.3"):
        pytest.skip(reason)
    case = case_named("4.9.3/f-broker-offsets")
    states = []
    for seed, (queue, source, target, back) in enumerate(
        [("s62_bills/0", 9, 10, None), ("s62_orders/0", 5, 6, 3), ("s62_orders/0", 5, 29, 3)]
    ):
        store = unpack(case, tmp_path / str(seed))
        twice(store, queue, source, target)
        offsets = store / CONSUMER_OFFSETS
        if back is not None:
            shutil.copyfile(offsets, store / f"{CONSUMER_OFFSETS}.bak")
            text = re.sub(r'("s62_orders@s62_tags":\{0:)29', rf"\g<1>{back}", offsets.read_text())
            assert text != offsets.read_text()
            offsets.write_text(text)
        place = Place(str(seed), store, opened(case), case.properties)
        states.append(State(seed, "4.9.3", case, ("twice",), (store / "abort").exists(), place))
    judged = list(check_states("4.9.3", states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]


@pytest.mark.parametrize(("version", "name"), [("4.9.3", "4.9.3/d-rolled"), ("5.3.3", "5.3.3/k-rolled"), ("5.5.0", "5.5.0/a-clean")])
def test_a_log_of_which_the_first_bytes_are_left_loses_all_that_its_queues_list(version: str, name: str, tmp_path: Path) -> None:
    """Also in the queues of which no message is left at all."""
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named(name)
    states = []
    for seed, (kept, unclean) in enumerate([(700, False), (700, True), (9000, False), (30_000, True)]):
        store = unpack(case, tmp_path / str(seed))
        first, *others = sorted(store.glob("commitlog/*"))
        for file in others:
            file.unlink()
        size = first.stat().st_size
        first.write_bytes(first.read_bytes()[:kept].ljust(size, b"\0"))
        (store / "abort").touch() if unclean else (store / "abort").unlink(missing_ok=True)
        place = Place(f"first{seed}", store, opened(case), case.properties)
        states.append(State(seed, version, case, (f"{kept} bytes",), unclean, place))
    judged = list(check_states(version, states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]


@pytest.mark.parametrize(("version", "name"), [("4.9.3", "4.9.3/d-rolled"), ("5.3.3", "5.3.3/k-rolled")])
def test_what_is_between_the_end_of_an_older_queue_and_the_begin_of_the_log_has_expired(version: str, name: str, tmp_path: Path) -> None:
    """It is not lost by the start. How much was in damaged bytes of the log is known only if the queue lists a message before them."""
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named(name)
    states = []
    for seed, (queues, further, damaged, unclean) in enumerate(
        [
            ("*/*", 0, (), False),
            ("*/*", -7, (), False),
            ("*/*", -7, (), True),
            ("*/*", -7, (0, 3000), False),
            ("rare/0", 3, (1, 60000), False),
        ]
    ):
        store = unpack(case, tmp_path / str(seed))
        logs = sorted(store.glob("commitlog/*"))
        for queue in store.glob(f"consumequeue/{queues}"):
            files = sorted(queue.iterdir())
            entries = np.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), ENTRY)
            expired = int(((entries["size"] > 0) & (entries["physical_offset"].astype(np.int64) < int(logs[0].name))).sum())
            entries[max(1, expired + further) :] = 0
            for file, part in zip(files, np.split(entries, len(files)), strict=True):
                part.tofile(file) if part["size"].any() else file.unlink()
        if damaged:
            with logs[damaged[0]].open("r+b") as log:
                log.write(bytes(damaged[1]))
        (store / "abort").touch() if unclean else (store / "abort").unlink(missing_ok=True)
        place = Place(f"older{seed}", store, opened(case), case.properties)
        # of what the first bytes of the log had nothing is left once a repair has filled them
        changes = ("log-zeroed", "queues-older") if damaged[:1] == (0,) else ("queues-older",)
        states.append(State(seed, version, case, changes, unclean, place))
    judged = list(check_states(version, states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_of_damaged_batch_queues_pulls_deliver_what_is_said(version: str, tmp_path: Path) -> None:
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named("5.3.3/o-batch-queue" if version == "5.3.3" else "5.5.0/b-batch-queue")
    states = []
    for seed, change in enumerate(("zeros", "end", "filled", "units", "gap", "order")):
        store = unpack(case, tmp_path / str(seed))
        first, *others = sorted((store / "commitlog").iterdir())
        raw = bytearray(first.read_bytes())
        if change == "zeros":
            raw[10_000:20_000] = bytes(10_000)
            first.write_bytes(raw)
        elif change == "filled":  # by a repair, from the first byte of a message on, to which a unit leads
            unit = np.fromfile(store / "batchconsumequeue/batched/0/00000000000000000000", UNIT)[5]
            end = int(unit["physical_offset"]) + int(unit["size"])
            raw[end - 300 : end] = bytes(300)
            first.write_bytes(raw)
        elif change == "end":
            for file in others:
                file.unlink()
        else:
            units, second, _ = sorted((store / "batchconsumequeue" / "batched" / "0").iterdir())
            raw = bytearray(units.read_bytes())
            raw[460:598] = bytes([1]) * 138
            if change == "units":
                units.write_bytes(raw)
            elif change == "gap":
                second.unlink()
            else:
                second.write_bytes(units.read_bytes())
        if change in ("gap", "order"):
            (store / "abort").touch()
        place = Place(f"batch{seed}", store, opened(case), case.properties)
        states.append(State(seed, version, case, (f"batch-{change}",), change in ("gap", "order"), place))
    judged = list(check_states(version, states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("4.9.3", "4.9.3/f-broker-offsets"),
        ("5.3.3", "5.3.3/j-broker-offsets"),
        ("5.3.3", "5.3.3/o-batch-queue"),
        ("5.5.0", "5.5.0/a-clean"),
    ],
)
def test_a_message_whose_queue_offset_is_another_ones_is_not_lost(version: str, name: str, tmp_path: Path) -> None:
    """Nothing protects the queue offset of a record: its queue still delivers it. One that is gone is lost, wherever its entry leads."""
    if reason := why_not(version):
        pytest.skip(reason)
    case = case_named(name)
    states = []
    for seed, (step, gone) in enumerate(((-20, False), (-1, False), (1, False), (2, False), (1, True))):
        store = unpack(case, tmp_path / str(seed))
        file = next(file for file in sorted(store.glob("consumequeue/*/*/*")) if np.fromfile(file, ENTRY)["size"][:40].all())
        entries = np.fromfile(file, ENTRY)
        at, size = int(entries["physical_offset"][30]), int(entries["size"][30])
        log = [path for path in sorted(store.glob("commitlog/*")) if int(path.name) <= at][-1]
        with log.open("r+b") as opened_log:
            opened_log.seek(at - int(log.name) + (0 if gone else 20))
            opened_log.write(bytes(size) if gone else (30 + step).to_bytes(8, "big"))
        if gone:
            entries[30] = entries[30 + step]
            entries.tofile(file)
        place = Place(f"place{seed}", store, opened(case), case.properties)
        states.append(State(seed, version, case, ("place-gone" if gone else "place-given",), (store / "abort").exists(), place))
    judged = list(check_states(version, states, tmp_path))
    assert not [(state.seed, state.name, state.error) for state in judged if state.error]
