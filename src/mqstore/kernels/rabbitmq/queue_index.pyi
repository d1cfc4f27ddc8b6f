from typing import Final

import numpy as np
from numpy.typing import NDArray

DONE: Final = 0
ZEROS: Final = 1
TORN: Final = 2
BAD: Final = 3
FULL: Final = 4

P: Final = 1
D: Final = 2
A: Final = 4
REMOVED: Final = 8
CRASH: Final = 16
REPEATED: Final = 32
ACTIONS: Final = 7
FLAWS: Final = 48

def journal_walk(
    b: NDArray[np.uint8], start: int, kind: NDArray[np.uint8], seq: NDArray[np.int64], at: NDArray[np.int64]
) -> tuple[int, int, int]: ...
def journal_resume(b: NDArray[np.uint8], start: int) -> int: ...
def publish_fields(
    b: NDArray[np.uint8],
    at: NDArray[np.int64],
    fixed: int,
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    expiry: NDArray[np.int64],
    size: NDArray[np.int64],
    embedded: NDArray[np.int64],
) -> None: ...
def segment_walk(b: NDArray[np.uint8], start: int, count: int, state: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[int, int, int]: ...
def segment_resume(b: NDArray[np.uint8], start: int, count: int) -> int: ...
def fold(
    order: NDArray[np.int64],
    kind: NDArray[np.uint8],
    seq: NDArray[np.int64],
    first: NDArray[np.int64],
    state: NDArray[np.uint8],
    publish: NDArray[np.int64],
    repeat: NDArray[np.int64],
    bad: NDArray[np.int64],
) -> int: ...
