"""Makes the small RocketMQ stores in `stores/`: the real store runs the first operations of random scripts, and closes cleanly.

    PYTHONPATH=src:tests python -m fuzz.make_stores

They hold some 40 messages in files of 8 KiB, so that an image of one is judged in a fraction of the time that a golden store takes.
Each feature has one: plain, extended consume queues, multi-dispatch, batch queues, `__CRC32#` properties.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from interop.realbroker import VERSIONS, Job, run
from interop.scripts import Script, random_script

STORES = Path(__file__).parent / "stores"
FEATURES = {
    "ext": "enableConsumeQueueExt",
    "multi": "enableMultiDispatch",
    "batch": "queueType.batched",
    "crc": "enabledAppendPropCRC",
}
OPERATIONS = 45
TOPICS = ("TopicTest", "batched", "SCHEDULE_TOPIC_XXXX")


def chosen(version: str) -> Iterator[tuple[str, Script]]:
    """Yield the first script with small files for each feature alone, and for none."""
    wanted = ["plain", *FEATURES]
    for seed in range(400):
        script = random_script(seed, version)
        found = [feature for feature, option in FEATURES.items() if option in script.options] or ["plain"]
        small = script.options["mappedFileSizeCommitLog"] == "8192" and len(script.first) > OPERATIONS
        if small and len(found) == 1 and found[0] in wanted:
            wanted.remove(found[0])
            yield found[0], script


def operations(script: Script) -> list[dict[str, object]]:
    """Return the first operations of a script, on few queues."""
    kept = [dict(each) for each in script.first if each.get("op") not in ("snapshot", "reopen", "retention")][:OPERATIONS]
    for each in kept:
        if "topic" in each and each["topic"] not in TOPICS:
            each["topic"] = "orders"
        if "queue_id" in each:
            each["queue_id"] %= 2
    return kept


def make(version: str, feature: str, script: Script, work: Path) -> None:
    store, listed = work / "store", work / "operations"
    listed.write_text("".join(json.dumps(each) + "\n" for each in operations(script)), encoding="utf-8")
    done = run(version, [Job("make", ("append", str(store), "--in", str(listed), "--hooks"), script.options)], work / "out")["make"]
    assert done.error is None, done.error
    name = f"{version}-{feature}"
    (STORES / f"{name}.properties").write_text("".join(f"{option}={value}\n" for option, value in script.options.items()))
    with tarfile.open(STORES / f"{name}.tar.xz", "w:xz", format=tarfile.PAX_FORMAT) as packed:
        for path in sorted(store.rglob("*")):
            member = packed.gettarinfo(path, path.relative_to(store).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            with open(path if path.is_file() else "/dev/null", "rb") as file:
                packed.addfile(member, file if path.is_file() else None)
    print(name, script.seed, len(done.rows), "puts")


def main() -> None:
    STORES.mkdir(exist_ok=True)
    for version in VERSIONS:
        for feature, script in chosen(version):
            with tempfile.TemporaryDirectory() as work:
                make(version, feature, script, Path(work))


if __name__ == "__main__":
    sys.exit(main())
