import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

BUFFERS: int
NODES: int
SPANS: int

def sound(b: _Bytes, positions: _Longs, sizes: _Longs, out: _Longs) -> int: ...
def measure(b: _Bytes, fields: _Longs, spans: _Longs, nodes: _Longs, buffers: _Longs) -> int: ...
def fill(
    b: _Bytes,
    fields: _Longs,
    spans: _Longs,
    nodes: _Longs,
    buffers: _Longs,
    base: int,
    out: _Bytes,
    out32: NDArray[np.int32],
    out64: _Longs,
) -> None: ...
