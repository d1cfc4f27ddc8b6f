from typing import Final

import numpy as np
from numpy.typing import NDArray

FULL: Final = -2

def get(table: NDArray[np.uint64], homes: int, salt: int, message_id: bytes) -> tuple[int, int] | None: ...
def count(table: NDArray[np.uint64], homes: int, salt: int, message_id: bytes, references: int) -> tuple[int, int] | None: ...
def add(table: NDArray[np.uint64], homes: int, salt: int, message_id: bytes, third: int, fourth: int) -> bool: ...
def stretch(table: NDArray[np.uint64], homes: int, salt: int) -> int: ...
def drop_unplaced(table: NDArray[np.uint64]) -> int: ...
def refer(
    table: NDArray[np.uint64], homes: int, salt: int, hi: NDArray[np.int64], lo: NDArray[np.int64], start: int, room: int
) -> tuple[int, int]: ...
def place(
    table: NDArray[np.uint64],
    homes: int,
    salt: int,
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    file: int,
    at: NDArray[np.int64],
    total: NDArray[np.int64],
    wanted: int,
) -> int: ...
def stands(
    table: NDArray[np.uint64],
    homes: int,
    salt: int,
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    file: int,
    at: NDArray[np.int64],
    result: NDArray[np.uint8],
) -> None: ...
def placed(
    table: NDArray[np.uint64], homes: int, salt: int, hi: NDArray[np.int64], lo: NDArray[np.int64], result: NDArray[np.uint8]
) -> None: ...
