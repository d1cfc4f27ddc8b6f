"""Damaged images of golden stores of both brokers: several files at once swapped, renamed, cut, grown, replaced; anything is damaged.

What must hold of each is in `rocketmq_oracle` and `rabbitmq_oracle`: what was not touched is reported, what is reported as intact is
unchanged, no command fails with a trace, hangs, or takes memory without bounds. A failure prints the number of the image, and the command
that checks this image alone. `--images N` checks N images of each family, `--first-image` gives the first number.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.batches import TESTS, check_images, environment
from fuzz.damage import File, Folder, Link, Pipe, damage
from fuzz.images import FAMILIES, Images
from fuzz.layout import read_tree

FEW = {"rocketmq": 16, "rabbitmq": 16, "quorum": 6}  # without --all
MANY = {"rocketmq": 250, "rabbitmq": 250, "quorum": 24}  # with --all


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_is_damaged_the_rest_is_reported(family: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count, first = request.config.getoption("images"), request.config.getoption("first_image")
    if count is None:
        count = (MANY if request.config.getoption("all") else FEW)[family]
    print(f"{family}: images {first} to {first + count - 1}")
    batch = check_images(family, range(first, first + count), kept=tmp_path / "kept")
    request.node.user_properties.append(("structures", batch.done))
    told = [
        f"{failure.error}\n{failure.image}\n{failure.trace}\nkept in {tmp_path / 'kept'}; again: "
        f"scripts/prove --kind damaged-{family} --seed {failure.number} --count 1"
        for failure in batch.failures
    ]
    if told:
        pytest.fail("\n\n".join([f"{len(told)} images failed", *told]), pytrace=False)
    assert batch.done == count


def test_an_image_that_takes_too_long_ends_its_process_and_not_the_run(tmp_path: Path) -> None:
    batch = check_images("rabbitmq", range(3), kept=tmp_path, seconds=0.0001)
    assert batch.done == 3
    assert [failure.number for failure in batch.failures] == [0, 1, 2]
    assert all(failure.error.startswith("it takes more than") for failure in batch.failures)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rabbitmq-0", "rabbitmq-1", "rabbitmq-2"]


GREEDY = """
import sys
from pathlib import Path
from fuzz import worker

class Greedy:
    def __init__(self, family, place): pass
    def image(self, number): return number
    def check(self, number):
        try:
            kept = bytearray(2 << 30 if number == 5 else 1 << 20)
        except MemoryError as error:
            error.add_note(f"image {number}")
            raise

worker.Images = Greedy
worker.work("rocketmq", Path(), 60)
"""


def test_an_image_that_takes_too_much_memory_is_a_failure_and_the_next_one_is_checked() -> None:
    command = [sys.executable, "-c", GREEDY]
    done = subprocess.run(command, input="0 8\n", capture_output=True, text=True, check=True, cwd=TESTS, env=environment())
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("{")] == [*map(str, range(8)), "done"]
    (failure,) = [json.loads(line) for line in lines if line.startswith("{")]
    assert failure["number"] == 5
    assert failure["error"].startswith("MemoryError")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_is_laid_out_as_it_is_described_and_taken_back(family: str, tmp_path: Path) -> None:
    images = Images(family, tmp_path / "images")
    for number in range(8 if family == "quorum" else 40):
        image = images.image(number)
        laid = images.store(image.store)
        laid.lay(image.tree)
        for path, node in image.tree.items():
            place = laid.root / path
            match node:
                case File(data, size):
                    assert place.is_file()
                    assert not place.is_symlink()
                    assert place.stat().st_size == size
                    assert place.read_bytes()[: len(data)] == data
                case Link():
                    assert place.is_symlink()
                case Pipe():
                    assert place.is_fifo()
                case Folder():
                    assert not list(place.iterdir())
        there = {path.relative_to(laid.root).as_posix() for path in laid.root.rglob("*") if path.is_symlink() or not path.is_dir()}
        assert there == {path for path, node in image.tree.items() if not isinstance(node, Folder)}
        laid.lay(laid.golden)
        assert read_tree(laid.root) == laid.golden


def test_every_kind_of_change_is_made() -> None:
    tree = {f"log/{number:020d}": File(bytes([number + 1]) * 600, 600, None) for number in range(4)}
    tree |= {f"queue/{number}/0.idx": File(b"abc", 3, None) for number in range(3)}
    words = set()
    for seed in range(2000):
        for change in damage(tree, random.Random(seed))[1]:
            words |= set(change.split())
    assert {"flip", "number", "zeros", "noise", "cut", "grown", "missing", "many", "hole"} <= words
    assert {"swap", "rename", "duplicate", "copy", "move", "remove", "empty", "directory", "pipe", "link", "new"} <= words


ORACLES = {
    "rocketmq": ("4.9.3/f-broker-offsets", "commitlog/00000000000000000000"),
    "rabbitmq": ("3.10.8/a-small-clean", "journal.jif"),
    "quorum": ("quorum/4.3.6/e-names-clean/0:2", "0000000000000001.wal"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_notices_a_message_that_is_not_reported_and_one_that_nobody_wrote(family: str, tmp_path: Path) -> None:
    """The oracle judges by the bytes alone, so an image that is laid out wrongly must fail."""
    images = Images(family, tmp_path / family)
    name, ending = ORACLES[family]
    laid, golden = images.store(name), images.golden(name)
    log = next(path for path in laid.golden if path.endswith(ending))
    node = laid.golden[log]
    assert isinstance(node, File)
    damaged = {**laid.golden, log: File(node.data[:1000], 1000, log)}
    judge = __import__(f"fuzz.{family}_oracle", fromlist=["judge"]).judge
    judge(golden, laid.golden, laid.root)
    laid.lay(damaged)
    judge(golden, damaged, laid.root)
    with pytest.raises(AssertionError, match="untouched and not reported"):
        judge(golden, laid.golden, laid.root)
