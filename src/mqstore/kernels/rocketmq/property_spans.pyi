from typing import Final

import numpy as np
from numpy.typing import NDArray

TAGS_START: Final = 0
TAGS_LENGTH: Final = 1
KEYS_START: Final = 2
KEYS_LENGTH: Final = 3
UNIQ_KEY_START: Final = 4
UNIQ_KEY_LENGTH: Final = 5
KNOWN_ROW_COUNT: Final = 6

NAME_START: Final = 0
NAME_LENGTH: Final = 1
VALUE_START: Final = 2
VALUE_LENGTH: Final = 3
PAIR_ROW_COUNT: Final = 4

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]
_Ints = NDArray[np.int32]

def known_properties(b: _Bytes, starts: _Longs, lengths: _Longs, out: _Longs) -> None: ...
def count_pairs(b: _Bytes, starts: _Longs, lengths: _Longs, out: _Ints) -> int: ...
def pair_spans(b: _Bytes, starts: _Longs, lengths: _Longs, out: _Longs) -> int: ...
def checksum_tails(b: _Bytes, ends: _Longs, lengths: _Longs, out: _Bytes) -> None: ...
def has_equal_names(counts: _Ints, hashes: _Longs) -> bool: ...
def irregular_texts(b: _Bytes, starts: _Longs, lengths: _Longs, out: _Bytes) -> None: ...
