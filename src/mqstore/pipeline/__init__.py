"""Work on whole stores with Spark: `local[*]` by default, any cluster by its master URL.

Everything public is imported from here; deeper module paths are private and may change.

    session, running, stop, ship        a Spark session, and this package on its executors
    register, read, views, joined       stores as DataFrames and SQL views
    sql, narrowed                       queries that read only the columns and messages that they need
    explain_read                        what a DataFrame will read of its stores
    finish                              complete an interrupted write to a store
    follow                              copy a growing log to a table, to files or to another store
    append                              the new range of a log added to an Iceberg or Delta table
    rebuild, export, lookup             jobs over a whole RocketMQ store
    verify, usage, find
    convert                             RabbitMQ queues from one version to the other
    run_tasks                           a function over a list of tasks in Spark's Python workers

Names are imported on first use, so `import mqstore.pipeline` needs neither Java nor Spark. Functions that take a session
accept any; without one they use the active session, or start one and stop it again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqstore.jobs.convert import convert as convert
    from mqstore.jobs.export import export as export
    from mqstore.jobs.find import FindReport as FindReport
    from mqstore.jobs.find import find as find
    from mqstore.jobs.lookup import LookupReport as LookupReport
    from mqstore.jobs.lookup import lookup as lookup
    from mqstore.jobs.rebuild import rebuild as rebuild
    from mqstore.jobs.report import ExportReport as ExportReport
    from mqstore.jobs.report import RebuildReport as RebuildReport
    from mqstore.jobs.usage import UsageReport as UsageReport
    from mqstore.jobs.usage import usage as usage
    from mqstore.jobs.verify import verify as verify
    from mqstore.pipeline.queries.narrowing import narrowed as narrowed
    from mqstore.pipeline.queries.narrowing import sql as sql
    from mqstore.pipeline.source.explain import ReadPlan as ReadPlan
    from mqstore.pipeline.source.explain import explain_read as explain_read
    from mqstore.pipeline.source.rabbitmq_join import joined as joined
    from mqstore.pipeline.source.rocketmq import read as read
    from mqstore.pipeline.source.rocketmq import register as register
    from mqstore.pipeline.source.sink import finish as finish
    from mqstore.pipeline.source.views import views as views
    from mqstore.pipeline.spark.session import running as running
    from mqstore.pipeline.spark.session import session as session
    from mqstore.pipeline.spark.session import stop as stop
    from mqstore.pipeline.spark.shipping import ship as ship
    from mqstore.pipeline.spark.tasks import run_tasks as run_tasks
    from mqstore.pipeline.tail.append import AppendReport as AppendReport
    from mqstore.pipeline.tail.append import append as append
    from mqstore.pipeline.tail.follow import FollowedBatch as FollowedBatch
    from mqstore.pipeline.tail.follow import FollowReport as FollowReport
    from mqstore.pipeline.tail.follow import follow as follow

# No sub-package has the name of a function: importing it would bind the package to that name.
_MODULE_OF = {
    "AppendReport": "tail.append",
    "ExportReport": "jobs.report",
    "FindReport": "jobs.find",
    "FollowReport": "tail.follow",
    "FollowedBatch": "tail.follow",
    "LookupReport": "jobs.lookup",
    "ReadPlan": "source.explain",
    "RebuildReport": "jobs.report",
    "UsageReport": "jobs.usage",
    "append": "tail.append",
    "convert": "jobs.convert",
    "explain_read": "source.explain",
    "export": "jobs.export",
    "find": "jobs.find",
    "finish": "source.sink",
    "follow": "tail.follow",
    "joined": "source.rabbitmq_join",
    "lookup": "jobs.lookup",
    "narrowed": "queries.narrowing",
    "read": "source.rocketmq",
    "rebuild": "jobs.rebuild",
    "register": "source.rocketmq",
    "run_tasks": "spark.tasks",
    "running": "spark.session",
    "session": "spark.session",
    "ship": "spark.shipping",
    "sql": "queries.narrowing",
    "stop": "spark.session",
    "usage": "jobs.usage",
    "verify": "jobs.verify",
    "views": "source.views",
}

__all__ = [
    "AppendReport",
    "ExportReport",
    "FindReport",
    "FollowReport",
    "FollowedBatch",
    "LookupReport",
    "ReadPlan",
    "RebuildReport",
    "UsageReport",
    "append",
    "convert",
    "explain_read",
    "export",
    "find",
    "finish",
    "follow",
    "joined",
    "lookup",
    "narrowed",
    "read",
    "rebuild",
    "register",
    "run_tasks",
    "running",
    "session",
    "ship",
    "sql",
    "stop",
    "usage",
    "verify",
    "views",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
