"""mqstore: the directories that message brokers leave on disk, as files one can open, trust and compute on.

>>> import mqstore
>>> store = mqstore.open("/backup/broker-a/store")  # doctest: +SKIP
>>> for batch in store.view("disk").batches(["topic", "size"]):  # doctest: +SKIP
...     print(batch.num_rows)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.errors import (
    CannotOpenError,
    MqstoreError,
    NotAStoreError,
    NotFoundError,
    PipelineError,
    TargetError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore

__all__ = [
    "CannotOpenError",
    "MqstoreError",
    "NotAStoreError",
    "NotFoundError",
    "PipelineError",
    "TargetError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "open",
]

__version__ = "0.1.0"


def open(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    fs_options: Mapping[str, str] | None = None,
    now: int | None = None,
) -> RocketMQStore | RabbitMQStore:
    """Open a store for reading: a directory, or an archive of one (unpacked to a temporary place for as long as the store is used).

    path: RocketMQ: the directory that holds `commitlog/`, or one that has such a directory named `store` in it, or its URL
    (`s3://bucket/store`). RabbitMQ: `msg_stores`, the node's data directory, or one vhost's.
    fs_options: how a URL is reached, by the names in `mqstore.files.remote_fs`: endpoint_url, key, secret, …
    config: RocketMQ: a file with the broker's own `name=value` lines; overrides what is inferred from the files.
    now: RabbitMQ: microseconds since 1970; messages whose time to live is over by then are told.
    Raises CannotOpenError, NotAStoreError, UnsupportedError. Changes nothing.
    """
    from mqstore.files.location import as_location
    from mqstore.opening import open_store

    return open_store(as_location(path, fs_options or {}), None if config is None else Path(config), now)
