"""Recognizing a store by names: directory or archive listings only are read; nothing is unpacked.

>>> kind_from_name("store/commitlog/00000000000000000000")
<StoreKind.ROCKETMQ: 'rocketmq'>
>>> kind_from_name("msg_stores/vhosts/628W/msg_store_persistent/0.rdq")
<StoreKind.RABBITMQ: 'rabbitmq'>
>>> kind_from_name("readme")
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from mqstore.errors import CannotOpenError

_ROCKETMQ_DIRECTORIES = frozenset({"commitlog", "consumequeue"})
_RABBITMQ_DIRECTORIES = frozenset({"msg_stores", "msg_store_persistent", "msg_store_transient", "queues", "vhosts"})
_RABBITMQ_FILES = (".rdq", ".idx", ".jif", ".qi", ".qs")


class StoreKind(StrEnum):
    """The broker that wrote a store."""

    ROCKETMQ = "rocketmq"
    RABBITMQ = "rabbitmq"

    @property
    def broker(self) -> str:
        """The broker's name as its project spells it."""
        return "RocketMQ" if self is StoreKind.ROCKETMQ else "RabbitMQ"


def kind_from_name(name: str) -> StoreKind | None:
    """Return the kind of store that a file's path within it implies, or None."""
    parts = name.split("/")
    if _ROCKETMQ_DIRECTORIES.intersection(parts):
        return StoreKind.ROCKETMQ
    if _RABBITMQ_DIRECTORIES.intersection(parts) or parts[-1].endswith(_RABBITMQ_FILES):
        return StoreKind.RABBITMQ
    return None


def kind_of(path: Path) -> StoreKind:
    """Recognize a store. Anything unknown counts as RocketMQ, whose back end reports the error."""
    from mqstore.files import ReadOnlyDirectory
    from mqstore.files.archive import is_archive, member_names
    from mqstore.rabbitmq.format.layout import looks_like_rabbitmq
    from mqstore.rocketmq.store.store_files import looks_like_rocketmq

    if is_archive(path) and os.path.isfile(path):
        return next((kind for name in member_names(path) if (kind := kind_from_name(name)) is not None), StoreKind.ROCKETMQ)
    try:
        directory = ReadOnlyDirectory(path)
        inner = ReadOnlyDirectory(path / "store") if directory.is_directory("store") else None
        if looks_like_rocketmq(directory) or (inner is not None and looks_like_rocketmq(inner)):
            return StoreKind.ROCKETMQ
        return StoreKind.RABBITMQ if looks_like_rabbitmq(directory) else StoreKind.ROCKETMQ
    except CannotOpenError:
        return StoreKind.ROCKETMQ
