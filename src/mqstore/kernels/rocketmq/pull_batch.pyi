from typing import Any

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

class BatchHead:
    raw: Any
    rows: int
    body_length: int
    nodes: int
    buffers: int
    def __init__(self, raw: _Bytes, rows: int, body_length: int, nodes: int, buffers: int) -> None: ...

def write_batch(b: _Bytes | memoryview, start: int, rows: bytes, head: BatchHead) -> Any: ...
def valid_positions(b: _Bytes, positions: _Longs, sizes: _Longs, out: _Longs) -> int: ...
