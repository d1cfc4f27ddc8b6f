"""Spark's plan of a query: its relations of this package, and what the query needs of each.

Spark's optimizer knows which columns and rows of a relation a query needs, through joins, subqueries and views. It is asked on a copy
of the plan in which each occurrence of a relation is a table without rows, a probe, so that no occurrence is planned with the filters
of another one. Plans and their nodes are Java objects, and belong to a classic session.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore.pipeline.source.pushdown import FilterPart, FilterSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# formats: whether they have the option `filters`
FORMATS = {
    "rocketmq": True,
    "rocketmq-queue": True,
    "rocketmq-index": True,
    "rocketmq-offsets": True,
    "rocketmq-timer": True,
    "rocketmq-findings": True,
    "rabbitmq": False,
}
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
        found = self._replace(node)
        return default.apply(node) if found is None else found

    class Java:
        implements = ("scala.PartialFunction",)


def _transformed(spark: SparkSession, plan: Any, replace: Callable[[Any], Any]) -> Any:
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    return plan.transformUpWithSubqueries(_Replacing(replace))


def relations_of(spark: SparkSession, plan: Any) -> list[Relation]:
    """Return the occurrences of relations of this package in an analyzed plan, subqueries included, in the order of a traversal."""
    found: list[Relation] = []

    def visit(node: Any) -> None:
        relation = _relation(node)
        if relation is not None:
            found.append(relation)

    _transformed(spark, plan, visit)
    return found


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
    found, waiting = [], [plan, *_items(plan.subqueriesAll())]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(_items(node.children()))
    return found


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


def _descend(node: Any, wanted: set[int], scans: dict[int, list[tuple[Any, set[int]]]]) -> None:
    """Collect the scans of probes below a node of an optimized plan, with the columns that are used of each.

    wanted: the columns that are used of this node. An unknown kind of node is taken to use all columns of its children.
    """
    if _name(node) == _SCAN:
        number = node.relation().options().get(_NUMBER)
        if number is not None:
            scans.setdefault(int(number), []).append((node, wanted))
        return
    kind = _name(node).rpartition(".")[2]
    for child in _items(node.children()):
        has = _ids(child.output())
        if kind in _CHOOSES:
            used = _ids(node.references().toSeq())
        elif kind in _PASSES:
            used = wanted | _ids(node.references().toSeq())
        else:
            used = has
        _descend(child, used & has, scans)


def _need(relation: Relation, scans: Sequence[tuple[Any, set[int]]]) -> Need:
    # in a part that is repeated the optimizer gives the columns other ids: names identify them
    used: set[str] = set()
    for node, wanted in scans:
        names = re.findall(r"(\w+)#(\d+)", node.output().mkString(" "))
        used |= {name for name, number in names if int(number) in wanted}
    filters = _filters(scans[0][0]) if len(scans) == 1 else "[]"
    return Need(frozenset(used), filters, len(scans))


def _filters(scan: Any) -> str:
    partition = scan.scan().toBatch().planInputPartitions()[0]
    part = pickle.loads(bytes(partition.pickedPartition()))
    assert isinstance(part, FilterPart)
    return part.filters
