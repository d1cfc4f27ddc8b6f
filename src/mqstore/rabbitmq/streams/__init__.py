"""Streams of RabbitMQ: segments and their chunks, indexes, filters, tracking, messages; one directory is one replica of a stream."""
