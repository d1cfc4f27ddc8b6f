from typing import Final

import numpy as np
from numpy.typing import NDArray

VALID: Final = 0
STOP: Final = 0
FULL: Final = 1
BLANK: Final = 2
UNWRITTEN: Final = 3
BAD_MAGIC: Final = 4
BAD_SIZE: Final = 5
BAD_LENGTHS: Final = 6
BAD_OFFSET: Final = 7

SIZE: Final = 0
BODY_CRC: Final = 1
QUEUE_ID: Final = 2
FLAG: Final = 3
QUEUE_OFFSET: Final = 4
PHYSICAL_OFFSET: Final = 5
SYS_FLAG: Final = 6
BORN_TIMESTAMP: Final = 7
BORN_HOST: Final = 8
STORE_TIMESTAMP: Final = 9
STORE_HOST: Final = 10
RECONSUME_TIMES: Final = 11
PREPARED_TRANSACTION_OFFSET: Final = 12
BODY_START: Final = 13
BODY_LENGTH: Final = 14
TOPIC_START: Final = 15
TOPIC_LENGTH: Final = 16
PROPERTIES_START: Final = 17
PROPERTIES_LENGTH: Final = 18
FIELD_COUNT: Final = 19

ENTRY_HEADER_SIZE: Final = 48

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

def status_at(b: _Bytes, p: int, base: int, strict: bool) -> int: ...
def are_valid(b: _Bytes, positions: _Longs, base: int, out: _Bytes) -> None: ...
def first_record(b: _Bytes, start: int, stop: int, base: int) -> int: ...
def carve(b: _Bytes, start: int, stop: int, more: bool = False) -> int: ...
def walk(b: _Bytes, start: int, stop: int, base: int, strict: bool, positions: _Longs) -> tuple[int, int, int]: ...
def entry_status_at(b: _Bytes, p: int, base: int) -> int: ...
def walk_entries(b: _Bytes, start: int, stop: int, base: int, positions: _Longs) -> tuple[int, int, int]: ...
def fields(b: _Bytes, positions: _Longs, out: _Longs) -> None: ...
def physical_offsets(b: _Bytes, positions: _Longs, out: _Longs) -> bool: ...
