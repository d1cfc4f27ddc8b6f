import numpy as np
from numpy.typing import NDArray

def plausible_until(b: NDArray[np.uint8], first: int, below: int) -> int: ...
