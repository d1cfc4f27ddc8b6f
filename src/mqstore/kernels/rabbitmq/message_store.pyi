from typing import Final

import numpy as np
from numpy.typing import NDArray

MARKED: Final = 1
PROVED: Final = 2
RESIZED: Final = 4

BARE: Final = 0
RECORD: Final = 1
ENTRY: Final = 2
DAMAGED_ENTRY: Final = 3

def strict_scan(b: NDArray[np.uint8], start: int, at: NDArray[np.int64], total: NDArray[np.int64]) -> tuple[int, int]: ...
def resynchronising_scan(
    b: NDArray[np.uint8], start: int, stop: int, at: NDArray[np.int64], total: NDArray[np.int64]
) -> tuple[int, int]: ...
def careful_scan(
    b: NDArray[np.uint8], start: int, stop: int, at: NDArray[np.int64], total: NDArray[np.int64], quality: NDArray[np.uint8]
) -> tuple[int, int, bool]: ...
def stored_messages(
    b: NDArray[np.uint8], start: int, stop: int, at: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[int, int, bool]: ...
def carve(b: NDArray[np.uint8], start: int, stop: int, more: bool, out: NDArray[np.int64], effort: int) -> tuple[int, int, bool, int]: ...
def record_ids(b: NDArray[np.uint8], at: NDArray[np.int64], hi: NDArray[np.int64], lo: NDArray[np.int64]) -> None: ...
def find_ids(
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    wanted_hi: NDArray[np.int64],
    wanted_lo: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None: ...
