from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def write_all(descriptors: Sequence[int], offsets: Sequence[int], buffers: Sequence[NDArray[np.uint8]]) -> tuple[int, int]: ...
