"""A RocketMQ store opened for reading: the one place that knows which files make up a store.

Opening reads names, sizes and the small configuration files; logs, queues and index files are mapped when they are
asked for. Nothing in the directory is changed, locked or created.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mqstore.errors import NotFoundError, UsageError
from mqstore.files import ReadOnlyDirectory
from mqstore.findings import Damage
from mqstore.messages import ROCKETMQ_COLUMNS, Selection, check_columns
from mqstore.rocketmq.commitlog import CommitLog
from mqstore.rocketmq.record import Record
from mqstore.rocketmq.table import table
from mqstore.rocketmq.view import ConsumerOffset, QueueView, View

if TYPE_CHECKING:
    import pyarrow as pa
