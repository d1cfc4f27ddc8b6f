"""DataFrames and SQL that read only the columns and messages that a query needs.

    pipeline.sql(spark, "select topic, size from messages where physical_offset > 3000000000 limit 10", "/backup/broker-a/store")
    pipeline.narrowed(messages.where("topic = 'orders'").join(queues, ["topic", "queue_id", "physical_offset"]))

Spark does not report to a Python source which columns a query needs, and keeps its response to the filters of one query for all others
(decision 11). So Spark's optimizer is asked first: it knows which columns and rows of a relation a query needs, through joins, subqueries
and views. It is asked on a copy of the plan in which each occurrence of a relation is a table without rows, a probe, so that no occurrence
is planned with the filters of another one. Then each occurrence is replaced by one that reads only this, and Spark runs the whole query on
these, all conditions included. Plans and their nodes are Java objects, and belong to a classic session.

These classes are private to Spark. So before the first query of a session that is narrowed, `_plans_are_known` asks for one whose answer is
known; where a release has moved a class, nothing is narrowed, and a warning says so. It is not done when a session starts, which
would make sessions slower that narrow nothing, and would leave out those that another program has started.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mqstore.errors import UsageError
from mqstore.pipeline.source.pushdown import FilterPart, FilterSource, other_plans
from mqstore.pipeline.source.stores import check_nullable
from mqstore.pipeline.source.views import views
from mqstore.pipeline.spark.source_api import FILTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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

    from mqstore.pipeline.spark.failures import failures

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
    if getattr(frame, "_jdf", None) is None:
        return _unchanged(frame, "Spark Connect does not show its plans")
    result = frame
    with other_plans() as other:
        if _plans_are_known(frame.sparkSession):
            result = _narrowed(frame)
        else:
            other.found("of a query whose answer is known")
    return _unchanged(frame, other.why) if other.why else result


_KNOWN: set[str] = set()  # applications of Spark whose plans were understood


def _plans_are_known(spark: SparkSession) -> bool:
    """Return whether the needs of a query are found as they are known, once for each application of Spark."""
    application = spark.sparkContext.applicationId
    if application not in _KNOWN:
        spark.dataSource.register(FilterSource)
        table = spark.read.format(FilterSource.name()).schema("topic string, size int, queue_id int").load()
        plan = table.where("topic = 'a'").select("size")._jdf.queryExecution().analyzed()
        needs = needs_of(spark, plan, relations_of(spark, plan))
        if needs == [Need(frozenset({"topic", "size"}), '[["EqualTo", ["topic"], "a"]]' if FILTERS else "[]", 1)]:
            _KNOWN.add(application)
    return application in _KNOWN


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
    relations = relations_of(spark, plan)
    if not relations:
        return frame
    for relation in relations:
        check_nullable(relation.schema)  # Spark may answer from the declaration alone, without asking the source
    if is_cached(execution):
        return _unchanged(frame, "a part of the query is in Spark's cache")
    needs = needs_of(spark, plan, relations)
    if needs_the_time(spark, plan) and any(need.filters != "[]" for need in needs):
        # a condition that holds now may not hold when the query is run
        _warn(
            "the query depends on the current time, user or database, so its conditions do not narrow what is read; "
            f"give the values as literals, or {_INSTEAD}"
        )
        needs = [Need(need.columns, "[]", need.places) for need in needs]
    chosen = [_read_relation(spark, relation, need) for relation, need in zip(relations, needs, strict=True)]
    narrow = ClassicDataFrame(dataset(spark, with_relations(spark, plan, chosen)), spark)
    # without the alias, Spark would find columns that are not in the result, and were not read, in the plan below it
    return narrow.alias(NAME)


def _read_relation(spark: SparkSession, relation: Relation, need: Need) -> Any:
    """Return a plan with the columns of a relation that reads only those that are needed; the others are null."""
    from pyspark.sql.types import StructType

    if not need.places:
        return None  # the optimizer proves that it need not be read at all
    schema = relation.schema
    read = [field.name for field in schema.fields if field.name in need.columns] or [_cheapest(schema.names)]
    options = dict(relation.options)
    if need.filters != "[]":
        options["filters"] = json.dumps([*json.loads(options.get("filters", "[]")), *json.loads(need.filters)])
    reader = spark.read.format(relation.format).options(**options)
    frame = reader.schema(StructType([schema[name] for name in read])).load()
    jvm: Any = spark._jvm
    to_seq = jvm.PythonUtils.toSeq
    attributes = dict(zip(schema.names, relation.attributes, strict=True))
    node = with_attributes(frame, to_seq([attributes[name] for name in read]))
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


# plans of queries

FORMATS = (
    "rocketmq",
    "rocketmq-queue",
    "rocketmq-index",
    "rocketmq-offsets",
    "rocketmq-timer",
    "rocketmq-findings",
    "rocketmq-damage",
    "rabbitmq",
    FilterSource.name(),  # of the query whose answer is known
)
_RELATION = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"
_SCAN = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation"
_PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
_NUMBER = "occurrence"

# what becomes of the columns of a node's children
_CHOOSES = frozenset({"Project", "Aggregate"})
_PASSES = frozenset({"Filter", "Join", "Sort", "GlobalLimit", "LocalLimit", "Offset", "SubqueryAlias", "Window", "Generate", "Sample"})


@dataclass(frozen=True, slots=True)
class Relation:
    """One occurrence of a relation in a plan. attributes: its columns, in order."""

    node: Any
    format: str
    options: Mapping[str, str]
    attributes: tuple[Any, ...]

    @property
    def schema(self) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.node.schema().json()))


@dataclass(frozen=True, slots=True)
class Need:
    """What a query needs of an occurrence: columns, and rows that fulfil the filters (in the format of the option `filters`).

    places: where the optimized plan reads the occurrence. With several, no filter applies to all of them.
    """

    columns: frozenset[str]
    filters: str
    places: int


# ---- plans


def _items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(k) for k in range(sequence.size())]


def _name(node: Any) -> str:
    return str(node.getClass().getName())


class _Replacing:
    """A Scala partial function that replaces nodes of a plan; None leaves a node as it is."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace

    def applyOrElse(self, node: Any, default: Any) -> Any:  # noqa: N802
        replaced = self._replace(node)
        return default.apply(node) if replaced is None else replaced

    class Java:
        implements = ("scala.PartialFunction",)


def _transformed(spark: SparkSession, plan: Any, replace: Callable[[Any], Any]) -> Any:
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    return plan.transformUpWithSubqueries(_Replacing(replace))


def relations_of(spark: SparkSession, plan: Any) -> list[Relation]:
    """Return the occurrences of relations of this package in an analyzed plan, subqueries included, in the order of a traversal."""
    relations: list[Relation] = []

    def visit(node: Any) -> None:
        relation = _relation(node)
        if relation is not None:
            relations.append(relation)

    _transformed(spark, plan, visit)
    return relations


def with_relations(spark: SparkSession, plan: Any, replacements: Sequence[Any]) -> Any:
    """Return an analyzed plan with each occurrence replaced; None leaves one as it is."""
    waiting = iter(replacements)
    return _transformed(spark, plan, lambda node: None if _relation(node) is None else next(waiting))


def _relation(node: Any) -> Relation | None:
    if _name(node) != _RELATION or _name(node.table()) != _PYTHON_TABLE or node.table().name() not in FORMATS:
        return None
    options = {str(key): str(value) for key, value in node.options().asCaseSensitiveMap().items()}
    return Relation(node, node.table().name(), options, tuple(_items(node.output())))


def needs_the_time(spark: SparkSession, plan: Any) -> bool:
    """Return whether a plan depends on when it is run: on the current time, user or database."""
    pattern: Any = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    return bool(plan.containsPattern(pattern.CURRENT_LIKE()))


def is_cached(execution: Any) -> bool:
    """Return whether a part of a query is in Spark's cache."""
    return any(_name(node).endswith(".InMemoryRelation") for node in _nodes(execution.withCachedData()))


def _nodes(plan: Any) -> list[Any]:
    """Return all nodes of a plan, those of subqueries included."""
    nodes, waiting = [], [plan, *_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting.extend(_items(node.children()))
    return nodes


# ---- what a query needs


def needs_of(spark: SparkSession, plan: Any, relations: Sequence[Relation]) -> list[Need]:
    """Return what an analyzed plan needs of each occurrence of its relations."""
    spark.dataSource.register(FilterSource)
    probes = [_probe(spark, relation, number) for number, relation in enumerate(relations)]
    copy = dataset(spark, with_relations(spark, plan, probes)).queryExecution()
    optimized = copy.optimizedPlan()
    scans: dict[int, list[tuple[Any, set[int]]]] = {}
    for top in (optimized, *_items(optimized.subqueriesAll())):
        _descend(top, _ids(top.output()), scans)
    return [_need(relation, scans.get(number, [])) for number, relation in enumerate(relations)]


def _probe(spark: SparkSession, relation: Relation, number: int) -> Any:
    reader = spark.read.format(FilterSource.name()).option(_NUMBER, str(number))
    return with_attributes(reader.schema(relation.schema).load(), relation.node.output())


def with_attributes(frame: Any, attributes: Any) -> Any:
    """Return the relation of a DataFrame that only reads, with these attributes as its columns."""
    node = frame._jdf.queryExecution().analyzed()
    # table, attributes, catalog, identifier, options, and in later versions of Spark more
    return node.copy(*(attributes if number == 1 else node.productElement(number) for number in range(node.productArity())))


def dataset(spark: SparkSession, plan: Any) -> Any:
    """Return the Java DataFrame of a plan."""
    return spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)  # type: ignore[union-attr]


def _ids(attributes: Any) -> set[int]:
    """Return the ids of attributes from their text `name#id`, in one call to the JVM. A name that looks so only adds an id."""
    return {int(number) for number in re.findall(r"#(\d+)", attributes.mkString(" "))}


def _descend(node: Any, needed: set[int], scans: dict[int, list[tuple[Any, set[int]]]]) -> None:
    """Collect the scans of probes below a node of an optimized plan, with the columns that are used of each.

    needed: the columns that are used of this node. An unknown kind of node is taken to use all columns of its children.
    """
    if _name(node) == _SCAN:
        number = node.relation().options().get(_NUMBER)
        if number is not None:
            scans.setdefault(int(number), []).append((node, needed))
        return
    kind = _name(node).rpartition(".")[2]
    for child in _items(node.children()):
        has = _ids(child.output())
        if kind in _CHOOSES:
            used = _ids(node.references().toSeq())
        elif kind in _PASSES:
            used = needed | _ids(node.references().toSeq())
        else:
            used = has
        _descend(child, used & has, scans)


def _need(relation: Relation, scans: Sequence[tuple[Any, set[int]]]) -> Need:
    # in a part that is repeated the optimizer gives the columns other ids: names identify them
    used: set[str] = set()
    for node, needed in scans:
        names = re.findall(r"(\w+)#(\d+)", node.output().mkString(" "))
        used |= {name for name, number in names if int(number) in needed}
    filters = _filters(scans[0][0]) if len(scans) == 1 else "[]"
    return Need(frozenset(used), filters, len(scans))


def _filters(scan: Any) -> str:
    partition = scan.scan().toBatch().planInputPartitions()[0]
    part = pickle.loads(bytes(partition.pickedPartition()))
    assert isinstance(part, FilterPart)
    return part.filters
