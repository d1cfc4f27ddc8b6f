"""Proving a store sound: the log record by record, then queues and index by rebuilding them and comparing.

`log` checks what records carry in themselves and dispatches them; `queues` and `index` compare the outcome with what
lies on disk and look one by one only at what differs.
"""
