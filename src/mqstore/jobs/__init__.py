"""Whole-store jobs: rebuild, export, lookup, usage, verify, convert."""
