"""Wrecks: what is left of a store, under its own names or in an image, and the messages that come out of it."""
