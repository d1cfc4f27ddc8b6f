"""Message keys that a statement of DuckDB asks for: a condition that each row it uses of `messages` fulfils.

DuckDB passes comparisons of columns with values to a table, but not functions such as `array_contains(keys, 'order-7')`. Its parser can
return a statement as JSON; from that tree the condition is taken here, so that other messages are not read. DuckDB evaluates the statement
as it is on what was read. So a condition is only used if every message without such a key is certain to add nothing to the result:

    * `messages` occurs once in the statement, and no CTE has its name; nothing reads tables by a name in a string, and nothing is sampled
    * the condition is in the WHERE clause of the SELECT in whose FROM clause it occurs, on its own or joined by AND
    * it is there alone or in inner, outer or cross joins: where these fill in nulls, the condition does not hold either
    * `keys` is its column beyond doubt: in a join it is qualified, and no column of the result has that name

    >>> keys_wanted('{"statements": [{"node": {"type": "SELECT_NODE", "from_table": {"type": "BASE_TABLE", "table_name": "queues"}}}]}')

Anything else, and any tree that is not understood, gives None: everything is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

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
        found = [_condition(each, table, bare) for each in children]
        sure = [each for each in found if each is not None]
        if node.get("type") == "CONJUNCTION_AND":
            return min(sure, key=len, default=None)
        if node.get("type") != "CONJUNCTION_OR" or len(sure) != len(found):
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
        wanted = None if items is None else _texts(items)
        return wanted if wanted is None or name in _ANY else frozenset({min(wanted)})
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
    found = set()
    for node in nodes:
        text = _text(node) if isinstance(node, dict) and node.get("class") == "CONSTANT" else None
        if not isinstance(text, str) or not text or not text.isprintable() or " " in text or "\ufffd" in text:
            return None
        found.add(text)
    return frozenset(found) if 0 < len(found) <= MOST_KEYS else None


def _text(constant: Node) -> Any:
    """Return the value of a constant that is a text; since DuckDB 2.0 it is in `literal`."""
    value, literal = constant.get("value"), constant.get("literal")
    if isinstance(value, dict) and value.get("is_null") is False and value.get("type") == {"id": "VARCHAR"}:
        return value.get("value")
    return literal.get("text") if value is None and isinstance(literal, dict) and literal.get("kind") == "STRING" else None
