import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

def store_entries(b: _Bytes, at: _Longs, length: _Longs, to: _Bytes, to_at: _Longs) -> None: ...
def sound_entries(b: _Bytes, at: _Longs, length: _Longs, out: _Bytes) -> None: ...
def publishes(
    b: _Bytes,
    at: _Longs,
    length: _Longs,
    rel: _Longs,
    hi: _Longs,
    lo: _Longs,
    expiry: _Longs,
    size: _Longs,
    to: _Bytes,
    to_at: _Longs,
) -> None: ...
