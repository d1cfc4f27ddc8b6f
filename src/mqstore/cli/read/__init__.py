"""Commands that answer questions about a store."""
