"""From the log to consume queue entries and index keys, in memory."""
