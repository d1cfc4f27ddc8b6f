"""Changes to the files of a store that the provers of both brokers make."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

Change = Callable[[Path, random.Random], None]


def one_file(store: Path, pattern: str, dice: random.Random) -> Path | None:
    """Return one of the files of a store that have a content, or None if there is none."""
    paths = [path for path in sorted(store.glob(pattern)) if path.is_file() and path.stat().st_size]
    return dice.choice(paths) if paths else None


def swapped(pattern: str) -> Change:
    """Return a change that gives two files the content of each other."""

    def change(store: Path, dice: random.Random) -> None:
        one, other = one_file(store, pattern, dice), one_file(store, pattern, dice)
        if one is not None and other is not None:
            first, second = one.read_bytes(), other.read_bytes()
            one.write_bytes(second)
            other.write_bytes(first)

    return change


def circled(pattern: str) -> Change:
    """Return a change that gives three files of one size, or two, the content of each other."""

    def change(store: Path, dice: random.Random) -> None:
        one = one_file(store, pattern, dice)
        if one is not None:
            size = one.stat().st_size
            alike = [path for path in sorted(store.glob(pattern)) if path.is_file() and path.stat().st_size == size and path != one]
            files = [one, *dice.sample(alike, min(2, len(alike)))]
            contents = [path.read_bytes() for path in files]
            for path, content in zip(files, [*contents[1:], contents[0]], strict=True):
                path.write_bytes(content)

    return change
