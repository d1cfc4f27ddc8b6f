"""The message table: the rows that readers return, commands print and exports write, the same columns everywhere.

    columns      names and Arrow types of the columns; which messages a caller selects
    text         rows as JSON objects and CSV cells
    row_files    rows to the part files of an export, one task at a time, or to one new file
    formatting   sizes, times, counts and names that were probably meant, as text for a person
    arrow_spans  Arrow columns, on their way into a store, as plain arrays

The names in `__all__` are the public interface. Deeper module paths are private and may change.
"""

from __future__ import annotations

from mqstore.table.columns import (
    EXTRA_COLUMNS,
    RABBITMQ_COLUMNS,
    RABBITMQ_EXTRA_COLUMNS,
    ROCKETMQ_COLUMNS,
    QueueSelection,
    Selection,
    rabbitmq_schema,
    rocketmq_schema,
)

__all__ = [
    "EXTRA_COLUMNS",
    "RABBITMQ_COLUMNS",
    "RABBITMQ_EXTRA_COLUMNS",
    "ROCKETMQ_COLUMNS",
    "QueueSelection",
    "Selection",
    "rabbitmq_schema",
    "rocketmq_schema",
]


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
