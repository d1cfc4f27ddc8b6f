"""Damaged images: a golden store with several of its files, links and directories changed at once, drawn from a seed.

An image is a tree in memory: a node for each path. The changes are of two kinds, mixed at will: those to the bytes of a file (a bit, a
number, a sector, a range; cut, grown, shifted, with a hole), and those to the tree (files and directories swapped, renamed, duplicated,
removed, moved elsewhere, replaced by a directory, a link, or a pipe).

    >>> tree = {"log/0": File(b"abc", 3, "log/0"), "log/3": File(b"def", 3, "log/3")}
    >>> changed, changes = damage(tree, random.Random(7))
    >>> changed == tree, damage(tree, random.Random(7)) == (changed, changes)
    (False, True)
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass

SECTOR = 512
PAGE = 4096
LARGEST_HOLE = 64 << 20

NUMBERS = (0, 1, -1, 2, 7, 255, 0x7FFF, 0x8000, 0x7FFFFFFF, -0x80000000, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000, 1 << 32, 1 << 40)
NAMES = ("notes.txt", ".hidden", "a\nb", "\x1b[31mred", "\udce9t\udce9", "0", "-1", "9" * 20, "0" * 20, "x" * 200)
SUFFIXES = (".bak", ".tmp", ".1", "~", ".gz", "x")


@dataclass(frozen=True, slots=True)
class File:
    """size: with the hole at the end. source: the file of the golden store that the bytes come from, if any."""

    data: bytes
    size: int
    source: str | None


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, slots=True)
class Pipe:
    pass


@dataclass(frozen=True, slots=True)
class Folder:
    """An empty directory."""


Node = File | Link | Pipe | Folder
Tree = dict[str, Node]


def folders(tree: Tree) -> set[str]:
    """Return every directory of a tree."""
    found = set()
    for path, node in tree.items():
        above = path if isinstance(node, Folder) else path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


def resolve(tree: Tree, path: str) -> File | None:
    """Return the file that a path leads to, through links in the tree.

    >>> made = {"a": Link("b/c"), "b/c": Link("d"), "b/d/e": File(b"", 0, None), "loop": Link("loop")}
    >>> resolve(made, "a/e"), resolve(made, "loop"), resolve(made, "b/c/../d/e")
    (File(data=b'', size=0, source=None), None, File(data=b'', size=0, source=None))
    """
    names, at = path.split("/"), ""
    for _ in range(100):
        if not names:
            found = tree.get(at)
            return found if isinstance(found, File) else None
        at = os.path.normpath(f"{at}/{names.pop(0)}").lstrip("/")
        node = tree.get(at)
        if isinstance(node, Link):
            names = [*node.target.split("/"), *names]
            if node.target.startswith("/"):
                return None
            at = at.rpartition("/")[0]
    return None


class _Damage:
    """The changes in progress. Each method makes one and returns its description; None: it cannot be made to this tree."""

    def __init__(self, tree: Tree, chance: random.Random, outside: str) -> None:
        self.tree = dict(tree)
        self.chance = chance
        self.outside = outside

    # choosing

    def file(self) -> str | None:
        """Choose a file: first the directory, so that a directory of many small files is not hit more often than the log."""
        by_folder: dict[str, list[str]] = {}
        for path, node in self.tree.items():
            if isinstance(node, File):
                by_folder.setdefault(path.rpartition("/")[0], []).append(path)
        if not by_folder:
            return None
        return self.chance.choice(by_folder[self.chance.choice(sorted(by_folder))])

    def folder(self) -> str | None:
        found = sorted(folders(self.tree))
        return self.chance.choice(found) if found else None

    def other(self, path: str) -> str | None:
        """Choose a second file: mostly one of the same kind."""
        files = [other for other, node in self.tree.items() if isinstance(node, File) and other != path]
        above, _, name = path.rpartition("/")
        suffix = os.path.splitext(name)[1]
        alike = [other for other in files if other.rpartition("/")[0] == above]
        same = [other for other in files if suffix and other.endswith(suffix)]
        for wanted in self.chance.sample([alike, same], 2):
            if wanted and self.chance.random() < 0.6:
                return self.chance.choice(wanted)
        return self.chance.choice(files) if files else None

    def new_name(self, path: str) -> str:
        """Choose a name beside a path: that of a neighbour, with a suffix, or a strange one."""
        above, slash, name = path.rpartition("/")
        roll = self.chance.random()
        stem, suffix = os.path.splitext(name)
        if stem.isdigit() and roll < 0.5:
            number = int(stem)
            size = getattr(self.tree.get(path), "size", 1) or 1
            step = self.chance.choice((1, -1, size, -size, 2 * size, 1 << 32))
            name = f"{max(0, number + step):0{len(stem)}d}{suffix}"
        elif roll < 0.75:
            name += self.chance.choice(SUFFIXES)
        elif roll < 0.85 and len(name) > 20:
            at = self.chance.randrange(len(name))
            name = f"{name[:at]}{self.chance.choice('0123456789ABCDEFGHIJ')}{name[at + 1 :]}"
        else:
            name = self.chance.choice(NAMES)
        return f"{above}{slash}{name}"

    # trees

    def below(self, path: str) -> list[str]:
        return [other for other in self.tree if other == path or other.startswith(f"{path}/")]

    def take(self, path: str) -> Tree:
        """Remove what is at a path, with everything below it."""
        return {other[len(path) :]: self.tree.pop(other) for other in self.below(path)}

    def put(self, path: str, taken: Tree) -> None:
        """Put nodes at a path, in place of what is there, and of a file that one of its directories would have been."""
        self.take(path)
        above = path.rpartition("/")[0]
        while above:
            self.tree.pop(above, None)
            above = above.rpartition("/")[0]
        self.tree.update({path + rest: node for rest, node in taken.items()})

    def keep_folder(self, path: str) -> None:
        """Keep a directory that has lost its last entry."""
        above = path.rpartition("/")[0]
        if above and above not in folders(self.tree):
            self.put(above, {"": Folder()})

    # changes of bytes

    def _change(self, change: Callable[[bytearray], str | None]) -> str | None:
        path = self.file()
        if path is None:
            return None
        node = self.tree[path]
        assert isinstance(node, File)
        data = bytearray(node.data)
        done = change(data)
        if done is None or data == node.data:
            return None
        self.tree[path] = File(bytes(data), max(len(data), node.size if len(data) >= len(node.data) else 0), node.source)
        return f"{done} of {path}"

    def _place(self, data: bytearray) -> int:
        """Choose a position: often near the start, where headers are, and not in the unwritten rest."""
        written = len(data.rstrip(b"\0")) or len(data)
        roll = self.chance.random()
        if roll < 0.2:
            return self.chance.randrange(min(written, 128))
        return self.chance.randrange(written if roll < 0.9 else len(data))

    def flip(self) -> str | None:
        def change(data: bytearray) -> str | None:
            if not data:
                return None
            places = [self._place(data) for _ in range(self.chance.choice((1, 1, 1, 2, 8, 40)))]
            for at in places:
                data[at] ^= self.chance.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
            return f"flip bytes {sorted(places)[:3]}"

        return self._change(change)

    def number(self) -> str | None:
        def change(data: bytearray) -> str | None:
            width = self.chance.choice((1, 2, 4, 4, 8))
            if len(data) < width:
                return None
            at = min(self._place(data), len(data) - width)
            if self.chance.random() < 0.6:
                at -= at % width
            value = self.chance.choice((*NUMBERS, len(data), len(data) + 1, self.chance.getrandbits(63)))
            order = "big" if self.chance.random() < 0.7 else "little"
            data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, order)  # type: ignore[arg-type]
            return f"number {value} in {width} bytes at {at}"

        return self._change(change)

    def _range(self, data: bytearray) -> tuple[int, int]:
        size = self.chance.choice((1, 8, 20, 64, SECTOR, SECTOR, PAGE, max(1, len(data) // 3)))
        at = self._place(data)
        if self.chance.random() < 0.5:
            at -= at % SECTOR
        return at, min(len(data), at + size)

    def overwrite(self) -> str | None:
        def change(data: bytearray) -> str | None:
            if not data:
                return None
            start, stop = self._range(data)
            kind = self.chance.choice(("zeros", "zeros", "ones", "noise", "another part", "another file"))
            count = stop - start
            match kind:
                case "zeros":
                    new = bytes(count)
                case "ones":
                    new = b"\xff" * count
                case "noise":
                    new = self.chance.randbytes(count)
                case "another part":
                    at = self.chance.randrange(len(data))
                    new = bytes(data[at : at + count])
                case _:
                    other = self.tree[self.file() or ""]
                    assert isinstance(other, File)
                    at = self.chance.randrange(len(other.data) or 1)
                    new = other.data[at : at + count]
            data[start : start + len(new)] = new
            return f"{kind} at {start} to {start + len(new)}"

        return self._change(change)

    def cut(self) -> str | None:
        def change(data: bytearray) -> str | None:
            if not data:
                return None
            some, other, sectors = self._place(data), self._place(data), len(data) // SECTOR * SECTOR
            size = self.chance.choice((0, some, other, len(data) // 2, len(data) - 1, sectors))
            del data[size:]
            return f"cut to {size}"

        return self._change(change)

    def grow(self) -> str | None:
        def change(data: bytearray) -> str | None:
            count = self.chance.choice((1, 8, 20, SECTOR, PAGE, len(data)))
            kind = self.chance.choice(("zeros", "noise", "itself"))
            if kind == "itself":
                data += bytes(data)
            else:
                data += bytes(count) if kind == "zeros" else self.chance.randbytes(count)
            return f"grown to {len(data)} with {kind}"

        return self._change(change)

    def shift(self) -> str | None:
        def change(data: bytearray) -> str | None:
            if not data:
                return None
            at = self._place(data)
            count = self.chance.choice((1, 2, 8, 20, SECTOR))
            if self.chance.random() < 0.5:
                del data[at : at + count]
                return f"{count} bytes missing at {at}"
            data[at:at] = self.chance.randbytes(count)
            return f"{count} bytes too many at {at}"

        return self._change(change)

    def hole(self) -> str | None:
        """A file grown by a hole, small or large."""
        path = self.file()
        if path is None:
            return None
        node = self.tree[path]
        assert isinstance(node, File)
        size = node.size + self.chance.choice((1, PAGE, 1 << 16, 1 << 20, 1 << 20, LARGEST_HOLE))
        self.tree[path] = File(node.data, size, node.source)
        return f"hole to {size} at the end of {path}"

    # changes of the tree

    def swap(self) -> str | None:
        path = self.file()
        other = self.other(path) if path is not None else None
        if path is None or other is None:
            return None
        self.tree[path], self.tree[other] = self.tree[other], self.tree[path]
        return f"swap {path} and {other}"

    def swap_folders(self) -> str | None:
        path, other = self.folder(), self.folder()
        if path is None or other is None or f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
            return None
        one, two = self.take(path), self.take(other)
        self.put(path, two)
        self.put(other, one)
        return f"swap {path} and {other}"

    def _any(self) -> str | None:
        return self.folder() if self.chance.random() < 0.2 else self.file()

    def rename(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        name = self.new_name(path)
        taken = self.take(path)
        self.put(name, taken)
        return f"rename {path} to {name}"

    def duplicate(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        name = self.new_name(path)
        copy = {rest.removeprefix(path): self.tree[rest] for rest in self.below(path)}
        self.put(name, copy)
        return f"duplicate {path} as {name}"

    def onto(self) -> str | None:
        path = self.file()
        other = self.other(path) if path is not None else None
        if path is None or other is None:
            return None
        self.tree[other] = self.tree[path]
        return f"copy {path} over {other}"

    def move(self) -> str | None:
        path, folder = self._any(), self.folder()
        if path is None or folder is None or f"{folder}/".startswith(f"{path}/"):
            return None
        name = f"{folder}/{path.rpartition('/')[2]}"
        self.put(name, self.take(path))
        self.keep_folder(path)
        return f"move {path} to {folder}"

    def remove(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        self.take(path)
        if self.chance.random() < 0.7:
            self.keep_folder(path)
        return f"remove {path}"

    def empty(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        self.put(path, {"": File(b"", 0, None)})
        return f"an empty file in place of {path}"

    def directory(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        if self.chance.random() < 0.5:
            self.put(path, {"": Folder()})
            return f"an empty directory in place of {path}"
        taken = self.take(path)
        self.put(f"{path}/{path.rpartition('/')[2]}", taken)
        return f"{path} in a directory of its own name"

    def pipe(self) -> str | None:
        path = self._any()
        if path is None:
            return None
        self.put(path, {"": Pipe()})
        return f"a pipe in place of {path}"

    def link(self) -> str | None:
        """A link in place of a file or directory: to what was there, to another one, to itself, upwards, out of the store, nowhere."""
        path = self._any()
        if path is None:
            return None
        name = path.rpartition("/")[2]
        match self.chance.randrange(6):
            case 0:
                self.put(f"{path}.real", self.take(path))
                target = f"{name}.real"
            case 1:
                other = self.other(path) or path
                target = os.path.relpath(other, path.rpartition("/")[0] or ".")
            case 2:
                target = name
            case 3:
                target = self.chance.choice(("..", "."))
            case 4:
                target = self.outside
            case _:
                target = "nowhere"
        self.put(path, {"": Link(target)})
        return f"a link to {target} in place of {path}"

    def stray(self) -> str | None:
        folder = self.folder()
        if folder is None:
            return None
        name = f"{folder}/{self.chance.choice(NAMES)}"
        node: Node = self.chance.choice((File(b"", 0, None), File(self.chance.randbytes(700), 700, None), Folder(), Pipe()))
        self.put(name, {"": node})
        return f"a new {type(node).__name__.lower()} {name}"

    def one(self) -> str | None:
        """Make one change."""
        bytes_of = (self.flip, self.flip, self.number, self.number, self.overwrite, self.overwrite, self.cut, self.grow, self.shift)
        files = (self.swap, self.rename, self.duplicate, self.onto, self.move, self.remove, self.empty, self.hole)
        kinds = (self.directory, self.pipe, self.link, self.stray, self.swap_folders)
        group = self.chance.choices((bytes_of, files, kinds), (50, 35, 15))[0]
        return self.chance.choice(group)()


def damage(tree: Tree, chance: random.Random, outside: str = "/etc/hostname", only: str | None = None) -> tuple[Tree, list[str]]:
    """Return a damaged image of a tree and the changes, one to eight of them. outside: what a link out of the store points to."""
    made = _Damage(tree, chance, outside)
    count = chance.choice((1, 1, 2, 2, 3, 4, 6, 8))
    changes: list[str] = []
    for _ in range(100):
        change = made.one() if only is None else getattr(made, only)()
        if change is not None:
            changes.append(change)
        if len(changes) == count:
            break
    return made.tree, changes
