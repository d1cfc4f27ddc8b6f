"""Bytes of one RocketMQ file or record to values and back: no store, no threads."""
