import numpy as np
from numpy.typing import NDArray

TERM: int
MESSAGE: int
SAME_ID: int
PERSISTENT: int
PACKED: int
CONTAINER: int

def end(b: NDArray[np.uint8], p: int, limit: int) -> int: ...
def shapes(
    b: NDArray[np.uint8],
    at: NDArray[np.int64],
    length: NDArray[np.int64],
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None: ...
