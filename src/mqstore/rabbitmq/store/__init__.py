"""An opened store: virtual hosts, queues, the message table, verification."""
