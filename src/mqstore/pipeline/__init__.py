"""Work on whole stores with Spark, on this machine or on any cluster by its master URL.

Everything public is imported from here; deeper module paths are private and may change.

    session, running, stop, ship        a Spark session, and this package on its executors
    register, read, views, joined       stores as DataFrames and SQL views
    sql, narrowed                       queries that read only the columns and messages that they need
    explain_read                        what a DataFrame will read of its stores
    finish                              complete an interrupted write to a store
    follow                              copy a growing log to a table, to files or to another store
    append                              the new range of a log added to an Iceberg or Delta table
    rebuild, export, lookup             jobs over a whole RocketMQ store (mqstore.jobs), in threads or on Spark
    verify, usage, find
    convert                             RabbitMQ queues from one version to the other
    run_tasks                           a function over a list of tasks in Spark's Python workers

Names are imported on first use, so `import mqstore.pipeline` needs neither Java nor Spark. Functions that take a session
accept any; without one they use the active session, or start one and stop it again. Jobs start one only for a large store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.public_names import on_first_use

if TYPE_CHECKING:
    from mqstore.jobs.convert import convert as convert
    from mqstore.jobs.export import export as export
    from mqstore.jobs.find import find as find
    from mqstore.jobs.lookup import lookup as lookup
    from mqstore.jobs.rebuild import rebuild as rebuild
    from mqstore.jobs.report import ExportReport as ExportReport
    from mqstore.jobs.report import RebuildReport as RebuildReport
    from mqstore.jobs.usage import usage as usage
    from mqstore.jobs.verify import verify as verify
    from mqstore.pipeline.queries.narrowing import narrowed as narrowed
    from mqstore.pipeline.queries.narrowing import sql as sql
    from mqstore.pipeline.source.catalog import register as register
    from mqstore.pipeline.source.catalog import session as session
    from mqstore.pipeline.source.rabbitmq_join import joined as joined
    from mqstore.pipeline.source.rocketmq import ReadPlan as ReadPlan
    from mqstore.pipeline.source.rocketmq import explain_read as explain_read
    from mqstore.pipeline.source.rocketmq import read as read
    from mqstore.pipeline.source.sink import finish as finish
    from mqstore.pipeline.source.views import views as views
    from mqstore.pipeline.spark.runner import run_tasks as run_tasks
    from mqstore.pipeline.spark.session import running as running
    from mqstore.pipeline.spark.session import stop as stop
    from mqstore.pipeline.spark.shipping import ship as ship
    from mqstore.pipeline.tail.append import AppendReport as AppendReport
    from mqstore.pipeline.tail.append import append as append
    from mqstore.pipeline.tail.follow import FollowedBatch as FollowedBatch
    from mqstore.pipeline.tail.follow import FollowReport as FollowReport
    from mqstore.pipeline.tail.follow import follow as follow
    from mqstore.rocketmq.find import FindReport as FindReport
    from mqstore.rocketmq.lookup.answer import LookupReport as LookupReport
    from mqstore.rocketmq.usage import UsageReport as UsageReport


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

# No sub-package has the name of a function: importing it would bind the package to that name.
__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "mqstore.jobs.convert": ["convert"],
        "mqstore.jobs.export": ["export"],
        "mqstore.jobs.find": ["find"],
        "mqstore.jobs.lookup": ["lookup"],
        "mqstore.jobs.rebuild": ["rebuild"],
        "mqstore.jobs.report": ["ExportReport", "RebuildReport"],
        "mqstore.jobs.usage": ["usage"],
        "mqstore.jobs.verify": ["verify"],
        "mqstore.pipeline.queries.narrowing": ["narrowed", "sql"],
        "mqstore.pipeline.source.rabbitmq_join": ["joined"],
        "mqstore.pipeline.source.catalog": ["register", "session"],
        "mqstore.pipeline.source.rocketmq": ["ReadPlan", "explain_read", "read"],
        "mqstore.pipeline.source.sink": ["finish"],
        "mqstore.pipeline.source.views": ["views"],
        "mqstore.pipeline.spark.runner": ["run_tasks"],
        "mqstore.pipeline.spark.session": ["running", "stop"],
        "mqstore.pipeline.spark.shipping": ["ship"],
        "mqstore.pipeline.tail.append": ["AppendReport", "append"],
        "mqstore.pipeline.tail.follow": ["FollowReport", "FollowedBatch", "follow"],
        "mqstore.rocketmq.find": ["FindReport"],
        "mqstore.rocketmq.lookup.answer": ["LookupReport"],
        "mqstore.rocketmq.usage": ["UsageReport"],
    },
)
