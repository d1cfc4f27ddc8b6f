from typing import Final

import numpy as np
from numpy.typing import NDArray

RECORDS: Final = 0
KEYS: Final = 1
GROUPS: Final = 2
SPECIALS: Final = 3
COUNTER_COUNT: Final = 4
DONE: Final = 0
KEYS_FULL: Final = 1
GROUPS_FULL: Final = 2
NO_GROUP: Final = -1

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]
_Ints = NDArray[np.int32]

def dispatch(
    b: _Bytes,
    positions: _Longs,
    counters: _Longs,
    entries: _Bytes,
    group: _Ints,
    queue_offset: _Longs,
    store_timestamp: _Longs,
    keys: _Bytes,
    special: _Longs,
    table: _Ints,
    group_topic: _Longs,
    group_length: _Longs,
    group_queue: _Ints,
    index_tags: bool,
) -> int: ...
def sort_by_group(
    entries: _Bytes,
    group: _Ints,
    queue_offset: _Longs,
    first: _Longs,
    count: _Longs,
    plain: _Bytes,
    start: _Longs,
    out: _Bytes,
) -> int: ...
def enter_groups(b: _Bytes, table: _Ints, group_topic: _Longs, group_length: _Longs, group_queue: _Ints, count: int) -> None: ...
