"""Golden stores in a memory file system, and damaged images laid out over them: only what an image changes is written, and put back."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from copy import copy
from pathlib import Path

from fuzz.damage import File, Folder, Link, Node, Pipe, Tree, folders
from support.archives import extract_all
from support.golden import GOLDEN, case_named, properties, unpack

SMALL = Path(__file__).parent / "stores"  # made by `make_stores`


def read_tree(root: Path) -> Tree:
    """Return the tree of a directory of plain files."""
    tree: Tree = {}
    for directory, names, files in os.walk(root):
        above = os.path.relpath(directory, root)
        prefix = "" if above == "." else f"{above}/"
        if not names and not files and prefix:
            tree[above] = Folder()
        for name in files:
            data = Path(directory, name).read_bytes()
            tree[prefix + name] = File(data, len(data), prefix + name)
    return dict(sorted(tree.items()))


class Laid:
    """A golden store as a directory, which holds the store itself or one image of it. options: its settings under the broker's names."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.root = place / name.replace("/", "-")
        if name.startswith("small/"):
            archive = SMALL / f"{name.removeprefix('small/')}.tar.xz"
            self.version = archive.name.partition("-")[0]
            self.options = properties(SMALL / archive.name.replace("tar.xz", "properties"))
            with tarfile.open(archive) as packed:
                extract_all(packed, self.root, "tar")
        elif name.startswith(("quorum/", "streams/")):
            self.version, self.options = "", {}
            unpack_part(name, self.root)
        else:
            case = case_named(name)
            self.version, self.options = case.version, case.properties
            unpack(case, self.root)
        if (self.root / "msg_stores").is_dir():
            self.root = self.root / "msg_stores"
        self.golden = read_tree(self.root)
        self._now = self.golden

    def lay(self, tree: Tree) -> None:
        """Make the directory hold this tree."""
        root = os.fspath(self.root)
        before, after = self._now, tree
        for path, node in before.items():
            if after.get(path) is not node and not isinstance(node, Folder):
                os.unlink(f"{root}/{path}")
        old, new = folders(before), folders(after)
        for path in sorted(old - new, reverse=True):
            os.rmdir(f"{root}/{path}")
        for path in sorted(new - old):
            os.mkdir(f"{root}/{path}")
        for path, node in after.items():
            if before.get(path) is not node:
                write_node(f"{root}/{path}", node)
        self._now = after

    def clear(self) -> None:
        """Put the golden store back, whatever a command has left here."""
        shutil.rmtree(self.root)
        write_tree(self.root, self.golden)
        self._now = self.golden


def unpack_part(name: str, root: Path) -> None:
    """Unpack some members of the quorum queues of a golden case, with the files that all share, or some of its streams.

    name: such as `quorum/4.3.6/e-names-clean/0:2`: every second one, from the first on.
    """
    kind, _, rest = name.partition("/")
    case, _, part = rest.rpartition("/")
    number, count = map(int, part.split(":"))
    with tarfile.open(GOLDEN / f"rabbitmq-{kind}" / case / "data.tar.xz") as packed:
        below = {"quorum": r"node/(quorum/[^/]+/[^/]+)(/.*)?", "streams": r"node/(stream/[^/]+)(/.*)?"}[kind]
        found = [(match[1], member) for member in packed if (match := re.fullmatch(below, member.name))]
        mine = sorted({place for place, member in found if member.isdir() and member.name == f"node/{place}"})
        chosen = {*mine[number::count], *(place for place, member in found if place not in mine)}
        for place, member in found:
            if place in chosen:
                renamed = copy(member)
                renamed.name = member.name.removeprefix("node/")
                extract_all(packed, root, "tar", [renamed])


def write_tree(root: Path, tree: Tree) -> None:
    """Write a tree into a new directory."""
    root.mkdir(parents=True)
    for path in sorted(folders(tree)):
        (root / path).mkdir()
    for path, node in tree.items():
        write_node(f"{root}/{path}", node)


def write_node(path: str, node: Node) -> None:
    match node:
        case File(data, size):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, data)
                if size > len(data):
                    os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        case Link(target):
            os.symlink(target, path)
        case Pipe():
            os.mkfifo(path)
        case Folder():
            pass
