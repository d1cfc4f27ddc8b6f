from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

SCAN_CONSUMED: Final = 0
SCAN_EXAMINED: Final = 1
SCAN_BYTES: Final = 2
SCAN_LOWEST: Final = 3
SCAN_END: Final = 4
SCAN_HEADER: Final = 5
MAX_MAPS: Final = 96

class _File(Protocol):
    mapped_bytes: MappedBytes | None

class MappedBytes:
    view: memoryview | None
    def __init__(self, view: memoryview) -> None: ...
    def release(self) -> None: ...

class PullResult:
    status: Any
    next_begin_offset: int
    min_offset: int
    max_offset: int
    total_bytes: int
    message_count: int
    suggest_pulling_from_slave: bool
    rows: bytes | None
    view: memoryview | None
    start: int
    def __init__(
        self,
        status: object,
        next_begin_offset: int,
        min_offset: int,
        max_offset: int,
        slices: list[memoryview] | None = None,
        queue_offsets: list[int] | None = None,
        physical_offsets: list[int] | None = None,
        sizes: list[int] | None = None,
        total_bytes: int = 0,
        message_count: int = 0,
        suggest_pulling_from_slave: bool = False,
    ) -> None: ...
    def set_rows(self, rows: bytes, start: int, view: memoryview) -> None: ...
    @property
    def slices(self) -> list[memoryview]: ...
    @property
    def queue_offsets(self) -> list[int]: ...
    @property
    def physical_offsets(self) -> list[int]: ...
    @property
    def sizes(self) -> list[int]: ...

class Limits:
    goes_on_to_next_file: bool
    in_memory_bytes: int
    travel_files: int
    max_filter_bytes: int
    count_in_memory: int
    bytes_in_memory: int
    count_on_disk: int
    bytes_on_disk: int
    def __init__(
        self,
        *,
        goes_on_to_next_file: bool,
        in_memory_bytes: int,
        travel_files: int,
        max_filter_bytes: int,
        count_in_memory: int,
        bytes_in_memory: int,
        count_on_disk: int,
        bytes_on_disk: int,
    ) -> None: ...
    @property
    def room(self) -> int: ...

def scan(
    b: NDArray[np.uint8],
    first: int,
    stop: int,
    offset: int,
    max_count: int,
    log_max: int,
    limits: Limits,
    out: NDArray[np.int64],
    hashes: NDArray[np.int32] | None = None,
) -> int: ...

class PullPath:
    def __init__(
        self,
        result: type[PullResult],
        found: object,
        unmatched: object,
        queues: Mapping[tuple[str, int, bool], Any],
        log: object,
        limits: Limits,
    ) -> None: ...
    def hold(self, file: _File, view: memoryview) -> None: ...
    def close(self) -> None: ...
    def get(self, topic: str, queue_id: int, offset: int, max_count: int, hashes: NDArray[np.int32] | None = None) -> Any: ...
