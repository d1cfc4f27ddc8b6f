from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

END_OF_FILE: Final = -1
NO_PROPERTY_CRC: Final = 0
PROPERTY_CRC: Final = 1
PROPERTY_CRC_IN_BATCH: Final = 2

_Bytes = NDArray[np.uint8]
_Longs = NDArray[np.int64]

class LogFileWriter:
    def __init__(self, buffer: Any) -> None: ...
    def release(self) -> None: ...
    def append(
        self,
        position: int,
        limit: int,
        physical_offset: int,
        queue_offset: int,
        store_timestamp: int,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        version: int,
        topic: bytes,
        properties: bytes,
        body: bytes | bytearray | memoryview | _Bytes,
        property_crc: int = 0,
    ) -> int: ...
    def blank(self, position: int, limit: int) -> int: ...
    def append_batch(
        self,
        position: int,
        limit: int,
        physical_offset: int,
        first: int,
        stop: int,
        fields: _Longs,
        hosts: _Bytes,
        bodies: _Bytes,
        topics: _Bytes,
        texts: _Bytes,
        property_crc: int = 0,
    ) -> tuple[int, int]: ...

def record_size(
    topic: bytes, properties: bytes, body_length: int, born_host: bytes, store_host: bytes, version: int, property_crc: int = 0
) -> int: ...
def measure(fields: _Longs, hosts: _Bytes, bodies: _Bytes, topics: _Bytes, texts: _Bytes, property_crc: int = 0) -> int: ...
def assign_queue_offsets(fields: _Longs, first: int, stop: int, group: NDArray[np.int32], following: _Longs) -> None: ...
