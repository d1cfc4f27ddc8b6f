"""SQL over one store in DuckDB, without Java: its tables, read as far as a query needs them.

RocketMQ: the views of `mqstore.pipeline.source.views`. RabbitMQ: those of `mqstore.pipeline.source.rabbitmq`, as tables `messages`,
`index_entries`, `records` and `refusals`.

    with StoreTables("/backup/broker-a/store") as tables:
        result = tables.query("select topic, count(*) from messages where queue_id = 1 group by topic")
        result.names, list(result.rows)
        tables.table("select max(size) from messages")  # as an Arrow table

DuckDB asks each table, at each scan, for columns and rows: it passes the names and a filter, which it has derived from the whole query
and does not check again. The messages that a filter excludes are not read, as far as a `Selection` can express it
(`mqstore.pipeline.source.pushdown`); then Arrow applies the filter as it is. The parts of a table are read on all cores.
Conditions on the list of keys are not among what DuckDB passes; they are taken from the statement. Rows are streamed, and DuckDB writes
to a temporary directory what exceeds its memory.

DuckDB passes comparisons of columns with values to a table, but not functions such as `array_contains(keys, 'order-7')`. Its parser can
return a statement as JSON; from that tree the condition on keys is taken, so that other messages are not read. DuckDB evaluates the
statement as it is on what was read. So a condition is only used if every message without such a key is certain to add nothing to the
result:

    * `messages` occurs once in the statement, and no CTE has its name; nothing reads tables by a name in a string, and nothing is sampled
    * the condition is in the WHERE clause of the SELECT in whose FROM clause it occurs, on its own or joined by AND
    * it is there alone or in inner, outer or cross joins: where these fill in nulls, the condition does not hold either
    * `keys` is its column beyond doubt: in a join it is qualified, and no column of the result has that name

    >>> keys_wanted('{"statements": [{"node": {"type": "SELECT_NODE", "from_table": {"type": "BASE_TABLE", "table_name": "queues"}}}]}')

Anything else, and any tree that is not understood, gives None: everything is read.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset

from mqstore.errors import MqstoreError, UnsupportedError, UsageError
from mqstore.files.location import Url
from mqstore.jobs.runner import ThreadRunner
from mqstore.pipeline.source.derived import SOURCES
from mqstore.pipeline.source.options import message_columns, message_fields
from mqstore.pipeline.source.rabbitmq import RABBITMQ_MESSAGE_COLUMNS, RABBITMQ_VIEWS, RabbitMQDataSource
from mqstore.pipeline.source.rocketmq import RocketMQDataSource
from mqstore.pipeline.source.views import FORMATS, MESSAGE_COLUMNS
from mqstore.pipeline.spark.source_api import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from mqstore.table.rows import Rows

if TYPE_CHECKING:
    from types import TracebackType

    from mqstore.pipeline.source.stores import TableFormat
    from mqstore.pipeline.spark.source_api import DataSourceReader, InputPartition
    from mqstore.rabbitmq.store.store import RabbitMQStore
    from mqstore.rocketmq.store.store import RocketMQStore

MEMORY = "1GB"  # beyond which DuckDB uses the temporary directory
ROWS = 2048  # of one batch of the result
AHEAD_BYTES = 8 << 20  # of a part that is read before its turn
_INTERRUPTED = re.compile(r"\bKeyboardInterrupt(: <EMPTY MESSAGE>|:?\s*$)|\binterrupted\W*$", re.IGNORECASE)  # an error that was Ctrl-C
_KINDS = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
_NAMES = {kind: name for name, kind in FORMATS.items()} | {"rocketmq-findings": "findings"}


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a query, which are read while they are iterated over. names: of the columns; numeric: which of them are numbers."""

    names: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Iterator[tuple[Any, ...]]


class StoreTables:
    """The tables of a store, for queries in DuckDB.

    columns: of `messages`; by default all but the body or payload, with its length. family: of the store.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        family: str = "rocketmq",
    ) -> None:
        if find_spec("duckdb") is None:
            raise UnsupportedError("SQL needs DuckDB: pip install 'mqstore[sql]', or run on Spark with --master")
        import duckdb

        options = {"path": os.fspath(store)} | ({} if config is None else {"config": os.fspath(config)})
        if isinstance(store, Url):
            options |= {f"fs.{name}": value for name, value in store.options}
        self._tables = _rabbitmq_tables(options, columns) if family == "rabbitmq" else _rocketmq_tables(options, columns)
        self._spill = tempfile.TemporaryDirectory(prefix="mqstore-sql-")
        self._connection = duckdb.connect(
            config={
                "memory_limit": MEMORY,
                "temp_directory": self._spill.name,
                "autoinstall_known_extensions": "false",
                "python_enable_replacements": "false",
            }
        )
        self._connection.execute("set timezone = 'UTC'")
        for name, table in self._tables.items():
            self._connection.register(name, table)

    def __enter__(self) -> StoreTables:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()
        self._spill.cleanup()

    def query(self, text: str) -> Result:
        """Begin a query, one statement that only reads. Raises UsageError for others, and for what DuckDB refuses."""
        reader = self._reader(text)
        numeric = tuple(
            pa.types.is_integer(each) or pa.types.is_floating(each) or pa.types.is_decimal(each) for each in reader.schema.types
        )
        return Result(tuple(reader.schema.names), numeric, self._rows(reader))

    def table(self, text: str) -> pa.Table:
        """Return the result of a query as a table in memory. Raises like `query`."""
        reader = self._reader(text)
        try:
            return reader.read_all()
        except Exception as error:
            raise self._cause(error) from error

    def _reader(self, text: str) -> Any:
        import duckdb

        kind: Any = duckdb.StatementType
        try:
            statements = self._connection.extract_statements(text)
            if [each.type for each in statements] not in ([kind.SELECT], [kind.EXPLAIN]):
                raise UsageError("give one statement that reads, such as SELECT … FROM messages")
            self._tables["messages"].keys = self._keys_wanted(text)
            return _streamed(self._connection.sql(statements[0]))
        except (duckdb.Error, RuntimeError) as error:
            raise self._cause(error) from error

    def _keys_wanted(self, text: str) -> frozenset[str] | None:
        """Return keys of which each message that a statement uses has one; None if it may use others, too."""
        import duckdb

        if "keys" not in self._tables["messages"].schema.names or "messages" not in text.lower():
            return None
        try:
            tree = self._connection.execute("select json_serialize_sql($1::varchar, skip_null := true, skip_empty := true)", [text])
            return keys_wanted(tree.fetchall()[0][0])
        except (duckdb.Error, RuntimeError):  # a statement or a version of DuckDB that cannot be serialized
            return None

    def _rows(self, reader: Any) -> Iterator[tuple[Any, ...]]:
        try:
            for batch in reader:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except Exception as error:
            raise self._cause(error) from error

    def _cause(self, error: Exception) -> BaseException:
        """Return the interruption or the error of a table that made DuckDB fail, else what DuckDB reports, in one sentence."""
        if _INTERRUPTED.search(str(error)):
            return KeyboardInterrupt()
        failed = next((table.error for table in self._tables.values() if table.error is not None), None)
        if failed is not None:
            return failed
        return UsageError(f"DuckDB: {' '.join(str(error).split())}")


def rows_of(store: RocketMQStore | RabbitMQStore, query: str, columns: Sequence[str] | None) -> Rows:
    """Return the result of a query, in memory. columns: as for `StoreTables`. Raises like `StoreTables.query`, and UnsupportedError."""
    path = store.path if isinstance(store.path, Url) else store.directory.root
    config = getattr(store, "config_path", None)
    with StoreTables(path, columns=columns, config=config, family=store.family) as tables:
        table = tables.table(query)
    return Rows(f"result of {' '.join(query.split())!r}", table.schema, lambda _: iter(table.to_batches()), lambda: table.num_rows)


def _streamed(relation: Any) -> pa.RecordBatchReader:
    """Return the rows of a relation as they are read. DuckDB 1.4 lacks the newer of the methods, and 1.5 warns of the older."""
    read = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_record_batch
    return read(ROWS)


def _rocketmq_tables(options: Mapping[str, str], columns: Sequence[str] | None) -> dict[str, _Table]:
    chosen = message_columns(MESSAGE_COLUMNS if columns is None else columns)
    tables = {"messages": _Table(RocketMQDataSource, options, pa.schema(message_fields(chosen)))}
    for source in SOURCES:
        tables[_NAMES[source.name()]] = _Table(
            source, options, pa.schema([(column, _KINDS[kind]) for column, kind in source.table.items()])
        )
    return tables


def _rabbitmq_tables(options: Mapping[str, str], columns: Sequence[str] | None) -> dict[str, _Table]:
    tables = {}
    for name, view in RABBITMQ_VIEWS.items():
        chosen = {**options, "view": view}
        if view == "messages":
            chosen["columns"] = ",".join(columns or RABBITMQ_MESSAGE_COLUMNS)
        tables[name] = _Table(RabbitMQDataSource, chosen, pa.schema(RabbitMQDataSource(chosen).returned_fields()))
    return tables


class _Table(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """A table of a store as DuckDB reads it: `schema`, and `scanner` at each scan. error: what ended a scan.

    keys: of which each row that the current statement uses has one; None: it may use any row.
    """

    def __init__(self, source: type[TableFormat], options: Mapping[str, str], schema: pa.Schema) -> None:
        self._source = source
        self._options = dict(options)
        self._schema = schema
        self.error: MqstoreError | None = None
        self.keys: frozenset[str] | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
        """Return what reads these columns of the rows that fulfil the filter, which may name others (as that of DuckDB 2.0 does)."""
        chosen = list(self._schema.names if columns is None else columns)
        named = set() if filter is None else columns_of(filter)
        read = chosen + [name for name in self._schema.names if name in named and name not in chosen]
        schema = pa.schema([self._schema.field(name) for name in read])
        conditions = [] if filter is None else conditions_in(filter, schema)
        return _Scan(pa.schema([schema.field(name) for name in chosen]), self._batches(schema, conditions, self.keys), filter)

    def _batches(self, schema: pa.Schema, conditions: Sequence[Filter], keys: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            reader: Any = self._source(self._options).reader_of(schema.names)
            if keys is not None:
                reader.confine_to_keys(keys)
            if hasattr(reader, "confine"):
                reader.confine(conditions)
            yield from (batch.cast(schema) for batch in _read(reader))
        except MqstoreError as error:
            self.error = error
            raise


@dataclass(frozen=True, slots=True)
class _Scan:
    """One scan. Unlike Arrow's scanner it has no threads, which would read on while the interpreter ends."""

    projected_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    filter: Any

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._filtered())

    def _filtered(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            if self.filter is None:
                yield batch
            else:
                yield from pa.Table.from_batches([batch]).filter(self.filter).select(self.projected_schema.names).to_batches()


def _read(reader: DataSourceReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts in their order. Those after the first, which may be enough, are read ahead on all cores."""
    parts = list(reader.partitions())
    for part in parts[:1]:
        yield from reader.read(part)
    ahead = ThreadRunner(len(os.sched_getaffinity(0))).each(parts[1:], partial(_begin, reader))
    for held, rest in ahead:
        yield from held
        yield from rest


def _begin(reader: DataSourceReader, part: InputPartition) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return the first batches of a part, AHEAD_BYTES or more of them, and the rest, which is not read yet."""
    held: list[pa.RecordBatch] = []
    rest = iter(reader.read(part))
    size = 0
    while size < AHEAD_BYTES and (batch := next(rest, None)) is not None:
        held.append(batch)
        size += batch.nbytes
    return held, rest


# ---- filters
#
# An Arrow expression has one form that can be read: that in which it is pickled. It is a file of one record batch, whose columns hold the
# literals and options, and whose metadata are the nodes in the order of a traversal: `call` … `end`, `field_ref`, `literal`, `options`.
# Its Substrait form (pyarrow 26) doubles with each further alternative.

_COMPARISONS: dict[str, Any] = {
    "equal": EqualTo,
    "greater": GreaterThan,
    "greater_equal": GreaterThanOrEqual,
    "less": LessThan,
    "less_equal": LessThanOrEqual,
}


@dataclass(frozen=True, slots=True)
class _Column:
    name: str


@dataclass(slots=True)
class _Call:
    """A function of an expression. arguments: columns, literals, and the conditions of each further call; options: of `is_in`."""

    name: str
    arguments: list[_Column | pa.Scalar | list[Filter]]
    options: Any = None


class _CSchema(ctypes.Structure):
    """The beginning of `ArrowSchema`, see Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the metadata of a schema in their order, with keys that occur twice, which pyarrow leaves out."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = schema.__arrow_c_schema__()
    at = _CSchema.from_address(pointer_of(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal at
        at += 4
        return ctypes.c_int32.from_address(at - 4).value

    def text() -> str:
        nonlocal at
        size = number()
        at += size
        return ctypes.string_at(at - size, size).decode()

    return [(text(), text()) for _ in range(number())] if at else []


def _nodes_of(filter_: Any) -> tuple[list[tuple[str, str]], pa.RecordBatch]:
    """Return the nodes of an Arrow expression, and the batch of its literals and options."""
    reader = pa.ipc.open_file(filter_.__reduce__()[1][0])
    return _metadata_of(reader.schema), reader.get_batch(0)


def columns_of(filter_: Any) -> set[str]:
    """Return the columns that an Arrow expression names.

    >>> sorted(columns_of((pa.compute.field("topic") == "a") | (pa.compute.field("size") > 5)))
    ['size', 'topic']
    """
    return {value for key, value in _nodes_of(filter_)[0] if key == "field_ref"}


def conditions_in(filter_: Any, schema: pa.Schema) -> list[Filter]:
    """Return comparisons that all must hold for a filter, an Arrow expression. Others are left out.

    >>> topic, size = pa.compute.field("topic"), pa.compute.field("size")
    >>> schema = pa.schema([("topic", pa.string()), ("size", pa.int32())])
    >>> conditions_in((topic == "a") & ((size > 5) | (size < 2)), schema)
    [EqualTo(attribute=('topic',), value='a')]
    """
    nodes, values = _nodes_of(filter_)
    top = _Call("", [])
    open_ = [top]
    for key, value in nodes:
        if key == "call":
            open_.append(_Call(value, []))
        elif key == "options":
            open_[-1].options = values.column(int(value))[0].as_py()
        elif key == "end":
            call = open_.pop()
            open_[-1].arguments.append(_conditions_of(call, schema))
        elif key == "literal":
            open_[-1].arguments.append(values.column(int(value))[0])
        elif key == "field_ref":
            open_[-1].arguments.append(_Column(value))
        else:  # a field of a column
            return []
    values = top.arguments[0]
    return values if isinstance(values, list) else []


def _conditions_of(call: _Call, schema: pa.Schema) -> list[Filter]:
    """Return comparisons that all hold where a call is true."""
    match call.name, call.arguments:
        case (("and_kleene" | "and"), [list() as left, list() as right]):
            return [*left, *right]
        case (("or_kleene" | "or"), [list() as left, list() as right]):
            return _either(left, right)
        case "if_else", [_, list() as then, pa.Scalar() as otherwise] if not otherwise.as_py():
            return then
        case "is_in", [_Column(name)]:
            literals = call.options["value_set"]
            kind = schema.field(name).type
            values = [_value(pa.scalar(each), kind) for each in literals]
            return [] if not values or None in values else [In((name,), tuple(values))]
        case operator, [_Column(name), pa.Scalar() as literal] if operator in _COMPARISONS:
            value = _value(literal, schema.field(name).type)
            return [] if value is None else [_COMPARISONS[operator]((name,), value)]
    return []


def _value(literal: pa.Scalar, kind: pa.DataType) -> Any:
    """Return a literal with which a column of a kind is compared, if its value is certain."""
    same = (pa.types.is_string(kind) and pa.types.is_string(literal.type)) or (
        pa.types.is_integer(kind) and pa.types.is_integer(literal.type)
    )
    return literal.as_py() if same or (pa.types.is_timestamp(kind) and literal.type == kind) else None


def _either(left: Sequence[Filter], right: Sequence[Filter]) -> list[Filter]:
    """Return the condition of `left or right` if both compare one column with values; else none."""
    if len(left) != 1 or len(right) != 1:
        return []
    sides: list[Any] = [*left, *right]
    if any(type(each) not in (EqualTo, In) for each in sides) or sides[0].attribute != sides[1].attribute:
        return []
    values = [value for each in sides for value in (each.value if isinstance(each, In) else (each.value,))]
    return [In(sides[0].attribute, tuple(values))]


# conditions on keys


TABLE, COLUMN = "messages", "keys"
MOST_KEYS = 10_000
DEEPEST = 200  # levels of a tree

_ONE = frozenset({"array_contains", "list_contains", "array_has", "list_has", "contains"})
_ANY = frozenset({"array_has_any", "list_has_any", "&&"})
_ALL = frozenset({"array_has_all", "list_has_all", "@>"})
_HARMLESS = frozenset({"unnest", "range", "generate_series"})  # table functions
_JOINS = frozenset({"INNER", "LEFT", "RIGHT", "FULL"})
_JOINED = frozenset({"REGULAR", "CROSS", "NATURAL"})

Node = dict[str, Any]


def keys_wanted(serialized: str) -> frozenset[str] | None:
    """Return keys of which each needed message has one; None if that is not certain. serialized: by `json_serialize_sql`."""
    try:
        tree = json.loads(serialized)
        nodes = list(_nodes(tree))
    except (ValueError, RecursionError):
        return None
    if any(_is_doubtful(node) for node in nodes) or sum(_is(node.get("table_name"), TABLE) for node in nodes) != 1:
        return None
    for node in nodes:
        if node.get("type") == "SELECT_NODE":
            names = _names_in(node.get("from_table"))
            if names is not None and any(table for table, _ in names):
                return _of_select(node, names)
    return None


def _nodes(value: Any, depth: int = 0) -> Iterator[Node]:
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _nodes(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each, depth + 1)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, str) and value.lower() == name


def _is_doubtful(node: Node) -> bool:
    """Return whether a part of a statement may read `messages` by another name, or other rows if there are fewer."""
    if node.get("sample") or (_is(node.get("key"), TABLE) and "value" in node):  # a CTE of that name
        return True
    if node.get("type") == "TABLE_FUNCTION":
        function = node.get("function")
        return not isinstance(function, dict) or str(function.get("function_name")).lower() not in _HARMLESS
    return False


def _names_in(source: Any, depth: int = 0) -> list[tuple[bool, str]] | None:
    """Return the tables of a FROM clause, each with whether it is `messages`, and the name that qualifies its columns; None if in doubt."""
    if not isinstance(source, dict) or depth > DEEPEST:
        return None
    if source.get("type") == "JOIN":
        if str(source.get("join_type")) not in _JOINS or str(source.get("ref_type")) not in _JOINED:
            return None
        sides = [_names_in(source.get(side), depth + 1) for side in ("left", "right")]
        return None if sides[0] is None or sides[1] is None else [*sides[0], *sides[1]]
    name = source.get("alias") or source.get("table_name") or ""
    ours = source.get("type") == "BASE_TABLE" and _is(source.get("table_name"), TABLE)
    if ours and (source.get("column_name_alias") or _is_qualified(source) or source.get("at_clause")):
        return None
    return [(ours, str(name).lower())]


def _of_select(node: Node, names: Sequence[tuple[bool, str]]) -> frozenset[str] | None:
    own = next(name for ours, name in names if ours)
    if sum(name == own for _, name in names) != 1:
        return None
    # a name alone means the table's column: only if there is no other table, and no column of the result with that name
    shown = node.get("select_list")
    bare = len(names) == 1 and isinstance(shown, list) and not any(_is(each.get("alias"), COLUMN) for each in shown)
    return _condition(node.get("where_clause"), own, bare)


def _condition(node: Any, table: str, bare: bool) -> frozenset[str] | None:
    """Return keys of which a row has one if it fulfils a condition."""
    if not isinstance(node, dict):
        return None
    children = _children(node)
    if children is None:
        return None
    if node.get("class") == "CONJUNCTION":
        parts = [_condition(each, table, bare) for each in children]
        sure = [each for each in parts if each is not None]
        if node.get("type") == "CONJUNCTION_AND":
            return min(sure, key=len, default=None)
        if node.get("type") != "CONJUNCTION_OR" or len(sure) != len(parts):
            return None
        either = frozenset[str]().union(*sure)
        return either if 0 < len(either) <= MOST_KEYS else None
    if node.get("class") != "FUNCTION" or len(children) != 2 or _is_qualified(node) or node.get("filter"):
        return None
    if not _is_column(children[0], table, bare):
        return None
    name = str(node.get("function_name")).lower()
    if name in _ONE:
        return _texts([children[1]])
    if name in _ANY or name in _ALL:
        items = _children(children[1]) if isinstance(children[1], dict) and children[1].get("function_name") == "list_value" else None
        keys = None if items is None else _texts(items)
        return keys if keys is None or name in _ANY else frozenset({min(keys)})
    return None


def _children(node: Node) -> list[Any] | None:
    """Return the operands of an expression; since DuckDB 2.0 those of a function are in `arguments`, which may have names."""
    children, arguments = node.get("children"), node.get("arguments")
    if (
        children is None
        and isinstance(arguments, list)
        and all(isinstance(each, dict) and each.keys() == {"expression"} for each in arguments)
    ):
        return [each["expression"] for each in arguments]
    return children if isinstance(children, list) else None


def _is_qualified(node: Node) -> bool:
    """Return whether a table or function is named with its schema; since DuckDB 2.0 that is in `qualified_name`."""
    name = node.get("qualified_name", {"path": [""]})
    if any(node.get(part) for part in ("schema", "catalog", "schema_name", "catalog_name")) or not isinstance(name, dict):
        return True
    path = name.get("path")
    return not isinstance(path, list) or len(path) != 1


def _is_column(node: Any, table: str, bare: bool) -> bool:
    if not isinstance(node, dict) or node.get("class") != "COLUMN_REF" or not isinstance(node.get("column_names"), list):
        return False
    path = [str(name).lower() for name in node["column_names"]]
    return path == [table, COLUMN] or (bare and path == [COLUMN])


def _texts(nodes: Sequence[Any]) -> frozenset[str] | None:
    """Return the texts of constants, if each can be a key as it stands in a record."""
    texts = set()
    for node in nodes:
        text = _text(node) if isinstance(node, dict) and node.get("class") == "CONSTANT" else None
        if not isinstance(text, str) or not text or not text.isprintable() or " " in text or "\ufffd" in text:
            return None
        texts.add(text)
    return frozenset(texts) if 0 < len(texts) <= MOST_KEYS else None


def _text(constant: Node) -> Any:
    """Return the value of a constant that is a text; since DuckDB 2.0 it is in `literal`."""
    value, literal = constant.get("value"), constant.get("literal")
    if isinstance(value, dict) and value.get("is_null") is False and value.get("type") == {"id": "VARCHAR"}:
        return value.get("value")
    return literal.get("text") if value is None and isinstance(literal, dict) and literal.get("kind") == "STRING" else None
