from typing import Final

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

AT: Final = 0
KIND: Final = 1
ENTRIES: Final = 2
RECORDS: Final = 3
TIMESTAMP: Final = 4
EPOCH: Final = 5
ID: Final = 6
DATA_SIZE: Final = 7
TRAILER_SIZE: Final = 8
FILTER_SIZE: Final = 9
STATE: Final = 10
CHUNK_COLUMNS: Final = 11

INTACT: Final = 1
BAD_DATA: Final = 2
BAD_HEADER: Final = 3

DONE: Final = 0
FULL: Final = 1
TORN: Final = 2
NOT_A_CHUNK: Final = 3
CUT_TRAILER: Final = 4

CHUNK: Final = 0
CONTENT: Final = 1
LENGTH: Final = 2
CODEC: Final = 3
RECORD_COUNT: Final = 4
PLAIN_SIZE: Final = 5
FIRST: Final = 6
ENTRY_COLUMNS: Final = 7

def walk(b: _Bytes, start: int, stop: int, out: _Longs) -> tuple[int, int, int]: ...
def resume(b: _Bytes, start: int, low: int, high: int, effort: int) -> tuple[int, int]: ...
def entries(b: _Bytes, at: _Longs, length: _Longs, out: _Longs) -> int: ...
def records(b: _Bytes, start: int, stop: int, at: _Longs, length: _Longs) -> tuple[int, int]: ...
def kind_of(b: _Bytes, start: int) -> int: ...
def effort_for(size: int) -> int: ...
