"""Repair in place: a plan of changes, an undo journal outside the store, and both directions of it."""
