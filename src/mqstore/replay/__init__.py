"""Replay: messages of a store, or of a file of rows, sent to a running broker of either family or put into a store."""
