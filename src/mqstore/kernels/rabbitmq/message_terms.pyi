from typing import Final

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

FAST: Final = 0
SLOW: Final = 1

STATUS: Final = 0
END: Final = 1
VHOST_START: Final = 2
VHOST_LENGTH: Final = 3
EXCHANGE_START: Final = 4
EXCHANGE_LENGTH: Final = 5
KEYS_START: Final = 6
KEYS_COUNT: Final = 7
PROPERTIES_START: Final = 8
PROPERTIES_LENGTH: Final = 9
PAYLOAD_START: Final = 10
PAYLOAD_COUNT: Final = 11
BODY_LENGTH: Final = 12
ID_START: Final = 13
PERSISTENT: Final = 14
ANNOTATIONS_START: Final = 15
NOTED: Final = 16
FIELD_COUNT: Final = 17

DECIDES: Final = 1
UNPROVED: Final = 2

PROPERTY_START: Final = 1
PROPERTY_LENGTH: Final = 2
PROPERTY_COUNT: Final = 14
PROPERTY_COLUMNS: Final = 29

def fields(b: _Bytes, start: _Longs, length: _Longs, out: _Longs) -> int: ...
def logged_fields(b: _Bytes, start: _Longs, length: _Longs, out: _Longs) -> int: ...
def listed(b: _Bytes, start: _Longs, count: _Longs, backwards: bool, starts: _Longs, lengths: _Longs) -> int: ...
def properties(b: _Bytes, start: _Longs, length: _Longs, out: _Longs) -> int: ...
def tables(b: _Bytes, start: _Longs, length: _Longs, out: NDArray[np.uint8]) -> None: ...
