"""The definitions of a node, read from Mnesia, and queue names."""
