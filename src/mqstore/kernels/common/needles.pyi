import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

def shift_table(needles: _Bytes, ends: _Longs, shifts: _Bytes) -> int: ...
def mark_spans(
    b: _Bytes,
    starts: _Longs,
    stops: _Longs,
    needles: _Bytes,
    ends: _Longs,
    shifts: _Bytes,
    window: int,
    marks: _Bytes,
) -> int: ...
