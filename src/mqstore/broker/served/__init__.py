"""The store of a broker, writable or read-only."""
