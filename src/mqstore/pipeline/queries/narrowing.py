"""DataFrames and SQL that read only the columns and messages that a query needs.

    pipeline.sql(spark, "select topic, size from messages where physical_offset > 3000000000 limit 10", "/backup/broker-a/store")
    pipeline.narrowed(messages.where("topic = 'orders'").join(queues, ["topic", "queue_id", "physical_offset"]))

Spark does not report to a Python source which columns a query needs, and keeps its response to the filters of one query for all
others (decision 11). So Spark's optimizer is asked first, on a copy of the plan (`mqstore.pipeline.queries.plans`). Then each
occurrence of a relation is replaced by one that reads only this, and Spark runs the whole query on these, all conditions included.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.queries import plans
from mqstore.pipeline.source.stores import check_nullable
from mqstore.pipeline.source.views import views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "narrowed"  # the alias of the result, which has only its own columns
_INSTEAD = "give `columns` and `where` to pipeline.read or pipeline.views"


def sql(
    spark: SparkSession, query: str, store: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None, **options: Any
) -> DataFrame:
    """Return the result of a query, which reads only the columns and messages that it needs.

    store: one or several, whose views are registered first; options: those of `views`. Without a store the query may use the views of
    the session, and any other table. Raises UsageError, and Spark's exceptions for a query that is not valid.
    """
    if store is not None:
        views(spark, store, **options)
    elif options:
        raise UsageError(f"the option {next(iter(options))} describes the read of a store, and no store is given")
    return narrowed(spark.sql(query))


def rows_of(
    spark: SparkSession, query: str, store: Any, *, columns: Sequence[str] | None = None, **options: Any
) -> tuple[tuple[str, ...], tuple[bool, ...], Iterator[tuple[Any, ...]]]:
    """Return the names of a query's columns, which of them are numbers, and its rows, which are fetched partition by partition.

    Raises PipelineError.
    """
    from pyspark.sql.types import NumericType

    from mqstore.pipeline.spark.session import failures

    with failures("the query"):
        frame = sql(spark, query, store, columns=columns, **options)
    numeric = tuple(isinstance(field.dataType, NumericType) for field in frame.schema.fields)

    def rows() -> Iterator[tuple[Any, ...]]:
        with failures("the query"):
            for row in frame.toLocalIterator():
                yield tuple(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row)

    return tuple(frame.columns), numeric, rows()


def narrowed(frame: DataFrame) -> DataFrame:
    """Return an equivalent DataFrame that reads only the columns and messages that it needs of each store.

    Only the columns of the result can be used in further queries. A DataFrame that cannot be narrowed is returned unchanged, with a
    warning that gives the reason.
    """
    from py4j.protocol import Py4JError

    if getattr(frame, "_jdf", None) is None:
        return _unchanged(frame, "Spark Connect does not show its plans")
    try:
        return _narrowed(frame)
    except Py4JError as error:
        # plans are private to Spark, and another version may have changed them
        return _unchanged(frame, f"this version of Spark has other plans ({str(error).splitlines()[0]})")


def _unchanged(frame: DataFrame, why: str) -> DataFrame:
    _warn(f"nothing is narrowed, because {why}; to read less, {_INSTEAD}")
    return frame


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=4)


def _narrowed(frame: DataFrame) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    spark: SparkSession = frame.sparkSession
    execution = frame._jdf.queryExecution()
    plan = execution.analyzed()
    relations = plans.relations_of(spark, plan)
    if not relations:
        return frame
    for relation in relations:
        check_nullable(relation.schema)  # Spark may answer from the declaration alone, without asking the source
    if plans.is_cached(execution):
        return _unchanged(frame, "a part of the query is in Spark's cache")
    needs = plans.needs_of(spark, plan, relations)
    if plans.needs_the_time(spark, plan) and any(need.filters != "[]" for need in needs):
        # a condition that holds now may not hold when the query is run
        _warn(
            "the query depends on the current time, user or database, so its conditions do not narrow what is read; "
            f"give the values as literals, or {_INSTEAD}"
        )
        needs = [plans.Need(need.columns, "[]", need.places) for need in needs]
    chosen = [_relation(spark, relation, need) for relation, need in zip(relations, needs, strict=True)]
    found = ClassicDataFrame(plans.dataset(spark, plans.with_relations(spark, plan, chosen)), spark)
    # without the alias, Spark would find columns that are not in the result, and were not read, in the plan below it
    return found.alias(NAME)


def _relation(spark: SparkSession, relation: plans.Relation, need: plans.Need) -> Any:
    """Return a plan with the columns of a relation that reads only those that are needed; the others are null."""
    from pyspark.sql.types import StructType

    if not need.places:
        return None  # the optimizer proves that it need not be read at all
    schema = relation.schema
    read = [field.name for field in schema.fields if field.name in need.columns] or [_cheapest(schema.names)]
    options = dict(relation.options)
    if plans.FORMATS[relation.format] and need.filters != "[]":
        options["filters"] = json.dumps([*json.loads(options.get("filters", "[]")), *json.loads(need.filters)])
    reader = spark.read.format(relation.format).options(**options)
    frame = reader.schema(StructType([schema[name] for name in read])).load()
    jvm: Any = spark._jvm
    to_seq = jvm.PythonUtils.toSeq
    attributes = dict(zip(schema.names, relation.attributes, strict=True))
    node = plans.with_attributes(frame, to_seq([attributes[name] for name in read]))
    if len(read) == len(relation.attributes):
        return node
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    nothing = to_seq([])

    def absent(name: str, each: Any) -> Any:
        null = expressions.Literal(None, each.dataType())
        return expressions.Alias(null, name, each.exprId(), nothing, jvm.scala.Option.empty(), nothing)

    columns = [each if name in read else absent(name, each) for name, each in attributes.items()]
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(to_seq(columns), node)


def _cheapest(names: Sequence[str]) -> str:
    """Return the column to read for a query that only counts rows: a number of the record's header, if there is one."""
    return next((name for name in ("physical_offset", "queue_id", "pos") if name in names), names[0])
