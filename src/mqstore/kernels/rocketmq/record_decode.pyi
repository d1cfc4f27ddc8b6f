from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Kind = TypeVar("_Kind")
_Bytes = NDArray[np.uint8] | bytes | memoryview

FIELDS: tuple[str, ...]

class Decoder(Generic[_Kind]):
    def __init__(self, kind: type[_Kind], topic: Callable[[bytes], str], host: Callable[[bytes], str]) -> None: ...
    def record(self, b: _Bytes) -> _Kind | None: ...
    def records(self, b: _Bytes, start: int, rows: bytes) -> list[_Kind]: ...
