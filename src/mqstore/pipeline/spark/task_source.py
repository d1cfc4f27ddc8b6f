"""A data source whose partitions are the tasks of a job, and whose rows are their results: for sessions without a Spark context.

    number bigint      of the task in the job
    result binary      what the function returned for it, pickled

The tasks and the function arrive pickled in options. Each partition carries its own task, and no task carries those of the others.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.errors import PipelineError
from mqstore.pipeline.spark.source_api import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from mqstore.version import __version__

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "mqstore-tasks"
VERSION = "version"
# tasks may contain credentials of a store's URL: Spark redacts options with such a name wherever it prints them
TASKS = "secretTasks"
FUNCTION = "secretFunction"


@dataclass(frozen=True, slots=True)
class _Task(InputPartition):
    number: int
    task: bytes


class TaskSource(DataSource):
    """The tasks of one job."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "number bigint, result binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        # this object is sent to every task together with the reader
        options, self.options = self.options, CaseInsensitiveDict({})
        version = options.get(VERSION, "")
        if version != __version__:
            raise PipelineError(
                f"the Spark Connect server has mqstore {__version__}, this process has {version}: install the same version on both"
            )
        return _TaskReader(_bytes(options[FUNCTION]), pickle.loads(_bytes(options[TASKS])))


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


class _TaskReader(DataSourceReader):
    def __init__(self, function: bytes, tasks: Sequence[bytes]) -> None:
        self._function = function
        self._tasks = tasks

    def __getstate__(self) -> dict[str, Any]:
        return {"_function": self._function, "_tasks": ()}

    def partitions(self) -> Sequence[InputPartition]:
        return [_Task(number, task) for number, task in enumerate(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        assert isinstance(partition, _Task)
        result = pickle.loads(self._function)(pickle.loads(partition.task))
        yield partition.number, pickle.dumps(result)
