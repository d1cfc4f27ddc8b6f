"""Damaged images by number: each number gives a golden store, its damage, and what is then done with the image, always the same."""

from __future__ import annotations

import random
import re
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fuzz import quorum_oracle, rabbitmq_oracle, rocketmq_oracle
from fuzz.commands import (
    check_sentence,
    emptied,
    open_rabbitmq_engine,
    open_rocketmq_engine,
    quorum_command,
    rabbitmq_command,
    rocketmq_command,
    run_command,
)
from fuzz.damage import SECTOR, File, Tree, damage
from fuzz.layout import Laid, write_tree

from mqstore.errors import MqstoreError, NotAStoreError

FAMILIES = ("rocketmq", "rabbitmq", "quorum")
ORACLES = {"rocketmq": rocketmq_oracle, "rabbitmq": rabbitmq_oracle, "quorum": quorum_oracle}
Golden = rocketmq_oracle.Golden | rabbitmq_oracle.Golden | quorum_oracle.Golden


def _parts(name: str, count: int, weight: int) -> dict[str, int]:
    return {f"{name}/{number}:{count}": weight for number in range(count)}


# golden stores and how often each is taken: the small ones, which have most features, cost a tenth of the large ones
STORES = {
    "rocketmq": {
        "small/4.9.3-plain": 20,
        "small/4.9.3-ext": 20,
        "small/4.9.3-multi": 20,
        "small/5.3.3-plain": 20,
        "small/5.3.3-ext": 15,
        "small/5.3.3-multi": 20,
        "small/5.3.3-batch": 20,
        "small/5.3.3-crc": 30,
        "4.9.3/a-clean-small": 2,
        "4.9.3/b3-kill9-torn": 3,
        "4.9.3/c-index-collisions": 3,
        "4.9.3/d-rolled": 3,
        "4.9.3/e-delay-transaction-batch": 6,
        "4.9.3/f-broker-offsets": 12,
        "4.9.3/m-damaged/0-clean": 2,
        "4.9.3/n-ext-multidispatch": 12,
        "5.3.3/g-clean-small": 2,
        "5.3.3/h-kill9": 2,
        "5.3.3/i-v2-codecs-crc": 12,
        "5.3.3/k-rolled": 3,
        "5.3.3/o-batch-queue": 8,
        "5.3.3/p-upgraded": 12,
    },
    "rabbitmq": {
        "3.10.8/a-small-clean": 40,
        "3.10.8/b-dirty-journal": 1,
        "3.10.8/b2-journal-replayed-twice": 1,
        "3.10.8/d-large-fanout": 1,
        "3.10.8/e-gc-combined": 2,
        "3.10.8/e2-gc-interrupted": 2,
        "3.10.8/e3-gc-interrupted-zero-extended": 2,
        "3.10.8/f-mixed-features": 10,
        "3.10.8/g1-v2-small-clean": 40,
        "3.10.8/g2-v2-large-dirty": 1,
    },
    # the members of a case, or its streams, in as many parts: a number is part of the name
    "quorum": {
        **_parts("quorum/3.8.9/a-quorum-mix-kill9", 5, 4),
        **_parts("quorum/3.10.8/a-quorum-mix-kill9", 6, 4),
        **_parts("quorum/3.10.8/b-quorum-long-kill9", 5, 1),
        **_parts("quorum/3.10.8/c-quorum-cursors-kill9", 5, 1),
        **_parts("quorum/4.0.5/a-quorum-mix-kill9", 6, 4),
        **_parts("quorum/4.0.5/b-quorum-long-clean", 5, 3),
        **_parts("quorum/4.3.6/a-quorum-mix-kill9", 6, 4),
        **_parts("quorum/4.3.6/b-quorum-mix-clean", 6, 4),
        **_parts("quorum/4.3.6/c-quorum-snapshots-kill9", 5, 4),
        **_parts("quorum/4.3.6/e-names-clean", 2, 8),
        **_parts("quorum/4.3.6/f-quorum-snapshots-clean", 5, 2),
        **_parts("quorum/4.3.6/g-quorum-rare-kill9", 4, 6),
        **_parts("streams/3.10.8-clean", 7, 3),
        **_parts("streams/4.0.5-killed", 7, 3),
        **_parts("streams/4.3.6-killed", 7, 3),
        **_parts("streams/4.3.6-names", 2, 3),
    },
}
SWEPT = 4  # every fourth image has one change to the bytes of one file, anywhere in the store, and nothing else
COMMAND = 3  # every third image on the average is given to a command,
ENGINE = 15  # every 15th is opened for writing
ARCHIVE = 30  # and every 30th is read from an archive


@dataclass(frozen=True)
class Image:
    """number: the seed. chance: for what is done with it."""

    family: str
    number: int
    store: str
    tree: Tree
    changes: list[str]
    chance: random.Random

    def __str__(self) -> str:
        return f"{self.family} image {self.number} of {self.store}: {'; '.join(self.changes)}"


class Images:
    """The images of one family, laid out below a directory in memory."""

    def __init__(self, family: str, place: Path) -> None:
        self.family = family
        self.place = place
        self.laid: dict[str, Laid] = {}
        self._golden: dict[str, Golden] = {}
        (place / "out").mkdir(parents=True)
        (place / "outside").write_bytes(b"not of this store\n" * 100)

    def store(self, name: str) -> Laid:
        if name not in self.laid:
            self.laid[name] = Laid(name, self.place)
        return self.laid[name]

    def golden(self, name: str) -> Golden:
        if name not in self._golden:
            laid = self.store(name)
            self._golden[name] = ORACLES[self.family].Golden.of(laid.root, laid.golden)
        return self._golden[name]

    @cached_property
    def names(self) -> tuple[list[str], list[int]]:
        weights = STORES[self.family]
        return list(weights), list(weights.values())

    def image(self, number: int) -> Image:
        """Return the image of a number."""
        chance = random.Random(f"{self.family} {number}")
        name = chance.choices(*self.names)[0]
        tree = self.store(name).golden
        if number % SWEPT == 0:
            image, changes = swept(tree, chance)
        else:
            image, changes = damage(tree, chance, str(self.place / "outside"))
        return Image(self.family, number, name, image, changes, chance)

    def check(self, image: Image) -> None:
        """Lay out an image and check all that must hold of it. The golden store is back afterwards."""
        laid = self.store(image.store)
        golden = self.golden(image.store)
        laid.lay(image.tree)
        try:
            ORACLES[self.family].judge(golden, image.tree, laid.root)
            self._use(image, laid, golden)
        except BaseException as error:
            error.add_note(str(image))
            raise
        finally:
            laid.lay(laid.golden)

    def _use(self, image: Image, laid: Laid, golden: Golden) -> None:
        chance, out = image.chance, self.place / "out"
        if chance.randrange(COMMAND) == 0:
            if isinstance(golden, rocketmq_oracle.Golden):
                run_command(rocketmq_command(golden, chance, laid.root, emptied(out)))
            elif isinstance(golden, rabbitmq_oracle.Golden):
                run_command(rabbitmq_command(golden, chance, laid.root, emptied(out)))
            else:
                run_command(quorum_command(golden, chance, laid.root, emptied(out)))
        if not isinstance(golden, quorum_oracle.Golden) and chance.randrange(ENGINE) == 0:
            copy = emptied(out) / "copy"
            write_tree(copy, image.tree)
            if isinstance(golden, rocketmq_oracle.Golden):
                open_rocketmq_engine(copy, laid.version, laid.options)
            else:
                open_rabbitmq_engine(copy, golden.names)
        if chance.randrange(ARCHIVE) == 0:
            self._read_archive(image, laid, emptied(out))
        emptied(out)

    def _read_archive(self, image: Image, laid: Laid, out: Path) -> None:
        """Read an image from an archive, which may be damaged, too: the same messages, or a sentence."""
        chance = image.chance
        suffix = chance.choice((".tar", ".tar.gz", ".zip"))
        plain = all(isinstance(node, File) for node in image.tree.values())
        archive = out / f"store{suffix}"
        if suffix == ".zip":
            with zipfile.ZipFile(archive, "w") as packed:
                for path, node in image.tree.items():
                    if isinstance(node, File) and path.isprintable():
                        packed.writestr(f"store/{path}", node.data + bytes(node.size - len(node.data)))
        else:
            with tarfile.open(archive, "w:gz" if suffix.endswith("gz") else "w") as packed:
                packed.add(laid.root, "store")
        damaged = chance.random() < 0.5
        if damaged:
            node = swept({"archive": File(archive.read_bytes(), 0, None)}, chance)[0]["archive"]
            assert isinstance(node, File)
            archive.write_bytes(node.data)
        read = ORACLES[self.family].read
        try:
            found = read(archive)[0]
        except MqstoreError as error:
            check_sentence(error)
            return
        except (rocketmq_oracle.WrongFamilyError, AssertionError):
            if damaged:
                return
            raise
        if plain and not damaged and suffix != ".zip":
            try:
                there = read(laid.root)[0]
            except NotAStoreError as refused:  # an archive may begin further down: its outer directories are left out
                sentence = str(refused)
                assert re.search(r"; (a store is|stores are) at ", sentence), sentence
                return
            assert len(found) == len(there), f"{len(found)} messages in the archive, and {len(there)} in the directory"


def swept(tree: Tree, chance: random.Random) -> tuple[Tree, list[str]]:
    """Return an image with one change: a byte changed, a sector of zeros, or a cut, at any place of the written files."""
    files = [path for path, node in tree.items() if isinstance(node, File) and node.data]
    path = chance.choices(files, [len(tree[each].data.rstrip(b"\0")) + 1 for each in files])[0]  # type: ignore[union-attr]
    node = tree[path]
    assert isinstance(node, File)
    data = bytearray(node.data)
    at = chance.randrange(len(data.rstrip(b"\0")) or len(data))
    match chance.choice(("flip", "flip", "zero", "cut")):
        case "flip":
            data[at] ^= chance.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
            told = f"byte {at} of {path} changed"
        case "zero":
            at -= at % SECTOR
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))
            told = f"zeros at {at} of {path}"
        case _:
            del data[at:]
            told = f"{path} cut to {at}"
    return {**tree, path: File(bytes(data), len(data), node.source)}, [told]


def keep(image: Image, place: Path) -> Path:
    """Write an image as a directory, for a person to look at. Returns it."""
    kept = place / f"{image.family}-{image.number}"
    shutil.rmtree(kept, ignore_errors=True)
    write_tree(kept, image.tree)
    return kept
