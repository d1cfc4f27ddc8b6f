"""Which broker's store a command was given, and which of its two faces answers.

A verb is one function per family. Both faces share the verb's options by name; an option that only one of them has is refused, with
what to say instead, when it is given for a store of the other:

    verb(app, example="topics /backup/store", rabbitmq=rabbitqueues.topics)(topics)

A verb that has no meaning for RabbitMQ gives a sentence in place of the function. Nothing is unpacked or read to tell the family: the names
in a directory or an archive are enough.

    >>> told_by("store/commitlog/00000000000000000000"), told_by("msg_stores/vhosts/628W/msg_store_persistent/0.rdq"), told_by("readme")
    ('rocketmq', 'rabbitmq', None)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from mqstore.errors import CannotOpenError, UnsupportedError, UsageError

__all__ = ["Face", "accepted", "answer", "family_of", "together", "told_by"]

Face = Callable[..., int] | str

_ROCKETMQ = frozenset({"commitlog", "consumequeue"})
_RABBITMQ = frozenset({"msg_stores", "msg_store_persistent", "msg_store_transient", "queues", "vhosts"})
_RABBITMQ_FILES = (".rdq", ".idx", ".jif", ".qi", ".qs")


def told_by(name: str) -> str | None:
    """The family that the name of a file in a store tells, if it does."""
    parts = name.split("/")
    if _ROCKETMQ.intersection(parts):
        return "rocketmq"
    if _RABBITMQ.intersection(parts) or parts[-1].endswith(_RABBITMQ_FILES):
        return "rabbitmq"
    return None


def family_of(path: Path) -> str:
    """`rabbitmq` for a store of RabbitMQ, else `rocketmq`, whose face says what is wrong with anything else."""
    from mqstore.files import ReadOnlyDirectory
    from mqstore.files.archive import is_archive, member_names
    from mqstore.rabbitmq.format.layout import looks_like_rabbitmq
    from mqstore.rocketmq.store.store import looks_like_rocketmq

    if is_archive(path) and os.path.isfile(path):
        return next((family for name in member_names(path) if (family := told_by(name)) is not None), "rocketmq")
    try:
        directory = ReadOnlyDirectory(path)
        inner = ReadOnlyDirectory(path / "store") if directory.is_directory("store") else None
        if looks_like_rocketmq(directory) or (inner is not None and looks_like_rocketmq(inner)):
            return "rocketmq"
        return "rabbitmq" if looks_like_rabbitmq(directory) else "rocketmq"
    except CannotOpenError:
        return "rocketmq"


def together(function: Callable[..., int], rabbitmq: Face | None) -> list[inspect.Parameter]:
    """The parameters of a verb: those of its RocketMQ face, then those that only the other has."""
    own = _parameters(function)
    other = _parameters(rabbitmq) if callable(rabbitmq) else {}
    return [*own.values(), *(parameter for name, parameter in other.items() if name not in own)]


def _parameters(function: Callable[..., int]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if name != "out"
    }


def answer(function: Callable[..., int], rabbitmq: Face | None, given: Mapping[str, Any]) -> Callable[..., int]:
    """The face that answers for the store in `given`. Raises UsageError, UnsupportedError."""
    if rabbitmq is None:
        return function
    store = given["store"]
    family = family_of(store)
    if family == "rabbitmq" and isinstance(rabbitmq, str):
        raise UnsupportedError(f"{store} is a RabbitMQ store: {rabbitmq}")
    faces = {"rocketmq": function, "rabbitmq": rabbitmq if callable(rabbitmq) else function}
    chosen = faces.pop(family)
    (other,) = faces.values()
    mine = _parameters(chosen)
    for name, parameter in _parameters(other).items():
        if name not in mine and given[name] != parameter.default:
            titles = {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}
            options = ", ".join(filter(None, (_flag(each) for each in mine.values())))
            raise UsageError(f"{_flag(parameter)} has no meaning for a {titles[family]} store, which {store} is; there are {options}")
    return chosen


def accepted(face: Callable[..., int], given: Mapping[str, Any]) -> dict[str, Any]:
    """What of the given options a face takes."""
    mine = _parameters(face)
    return {name: value for name, value in given.items() if name in mine}


def _flag(parameter: inspect.Parameter) -> str:
    """The long form of an option; empty for an argument."""
    for part in get_args(parameter.annotation):
        # of an annotation the parser's first name stands where a default would
        names = [str(name) for name in (getattr(part, "default", None), *(getattr(part, "param_decls", None) or ()))]
        for name in names:
            if name.startswith("--"):
                return name
    return ""
