from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIELDS: tuple[str, ...]

class Message:
    topic: str
    body: bytes | memoryview
    queue_id: int
    properties: Mapping[str, str] | bytes
    flag: int
    sys_flag: int
    born_timestamp: int | None
    born_host: str | None
    store_host: str | None
    reconsume_times: int
    prepared_transaction_offset: int
    def __init__(
        self,
        topic: str,
        body: bytes | memoryview = b"",
        *,
        queue_id: int = 0,
        keys: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None: ...
    def encoded_properties(self, *, trailing_separator: bool) -> bytes: ...
    def property_map(self) -> dict[str, str]: ...
    def replaced(self, **changes: object) -> Message: ...

class PutResult:
    status: Any
    physical_offset: int
    queue_offset: int
    size: int
    store_timestamp: int
    detail: str
    def __init__(
        self,
        status: object,
        physical_offset: int = -1,
        queue_offset: int = -1,
        size: int = 0,
        store_timestamp: int = 0,
        host: bytes = b"",
        sizes: Sequence[int] | None = None,
        detail: str = "",
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def stored(self) -> bool: ...
    @property
    def msg_id(self) -> str: ...

class Topic:
    raw: bytes
    version: int
    batch: bool
    refused: str
    following: dict[int, int] | None
    def __init__(self, raw: bytes, version: int, batch: bool, refused: str = "") -> None: ...

class LogEnd:
    start: int
    size: int
    written: int
    last_stored: int
    def __init__(self, start: int, size: int, written: int) -> None: ...

class PutPath:
    topics: dict[str, Topic]
    hosts: dict[str, bytes]
    busy: int
    paused: bool
    yield_microseconds: int
    not_after: int
    last_stored: int
    file: LogEnd | None
    def __init__(self, ok: object, default_host: bytes, *, trailing_separator: bool, max_body_size: int, max_record_size: int) -> None: ...
    def use(self, file: LogEnd, buffer: NDArray[np.uint8], limit: int) -> None: ...
    def release(self) -> None: ...
    def put(self, message: Message) -> PutResult | None: ...

class SinglePut:
    _path: PutPath
    _sync_flush: bool
    def put(self, message: Message) -> PutResult: ...
    def _put_slow(self, message: Message) -> PutResult: ...
    def _wait_for_flush(self, message: Message, result: PutResult) -> None: ...
