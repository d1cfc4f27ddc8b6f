"""The store behind a broker, writable or read-only."""
