"""Losses of a crash: each state that a machine may leave if it dies right after an operation.

What a sync made durable survives; any part of the rest may be missing. These parts are tried:

    everything   all of it survives
    nothing      nothing survives, including names
    write        one write is missing, all else survives
    length       one change of a file's length is missing
    torn         the last write stops at a multiple of 512 bytes of its file; one that crosses none, at a byte within
                 (unless sectors are whole)
    page         one page of 4096 bytes with unsynced bytes is as of the last sync of its file
    file         one file, including its length, is as of its last sync
    name         one creation, rename or removal is missing, with what depends on it

    >>> from mqstore.files.recorder import Create, Sync
    >>> disk = Disk(None)
    >>> for number, operation in enumerate([Create("log", 0), Write("log", 0, b"one"), Sync("log"), Write("log", 3, b"two")]):
    ...     disk.apply(number, operation)
    >>> for loss in losses(disk, sample=1):
    ...     print(f"{loss}:", {path: file.content() for path, file in loss.tree(disk).files.items()})
    everything survives: {'log': b'onetwo'}
    nothing unsynced survives: {}
    Write log 3+3 (operation 4) missing: {'log': b'one'}
    Write log 3+3 torn after 2 bytes: {'log': b'onetw'}
    page 0 of log missing: {'log': b'one\\x00\\x00\\x00'}
    all that is unsynced of log missing: {'log': b'one'}
    Create log (operation 1) missing: {}

Not tried: several parts missing but not all; bytes of a sector that are neither old nor new; half a rename.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from mqstore.files.recorder import Create, Mark, Operation, Rename, Truncate, Write
from mqstore.testing.disk_model import PAGE, Disk, FileLayout, Inode, NameChange, Node, Page, Tree, directory_part, file_part

SECTOR = 512


class LossKind(StrEnum):
    EVERYTHING = "everything"
    NOTHING = "nothing"
    WRITE = "write"
    LENGTH = "length"
    TORN = "torn"
    PAGE = "page"
    FILE = "file"
    NAME = "name"


@dataclass(slots=True, eq=False)
class Loss:
    """A state, as a difference from the disk. Valid until the next operation is applied."""

    kind: LossKind

    def key(self, disk: Disk) -> int:
        return disk.lasting[0] if self.kind is LossKind.NOTHING else disk.key

    def tree(self, disk: Disk) -> Tree:
        return disk.lasting[1] if self.kind is LossKind.NOTHING else disk.tree()

    def __str__(self) -> str:
        return "nothing unsynced survives" if self.kind is LossKind.NOTHING else "everything survives"


@dataclass(slots=True, eq=False)
class FileLoss(Loss):
    """One file differs from what the program sees. pages: the differing ones (None: as of its last sync). at: page, or bytes written."""

    path: str
    inode: Inode
    size: int
    pages: dict[int, Page] | None
    number: int = -1
    change: Write | Truncate | None = None
    at: int = -1

    def key(self, disk: Disk) -> int:
        inode = self.inode
        if self.pages is None:
            total = inode.synced.total
        else:
            total = inode.total + sum(page.digest - inode.page(index).digest for index, page in self.pages.items())
        return disk.key - disk.part(self.path) + file_part(self.path, self.size, total)

    def tree(self, disk: Disk) -> Tree:
        tree = disk.tree()
        image, pages = (self.inode.synced, {}) if self.pages is None else (self.inode.image, dict(self.pages))
        tree.files[self.path] = FileLayout(image, self.size, pages)
        return tree

    def __str__(self) -> str:
        if self.kind is LossKind.PAGE:
            return f"page {self.at} of {self.path} missing"
        if self.change is None:
            return f"all that is unsynced of {self.path} missing"
        if self.kind is LossKind.TORN:
            return f"{describe_operation(self.change)} torn after {self.at} bytes"
        return f"{describe_operation(self.change)} (operation {self.number + 1}) missing"


@dataclass(slots=True, eq=False)
class NameLoss(Loss):
    """Some names differ from what the program sees."""

    change: NameChange
    gone: dict[str, Node]
    back: dict[str, Node]

    def key(self, disk: Disk) -> int:
        gone = sum(_part(path, node) for path, node in self.gone.items())
        back = sum(_part(path, node) for path, node in self.back.items())
        return disk.key - gone + back

    def tree(self, disk: Disk) -> Tree:
        tree = disk.tree()
        files = {path: file for path, file in tree.files.items() if path not in self.gone}
        directories = {path for path in tree.directories if path not in self.gone}
        for path, node in self.back.items():
            if isinstance(node, Inode):
                files[path] = node.laid()
            else:
                directories.add(path)
        return Tree(sorted(directories), files)

    def __str__(self) -> str:
        return f"{describe_operation(self.change.operation)} (operation {self.change.number + 1}) missing"


def _part(path: str, node: Node) -> int:
    return file_part(path, node.size, node.total) if isinstance(node, Inode) else directory_part(path)


def losses(disk: Disk, sample: int | None = 0) -> Iterator[Loss]:
    """Yield each state that a crash at this point may leave, in a fixed order. sample: selects the byte at which a short write is torn."""
    yield Loss(LossKind.EVERYTHING)
    yield Loss(LossKind.NOTHING)
    for path, inode in disk.files.items():
        for missing in inode.unsynced:
            kind = LossKind.WRITE if isinstance(missing.change, Write) else LossKind.LENGTH
            yield FileLoss(kind, path, inode, missing.size, missing.pages, missing.number, missing.change)
    if isinstance(disk.last, Write) and disk.last.data:
        yield from _torn(disk.last, disk.files[disk.last.path], sample)
    for path, inode in disk.files.items():
        for index in sorted(inode.touched):
            if index * PAGE < inode.size:
                yield FileLoss(LossKind.PAGE, path, inode, inode.size, {index: inode.synced.page(index).cut(inode.size)}, at=index)
    for path, inode in disk.files.items():
        if inode.unsynced:
            yield FileLoss(LossKind.FILE, path, inode, inode.synced.size, None)
    for change, gone, back in disk.without_names():
        yield NameLoss(LossKind.NAME, change, gone, back)


def _torn(last: Write, inode: Inode, sample: int | None) -> Iterator[Loss]:
    before = inode.unsynced[-1]
    length = len(last.data)
    within_one = [] if sample is None or length < 2 else [1 + sample % (length - 1)]
    cuts = range(SECTOR - last.offset % SECTOR, length, SECTOR) or within_one
    for cut in cuts:
        stop = last.offset + cut
        index, within = divmod(stop, PAGE)
        pages = {at: page for at, page in before.pages.items() if at >= index}
        if within:
            start = max(last.offset, index * PAGE)
            pages[index] = pages[index].patched(start - index * PAGE, last.data[start - last.offset : cut])
        yield FileLoss(LossKind.TORN, last.path, inode, max(before.size, stop), pages, before.number, last, at=cut)


def describe_operation(operation: Operation) -> str:
    """Describe an operation briefly, without its bytes."""
    kind = type(operation).__name__
    match operation:
        case Write(path, offset, octets):
            return f"{kind} {path} {offset}+{len(octets)}"
        case Create(path, size) | Truncate(path, size):
            return f"{kind} {path} size {size}" if size or kind == "Truncate" else f"{kind} {path}"
        case Rename(old, new):
            return f"{kind} {old} to {new}"
        case Mark(label, payload):
            return f"{kind} {label} {payload!r:.60}"
        case _:
            return f"{kind} {operation.path or '.'}"
