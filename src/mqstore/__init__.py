"""Read, verify, rebuild and write the on-disk stores of RocketMQ and of RabbitMQ's classic queues, without a broker.

Public are the names in the `__all__` of this package and of its sub-packages `rocketmq`, `rabbitmq`, `broker`, `console`, `pipeline`,
`table` and `testing`. Deeper module paths are private and may change.

>>> import mqstore
>>> store = mqstore.open("/backup/broker-a/store")  # doctest: +SKIP
>>> store.messages(["topic", "size"], topic="orders").to_pandas()  # doctest: +SKIP
>>> store.sql("select topic, count(*) as messages from messages group by topic").to_arrow()  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore import kernels as _kernels  # noqa: F401 (fails at once, with a sentence, where they are not compiled)
from mqstore.errors import (
    CannotOpenError,
    MqstoreError,
    NotAStoreError,
    NotFoundError,
    PipelineError,
    RefusedError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from mqstore.version import __version__

if TYPE_CHECKING:
    from mqstore.stores.rabbitmq import RabbitMQ
    from mqstore.stores.rocketmq import RocketMQ

__all__ = [
    "CannotOpenError",
    "MqstoreError",
    "NotAStoreError",
    "NotFoundError",
    "PipelineError",
    "RefusedError",
    "TargetError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "open",
]


def open(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    fs_options: Mapping[str, str] | None = None,
    now: int | None = None,
) -> RocketMQ | RabbitMQ:
    """Open a store for reading: a directory, or an archive of one, which is unpacked to a temporary directory while the store is in use.

    path: RocketMQ: the directory that holds `commitlog/`, or its parent if it is named `store`, or a URL (`s3://bucket/store`).
    RabbitMQ: `msg_stores`, the node's data directory, or the directory of one vhost.
    config: RocketMQ: the broker's configuration file (`name=value` lines); overrides what is inferred from the files.
    fs_options: how to reach a URL: endpoint_url, key, secret and the other options of `mqstore.files.remote_fs`.
    now: RabbitMQ: microseconds since 1970; a message whose time to live has passed by then is reported as expired.
    Raises CannotOpenError, NotAStoreError, UnsupportedError. Changes nothing.
    """
    from mqstore.files.location import as_location
    from mqstore.stores import open_store

    return open_store(as_location(path, fs_options or {}), config=None if config is None else Path(config), now=now)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
