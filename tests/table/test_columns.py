"""Conditions on messages of RabbitMQ, and the types of the columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mqstore.errors import UsageError
from mqstore.table.columns import RABBITMQ_COLUMNS, RABBITMQ_EXTRA_COLUMNS, QueueSelection, rabbitmq_schema
from mqstore.table.rows import _as_html


def test_a_range_is_empty_if_its_end_is_before_its_begin() -> None:
    for low, high in ((None, None), (3, None), (None, 3), (3, 3), (3, 4)):
        assert QueueSelection(from_seq=low, to_seq=high).from_seq == low
        assert QueueSelection(from_offset=low, to_offset=high).to_offset == high
    with pytest.raises(UsageError, match=r"^the range of sequence ids is empty: 4 is after 3$"):
        QueueSelection(from_seq=4, to_seq=3)
    with pytest.raises(UsageError, match=r"^the range of offsets is empty: 4 is after 3$"):
        QueueSelection(from_offset=4, to_offset=3)


def test_a_type_of_queue_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match=r"^'fanout' is not a type of queue; the types are classic, quorum, stream$"):
        QueueSelection(queue_types=frozenset({"classic", "fanout"}))


@pytest.mark.parametrize(
    ("selection", "types"),
    [
        (QueueSelection(), ["classic", "quorum", "stream"]),
        (QueueSelection(queue_types=frozenset({"quorum"})), ["quorum"]),
        (QueueSelection(from_seq=0), ["classic"]),
        (QueueSelection(to_seq=0), ["classic"]),
        (QueueSelection(to_offset=0), ["stream"]),
        (QueueSelection(filter_values=frozenset()), ["stream"]),
        (QueueSelection(from_seq=0, from_offset=0), []),
    ],
)
def test_what_is_asked_of_some_queues_only_chooses_their_type(selection: QueueSelection, types: list[str]) -> None:
    assert [name for name in ("classic", "quorum", "stream") if selection.has_type(name)] == types


def test_each_column_of_rabbitmq_has_its_type() -> None:
    names = (*RABBITMQ_COLUMNS, *RABBITMQ_EXTRA_COLUMNS)
    schema = rabbitmq_schema(names)
    assert tuple(schema.names) == names
    assert rabbitmq_schema(("size", "vhost")) == pa.schema([("size", pa.int64()), ("vhost", pa.string())])
    fields = {field.name: field.type for field in schema.field("properties").type}
    assert (fields["priority"], fields["timestamp"], fields["reply_to"]) == (pa.int32(), pa.int64(), pa.string())


def test_rows_as_html_are_escaped_cut_and_empty_where_there_is_no_value() -> None:
    html = _as_html(["<a>", "b"], [{"<a>": None, "b": "x" * 60}, {"<a>": 0, "b": "&" + "y" * 60}])
    assert html == (
        "<table><caption>the first 2 rows</caption><thead><tr><th>&lt;a&gt;</th><th>b</th></tr></thead>"
        f"<tbody><tr><td></td><td>{'x' * 60}</td></tr><tr><td>0</td><td>&amp;{'y' * 56}...</td></tr></tbody></table>"
    )
    assert _as_html(["b"], []) == "<table><thead><tr><th>b</th></tr></thead><tbody></tbody></table>"
