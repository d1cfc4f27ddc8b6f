"""Proof that a store is valid: queues and index are derived again and compared."""
