"""Repairs of stores in place: steps and their changes, applied and taken back through an undo journal; the same for both brokers."""
