"""Queries over stores that read only what they need: DataFrames and SQL on Spark, SQL in DuckDB."""
