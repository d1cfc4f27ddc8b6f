"""Random scripts on our store engine and on the real one, in one JVM, and everything that the two must agree on.

`run_scripts` runs every script on both sides from an empty directory, through a copy of it as a kill would leave it, to a clean close.
Then a second script is appended by the real store to our store and by us to the real one, and by both to each killed store. The checks of
`CHECKS` compare one script each and return the differences, a line for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.realbroker import Done, Job, run
from interop.replaying import Questions, apply, comparable, messages, queries, questions, queues, reads, settings, times
from interop.scripts import Operation, Script, placed
from interop.storeimage import checkpoint_image, copied, differences, full_index_times, partial_index_survives
from support.golden import Row, same_fields

from mqstore.rocketmq.engine.message_store import MessageStore

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


def run_scripts(version: str, root: Path, scripts: Sequence[Script], threads: int = THREADS) -> Laboratory:
    """Run scripts on both sides. root: an existing directory, which keeps all stores. threads: of the JVM."""
    lab = Laboratory(version, root, list(scripts))
    jobs = [_append(lab, "first", script, placed(script.first, str(lab.place("killed", "theirs", script)))) for script in scripts]
    lab.theirs |= _keyed(run(version, jobs, lab.root / "work-first", threads))
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
    lab.theirs |= _keyed(run(version, jobs, lab.root / "work-second", threads))
    return lab


def _keyed(done: dict[str, Done]) -> dict[tuple[str, int], Done]:
    return {(name.rpartition(" ")[0], int(name.rpartition(" ")[2])): outcome for name, outcome in done.items()}


Check = Callable[[Laboratory, Script], list[str]]


def put_answers(name: str) -> Check:
    """Compare the answers to the puts of the run with that name."""

    def check(lab: Laboratory, script: Script) -> list[str]:
        theirs = lab.theirs[name, script.seed]
        if theirs.error is not None:
            return [f"the real store: {theirs.error[:500]}"]
        ours = lab.ours[name, script.seed]
        real = [comparable(row) for row in theirs.rows]
        if len(ours) != len(real):
            return [f"{len(ours)} answers and {len(real)}"]
        return [f"put {number}: {mine} and {his}" for number, (mine, his) in enumerate(zip(ours, real, strict=True)) if mine != his][:3]

    return check


def same_files(name: str, killed: str | None = None) -> Check:
    """Compare the stores of both sides. killed: the side whose killed store both recovered."""

    def check(lab: Laboratory, script: Script) -> list[str]:
        positions = int(script.options["maxIndexNum"])
        index = killed is None or not partial_index_survives(lab.place("killed", killed, script), positions)
        if killed is not None and lab.version == "5.5.0":
            index = False  # which index files 5.5.0 keeps of a killed store is not reproduced
        return differences(lab.place(name, "ours", script), lab.place(name, "theirs", script), index=index)

    return check


def same_checkpoint(lab: Laboratory, script: Script) -> list[str]:
    """Compare the checkpoints of a clean close.

    How far the real store counts log and index as flushed depends on timing, and ours counts only full index files.
    """
    ours, theirs = (checkpoint_image(lab.place("first", side, script)) for side in ("ours", "theirs"))
    wrong = [
        f"{name}: {ours[name]} and {theirs[name]}" for name in ("master_flushed_offset", "confirm_phy_offset") if ours[name] != theirs[name]
    ]
    full = full_index_times(lab.place("first", "ours", script), int(script.options["maxIndexNum"]))
    promised = ours["index_msg_timestamp"]
    return wrong if promised <= max(full, default=0) else [*wrong, f"index until {promised}, full files end at {full}"]


def same_findings(what: str) -> Check:
    """Compare what the real store finds in our store with what we find there."""

    def check(lab: Laboratory, script: Script) -> list[str]:
        done = lab.theirs["report", script.seed]
        if done.error is not None:
            return [done.error[:500]]
        text = (lab.place("report", "theirs", script) / "report" / f"{what}.jsonl").read_text(encoding="utf-8")
        theirs: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n") if line]
        ours = lab.answers[script.seed][what]
        if len(ours) != len(theirs):
            return [f"{len(ours)} and {len(theirs)} of {what}"]
        wrong = [f"{what} {number}: {same_fields(mine, his, mine)}" for number, (mine, his) in enumerate(zip(ours, theirs, strict=True))]
        return [line for line in wrong if not line.endswith(": []")][:3]

    return check


WAYS: tuple[tuple[str, str | None], ...] = ((SWAPPED, None), (OURS_KILLED, "ours"), (THEIRS_KILLED, "theirs"))
FOUND = ("expected", "queues", "queries", "reads", "bytime")

CHECKS: dict[str, Check] = {
    "the answers to puts": put_answers("first"),
    "log, queues and index": same_files("first"),
    "a killed store": same_files("killed"),
    "the checkpoint of a clean close": same_checkpoint,
    **{f"the answers to puts into a store that is {way}": put_answers(way) for way, _ in WAYS},
    **{f"the files of a store that is {way}": same_files(way, killed) for way, killed in WAYS},
    **{f"what is found in our store: {what}": same_findings(what) for what in FOUND},
}
