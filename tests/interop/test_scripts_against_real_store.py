"""Random scripts on our store engine and on the real one: the same answers, the same bytes, and each can take over the other's store.

Both sides run every script from an empty directory, through a copy of it as a kill would leave it, to a clean close. Then a second
script is appended by the real store to our store and by us to the real one, and by both to each killed store.
`--scripts N` sets how many scripts a version gets, `--first-script N` the number of the first; a failure names the script,
which `random_script(number, version)` generates again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from interop.realbroker import VERSIONS, Done, Job, run, why_not
from interop.replaying import Questions, apply, comparable, messages, queries, questions, queues, reads, settings, times
from interop.scripts import Operation, Script, placed, random_script
from interop.storeimage import checkpoint_image, copied, differences, full_index_times, partial_index_survives
from support.golden import Row, same_fields

from mqstore.rocketmq.engine.message_store import MessageStore

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

THREADS = 64  # opening and closing a real store is mostly idle time
SWAPPED, OURS_KILLED, THEIRS_KILLED = "swapped", "ours killed", "theirs killed"


@dataclass
class Laboratory:
    """The results of both sides for the scripts of one version. Directories are root/NAME/SIDE/number."""

    version: str
    root: Path
    scripts: list[Script]
    ours: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    theirs: dict[tuple[str, int], Done] = field(default_factory=dict)
    answers: dict[int, dict[str, list[Row]]] = field(default_factory=dict)

    def place(self, name: str, side: str, script: Script) -> Path:
        return self.root / name.replace(" ", "-") / side / str(script.seed)

    def each(self, check: Callable[[Script], list[str]]) -> None:
        """Check every script; fail with all differences, each line with its script."""
        wrong = [f"script {script.seed}: {line}" for script in self.scripts for line in check(script)]
        if wrong:
            pytest.fail("\n".join([f"{len(wrong)} differences ({self.version}); the first:", *wrong[:40]]), pytrace=False)


def _append(lab: Laboratory, name: str, script: Script, operations: list[Operation]) -> Job:
    store = lab.place(name, "theirs", script)
    store.parent.mkdir(parents=True, exist_ok=True)
    listed = store.with_suffix(".jsonl")
    listed.write_text("".join(json.dumps(operation) + "\n" for operation in operations), encoding="utf-8")
    return Job(f"{name} {script.seed}", ("append", str(store), "--in", str(listed), "--hooks"), script.options)


def _report(lab: Laboratory, script: Script, asked: Questions) -> Job:
    out = lab.place("report", "theirs", script)
    out.mkdir(parents=True)
    command = ["report", str(lab.place("first", "ours", script)), "--tmp", str(out), "--out", str(out / "report")]
    for name in ("queries", "reads", "bytime"):
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in getattr(asked, name)), encoding="utf-8")
        command += [f"--{name}", str(out / name)]
    return Job(f"report {script.seed}", tuple(command), script.options)


def _asked(lab: Laboratory, script: Script) -> Job:
    """Return our answers about the store we wrote, from a copy, and the job that gets the real store's."""
    copy = copied(lab.place("first", "ours", script), lab.place("report", "ours", script))
    with MessageStore.open(copy, settings(lab.version, script.options)) as store:
        store.dispatch_now()
        asked = questions(store, copy, script.seed)
        lab.answers[script.seed] = {
            "expected": messages(store),
            "queues": queues(store),
            "queries": queries(store, asked.queries),
            "reads": reads(store, asked.reads),
            "bytime": times(store, asked.bytime),
        }
    return _report(lab, script, asked)


@pytest.fixture(scope="module", params=VERSIONS)
def laboratory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    version = request.param
    reason = why_not(version)
    if reason is not None:
        pytest.skip(reason)
    start, count = request.config.getoption("first_script"), request.config.getoption("scripts")
    scripts = [random_script(seed, version) for seed in range(start, start + count)]
    print(f"{version}: scripts {start} to {start + count - 1}")
    lab = Laboratory(version, tmp_path_factory.mktemp(f"scripts-{version}"), scripts)
    jobs = [_append(lab, "first", script, placed(script.first, str(lab.place("killed", "theirs", script)))) for script in scripts]
    lab.theirs |= _keyed(run(version, jobs, lab.root / "work-first", THREADS))
    for script in scripts:
        lab.place("killed", "ours", script).parent.mkdir(parents=True, exist_ok=True)
        operations = placed(script.first, str(lab.place("killed", "ours", script)))
        lab.ours["first", script.seed] = apply(lab.place("first", "ours", script), version, script.options, operations)
    jobs = [_asked(lab, script) for script in scripts]
    for name, source, ours_from, theirs_from in (
        (SWAPPED, "first", "theirs", "ours"),
        (OURS_KILLED, "killed", "ours", "ours"),
        (THEIRS_KILLED, "killed", "theirs", "theirs"),
    ):
        for script in scripts:
            copied(lab.place(source, theirs_from, script), lab.place(name, "theirs", script))
            jobs.append(_append(lab, name, script, script.second))
            store = copied(lab.place(source, ours_from, script), lab.place(name, "ours", script))
            lab.ours[name, script.seed] = apply(store, version, script.options, script.second)
    lab.theirs |= _keyed(run(version, jobs, lab.root / "work-second", THREADS))
    yield lab
    shutil.rmtree(lab.root)


def _keyed(done: dict[str, Done]) -> dict[tuple[str, int], Done]:
    return {(name.rpartition(" ")[0], int(name.rpartition(" ")[2])): outcome for name, outcome in done.items()}


def _put_answers(lab: Laboratory, name: str) -> Callable[[Script], list[str]]:
    def check(script: Script) -> list[str]:
        theirs = lab.theirs[name, script.seed]
        if theirs.error is not None:
            return [f"the real store: {theirs.error[:500]}"]
        ours = lab.ours[name, script.seed]
        real = [comparable(row) for row in theirs.rows]
        if len(ours) != len(real):
            return [f"{len(ours)} answers and {len(real)}"]
        return [f"put {number}: {mine} and {his}" for number, (mine, his) in enumerate(zip(ours, real, strict=True)) if mine != his][:3]

    return check


def _same_files(lab: Laboratory, name: str, killed: str | None = None) -> Callable[[Script], list[str]]:
    """Compare the stores of both sides. killed: the side whose killed store both recovered."""

    def check(script: Script) -> list[str]:
        positions = int(script.options["maxIndexNum"])
        index = killed is None or not partial_index_survives(lab.place("killed", killed, script), positions)
        return differences(lab.place(name, "ours", script), lab.place(name, "theirs", script), index=index)

    return check


def test_every_put_is_answered_as_the_real_store_answers_it(laboratory: Laboratory, record_property: Callable[[str, object], None]) -> None:
    record_property("scripts", len(laboratory.scripts))
    laboratory.each(_put_answers(laboratory, "first"))


def test_log_queues_and_index_are_byte_for_byte_those_of_the_real_store(laboratory: Laboratory) -> None:
    laboratory.each(_same_files(laboratory, "first"))


def test_a_killed_store_is_byte_for_byte_that_of_the_real_one(laboratory: Laboratory) -> None:
    laboratory.each(_same_files(laboratory, "killed"))


def test_the_checkpoint_of_a_clean_close_confirms_what_the_real_store_confirms(laboratory: Laboratory) -> None:
    """How far the real store counts log and index as flushed depends on timing, and ours counts only full index files."""

    def check(script: Script) -> list[str]:
        ours, theirs = (checkpoint_image(laboratory.place("first", side, script)) for side in ("ours", "theirs"))
        wrong = [
            f"{name}: {ours[name]} and {theirs[name]}"
            for name in ("master_flushed_offset", "confirm_phy_offset")
            if ours[name] != theirs[name]
        ]
        full = full_index_times(laboratory.place("first", "ours", script), int(script.options["maxIndexNum"]))
        promised = ours["index_msg_timestamp"]
        return wrong if promised <= max(full, default=0) else [*wrong, f"index until {promised}, full files end at {full}"]

    laboratory.each(check)


@pytest.mark.parametrize(("way", "killed"), [(SWAPPED, None), (OURS_KILLED, "ours"), (THEIRS_KILLED, "theirs")])
def test_a_store_that_is_taken_over_is_continued_as_its_writer_would(laboratory: Laboratory, way: str, killed: str | None) -> None:
    laboratory.each(_put_answers(laboratory, way))
    laboratory.each(_same_files(laboratory, way, killed))


@pytest.mark.parametrize("what", ["expected", "queues", "queries", "reads", "bytime"])
def test_the_real_store_finds_in_ours_what_we_find(laboratory: Laboratory, what: str) -> None:
    def check(script: Script) -> list[str]:
        done = laboratory.theirs["report", script.seed]
        if done.error is not None:
            return [done.error[:500]]
        text = (laboratory.place("report", "theirs", script) / "report" / f"{what}.jsonl").read_text(encoding="utf-8")
        theirs: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n") if line]
        ours = laboratory.answers[script.seed][what]
        if len(ours) != len(theirs):
            return [f"{len(ours)} and {len(theirs)} of {what}"]
        wrong = [f"{what} {number}: {same_fields(mine, his, mine)}" for number, (mine, his) in enumerate(zip(ours, theirs, strict=True))]
        return [line for line in wrong if not line.endswith(": []")][:3]

    laboratory.each(check)
