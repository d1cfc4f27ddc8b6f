"""A store that is open for reading: virtual hosts, queues, the message table, verification."""
