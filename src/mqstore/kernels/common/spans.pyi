import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]
_Ints = NDArray[np.int32]

def copy_spans(b: _Bytes, starts: _Longs, lengths: _Longs, offsets: _Ints, out: _Bytes) -> bool: ...
