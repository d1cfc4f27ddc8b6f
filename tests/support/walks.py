"""How many rooms a question passes: the modules of mqstore that its calls run through, from a command or a task to the answer.

    PYTHONPATH=tests python -m support.walks

A walk follows the calls of one run as a reader does: each function once, where it is first called. A *stay* begins whenever the walk
comes into another module, by a call or back to the caller: going back is a *climb*. *Rooms* are the modules that it comes into, and
*returns* are the stays in one where it was before. Rooms that the walk *passes* are those from which it goes on into another one; in the
others it asks a fact and turns back. Not followed: imports, the rendering of an answer, the floors below every store (`_BELOW`), and the
compiled kernels, which call nothing.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from support.golden import case_named, opened, run_cli

import mqstore
from mqstore.threads import TaskThreads

_BELOW = ("files.", "table.", "findings.", "errors.", "shown.", "codecs.", "threads.", "public_names.")
_RENDERING = ("report.", "cli.common.output", "cli.common.progress", "cli.common.grid")
_IMPORT = "import"
_SOURCES = f"{Path(mqstore.__file__).parent}/"


def _room(code: CodeType) -> str:
    """Return the module that a function of mqstore is in; nothing for code below the stores, or of others."""
    if not code.co_filename.startswith(_SOURCES) or code.co_name.startswith("<"):
        return ""
    room = code.co_filename.removeprefix(_SOURCES).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return "" if f"{room}.".startswith(_BELOW) else room


def _stack(frame: FrameType) -> Iterator[str]:
    """Yield the rooms that a call is made from, the nearest first."""
    while (caller := frame.f_back) is not None:
        frame, code = caller, caller.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(_SOURCES):
            yield _IMPORT
        elif room := _room(code):
            yield room


def _run_now(_: TaskThreads, task: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(task(*args, **options))
    return done


class Walk(NamedTuple):
    """The rooms in the order in which the walk comes into them, those that it passes, and how often it comes into any, or climbs."""

    rooms: tuple[str, ...]
    passed: frozenset[str]
    stays: int
    climbs: int


def walk(run: Callable[[], object], first: str) -> Walk:
    """Run something, and return its walk from the function `first` on. Tasks run where they are asked for, not in threads of their own."""
    calls: list[tuple[str, str]] = []  # (room of the caller, room of the function)
    read: set[CodeType] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in read and (read or code.co_qualname == first) and (room := _room(code)):
            stack = [room] if not read else [room, *_stack(frame)]
            if not any(each.startswith((_IMPORT, *_RENDERING)) for each in stack):
                calls.append((stack[1] if len(stack) > 1 else calls[0][0] if calls else room, room))
                read.add(code)

    submit, TaskThreads.submit = TaskThreads.submit, _run_now  # type: ignore[method-assign]
    sys.setprofile(enter)
    try:
        run()
    finally:
        sys.setprofile(None)
        TaskThreads.submit = submit  # type: ignore[method-assign]
    climbs = sum(before != caller for (_, before), (caller, _) in pairwise(calls))
    rooms = tuple(dict.fromkeys(room for _, room in calls))
    passed = frozenset(caller for caller, room in calls if caller != room)
    return Walk(rooms, passed, 1 + climbs + sum(caller != room for caller, room in calls), climbs)


def walks(scratch: Path) -> dict[str, Walk]:
    """Take the walks that docs/architecture.md gives figures of."""
    rocketmq, rabbitmq = opened(case_named("5.3.3/g-clean-small")), opened(case_named("3.10.8/a-small-clean"))
    commands = {
        "key query": ("query", rocketmq, "--topic", "payment-events_v2", "--key", "ключ-12"),
        "salvage of RocketMQ": ("salvage", rocketmq, "--to", scratch / "rocketmq.jsonl"),
        "salvage of RabbitMQ": ("salvage", rabbitmq, "--to", scratch / "rabbitmq.jsonl"),
        "verify of RocketMQ": ("verify", rocketmq),
        "verify of RabbitMQ": ("verify", rabbitmq),
    }
    taken = {name: walk(partial(_answer, *command), str(command[0])) for name, command in commands.items()}
    task = pickle.dumps(_split(rocketmq))

    def read() -> None:
        reader, part = pickle.loads(task)
        list(reader.read(part))

    return taken | {"split of a DataFrame": walk(read, "StoreReader.read")}


def _answer(*command: object) -> None:
    outcome = run_cli(*command)
    assert outcome.status == 0, outcome.stderr


def _split(store: Path) -> tuple[Any, Any]:
    """Return the reader and the first part of a DataFrame of topics and bodies, as Spark sends them to a task."""
    from mqstore.pipeline.source.options import ReadOptions
    from mqstore.pipeline.source.rocketmq import RocketMQReader

    reader = RocketMQReader(ReadOptions.of({"path": str(store)}), ("topic", "body"))
    return reader, reader.partitions()[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for name, taken in walks(Path(scratch)).items():
            print(
                f"| {name} | {len(taken.passed)} | {len(taken.rooms)} | {taken.stays} | {taken.climbs} | {taken.stays - len(taken.rooms)} |"
            )
