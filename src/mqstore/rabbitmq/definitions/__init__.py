"""Definitions of a node, read from Mnesia, and the names of queues."""
