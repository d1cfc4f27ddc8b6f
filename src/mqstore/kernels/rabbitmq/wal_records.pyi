from typing import Final

import numpy as np
from numpy.typing import NDArray

MEMBER: Final = 0
INDEX: Final = 1
TERM: Final = 2
START: Final = 3
POSITION: Final = 4
LENGTH: Final = 5
TRUNCATES: Final = 6
VALID: Final = 7
RECORD_COLUMNS: Final = 8

def walk(b: NDArray[np.uint8], start: int, members: NDArray[np.int64], out: NDArray[np.int64]) -> tuple[int, int]: ...
