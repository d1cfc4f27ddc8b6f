"""RocketMQ or RabbitMQ: recognizing a store, and choosing the back end of a command that answers for both.

Such a command has one options class. An option that applies to one kind of store only is marked:

    @dataclass(frozen=True, kw_only=True)
    class TopicsOptions:
        topic: RocketMQOnly[OnlyTopic] = None
        vhost: RabbitMQOnly[Vhosts] = None
        view: ViewOption = ViewName.DISK

Given for a store of the other kind, it is refused with the options that do apply. Recognizing a store reads directory or archive
listings only; nothing is unpacked.

    >>> kind_from_name("store/commitlog/00000000000000000000")
    <StoreKind.ROCKETMQ: 'rocketmq'>
    >>> kind_from_name("msg_stores/vhosts/628W/msg_store_persistent/0.rdq")
    <StoreKind.RABBITMQ: 'rabbitmq'>
    >>> kind_from_name("readme")
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from mqstore.errors import CannotOpenError, UnsupportedError, UsageError

BackEnd = Callable[..., int]

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


_T = TypeVar("_T")
RocketMQOnly = Annotated[_T, StoreKind.ROCKETMQ]
RabbitMQOnly = Annotated[_T, StoreKind.RABBITMQ]


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


def back_end_for(
    rocketmq: BackEnd, rabbitmq: BackEnd | str | bool, parameters: Sequence[inspect.Parameter], given: Mapping[str, Any]
) -> BackEnd:
    """Choose the back end for the store in `given`. Raises UsageError, UnsupportedError.

    rabbitmq: False if no option is of one kind only, True if the command answers for both, or the reason why it does not apply to RabbitMQ.
    """
    if rabbitmq is False:
        return rocketmq
    store = given["store"]
    kind = kind_of(store)
    if kind is StoreKind.RABBITMQ and isinstance(rabbitmq, str):
        raise UnsupportedError(f"{store} is a RabbitMQ store: {rabbitmq}")
    if not isinstance(rabbitmq, str):
        _refuse_options_of_the_other_kind(kind, parameters, given)
    return rabbitmq if kind is StoreKind.RABBITMQ and callable(rabbitmq) else rocketmq


def _refuse_options_of_the_other_kind(kind: StoreKind, parameters: Sequence[inspect.Parameter], given: Mapping[str, Any]) -> None:
    applicable = [parameter for parameter in parameters if _only_for(parameter) in (None, kind)]
    for parameter in parameters:
        if parameter not in applicable and given[parameter.name] != parameter.default:
            options = ", ".join(filter(None, map(_flag, applicable)))
            raise UsageError(
                f"{_flag(parameter)} does not apply to a {kind.broker} store, which {given['store']} is; the options are {options}"
            )


def _only_for(parameter: inspect.Parameter) -> StoreKind | None:
    return next((part for part in get_args(parameter.annotation) if isinstance(part, StoreKind)), None)


def _flag(parameter: inspect.Parameter) -> str:
    """Return the long form of an option; empty for an argument."""
    for part in get_args(parameter.annotation):
        # in an Annotated, the parser keeps the first name where a default would be
        names = [str(name) for name in (getattr(part, "default", None), *(getattr(part, "param_decls", None) or ()))]
        for name in names:
            if name.startswith("--"):
                return name
    return ""
