from typing import Final

import numpy as np
from numpy.typing import NDArray

OTHER: Final = 0
PUBLISH: Final = 1
SETTLE: Final = 2

KIND: Final = 0
TS: Final = 1
SEQ: Final = 2
META: Final = 3
BODY: Final = 4
TTL: Final = 5
PRIORITY: Final = 6
COUNT: Final = 7
KEY_START: Final = 8
KEY_LENGTH: Final = 9
IDS_START: Final = 10
IDS_COUNT: Final = 11
COLUMNS: Final = 12

CREDIT: Final = 0
NEXT_ID: Final = 1
LOW_ID: Final = 2
PLACE: Final = 3
CONSUMER_COLUMNS: Final = 4

LEFT: Final = 0
HOLDER: Final = 1
ID: Final = 2
GIVEN: Final = 3
MESSAGE_COLUMNS: Final = 4

NOTHING: Final = -1

def commands(b: NDArray[np.uint8], at: NDArray[np.int64], length: NDArray[np.int64], out: NDArray[np.int64]) -> None: ...
def message_ids(b: NDArray[np.uint8], columns: NDArray[np.int64], out: NDArray[np.int64]) -> int: ...
def deliver(
    who: NDArray[np.int64],
    first: NDArray[np.int64],
    count: NDArray[np.int64],
    ids: NDArray[np.int64],
    consumers: NDArray[np.int64],
    where: NDArray[np.int64],
    turns: NDArray[np.int64],
    waiting: int,
    messages: NDArray[np.int64],
    head: int,
    tail: int,
) -> tuple[int, int, int]: ...
