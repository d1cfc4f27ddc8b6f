"""Other readers on an exported directory: the rows of its Parquet files, of its Iceberg or of its Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mqstore.jobs.lakehouse import CATALOG, TABLE


def plain(root: Path) -> list[dict[str, Any]]:
    rows = [row for path in sorted(root.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: row["physical_offset"])


def iceberg(root: Path) -> pa.Table:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("mqstore", uri=f"sqlite:///{root / CATALOG}", warehouse=str(root))
    try:
        return catalog.load_table(TABLE).scan().to_arrow()
    finally:
        catalog.engine.dispose()


def delta(root: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(str(root)).to_pyarrow_table()


def table(file_format: str, root: Path) -> list[dict[str, Any]]:
    found = iceberg(root) if file_format == "iceberg" else delta(root)
    return sorted(found.to_pylist(), key=lambda row: row["physical_offset"])
