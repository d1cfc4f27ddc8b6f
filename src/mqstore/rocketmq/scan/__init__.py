"""From the log to Arrow columns, split by split."""
