import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

def add_lengths(name_length: int, lengths: _Longs, room: _Longs) -> None: ...
def put_pairs(name: _Bytes, values: _Bytes, starts: _Longs, lengths: _Longs, cursors: _Longs, out: _Bytes) -> None: ...
def put_listed_pairs(
    rows: _Longs,
    names: _Bytes,
    name_starts: _Longs,
    name_lengths: _Longs,
    values: _Bytes,
    starts: _Longs,
    lengths: _Longs,
    cursors: _Longs,
    out: _Bytes,
) -> None: ...
