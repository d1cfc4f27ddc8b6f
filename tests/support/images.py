"""Images for tests of carving: golden stores of both brokers cut into fragments, scattered in noise."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from support.golden import GoldenCase, opened


def noise_of(rng: random.Random, most: int) -> bytes:
    return np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, rng.randrange(most), np.uint8).tobytes()


def files_of(cases: Iterable[GoldenCase], below: str = "") -> list[Path]:
    """Return the files of stores in order, of one of their directories if it is named."""
    return [path for case in cases for path in sorted((opened(case) / below).rglob("*")) if path.is_file() and not path.is_symlink()]


def shuffled_image(files: list[Path], seed: int) -> bytes:
    """Return the files in random order, between noise and zeros."""
    rng = random.Random(seed)
    order = list(files)
    rng.shuffle(order)
    parts = []
    for path in order:
        parts += [noise_of(rng, 5000), bytes(rng.randrange(5000)), path.read_bytes()]
    return b"".join([*parts, noise_of(rng, 5000)])


def fragments(raw: bytes, rng: random.Random, pieces: int) -> list[tuple[int, bytes]]:
    """Return pieces of a file, cut at random places, with their positions in it."""
    cuts = sorted({0, len(raw), *(rng.randrange(len(raw)) for _ in range(pieces - 1))}) if raw else [0]
    return [(low, raw[low:high]) for low, high in pairwise(cuts)]
