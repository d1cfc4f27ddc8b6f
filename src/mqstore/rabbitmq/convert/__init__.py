"""Classic queues from version 1 to version 2 and back, into a new directory."""
