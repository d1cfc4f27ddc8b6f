"""Work on whole stores, on Spark: `local[*]` by default, any cluster by its master URL.

The names below are imported when they are first used, so that `import mqstore.pipeline` needs neither Java nor Spark.
A session comes from `mqstore.pipeline.spark.session`, or is the caller's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.pipeline.follow.follow import follow as follow
    from mqstore.pipeline.jobs.usage import usage as usage
    from mqstore.pipeline.jobs.verify import verify as verify
    from mqstore.pipeline.source.explain import explain_read as explain_read
    from mqstore.pipeline.source.rabbitmq_join import joined as joined
    from mqstore.pipeline.source.rocketmq import read as read
    from mqstore.pipeline.source.rocketmq import register as register
    from mqstore.pipeline.source.views import views as views
    from mqstore.pipeline.spark.session import running as running
    from mqstore.pipeline.spark.session import stop as stop
    from mqstore.pipeline.spark.tasks import run_tasks as run_tasks

_WHERE = {
    "explain_read": "source.explain",
    "follow": "follow.follow",
    "joined": "source.rabbitmq_join",
    "read": "source.rocketmq",
    "register": "source.rocketmq",
    "run_tasks": "spark.tasks",
    "running": "spark.session",
    "stop": "spark.session",
    "usage": "jobs.usage",
    "verify": "jobs.verify",
    "views": "source.views",
}

__all__ = ["explain_read", "follow", "joined", "read", "register", "run_tasks", "running", "stop", "usage", "verify", "views"]


class _Pipeline(ModuleType):
    """This package. A module of the name of its function is never bound to the name: `pipeline.verify` is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Pipeline


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
