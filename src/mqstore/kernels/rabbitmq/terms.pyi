from typing import Final

import numpy as np
from numpy.typing import NDArray

TERM: Final = 1
MESSAGE: Final = 2
SAME_ID: Final = 4
PERSISTENT: Final = 8
PACKED: Final = 16
CONTAINER: Final = 32

def end(b: NDArray[np.uint8], p: int, limit: int) -> int: ...
def shapes(
    b: NDArray[np.uint8],
    at: NDArray[np.int64],
    length: NDArray[np.int64],
    hi: NDArray[np.int64],
    lo: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None: ...
