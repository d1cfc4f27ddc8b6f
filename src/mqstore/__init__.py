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
from typing import TYPE_CHECKING, Any

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
    from mqstore.wreck.salvage import AnyReport

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
    "salvage",
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
    from pathlib import Path

    from mqstore.files.location import as_location
    from mqstore.stores import open_store

    return open_store(as_location(path, fs_options or {}), config=None if config is None else Path(config), now=now)


def salvage(path: str | os.PathLike[str], to: str | os.PathLike[str], **options: Any) -> AnyReport:
    """Recover every intact message of a store, of what is left of one, or of a disk image; what is at the path decides how.

    to: a new file (`.jsonl`, `.parquet`), with as_kind a new directory, or the address of a running broker. options: those of
    `mqstore.wreck.salvage`, such as verdicts, as_kind and resume. A store that can be opened has the same verb.
    Raises UsageError, CannotOpenError, NotAStoreError, TargetError. Changes nothing at the path, and never overwrites.
    """
    from mqstore.files.location import as_location
    from mqstore.wreck.salvage import salvage

    return salvage(as_location(path), to, **options)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
