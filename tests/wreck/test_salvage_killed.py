"""`salvage --resume` killed at random moments: the run that ends writes the same bytes as one that nothing disturbed.

The runs are children of one process that has everything loaded, so that the kills hit the work. As a program, with any number of kills:

    PYTHONPATH=tests python tests/wreck/test_salvage_killed.py IMAGE WORK KILLS jsonl|parquet
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.golden import case_named, run_cli
from support.images import files_of, shuffled_image

from mqstore.errors import TargetError

KILLS = 20
SPLIT = 40_000
MESSAGES = 60  # of a fragment, and of a batch of RabbitMQ
LOADED = ("pyarrow.parquet", "mqstore.cli.main", "mqstore.cli.jobs.salvage", "mqstore.wreck.salvage")


def start(image: Path, place: Path, suffix: str) -> int:
    """Salvage an image in a child, with small splits and fragments; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        from mqstore.cli.main import run
        from mqstore.rabbitmq import salvage
        from mqstore.wreck import rows, search

        search.SPLIT = SPLIT
        search.carve.__kwdefaults__["split"] = SPLIT
        rows.FRAGMENT_RECORDS = salvage.BATCH_ROWS = MESSAGES
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        to, work = place / f"found.{suffix}", place / "work"
        status = run(["salvage", str(image), "--to", str(to), "--resume", str(work), "--threads", "2", "-o", "json"])
    finally:
        os._exit(status)


def digests(place: Path) -> dict[str, str]:
    """Return the digest of every file of a directory, and remove them."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(place.iterdir()) if path.is_file()}
    stayed = [path.name for path in place.rglob("*") if path.is_dir() or path.parent != place]
    assert not stayed, f"a work directory stayed: {stayed}"
    shutil.rmtree(place)
    place.mkdir()
    return found


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(image: Path, place: Path, kills: int, suffix: str) -> None:
    """Kill runs until there were so many kills, each at a random moment; print what the runs that ended wrote."""
    chance = random.Random(f"killed {kills} {suffix}")
    place.mkdir()
    for module in LOADED:
        importlib.import_module(module)
    begun = time.monotonic()
    status = ended(start(image, place, suffix))
    lasted = time.monotonic() - begun
    wanted = digests(place)
    done = killed = whole = resumed = 0
    while killed < kills:
        child = start(image, place, suffix)
        time.sleep(chance.uniform(0.0, lasted))
        os.kill(child, signal.SIGKILL)
        if ended(child) == -signal.SIGKILL:
            killed += 1
            resumed += (place / "work").is_dir()
            if any(place.glob("found.*")) and not (place / "work").exists():  # both files are whole: it was removing its directory
                for rest in place.glob(".work.mqstore-*"):
                    shutil.rmtree(rest)
                assert digests(place) == wanted
                whole += 1
            elif chance.random() < 0.3 or killed == kills:
                assert ended(start(image, place, suffix)) == status
                assert digests(place) == wanted
                whole += 1
        else:
            done += 1
            assert digests(place) == wanted
    print(json.dumps({"killed": killed, "resumed": resumed, "ended_after_kills": whole, "before": done, "files": wanted, "status": status}))


def image_of_both(place: Path) -> Path:
    files = [*files_of([case_named("4.9.3/b-kill9")], "commitlog"), *files_of([case_named("3.10.8/g1-v2-small-clean")])]
    image = place / "image"
    image.write_bytes(shuffled_image(files, 7))
    return image


def test_a_run_that_ended_between_its_two_files_goes_on_with_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_of_both(tmp_path)
    wanted = run_cli("salvage", image, "--to", tmp_path / "wanted.jsonl", "-o", "json")
    asked = ("salvage", image, "--to", tmp_path / "found.jsonl", "--resume", tmp_path / "work", "-o", "json")

    def ending(*_: object) -> None:
        raise TargetError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("mqstore.wreck.salvage.write_carved_rabbitmq_rows", ending)
        assert run_cli(*asked).status == 2
    first, second = tmp_path / "found.rocketmq.jsonl", tmp_path / "found.rabbitmq.jsonl"
    assert (first.exists(), second.exists()) == (True, False)
    content = first.read_bytes()
    first.rename(tmp_path / "aside")
    first.write_bytes(b"a file of somebody else\n")
    refused = run_cli(*asked)
    assert (refused.status, "exists already" in refused.stderr) == (2, True)
    assert first.read_bytes() == b"a file of somebody else\n"
    (tmp_path / "aside").replace(first)
    done = run_cli(*asked)
    assert done.status == wanted.status
    assert first.read_bytes() == content == (tmp_path / "wanted.rocketmq.jsonl").read_bytes()
    assert second.read_bytes() == (tmp_path / "wanted.rabbitmq.jsonl").read_bytes()
    same = ("messages", "bytes", "groups", "verdicts", "records", "rabbitmq_messages")
    assert {name: done.document[name] for name in same} == {name: wanted.document[name] for name in same}
    assert not (tmp_path / "work").exists()


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_salvage_killed_at_random_moments_writes_the_bytes_of_an_undisturbed_run(suffix: str, tmp_path: Path) -> None:
    words = [sys.executable, __file__, image_of_both(tmp_path), tmp_path / "place", KILLS // 2, suffix]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] == KILLS // 2
    assert found["resumed"] >= 3
    assert sorted(found["files"]) == [f"found.rabbitmq.{suffix}", f"found.rocketmq.{suffix}"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
