"""Conversion of classic queues between version 1 and version 2, into a new directory."""
