"""Sites: a sound RocketMQ store of which parts are moved, renamed, split over paths, omitted or of another time; a seed makes one state.

What is true of a state is known, since the store was whole: all its messages are in a log that is somewhere, or that was deleted.

    the log       is said                        must not be said
    whole         nothing is lost                that messages are lost
    misnamed      `repair` gives the names back  that messages are lost; a blank file
    elsewhere,    what is kept cannot be told    that messages are lost, or that all is well; any step of `repair`
    partly
    absent        as many as the queues, or else the offsets, show are lost; without either how many is not known

Parts of another time (older offsets, checkpoint, queues, index) take nothing from what the log has; of an older log, the messages that
the queues list after its end are lost.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
from pathlib import Path

from support.golden import case_named, opened, unpack_site

from mqstore.errors import UnsupportedError
from mqstore.places import open_rocketmq
from mqstore.rocketmq.diagnosis.diagnosis import diagnose
from mqstore.rocketmq.repair.plan import plan
from mqstore.rocketmq.site import site_of
from mqstore.rocketmq.verify.verification import verify

BASES = (
    "site",  # with offsets of a group; the others without
    "4.9.3/a-clean-small",
    "4.9.3/c-index-collisions",
    "4.9.3/d-rolled",
    "4.9.3/m-damaged/0-clean",
    "5.1.4/a-clean",
    "5.3.3/g-clean-small",
    "5.3.3/k-rolled",
    "5.5.0/a-clean",
)
STATES = ("whole", "split", "misnamed", "path missing", "turn missing", "moved away", "absent")
TIMES = ("offsets", "checkpoint", "queues", "index", "log")
SUFFIXES = ("{:020d}.bak", "{:020d}.1", "{:020d} (copy)", "{:08d}")
OMITTED = ("consumequeue", "index", "checkpoint", "config", "lock")
MOST = 10**9  # an offset beyond it was never that of a message of these stores
ENTRY = struct.Struct(">qiq")


def make(seed: int, place: Path) -> tuple[Path, str, set[str], str | None]:
    """Make a state in an empty directory. Returns the store, the state of its log, the parts that were omitted, and one of another time."""
    dice = random.Random(seed)
    state, base = STATES[seed % len(STATES)], BASES[seed // len(STATES) % len(BASES)]
    store = _unpack(base, place)
    log, conf = place / "logdisk" / "commitlog", place / "broker.conf"
    omitted = set(dice.sample(OMITTED, dice.randrange(0, 4)))
    time = dice.choice(TIMES) if dice.random() < 0.5 else None
    if time == "log" and state not in ("whole", "split"):
        time = None  # what is known is the number after the end of a log that is there
    if time is not None:
        _put_back(time, store, log, dice)
    files = sorted(log.iterdir())
    if state in ("split", "path missing"):
        paths = [place / f"disk{number}" for number in range(dice.randrange(2, 4))]
        for path in paths:
            path.mkdir()
        for number, file in enumerate(files):
            file.rename(paths[number % len(paths)] / file.name)
        conf.write_text(conf.read_text().replace(f"={log}", f"={dice.choice(',:').join(map(str, paths))}"))
        if state == "path missing":
            shutil.rmtree(dice.choice(paths))
    elif state == "misnamed":
        omitted.discard("consumequeue")
        for file in dice.sample(files[1:-1], dice.randrange(1, 3)):
            file.rename(file.with_name(dice.choice(SUFFIXES).format(int(file.name))))
    elif state == "turn missing":
        first = dice.randrange(2)
        for file in files[first::2]:
            file.unlink()
    elif state == "moved away":
        shutil.move(log, place / "away")
    if state in ("misnamed", "turn missing", "absent") or (state == "whole" and dice.random() < 0.5):
        conf.unlink()
        if state == "absent":
            shutil.rmtree(log)
        else:
            shutil.move(log, store / "commitlog")
    for name in omitted:
        path = store / name
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if dice.random() < 0.3:
        (store / "abort").touch()
    return store, state, omitted, time


def _unpack(base: str, place: Path) -> Path:
    """Unpack a store beside the directory of its log, with the configuration that names both."""
    if base == "site":
        return unpack_site("separate-commitlog", place)
    case, store, log = case_named(base), place / "store", place / "logdisk" / "commitlog"
    shutil.copytree(opened(case), store)
    for path in (store, *store.rglob("*")):
        path.chmod(0o755)
    log.parent.mkdir()
    shutil.move(store / "commitlog", log)
    lines = {"storePathRootDir": store, "storePathCommitLog": log, **case.properties}
    (place / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return store


def _put_back(time: str, store: Path, log: Path, dice: random.Random) -> None:
    """Make a part of a store as it was before."""
    offsets, checkpoint, index = store / "config/consumerOffset.json", store / "checkpoint", sorted((store / "index").glob("*"))
    if time == "offsets" and offsets.exists():
        offsets.write_text(re.sub(r":(\d+)", lambda match: f":{int(match[1]) // 2}", offsets.read_text()))
    elif time == "checkpoint":
        raw = checkpoint.read_bytes()
        checkpoint.write_bytes(struct.pack(">3q", *(max(0, at - 3_600_000) for at in struct.unpack_from(">3q", raw))) + raw[24:])
    elif time == "index" and index:
        index[-1].unlink()
    elif time in ("queues", "log"):
        last = sorted(log.iterdir())[-1]
        starts = _starts(last.read_bytes())
        cut = int(last.name) + dice.choice(starts[1:] if len(starts) > 1 else starts)
        if time == "log":
            raw = last.read_bytes()
            last.write_bytes(raw[: cut - int(last.name)].ljust(len(raw), b"\0"))
        else:
            for file, entries in _entries(store):
                kept = b"".join(ENTRY.pack(*entry) for entry in entries if not entry[1] or entry[0] < cut)
                file.write_bytes(kept.ljust(file.stat().st_size, b"\0"))


def _starts(raw: bytes) -> list[int]:
    """Return where the records of a log file begin."""
    starts, at = [], 0
    while at + 8 <= len(raw) and int.from_bytes(raw[at + 4 : at + 8], "big") in (0xDAA320A7, 0xDAA320A3):
        starts.append(at)
        at += int.from_bytes(raw[at : at + 4], "big")
    return starts


def _entries(store: Path) -> list[tuple[Path, list[tuple[int, int, int]]]]:
    files = [path for path in sorted((store / "consumequeue").rglob("*")) if path.is_file()]
    return [(file, list(ENTRY.iter_unpack(file.read_bytes()))) for file in files]


def listed(store: Path, after: int = 0) -> int:
    """Return how many messages the queue files list at or after a physical offset."""
    return sum(size > 0 and offset >= after for _, entries in _entries(store) for offset, size, _ in entries)


def read(store: Path) -> int:
    """Return how many messages the groups that came furthest have read, without numbers that cannot be."""
    offsets = store / "config/consumerOffset.json"
    furthest: dict[tuple[str, str], int] = {}
    for topic, table in re.findall(r'"([^"@]+)@[^"]+":\{([^}]*)\}', offsets.read_text() if offsets.exists() else ""):
        for queue, offset in re.findall(r'"?(\d+)"?:(\d+)', table):
            if int(offset) < MOST:
                furthest[topic, queue] = max(int(offset), furthest.get((topic, queue), 0))
    return sum(furthest.values())


def wrong(seed: int, place: Path) -> str:
    """Return what is falsely said of a state; empty if nothing is."""
    store, state, omitted, time = make(seed, place)
    marks = sum((store / name).exists() for name in OMITTED[:4])
    if not (store / "commitlog").exists() and marks < (1 if (place / "broker.conf").exists() else 2):
        return ""  # too little to be known for a store
    found = diagnose(open_rocketmq(store))
    report = verify(open_rocketmq(store))
    try:
        steps: list[str] | None = [step.kind for step in plan(open_rocketmq(store))]
    except UnsupportedError:
        steps = None
    log = {part.state for part in site_of(open_rocketmq(store)).parts if part.part == "log"}
    said = f"seed {seed}, {state} without {sorted(omitted)}, older {time}: {found.headline} {report.headline} {steps} {log} {found.unknown}"
    lost = any("whatever is done" in item.detail for item in found.evidence)
    blank = steps is not None and "blank-file" in steps
    if state in ("whole", "split"):
        # without queues, a broker that did not exit cleanly lists only what it recovers: nothing of the log is lost
        late = listed(store, _end(place, store))  # 5.x does not list the record exactly at the end of its queues after a clean exit
        skipped = time == "queues" and not (store / "abort").exists() and not found.version.startswith("4")
        good = log == {"here"} and report.gone == late and (found.loses == late + skipped or "consumequeue" in omitted)
    elif state == "misnamed":
        good = log == {"partly"} and steps is not None and "rename" in steps and not found.loses > listed(store)
        expected = {"rename"} | ({"offsets"} if _wild(store) else set())
        may_be = {"offsets"} if "config" in omitted else set()  # of which some of the files may be left
        good = good and (time is not None or expected <= set(steps or ()) <= expected | may_be)
    elif state == "absent":
        shown = listed(store) or read(store)
        good = (found.loses, steps is None, found.status) == (shown, True, 1) and log == {"absent"} and not report.ok
    else:
        good = not (found.loses or report.gone or steps is not None or report.ok) and bool(found.unknown) and found.status == 1
        good = good and "cannot be told" in found.headline and log <= {"partly", "elsewhere"}
    return "" if good and not lost and not blank else said


def _wild(store: Path) -> bool:
    """Return whether the offsets of consumers have one that is past the end of every queue, as one of the stores had it from the start."""
    offsets = store / "config/consumerOffset.json"
    return offsets.exists() and any(int(found) > MOST for found in re.findall(r":(\d+)", offsets.read_text()))


def _end(place: Path, store: Path) -> int:
    """Return where the log ends."""
    last = max(
        (path for path in (*place.glob("disk*/*"), *place.glob("logdisk/*/*"), *store.glob("commitlog/*"))), key=lambda path: path.name
    )
    raw = last.read_bytes()
    starts = _starts(raw)
    return int(last.name) + (starts[-1] + int.from_bytes(raw[starts[-1] : starts[-1] + 4], "big") if starts else 0)
