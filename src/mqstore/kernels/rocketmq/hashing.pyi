from typing import Final

import numpy as np
from numpy.typing import NDArray

MALFORMED: Final[int]

def hash_bytes(b: NDArray[np.uint8] | memoryview, seed: int = 0) -> int: ...
def hash_spans(b: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.int64]) -> None: ...
