"""`diagnose` on damage that nobody chose: random changes to stores that real brokers wrote, against the real stores of 4.9.3 and 5.3.3.

Only what the store reads is damaged: `config/` is the broker's, and is tested with whole brokers. Run as a program, it does the same for
any range of seeds and prints where the answers differ:

    python -m interop.test_diagnose_held_out 4.9.3 0 300
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.damage import File, Folder, Link, Pipe, Tree, damage
from fuzz.images import swept
from fuzz.layout import Laid, write_tree
from interop.diagnosing import Outcome, Place, describe, outcomes_of
from interop.realbroker import why_not

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop-stores")]

BASES = {
    "4.9.3": ("small/4.9.3-plain", "small/4.9.3-multi", "4.9.3/f-broker-offsets", "4.9.3/m-damaged/0-clean", "4.9.3/b3-kill9-torn"),
    "5.3.3": ("small/5.3.3-plain", "small/5.3.3-crc", "5.3.3/j-broker-offsets", "5.3.3/k-rolled", "5.3.3/h-kill9"),
}
OF_STORE = ("commitlog", "consumequeue", "index", "checkpoint", "abort")
IMAGES = 24  # of each version
LARGEST = 4 << 20  # bytes of a file with its hole
CHECKPOINT = 48  # bytes of a checkpoint that are read


def images(version: str, numbers: range, place: Path) -> Iterator[Place]:
    """Lay out the damaged images of some numbers: each number gives a store and its damage, always the same."""
    laid: dict[str, Laid] = {}
    for number in numbers:
        chance = random.Random(f"held out {version} {number}")
        name = chance.choice(BASES[version])
        if name not in laid:
            laid[name] = Laid(name, place / "golden")
        golden = laid[name].golden
        stored = {path: node for path, node in golden.items() if path.split("/")[0] in OF_STORE}
        image, changes = _damaged(stored, chance, number)
        store = place / f"{number}"
        write_tree(store, {**{path: node for path, node in golden.items() if path not in stored}, **image})
        yield Place(f"{number} of {name}: {'; '.join(changes)}", store, laid[name].root, laid[name].options)


def _damaged(tree: Tree, chance: random.Random, number: int) -> tuple[Tree, list[str]]:
    """Damage a tree as a file system can be copied: without pipes, links and files that are mostly holes."""
    while True:
        image, changes = swept(tree, chance) if number % 3 == 0 else damage(tree, chance)
        if chance.random() < 0.3:
            image = {path: node for path, node in image.items() if path != "abort"}
        elif chance.random() < 0.3:
            image = {**image, "abort": File(b"", 0, None)}
        plain = all(not isinstance(node, Link | Pipe) for node in image.values())
        small = all(not isinstance(node, File) or node.size < LARGEST or node.size == len(node.data) for node in image.values())
        point = image.get("checkpoint")
        listed = point is None or (isinstance(point, File) and len(point.data) >= CHECKPOINT)  # by the oracle, before it loads the store
        if plain and small and listed and not isinstance(image.get("abort"), Folder):
            return image, changes


@pytest.fixture(scope="module", params=["4.9.3", "5.3.3"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    if (reason := why_not(request.param)) is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp(f"held-out-{request.param}")
    return outcomes_of(request.param, list(images(request.param, range(IMAGES), root)), root / "work")


def false_reassurances(outcomes: list[Outcome]) -> list[Outcome]:
    """Return where less was lost, or a start was promised, than the real store makes of it, and nothing was said to be unknown."""
    return [
        item
        for item in outcomes
        if item.predicted.starts
        and (not item.starts or (item.lost or 0) > item.predicted.loses)
        and (item.predicted.status == 0 or not item.predicted.unknown)
    ]


def test_diagnose_never_promises_more_than_a_real_store_keeps(outcomes: list[Outcome]) -> None:
    assert describe(false_reassurances(outcomes)) == {}
    assert sum(item.starts for item in outcomes) >= IMAGES // 3


def test_what_diagnose_says_does_not_start_does_not(outcomes: list[Outcome]) -> None:
    assert describe(item for item in outcomes if item.starts and not item.predicted.starts) == {}


def main(version: str, first: int, count: int) -> None:
    """Compare the images of a range of numbers, fifty in a JVM, and print each difference."""
    exact = total = 0
    for begin in range(first, first + count, 50):
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            found = outcomes_of(version, list(images(version, range(begin, min(begin + 50, first + count)), root)), root / "work")
        total += len(found)
        for item in found:
            same = item.predicted.starts == item.starts and (item.lost is None or item.predicted.loses == item.lost)
            exact += same
            if not same:
                kind = "FALSE REASSURANCE" if false_reassurances([item]) else "differs"
                print(kind, describe([item]), flush=True)
        started = sum(item.starts for item in found)
        print(f"{version}: {total} images, {exact} predicted exactly, {started} of the last {len(found)} start", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
