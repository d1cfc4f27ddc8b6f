"""Work on whole stores, on Spark: `local[*]` by default, any cluster by its master URL.

The names below are imported when they are first used, so that `import mqstore.pipeline` needs neither Java nor Spark.
A session comes from `mqstore.pipeline.session`, or is the caller's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.pipeline.session import running as running
    from mqstore.pipeline.session import stop as stop
    from mqstore.pipeline.source import read as read
    from mqstore.pipeline.source import register as register
    from mqstore.pipeline.tasks import run_tasks as run_tasks

_WHERE = {"read": "source", "register": "source", "run_tasks": "tasks", "running": "session", "stop": "session"}

__all__ = ["read", "register", "run_tasks", "running", "stop"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
