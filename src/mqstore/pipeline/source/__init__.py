"""Data sources and the sink for Spark: batch and streaming."""
