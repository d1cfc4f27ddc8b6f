from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mqstore.kernels.rocketmq.pull import PullPath

_Result = TypeVar("_Result")

class QueryPath(Generic[_Result]):
    def __init__(
        self,
        result: Callable[[tuple[tuple[memoryview, ...], tuple[int, ...], int, int]], _Result],
        recovery: Any,
        log: Any,
        pulls: PullPath,
        cap: int,
    ) -> None: ...
    def find(self, topic: str, key: str, max_num: int, begin: int, end: int) -> _Result | None: ...
